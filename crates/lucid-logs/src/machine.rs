//! Follows what a service is doing, mark by mark.

use std::collections::HashSet;

use crate::evidence::Place;
use crate::spot::{Processes, Spot};
use crate::timeline::{Phase, PhaseKind, Run, RunEnd, Timeline};

/// Which side of a phase a mark stands on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Edge {
    /// The phase begins here: a step back (a draft model is loaded after capture) is believed.
    Begin,
    /// In the middle or at the end of it: a slow rank's line doesn't take the others back.
    #[default]
    Within,
    /// What happens only in this phase, though nobody announced it (requests are answered).
    Implied,
}

struct OpenRun {
    first: Spot,
    last: Spot,
    ready: Option<Spot>,
    reached: Option<PhaseKind>,
    ended: Option<(PhaseKind, Spot)>,
    /// Sources that announced this run.
    starts: HashSet<u32>,
    /// A traceback that ended, with the number of lines and marks after it.
    traceback: Option<(Spot, u64)>,
}

struct OpenPhase {
    kind: PhaseKind,
    run: u32,
    first: Spot,
    last: Spot,
    lines: u64,
}

/// The state of a service, and how it got there.
#[derive(Default)]
pub(crate) struct Machine {
    runs: Vec<OpenRun>,
    phases: Vec<OpenPhase>,
    current: Option<PhaseKind>,
    /// The phase in which it crashed.
    before_crash: Option<PhaseKind>,
    /// The first mark, and whether it was implied.
    first_mark: Option<(PhaseKind, Edge)>,
    left_out: u64,
}

impl Machine {
    /// In which phase it is, or was when it crashed: what is printed about a crash belongs there. `None` until the log
    /// says so.
    pub fn phase(&self) -> Option<PhaseKind> {
        match self.current {
            Some(PhaseKind::Crash) => self.before_crash,
            current => current,
        }
    }

    /// Which run it is, from 0.
    pub fn run(&self) -> u32 {
        self.runs.len().saturating_sub(1) as u32
    }

    /// Phase of lines that came before the first mark.
    pub fn before_first_mark(&self) -> Option<PhaseKind> {
        match self.first_mark {
            Some((PhaseKind::Serve, Edge::Implied)) => Some(PhaseKind::Serve),
            Some((kind, _)) if kind <= PhaseKind::Serve => Some(PhaseKind::Start),
            _ => None,
        }
    }

    /// How many phases it saw.
    pub fn phases(&self) -> usize {
        self.phases.len()
    }

    /// Counts a line.
    pub fn touch(&mut self, spot: Spot) {
        if self.runs.is_empty() {
            self.begin_run(spot);
        }
        if let Some(run) = self.runs.last_mut() {
            run.last = spot;
            run.first.time = run.first.time.or(spot.time);
            if let Some((_, lines)) = &mut run.traceback {
                *lines += 1;
            }
        }
        if let Some(phase) = self.phases.last_mut() {
            phase.lines += 1;
            phase.first.time = phase.first.time.or(spot.time);
            phase.last = keep_time(phase.last, spot);
        }
    }

    /// Takes a mark of a phase.
    pub fn mark(&mut self, kind: PhaseKind, edge: Edge, spot: Spot) {
        self.first_mark.get_or_insert((kind, edge));
        let ended = matches!(self.current, Some(PhaseKind::Crash | PhaseKind::Shutdown));
        match kind {
            PhaseKind::Start => {
                let known = self.runs.last().is_some_and(|run| run.starts.contains(&spot.source));
                let others = self.runs.last().is_some_and(|run| !run.starts.is_empty() && !known);
                let died = self.runs.last().is_some_and(|run| run.traceback.is_some());
                let again = match self.current {
                    None => died,
                    Some(PhaseKind::Start) => died && known,
                    // Another node of the same start.
                    Some(PhaseKind::Load) if others => false,
                    Some(_) => true,
                };
                if again {
                    self.begin_run(spot);
                }
                if let Some(run) = self.runs.last_mut() {
                    run.starts.insert(spot.source);
                }
                if again || self.current.is_none() {
                    self.enter(PhaseKind::Start, spot);
                }
            }
            PhaseKind::Load | PhaseKind::Compile | PhaseKind::Capture | PhaseKind::WarmUp => {
                if ended {
                    // Its announcement is missing, but something is starting again.
                    if edge != Edge::Begin {
                        return;
                    }
                    self.begin_run(spot);
                    self.enter(kind, spot);
                    return;
                }
                let forward = self.current.is_none_or(|current| current < kind);
                let back =
                    edge == Edge::Begin && self.current.is_some_and(|current| current < PhaseKind::Serve);
                if self.current != Some(kind) && (forward || back) {
                    self.enter(kind, spot);
                }
            }
            PhaseKind::Serve => {
                if ended && edge == Edge::Implied {
                    return;
                }
                if ended {
                    self.begin_run(spot);
                }
                if self.current != Some(PhaseKind::Serve) {
                    self.enter(PhaseKind::Serve, spot);
                }
                if let Some(run) = self.runs.last_mut() {
                    run.ready.get_or_insert(spot);
                    run.traceback = None;
                }
            }
            PhaseKind::Crash | PhaseKind::Shutdown => {
                if ended {
                    return;
                }
                if let Some(run) = self.runs.last_mut() {
                    run.ended.get_or_insert((kind, spot));
                }
                self.enter(kind, spot);
            }
        }
    }

    /// Notes that a traceback ended here.
    pub fn traceback(&mut self, spot: Spot) {
        if let Some(run) = self.runs.last_mut() {
            run.traceback = Some((spot, 0));
        }
    }

    fn begin_run(&mut self, spot: Spot) {
        if self.runs.len() >= Timeline::MOST {
            self.left_out += 1;
            return;
        }
        self.runs.push(OpenRun {
            first: spot,
            last: spot,
            ready: None,
            reached: None,
            ended: None,
            starts: HashSet::new(),
            traceback: None,
        });
        self.current = None;
    }

    fn enter(&mut self, kind: PhaseKind, spot: Spot) {
        let run = self.run();
        // A phase lasts until the next begins: the silence between belongs to what was being done.
        if let Some(phase) = self.phases.last_mut().filter(|phase| phase.run == run) {
            phase.last = keep_time(phase.last, spot);
        }
        if kind == PhaseKind::Crash {
            self.before_crash = self.current;
        }
        self.current = Some(kind);
        if kind <= PhaseKind::Serve
            && let Some(open) = self.runs.last_mut()
        {
            open.reached = open.reached.max(Some(kind));
        }
        if self.phases.len() >= Timeline::MOST {
            self.left_out += 1;
            return;
        }
        self.phases.push(OpenPhase { kind, run, first: spot, last: spot, lines: 1 });
    }

    /// Writes down what happened.
    pub fn write(&self, processes: &Processes, timeline: &mut Timeline) {
        let count = self.runs.len();
        for (number, open) in self.runs.iter().enumerate() {
            let last_run = number + 1 == count;
            let served = open.ready.is_some();
            let died = open.traceback.filter(|(_, lines)| !served && (*lines <= 50 || !last_run));
            let (end, ended_at): (RunEnd, Option<Place>) = match (open.ended, died) {
                (Some((PhaseKind::Crash, spot)), _) => (RunEnd::Crashed, Some(processes.place(spot))),
                (Some((_, spot)), None) if !served => (RunEnd::StoppedStarting, Some(processes.place(spot))),
                (_, Some((spot, _))) => (RunEnd::Crashed, Some(processes.place(spot))),
                (Some((_, spot)), None) => (RunEnd::Stopped, Some(processes.place(spot))),
                (None, None) if !last_run => (RunEnd::Vanished, None),
                (None, None) if served => (RunEnd::Serving, None),
                (None, None) => (RunEnd::Starting, None),
            };
            timeline.runs.push(Run {
                number: number as u32,
                first: processes.place(open.first),
                last: processes.place(open.last),
                ready: open.ready.and_then(|spot| spot.time),
                served,
                reached: open.reached,
                end,
                ended_at,
            });
        }
        timeline.phases.extend(self.phases.iter().map(|open| Phase {
            kind: open.kind,
            run: open.run,
            start: open.first.time,
            end: open.last.time,
            first: processes.place(open.first),
            lines: open.lines,
        }));
        timeline.restarts = count.saturating_sub(1) as u32;
        timeline.left_out += self.left_out;
    }
}

/// The later line, with the earlier one's time if it has none itself.
fn keep_time(earlier: Spot, later: Spot) -> Spot {
    Spot { time: later.time.or(earlier.time), ..later }
}
