//! Tracebacks that are kept: equal ones once, whoever printed them.

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
        let plain = |text: String| text.replace(|c: char| c.is_ascii_digit(), "");
        let same = |known: &&mut Traceback| {
            known.run == run
                && known.parts.len() == finished.parts.len()
                && known.parts.iter().zip(&finished.parts).all(|(a, b)| plain(a.text()) == plain(b.text()))
        };
        if let Some(known) = self.all.iter_mut().find(same) {
            known.count += 1;
            known.last = processes.place(finished.last);
            if known.processes.len() < 32 && !known.processes.contains(&process) {
                known.processes.push(process);
            }
        } else if self.all.len() >= MOST_TRACEBACKS {
            self.left_out += 1;
        } else {
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
