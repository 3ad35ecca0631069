//! Worker threads that split one piece of work and meet again.
//!
//! A decode step of a small model is a few hundred microseconds in some thirty pieces, so the hand-over must cost
//! about one microsecond: workers spin for a moment before they sleep. How the pieces are spread over the threads
//! never changes a result, because every output element is computed whole by one call.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// How often a worker looks for work before it sleeps: about 20 to 50 µs, longer than the gap between two pieces of a step.
const SPINS_BEFORE_SLEEP: u32 = 4_000;

/// Consecutive tasks of a round that belong to one thread until it is done and another one has nothing left.
///
/// A counter that all threads share would travel between their cores for every task: some 80 ns each, where a task of one token takes
/// a microsecond. Two lines of cache long, as processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Share {
    next: AtomicUsize,
    end: AtomicUsize,
}

/// The work of one round: called once on every thread with the thread's number.
type Work = *const (dyn Fn(usize) + Sync);

struct Shared {
    round: AtomicUsize,
    work: UnsafeCell<Option<Work>>,
    unfinished: AtomicUsize,
    stop: AtomicBool,
    sleeping: Mutex<usize>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` is written only by `Threads::run`, before `round` is advanced (release) and after every worker of the
// former round has counted down `unfinished`; workers read it only after seeing the new round (acquire). The closure
// behind the pointer is Sync, and `run` does not return while a worker may still call it.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only followed inside a round.
unsafe impl Send for Shared {}

/// A fixed set of threads; the caller is one of them.
pub struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    shares: Vec<Share>,
    tiles: bool,
}

impl Threads {
    /// `count` threads in all, the caller included; at least one.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn new(count: usize) -> std::io::Result<Threads> {
        let shared = Arc::new(Shared {
            round: AtomicUsize::new(0),
            work: UnsafeCell::new(None),
            unfinished: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            sleeping: Mutex::new(0),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let shares = (0..count.max(1)).map(|_| Share::default()).collect();
        let mut threads = Threads { shared: Arc::clone(&shared), workers: Vec::new(), shares, tiles: false };
        for number in 1..count.max(1) {
            let shared = Arc::clone(&shared);
            let worker = std::thread::Builder::new()
                .name(format!("lucid-worker-{number}"))
                .spawn(move || work_until_stopped(&shared, number))?;
            threads.workers.push(worker);
        }
        Ok(threads)
    }

    /// Lets them compute products on the tile unit.
    ///
    /// # Panics
    /// When there is none.
    #[cfg(target_arch = "x86_64")]
    pub fn use_tiles(&mut self) {
        assert!(super::tiles::available(), "this machine has no tile unit");
        self.tiles = true;
    }

    /// Whether products run on the tile unit.
    #[must_use]
    pub fn tiles(&self) -> bool {
        self.tiles
    }

    /// Threads in all.
    #[must_use]
    pub fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task` for every number below `tasks`: every thread takes its own share in order, so that neighbours stay on one core, and
    /// then what others have left of theirs.
    pub fn for_each(&mut self, tasks: usize, task: impl Fn(usize) + Sync) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(task);
            return;
        }
        let threads = self.count();
        // The round begins after this (release), and the one before has ended.
        for (i, share) in self.shares.iter().enumerate() {
            share.next.store(tasks * i / threads, Ordering::Relaxed);
            share.end.store(tasks * (i + 1) / threads, Ordering::Relaxed);
        }
        self.run(&|thread| {
            let (before, own) = self.shares.split_at(thread);
            for share in own.iter().chain(before) {
                loop {
                    let number = share.next.fetch_add(1, Ordering::Relaxed);
                    if number >= share.end.load(Ordering::Relaxed) {
                        break;
                    }
                    task(number);
                }
            }
        });
    }

    /// Calls `work` once on every thread; a panic on any of them comes out here, after all have ended.
    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Workers call it only inside this round, and this function waits for
        // `unfinished` to reach 0 before it returns, also when `work` panics here.
        let work_ptr: Work = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Work>(work) };
        // SAFETY: no worker reads `work` now: the former round has ended (`&mut self` of the only caller keeps rounds apart).
        unsafe { *shared.work.get() = Some(work_ptr) };
        shared.unfinished.store(self.workers.len(), Ordering::Relaxed);
        // SeqCst pairs with the worker's "I sleep" and last look at `round`: one of the two sees the other.
        shared.round.fetch_add(1, Ordering::SeqCst);
        if *shared.sleeping.lock().unwrap_or_else(PoisonError::into_inner) > 0 {
            shared.wake.notify_all();
        }
        let here = catch_unwind(AssertUnwindSafe(|| work(0)));
        let mut spins = 0u32;
        while shared.unfinished.load(Ordering::Acquire) != 0 {
            spins += 1;
            // On a busy machine the worker may have lost its core: let it have this one.
            if spins.is_multiple_of(1024) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let there = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (here, there) {
            (Err(panic), _) | (Ok(()), Some(panic)) => resume_unwind(panic),
            (Ok(()), None) => {}
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.round.fetch_add(1, Ordering::SeqCst);
        {
            let _sleeping = self.shared.sleeping.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker never panics outside of `catch_unwind`.
            let _ = worker.join();
        }
    }
}

fn work_until_stopped(shared: &Shared, number: usize) {
    let mut seen = 0;
    loop {
        seen = wait_for_round(shared, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: a new round was seen (acquire), so `work` is set and stays valid until this thread counts down.
        let work = unsafe { *shared.work.get() };
        if let Some(work) = work {
            // SAFETY: see `run`: the closure outlives the round.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*work)(number) }));
            if let Err(panic) = result {
                *shared.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
        }
        shared.unfinished.fetch_sub(1, Ordering::Release);
    }
}

/// The number of the next round after `seen`: spins a moment, then sleeps.
fn wait_for_round(shared: &Shared, seen: usize) -> usize {
    for _ in 0..SPINS_BEFORE_SLEEP {
        let round = shared.round.load(Ordering::Acquire);
        if round != seen {
            return round;
        }
        std::hint::spin_loop();
    }
    let mut sleeping = shared.sleeping.lock().unwrap_or_else(PoisonError::into_inner);
    *sleeping += 1;
    loop {
        let round = shared.round.load(Ordering::SeqCst);
        if round != seen {
            *sleeping -= 1;
            return round;
        }
        sleeping = shared.wake.wait(sleeping).unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_in_every_round() {
        for count in [1, 2, 5] {
            let mut threads = Threads::new(count).unwrap();
            for tasks in [0, 1, 2, 3, 100, 1000] {
                let calls: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                threads.for_each(tasks, |task| {
                    calls[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_panic_comes_out_at_the_caller_and_the_threads_live_on() {
        let mut threads = Threads::new(3).unwrap();
        let result = catch_unwind(AssertUnwindSafe(|| {
            threads.for_each(50, |task| assert!(task != 20, "task 20"));
        }));
        assert!(result.is_err());
        let sum = AtomicUsize::new(0);
        threads.for_each(10, |task| {
            sum.fetch_add(task, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }
}
