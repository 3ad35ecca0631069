//! The other ranks' side: they do what rank 0 says, until it ends.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use lucid_checkpoint::Checkpoint;

use super::World;
use super::link::{
    self, Connection, HELLO, MAGIC, MEETING, Patience, READY, Watch, failed, keep_alive, listen,
};
use super::orders::{self, Order};
use crate::cuda::{CudaModel, nccl_present};
use crate::engine::EngineOptions;
use crate::{Device, Error};

/// Between two attempts to reach rank 0.
const RETRY: Duration = Duration::from_millis(200);

/// Rank 0, as another rank knows it.
pub struct Follower {
    connection: Connection,
    orders: Receiver<Vec<u32>>,
    watch: Arc<Watch>,
}

impl Follower {
    /// Goes to rank 0 and says who this is.
    ///
    /// # Errors
    /// When rank 0 can't be reached or refuses.
    pub fn join(world: &World, fingerprint: u64) -> Result<Follower, Error> {
        Follower::join_with(world, fingerprint, Patience::USUAL)
    }

    pub(super) fn join_with(world: &World, fingerprint: u64, patience: Patience) -> Result<Follower, Error> {
        let deadline = Instant::now() + patience.meeting;
        let mut stream = loop {
            match connect(world) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > deadline => {
                    return Err(Error::World {
                        problem: format!("rank 0 at {}:{} can't be reached: {error}", world.host, world.port),
                        hint: "MASTER_ADDR and MASTER_PORT must lead to rank 0's machine; look at its output",
                    });
                }
                // It may not have started yet.
                Err(_) => std::thread::sleep(RETRY),
            }
        };
        let refused = |error: io::Error| Error::World {
            problem: format!("rank 0 hung up: {error}"),
            hint: "look at its output",
        };
        let connection = Connection::new(&stream, patience).map_err(refused)?;
        let (low, high) = (fingerprint as u32, (fingerprint >> 32) as u32);
        let hello = [HELLO, MAGIC, world.rank as u32, world.size as u32, low, high];
        link::write(&mut stream, &hello).map_err(refused)?;
        // Rank 0 is silent until all have come.
        stream.set_read_timeout(Some(patience.meeting)).map_err(refused)?;
        let first = link::read(&mut stream).map_err(refused)?;
        if let Some(problem) = link::failure(&first) {
            return Err(Error::World {
                problem,
                hint: "start all ranks with the same command line, each once",
            });
        }
        stream.set_read_timeout(Some(patience.silence)).map_err(refused)?;
        let watch = Watch::new(patience);
        let (send, orders) = channel();
        // The first message may be an order already.
        if first[0] != link::ALIVE {
            // The receiver is here.
            let _ = send.send(first);
        }
        listen(&watch, "rank 0".to_owned(), stream, send)?;
        keep_alive(&watch, vec![("rank 0".to_owned(), connection.clone())])?;
        Ok(Follower { connection, orders, watch })
    }

    /// NCCL's name of the meeting.
    ///
    /// # Errors
    /// When rank 0 is lost or says something else.
    pub fn meeting(&self) -> Result<[u8; 128], Error> {
        let words = self.next_words()?;
        let mut id = [0; 128];
        match words.split_first() {
            Some((&MEETING, words)) if words.len() == 32 => {
                for (bytes, word) in id.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                    *bytes = word.to_le_bytes();
                }
                Ok(id)
            }
            _ => Err(unexpected(&words)),
        }
    }

    /// Says that this rank's part is loaded.
    ///
    /// # Errors
    /// When rank 0 is lost.
    pub fn say_ready(&self) -> Result<(), Error> {
        if let Err(error) = self.connection.send(&[READY]) {
            self.watch.lose(format!("rank 0 can't be reached any more: {error}"));
        }
        self.watch.check()
    }

    /// Waits for the next order.
    ///
    /// # Errors
    /// When rank 0 is lost or says something else.
    pub fn next(&self) -> Result<Order, Error> {
        let words = self.next_words()?;
        orders::read(&words).ok_or_else(|| unexpected(&words))
    }

    fn next_words(&self) -> Result<Vec<u32>, Error> {
        self.orders.recv().map_err(|_| match self.watch.check() {
            Err(lost) => lost,
            Ok(()) => Error::World { problem: "rank 0 is gone".into(), hint: "look at its output" },
        })
    }

    /// The watch over rank 0.
    #[must_use]
    pub fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Closes the connection, as the end of a process does.
    #[cfg(test)]
    pub(super) fn hang_up(&self) {
        self.connection.close();
    }

    /// Tells rank 0 why this rank can't go on.
    pub(super) fn give_up(&self, error: &Error) {
        self.watch.close();
        // If rank 0 is gone too, the error on this side is enough.
        let _ = self.connection.send(&failed(&error.to_string()));
    }
}

fn connect(world: &World) -> io::Result<TcpStream> {
    let mut problem = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (world.host.as_str(), world.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
            Ok(stream) => return Ok(stream),
            Err(error) => problem = error,
        }
    }
    Err(problem)
}

fn unexpected(words: &[u32]) -> Error {
    Error::World {
        problem: format!("rank 0 said what this rank doesn't know (message {:?})", words.first()),
        hint: "start the same version of lucid everywhere",
    }
}

/// Computes this process' part of a model for rank 0, until that ends.
///
/// # Errors
/// When rank 0 can't be reached or is lost, or this rank can't load or compute its part.
pub fn follow(checkpoint: &Checkpoint, options: &EngineOptions, world: &World) -> Result<(), Error> {
    let Device::Cuda(first) = options.device else {
        return Err(Error::Option {
            option: "device",
            value: options.device.to_string(),
            expected: "ranks in processes of their own are GPUs: it must be cuda",
        });
    };
    let load = options.load(checkpoint)?;
    // What is missing here is said before rank 0 is waited for.
    nccl_present()?;
    let leader = Follower::join(world, load.fingerprint()?)?;
    let run = || {
        let mut model = CudaModel::join(&load, first, world, &leader.meeting()?, leader.watch())?;
        leader.say_ready()?;
        loop {
            let order = leader.next()?;
            let _waiting = leader.watch().wait();
            let done = match order {
                Order::Stop => return Ok(()),
                Order::Cache(pages) => model.set_cache(pages),
                Order::Forward(step) => model.forward(&step.tokens, &step.spans(), None::<&mut ()>),
                Order::Logits(rows) => model.send_logits(&rows),
            };
            // Who is lost explains what failed here.
            leader.watch().check()?;
            done?;
        }
    };
    run().inspect_err(|error| leader.give_up(error))
}
