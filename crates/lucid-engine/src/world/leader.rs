//! Rank 0's side.

use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::link::{
    self, Connection, HELLO, MAGIC, MEETING, Patience, READY, Waiting, Watch, failed, keep_alive, listen,
};
use super::{World, orders};
use crate::Error;

/// How often it looks for who is missing.
const LOOK: Duration = Duration::from_millis(20);

/// The others, as rank 0 knows them.
pub struct Leader {
    others: Vec<(String, Connection)>,
    answers: Receiver<Vec<u32>>,
    watch: Arc<Watch>,
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.watch.close();
        for (_, connection) in &self.others {
            // Who is gone needs no order.
            let _ = connection.send(&orders::stop());
        }
    }
}

impl Leader {
    /// Waits for all other ranks of `world`, which must compute what `fingerprint` stands for.
    ///
    /// # Errors
    /// When the port is taken, somebody doesn't come, or comes with other options.
    pub fn meet(world: &World, fingerprint: u64) -> Result<Leader, Error> {
        let here: Option<IpAddr> = world.host.parse().ok().filter(IpAddr::is_loopback);
        let listener = match here {
            Some(address) => TcpListener::bind((address, world.port)),
            None => {
                TcpListener::bind(("::", world.port)).or_else(|_| TcpListener::bind(("0.0.0.0", world.port)))
            }
        };
        let listener = listener.map_err(|error| Error::World {
            problem: format!("rank 0 can't listen on port {}: {error}", world.port),
            hint: "set MASTER_PORT to a free port, for all ranks",
        })?;
        Leader::accept(&listener, world.size, fingerprint, Patience::USUAL)
    }

    pub(super) fn accept(
        listener: &TcpListener,
        size: usize,
        fingerprint: u64,
        patience: Patience,
    ) -> Result<Leader, Error> {
        let problem = |error: io::Error| Error::World {
            problem: format!("rank 0 can't take connections: {error}"),
            hint: "start the job again",
        };
        listener.set_nonblocking(true).map_err(problem)?;
        let deadline = Instant::now() + patience.meeting;
        let mut seats: Vec<Option<(TcpStream, Connection)>> = (1..size).map(|_| None).collect();
        while seats.iter().any(Option::is_none) {
            let (mut stream, from) = match listener.accept() {
                Ok(connected) => connected,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if Instant::now() > deadline {
                        let missing = (1..size).filter(|rank| seats[rank - 1].is_none());
                        let missing: Vec<String> = missing.map(|rank| rank.to_string()).collect();
                        return Err(Error::World {
                            problem: format!(
                                "of {size} ranks, {} did not come within {} s",
                                missing.join(", "),
                                patience.meeting.as_secs()
                            ),
                            hint: "look at their output; MASTER_ADDR and MASTER_PORT must lead them here",
                        });
                    }
                    std::thread::sleep(LOOK);
                    continue;
                }
                Err(error) => return Err(problem(error)),
            };
            stream.set_nonblocking(false).map_err(problem)?;
            let connection = Connection::new(&stream, patience).map_err(problem)?;
            let [HELLO, MAGIC, rank, ranks, low, high] = *link::read(&mut stream).unwrap_or_default() else {
                // A stranger: the port is open to others.
                let _ = connection.send(&failed("this is not a rank of the same version of lucid"));
                continue;
            };
            let theirs = u64::from(high) << 32 | u64::from(low);
            let wrong = if ranks as usize != size {
                Some(format!("it counts {ranks} ranks, and rank 0 {size}"))
            } else if theirs != fingerprint {
                Some("it has another model or other options than rank 0".to_owned())
            } else if !(1..size).contains(&(rank as usize)) || seats[rank as usize - 1].is_some() {
                Some("there is one of that number already".to_owned())
            } else {
                None
            };
            if let Some(wrong) = wrong {
                // Told to both sides; if that one is gone, rank 0's error is enough.
                let _ = connection.send(&failed(&wrong));
                return Err(Error::World {
                    problem: format!("rank {rank} at {from}: {wrong}"),
                    hint: "start all ranks with the same command line, each once",
                });
            }
            seats[rank as usize - 1] = Some((stream, connection));
        }
        let watch = Watch::new(patience);
        let (send, answers) = channel();
        let mut others = Vec::new();
        for (rank, (stream, connection)) in (1..).zip(seats.into_iter().flatten()) {
            let who = stream.peer_addr().map_or_else(|_| String::new(), |address| format!(" ({address})"));
            let who = format!("rank {rank}{who}");
            listen(&watch, who.clone(), stream, send.clone())?;
            others.push((who, connection));
        }
        keep_alive(&watch, others.clone())?;
        Ok(Leader { others, answers, watch })
    }

    /// Gives the others NCCL's name of their meeting.
    ///
    /// # Errors
    /// When somebody is lost.
    pub fn send_meeting(&self, id: &[u8; 128]) -> Result<(), Error> {
        let words = id.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        self.order(&std::iter::once(MEETING).chain(words).collect::<Vec<u32>>())
    }

    /// All ranks, with this one.
    #[must_use]
    pub fn size(&self) -> usize {
        1 + self.others.len()
    }

    /// Waits until the others have loaded their parts.
    ///
    /// # Errors
    /// When somebody is lost or can't.
    pub fn wait_until_ready(&self) -> Result<(), Error> {
        let mut missing = self.others.len();
        while missing > 0 {
            self.watch.check()?;
            match self.answers.recv_timeout(LOOK) {
                Ok(words) if words == [READY] => missing -= 1,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                // All are gone; the watch knows why.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
            }
        }
        Ok(())
    }

    /// Tells all others what to do.
    ///
    /// # Errors
    /// When somebody is lost.
    pub fn order(&self, words: &[u32]) -> Result<(), Error> {
        self.watch.check()?;
        for (who, connection) in &self.others {
            if let Err(error) = connection.send(words) {
                self.watch.lose(format!("{who} can't be reached any more: {error}"));
            }
        }
        self.watch.check()
    }

    /// The watch over the others.
    #[must_use]
    pub fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Until it is dropped, a step is waited for.
    pub fn wait(&self) -> Waiting<'_> {
        self.watch.wait()
    }
}
