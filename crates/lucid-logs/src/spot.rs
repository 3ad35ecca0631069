//! A line's place, small enough to pass around for every line.

use std::collections::HashMap;

use crate::evidence::Place;
use crate::moment::Moment;

/// A line's place; [`Processes::place`] makes the kept form of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spot {
    pub source: u32,
    pub line: u64,
    pub time: Option<Moment>,
    pub process: u32,
}

/// The processes that were seen, by number.
#[derive(Default)]
pub(crate) struct Processes {
    names: Vec<String>,
    numbers: HashMap<Vec<u8>, u32>,
    key: Vec<u8>,
    /// The one that was asked for last: a process mostly writes several lines on end.
    latest: (Vec<u8>, u32),
}

/// Most processes told apart: a log that makes up names must not fill the memory.
const MOST: usize = 10_000;

impl Processes {
    /// The number of a process of a source; without a name, of whatever writes there unmarked.
    pub fn number(&mut self, source: u32, name: &[u8], pid: Option<u32>) -> u32 {
        self.key.clear();
        // A named process is the same in every source; an unnamed one is not.
        let source = if name.is_empty() { source } else { u32::MAX };
        self.key.extend_from_slice(&source.to_le_bytes());
        self.key.extend_from_slice(&pid.unwrap_or(0).to_le_bytes());
        self.key.extend_from_slice(&name[..name.len().min(64)]);
        if self.latest.0 == self.key {
            return self.latest.1;
        }
        if let Some(number) = self.numbers.get(&self.key) {
            self.latest.0.clone_from(&self.key);
            self.latest.1 = *number;
            return *number;
        }
        if self.names.len() >= MOST {
            return (MOST - 1) as u32;
        }
        let number = self.names.len() as u32;
        self.names.push(String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned());
        self.numbers.insert(self.key.clone(), number);
        number
    }

    /// Its name; empty if it has none.
    pub fn name(&self, process: u32) -> &str {
        self.names.get(process as usize).map_or("", String::as_str)
    }

    /// The kept form of a place.
    pub fn place(&self, spot: Spot) -> Place {
        Place {
            source: spot.source,
            line: spot.line,
            time: spot.time,
            process: self.name(spot.process).to_owned(),
        }
    }
}
