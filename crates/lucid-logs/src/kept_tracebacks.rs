//! Tracebacks that are kept: equal ones once, whoever printed them.

use std::collections::HashMap;

use crate::assembler::Finished;
use crate::evidence::MOST_TRACEBACKS;
use crate::first_cause;
use crate::knowledge::Knowledge;
use crate::spot::Processes;
use crate::timeline::PhaseKind;
use crate::traceback::Traceback;

/// Tracebacks by text.
#[derive(Clone, Default)]
pub(crate) struct KeptTracebacks {
    pub all: Vec<Traceback>,
    pub left_out: u64,
    /// Where the one with this run and text is.
    known: HashMap<(u32, String), usize>,
}

impl KeptTracebacks {
    /// Keeps one, or counts it if an equal one is there.
    pub fn add(
        &mut self,
        finished: Finished,
        knowledge: &Knowledge,
        processes: &Processes,
        run: u32,
        phase: Option<PhaseKind>,
    ) {
        let (root, role) = first_cause::root(&finished.parts, knowledge);
        let process = processes.name(finished.first.process).to_owned();
        // Every rank prints the same one, with another device number in it.
        let text: String = finished.parts.iter().flat_map(|part| [part.text(), "\n".to_owned()]).collect();
        let key = (run, text.replace(|c: char| c.is_ascii_digit(), ""));
        if let Some(known) = self.known.get(&key).and_then(|index| self.all.get_mut(*index)) {
            known.count += 1;
            known.last = processes.place(finished.last);
            if known.processes.len() < 32 && !known.processes.contains(&process) {
                known.processes.push(process);
            }
        } else if self.all.len() >= MOST_TRACEBACKS {
            self.left_out += 1;
        } else {
            self.known.insert(key, self.all.len());
            self.all.push(Traceback {
                first: processes.place(finished.first),
                last: processes.place(finished.last),
                run,
                phase,
                count: 1,
                processes: vec![process],
                parts: finished.parts,
                root,
                role,
            });
        }
    }
}
