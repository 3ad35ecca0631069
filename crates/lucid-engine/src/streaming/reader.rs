//! Read-ahead: a thread that has the next weights in memory before they are needed, and never more of them than allowed.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};

use lucid_checkpoint::{Checkpoint, Matrix};

use crate::Error;
use crate::weights::{self, Layer, Mlp};

/// What is to be read next.
pub enum Job {
    /// A layer without its routed experts; so many bytes.
    Layer(usize, u64),
    /// An expert, which is mapped so far.
    Expert(Box<Mlp>),
    /// Rows of the output matrix, which are mapped so far.
    Panel(Matrix),
}

impl Job {
    fn bytes(&self) -> u64 {
        match self {
            Job::Layer(_, bytes) => *bytes,
            Job::Expert(mlp) => mlp.stored_bytes() as u64,
            Job::Panel(matrix) => matrix.stored_bytes() as u64,
        }
    }

    /// Tells the operating system that this is next.
    fn announce(&self) {
        let announce = |matrix: &Matrix| {
            let (values, scales) = matrix.stored();
            values.will_be_read();
            scales.inspect(|scales| scales.will_be_read());
        };
        match self {
            // Its tensors aren't looked up yet, and they are few.
            Job::Layer(..) => {}
            Job::Expert(mlp) => [&mlp.gate, &mlp.up, &mlp.down].into_iter().for_each(announce),
            Job::Panel(matrix) => announce(matrix),
        }
    }
}

/// What was read.
pub enum Loaded {
    /// A layer; its routed experts are mapped.
    Layer(Box<Layer>),
    /// An expert.
    Expert(Box<Mlp>),
    /// Rows of the output matrix.
    Panel(Matrix),
}

/// Bytes that are read and not used up.
struct Budget {
    limit: u64,
    state: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl Budget {
    /// Waits until there is room, which is always when nothing is held. False: nobody wants it any more.
    fn take(&self, bytes: u64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.0 > 0 && state.0 + bytes > self.limit && !state.1 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.0 += bytes;
        !state.1
    }

    fn change(&self, change: impl FnOnce(&mut (u64, bool))) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

/// Something that was read, and its share of the budget, which goes back when it is dropped.
pub struct Held {
    /// What was read.
    pub loaded: Loaded,
    bytes: u64,
    budget: Arc<Budget>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.change(|state| state.0 -= self.bytes);
    }
}

/// Jobs in, weights out, in the same order.
pub struct Reader<'scope> {
    jobs: Option<Sender<Job>>,
    results: Option<Receiver<Result<Held, Error>>>,
    budget: Arc<Budget>,
    thread: Option<ScopedJoinHandle<'scope, ()>>,
    /// Bytes that came.
    pub bytes: u64,
}

/// Bytes that the operating system is asked for ahead of the thread's own reading.
const ANNOUNCED: u64 = 64 << 20;

impl<'scope> Reader<'scope> {
    /// Starts the thread; at most `limit` bytes are read and unused (a single job may have more).
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        checkpoint: &'env Checkpoint,
        limit: u64,
    ) -> Result<Reader<'scope>, Error> {
        let budget = Arc::new(Budget { limit, state: Mutex::new((0, false)), changed: Condvar::new() });
        let ((jobs, inbox), (outbox, results)) = (channel(), channel());
        let shared = Arc::clone(&budget);
        let thread = std::thread::Builder::new()
            .name("lucid-reader".into())
            .spawn_scoped(scope, move || read_all(checkpoint, &shared, &inbox, &outbox))
            .map_err(Error::Threads)?;
        Ok(Reader { jobs: Some(jobs), results: Some(results), budget, thread: Some(thread), bytes: 0 })
    }

    /// Queues a job.
    pub fn push(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The thread ends early only after an error, which `next` tells.
            let _ = jobs.send(job);
        }
    }

    /// Waits for what the next job read.
    ///
    /// # Errors
    /// When it could not be read.
    pub fn next(&mut self) -> Result<Held, Error> {
        let held = match self.results.as_ref().map(Receiver::recv) {
            Some(Ok(result)) => result?,
            _ => return Err(Error::Threads(std::io::Error::other("the reader's thread has ended"))),
        };
        self.bytes += held.bytes;
        Ok(held)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.jobs = None;
        self.budget.change(|state| state.1 = true);
        // What was read and not wanted goes first: it holds shares of the budget.
        self.results = None;
        if let Some(thread) = self.thread.take() {
            // A panic there comes out of the scope.
            let _ = thread.join();
        }
    }
}

fn read_all(
    checkpoint: &Checkpoint,
    budget: &Arc<Budget>,
    jobs: &Receiver<Job>,
    results: &Sender<Result<Held, Error>>,
) {
    let (mut queue, mut announced) = (VecDeque::new(), 0);
    loop {
        while let Ok(job) = jobs.try_recv() {
            queue.push_back(job);
        }
        let Some(job) = queue.pop_front().or_else(|| jobs.recv().ok()) else { return };
        announced = usize::saturating_sub(announced, 1);
        let mut ahead: u64 = queue.iter().take(announced).map(Job::bytes).sum();
        while let Some(job) = queue.get(announced).filter(|_| ahead < ANNOUNCED) {
            job.announce();
            ahead += job.bytes();
            announced += 1;
        }
        let bytes = job.bytes();
        if !budget.take(bytes) {
            return;
        }
        let loaded = match job {
            Job::Layer(i, _) => {
                weights::read_layer(checkpoint, i).map(|layer| Loaded::Layer(Box::new(layer)))
            }
            Job::Expert(mlp) => mlp.read().map(|mlp| Loaded::Expert(Box::new(mlp))),
            Job::Panel(matrix) => matrix.read().map(Loaded::Panel).map_err(Error::from),
        };
        let failed = loaded.is_err();
        let held = loaded.map(|loaded| Held { loaded, bytes, budget: Arc::clone(budget) });
        if results.send(held).is_err() || failed {
            return;
        }
    }
}
