//! Messages between ranks, and the watch over each other: who is gone, silent or stuck must not leave anybody waiting.
//!
//! A message is a count of words and so many u32 words, little-endian; the first says what it is.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;

/// Words of a message at the most: 16 MB, a step of a million tokens.
const MOST_WORDS: usize = 1 << 22;

/// A following rank says who it is: [`MAGIC`], rank, ranks, fingerprint of what is computed in two words.
pub const HELLO: u32 = 1;
/// Rank 0 gives the others NCCL's name of their meeting.
pub const MEETING: u32 = 2;
/// A following rank has loaded its part.
pub const READY: u32 = 3;
/// Nothing happened, on either side.
pub const ALIVE: u32 = 4;
/// It can't go on; text follows.
pub const FAILED: u32 = 5;

/// "LUC" and the version of these messages.
pub const MAGIC: u32 = u32::from_be_bytes(*b"LUC\x01");

/// How long others are waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Until all have come.
    pub meeting: Duration,
    /// Between two messages of one that has come.
    pub silence: Duration,
    /// For a step: whoever waits longer is stuck with somebody else's GPU.
    pub step: Duration,
}

impl Patience {
    /// Nodes of a job may start minutes apart. A step takes seconds at the most.
    pub const USUAL: Patience = Patience {
        meeting: Duration::from_secs(300),
        silence: Duration::from_secs(30),
        step: Duration::from_secs(120),
    };

    /// How often everybody says that it is alive.
    fn pulse(self) -> Duration {
        self.silence / 10
    }
}

/// Writes a message.
pub fn write(stream: &mut impl Write, words: &[u32]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(4 * (words.len() + 1));
    for word in std::iter::once(&(words.len() as u32)).chain(words) {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    stream.write_all(&bytes)
}

/// Reads a message, which is not empty.
pub fn read(stream: &mut impl Read) -> io::Result<Vec<u32>> {
    let mut count = [0; 4];
    stream.read_exact(&mut count)?;
    let count = u32::from_le_bytes(count) as usize;
    if count == 0 || count > MOST_WORDS {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {count} words")));
    }
    let mut bytes = vec![0; 4 * count];
    stream.read_exact(&mut bytes)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

/// [`FAILED`] with its text.
#[must_use]
pub fn failed(text: &str) -> Vec<u32> {
    let mut words = vec![FAILED];
    words.extend(text.chars().take(MOST_WORDS - 1).map(u32::from));
    words
}

/// The text of [`FAILED`], if that is what it is.
#[must_use]
pub fn failure(words: &[u32]) -> Option<String> {
    match words.split_first() {
        Some((&FAILED, text)) => Some(text.iter().map(|&c| char::from_u32(c).unwrap_or('?')).collect()),
        _ => None,
    }
}

/// A way to somebody else.
#[derive(Clone)]
pub struct Connection {
    stream: Arc<Mutex<TcpStream>>,
}

impl Connection {
    /// To who is on the other side.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn new(stream: &TcpStream, patience: Patience) -> io::Result<Connection> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience.silence))?;
        stream.set_write_timeout(Some(patience.silence))?;
        Ok(Connection { stream: Arc::new(Mutex::new(stream.try_clone()?)) })
    }

    /// Ends it, for both directions.
    #[cfg(test)]
    pub fn close(&self) {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the other side is gone or doesn't read.
    pub fn send(&self, words: &[u32]) -> io::Result<()> {
        write(&mut *self.stream.lock().unwrap_or_else(PoisonError::into_inner), words)
    }
}

/// Ends what others are waited for with.
type Abort = Arc<dyn Fn() + Send + Sync>;

/// What a rank knows of the others.
pub struct Watch {
    state: Mutex<State>,
    closed: AtomicBool,
    patience: Patience,
}

#[derive(Default)]
struct State {
    lost: Option<String>,
    since: Option<Instant>,
    abort: Option<Abort>,
}

/// While it lives, somebody waits for a step.
pub struct Waiting<'a>(&'a Watch);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().since = None;
    }
}

impl Watch {
    /// All is well.
    #[must_use]
    pub fn new(patience: Patience) -> Arc<Watch> {
        Arc::new(Watch { state: Mutex::default(), closed: AtomicBool::new(false), patience })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody is lost: the first reason stays, and waiting ends.
    pub fn lose(&self, problem: String) {
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        let mut state = self.state();
        state.lost.get_or_insert(problem);
        let abort = state.abort.take();
        drop(state);
        if let Some(abort) = abort {
            abort();
        }
    }

    /// `abort` ends what others are waited for with, once somebody is lost.
    pub fn on_loss(&self, abort: impl Fn() + Send + Sync + 'static) {
        let mut state = self.state();
        if state.lost.is_some() {
            drop(state);
            return abort();
        }
        state.abort = Some(Arc::new(abort));
    }

    /// # Errors
    /// When somebody is lost.
    pub fn check(&self) -> Result<(), Error> {
        match &self.state().lost {
            Some(problem) => Err(Error::World {
                problem: problem.clone(),
                hint: "look at the output of all ranks, and start them again",
            }),
            None => Ok(()),
        }
    }

    /// From now on a step is waited for.
    pub fn wait(&self) -> Waiting<'_> {
        self.state().since = Some(Instant::now());
        Waiting(self)
    }

    /// Nobody is missed any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }
}

/// Tells the others from time to time that this process lives, and watches over its own waiting. Ends when the watch is closed or
/// somebody is lost.
///
/// # Errors
/// When the operating system has no thread.
pub fn keep_alive(
    watch: &Arc<Watch>,
    connections: Vec<(String, Connection)>,
) -> Result<JoinHandle<()>, Error> {
    let watch = Arc::clone(watch);
    let run = move || {
        while !watch.closed.load(Ordering::SeqCst) && watch.check().is_ok() {
            for (who, connection) in &connections {
                if let Err(error) = connection.send(&[ALIVE]) {
                    watch.lose(format!("{who} can't be reached any more: {error}"));
                }
            }
            let since = watch.state().since;
            if let Some(since) = since.filter(|since| since.elapsed() > watch.patience.step) {
                let seconds = since.elapsed().as_secs();
                watch.lose(format!(
                    "a step has not ended after {seconds} s: another rank's GPU doesn't answer"
                ));
            }
            std::thread::sleep(watch.patience.pulse());
        }
    };
    std::thread::Builder::new().name("lucid-alive".into()).spawn(run).map_err(Error::Threads)
}

/// Passes on what `who` sends, until that ends; then it is lost, unless the watch is closed.
///
/// # Errors
/// When the operating system has no thread.
pub fn listen(
    watch: &Arc<Watch>,
    who: String,
    mut stream: TcpStream,
    to: Sender<Vec<u32>>,
) -> Result<JoinHandle<()>, Error> {
    let watch = Arc::clone(watch);
    let run = move || {
        loop {
            match read(&mut stream) {
                Ok(words) if words[0] == ALIVE => {}
                Ok(words) => match failure(&words) {
                    Some(text) => return watch.lose(format!("{who} can't go on: {text}")),
                    None if to.send(words).is_err() => return,
                    None => {}
                },
                Err(error) => {
                    let silent = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&error.kind());
                    let seconds = watch.patience.silence.as_secs_f32();
                    return watch.lose(match error.kind() {
                        _ if silent => format!("{who} has been silent for {seconds} s"),
                        io::ErrorKind::UnexpectedEof => format!("{who} is gone: its connection has ended"),
                        _ => format!("{who} is gone: {error}"),
                    });
                }
            }
        }
    };
    std::thread::Builder::new().name("lucid-listen".into()).spawn(run).map_err(Error::Threads)
}
