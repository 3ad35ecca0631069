//! Known lines, folded while they are read.

use std::collections::HashMap;

use crate::evidence::{Hit, excerpt};
use crate::knowledge::Knowledge;
use crate::spot::{Processes, Spot};
use crate::timeline::PhaseKind;

#[derive(Clone)]
struct OpenHit {
    count: u64,
    first: Spot,
    last: Spot,
    processes: Vec<u32>,
    text: String,
}

/// Signature, track, run, phase.
type Key = (u16, Option<usize>, u32, Option<PhaseKind>);

/// Hits by signature, run and phase.
#[derive(Default)]
pub(crate) struct Hits {
    open: HashMap<Key, OpenHit>,
    left_out: u64,
}

/// Most kinds counted while reading.
const MOST_OPEN: usize = 20_000;

impl Hits {
    /// Counts a line.
    pub fn add(
        &mut self,
        signature: u16,
        track: Option<usize>,
        run: u32,
        phase: Option<PhaseKind>,
        spot: Spot,
        message: &[u8],
    ) {
        let key = (signature, track, run, phase);
        if let Some(hit) = self.open.get_mut(&key) {
            hit.count += 1;
            hit.last = spot;
            if hit.processes.len() < 32 && !hit.processes.contains(&spot.process) {
                hit.processes.push(spot.process);
            }
        } else if self.open.len() < MOST_OPEN {
            let hit = OpenHit {
                count: 1,
                first: spot,
                last: spot,
                processes: vec![spot.process],
                text: excerpt(message),
            };
            self.open.insert(key, hit);
        } else {
            self.left_out += 1;
        }
    }

    /// The hits in order, at most `most`, and how many were left out. `before` gives the phase of lines that came before
    /// a track's first mark.
    pub fn write(
        &self,
        knowledge: &Knowledge,
        processes: &Processes,
        most: usize,
        before: &dyn Fn(Option<usize>) -> Option<PhaseKind>,
    ) -> (Vec<Hit>, u64) {
        let mut merged: HashMap<(u16, u32, Option<PhaseKind>), OpenHit> = HashMap::new();
        for ((signature, track, run, phase), open) in &self.open {
            let phase = phase.or_else(|| if *run == 0 { before(*track) } else { None });
            merged
                .entry((*signature, *run, phase))
                .and_modify(|hit| {
                    hit.count += open.count;
                    let order = |spot: &Spot| (spot.time, spot.source, spot.line);
                    if order(&open.first) < order(&hit.first) {
                        hit.first = open.first;
                        hit.text.clone_from(&open.text);
                    }
                    if order(&open.last) > order(&hit.last) {
                        hit.last = open.last;
                    }
                    hit.processes.extend(&open.processes);
                    hit.processes.sort_unstable();
                    hit.processes.dedup();
                    hit.processes.truncate(32);
                })
                .or_insert_with(|| open.clone());
        }
        let mut hits: Vec<Hit> = merged
            .into_iter()
            .map(|((signature, run, phase), open)| Hit {
                signature: knowledge.signatures[usize::from(signature)].0.id.clone(),
                run,
                phase,
                count: open.count,
                first: processes.place(open.first),
                last: processes.place(open.last),
                processes: open
                    .processes
                    .iter()
                    .map(|process| processes.name(*process).to_owned())
                    .filter(|name| !name.is_empty())
                    .collect(),
                text: open.text,
            })
            .collect();
        hits.sort_by(|a, b| {
            let key = |hit: &Hit| (hit.run, hit.first.time, hit.first.source, hit.first.line);
            key(a).cmp(&key(b)).then_with(|| a.signature.cmp(&b.signature))
        });
        let left_out = self.left_out + hits.len().saturating_sub(most) as u64;
        hits.truncate(most);
        (hits, left_out)
    }
}
