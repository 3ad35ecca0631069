//! Two files at a time through one core's SHA-256 unit ([`super::sha256_pair`]).

use std::fs::File;
use std::io::{self, Read};

use super::cache::HashCache;
use super::hashing::{self, About, BLOCK, Begun, Outcome, Task};
use super::sha256_pair::{self, INITIAL, State, Unit};
use crate::record::Algorithm;

/// A file that is being read, from the front of its buffer.
struct Lane {
    at: usize,
    about: About,
    file: File,
    state: State,
    /// Bytes read so far.
    seen: u64,
    /// What was read and not hashed: `buffer[from..to]`.
    from: usize,
    to: usize,
    ended: bool,
    buffer: Vec<u8>,
}

impl Lane {
    fn rest(&self) -> &[u8] {
        &self.buffer[self.from..self.to]
    }

    /// Reads on, once less than a block is left.
    fn fill(&mut self) -> io::Result<()> {
        while !self.ended && self.to - self.from < sha256_pair::BLOCK {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            match self.file.read(&mut self.buffer[self.to..]) {
                Ok(read) => {
                    self.to += read;
                    self.seen += read as u64;
                    // Most files are short, and asking them for their end costs as much as reading them.
                    self.ended = read == 0 || self.seen == self.about.size;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A core's two lanes.
pub(super) struct Lanes<'a> {
    unit: Unit,
    tasks: &'a [Task],
    cache: &'a HashCache,
    /// Buffers that no lane uses.
    spare: Vec<Vec<u8>>,
}

impl<'a> Lanes<'a> {
    pub(super) fn new(unit: Unit, tasks: &'a [Task], cache: &'a HashCache) -> Lanes<'a> {
        Lanes { unit, tasks, cache, spare: Vec::new() }
    }

    /// Looks at tasks until there are no `more`; stops early if nobody wants to be told.
    pub(super) fn run(
        mut self,
        more: &mut dyn FnMut() -> Option<usize>,
        tell: &mut dyn FnMut(usize, Outcome) -> bool,
    ) {
        let mut lanes: [Option<Lane>; 2] = [None, None];
        loop {
            for lane in &mut lanes {
                while lane.is_none()
                    && let Some(at) = more()
                {
                    match self.open(at) {
                        Ok(opened) => *lane = Some(opened),
                        Err(outcome) => {
                            if !tell(at, outcome) {
                                return;
                            }
                        }
                    }
                }
            }
            match &mut lanes {
                [Some(one), Some(other)] => {
                    let states = [&mut one.state, &mut other.state];
                    let texts = [&one.buffer[one.from..one.to], &other.buffer[other.from..other.to]];
                    let taken = self.unit.blocks(states, texts);
                    one.from += taken;
                    other.from += taken;
                }
                [Some(lane), None] | [None, Some(lane)] => {
                    lane.from += self.unit.blocks([&mut lane.state], [&lane.buffer[lane.from..lane.to]]);
                }
                [None, None] => return,
            }
            for lane in &mut lanes {
                let Some(open) = lane else { continue };
                let filled = open.fill();
                if filled.is_ok() && open.to - open.from >= sha256_pair::BLOCK {
                    continue;
                }
                let Some(mut ended) = lane.take() else { continue };
                let digest = filled.map(|()| {
                    let mut state = ended.state;
                    self.unit.finish(&mut state, ended.rest(), ended.seen)
                });
                self.spare.push(std::mem::take(&mut ended.buffer));
                if !tell(ended.at, ended.about.hashed(digest)) {
                    return;
                }
            }
        }
    }

    /// A lane on a file, or what is known of it without one.
    fn open(&mut self, at: usize) -> Result<Lane, Outcome> {
        let task = &self.tasks[at];
        let (about, algorithm) = match hashing::begin(task, self.cache) {
            Begun::Settled(outcome) => return Err(outcome),
            Begun::ToRead(about, algorithm) => (about, algorithm),
        };
        let mut buffer = self.spare.pop().unwrap_or_else(|| vec![0; BLOCK]);
        if algorithm != Algorithm::Sha256 {
            let digest = hashing::digest(&task.host, about.size, algorithm, &mut buffer);
            self.spare.push(buffer);
            return Err(about.hashed(digest));
        }
        let opened = File::open(&task.host).map(|file| Lane {
            at,
            about,
            file,
            state: INITIAL,
            seen: 0,
            from: 0,
            to: 0,
            ended: false,
            buffer,
        });
        let mut lane = opened.map_err(|error| about.hashed(Err(error)))?;
        match lane.fill() {
            Ok(()) => Ok(lane),
            Err(error) => {
                self.spare.push(std::mem::take(&mut lane.buffer));
                Err(about.hashed(Err(error)))
            }
        }
    }
}
