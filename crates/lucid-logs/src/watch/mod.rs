//! Follows a service while it starts and runs: says each thing once, when it happens.

mod tail;

use std::collections::BTreeSet;

use lucid_findings::Severity;
use serde::Serialize;

pub use tail::Tail;

use crate::checks::growth;
use crate::evidence::{LogEvidence, Sample, Series};
use crate::gather::Follower;
use crate::moment::{Moment, spoken};
use crate::timeline::{Phase, PhaseKind, Run, RunEnd};

/// A first silence that is worth a word, in seconds; then each that is twice as long.
const SILENCE: f64 = 60.0;

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NewsKind {
    /// A phase began.
    Phase,
    /// It answers requests now.
    Ready,
    /// A run ended.
    Ended,
    /// A known fault, or an exception.
    Incident,
    /// No line for a while.
    Silence,
    /// Memory grows.
    Memory,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct News {
    /// When, by the log's clock.
    pub time: Option<Moment>,
    /// Which run, from 0.
    pub run: u32,
    /// What it was doing.
    pub phase: Option<PhaseKind>,
    /// What kind.
    pub kind: NewsKind,
    /// How bad.
    pub severity: Severity,
    /// In a sentence.
    pub text: String,
}

/// The watch over one log.
///
/// ```
/// let mut watch = lucid_logs::Watch::new("vllm");
/// watch.line(b"INFO:     Application startup complete.");
/// assert!(watch.look().iter().any(|news| news.text == "it serves"));
/// assert!(watch.look().is_empty());
/// ```
pub struct Watch {
    follower: Follower,
    /// What was said: one entry for each thing.
    said: BTreeSet<(NewsKind, u32, String)>,
    memory: Vec<(&'static str, Series, f64)>,
    silent: f64,
    /// Lines since the last look.
    fresh: bool,
    last: Option<LogEvidence>,
}

impl Watch {
    /// Over a log of that name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Watch {
        Watch {
            follower: Follower::new(name),
            said: BTreeSet::new(),
            memory: Vec::new(),
            silent: 0.0,
            fresh: false,
            last: None,
        }
    }

    /// Takes a line, without its end.
    pub fn line(&mut self, line: &[u8]) {
        self.follower.line(line);
        self.fresh = true;
        self.silent = 0.0;
    }

    /// Takes a measurement of memory in GiB; `what` is `host memory` or `GPU memory`.
    pub fn memory(&mut self, what: &'static str, gib: f64) {
        let at = match self.memory.iter().position(|(name, ..)| *name == what) {
            Some(at) => at,
            None => {
                self.memory.push((what, Series::default(), 0.0));
                self.memory.len() - 1
            }
        };
        let (run, phase) = self.now();
        self.memory[at].1.push(Sample { time: None, run, phase, value: gib });
    }

    /// What is known so far.
    #[must_use]
    pub fn evidence(&self) -> LogEvidence {
        self.follower.evidence()
    }

    /// The run and phase of the last look.
    #[must_use]
    pub fn now(&self) -> (u32, Option<PhaseKind>) {
        let phase = self.last.as_ref().and_then(|evidence| evidence.timeline.phases.last());
        phase.map_or((0, None), |phase| (phase.run, Some(phase.kind)))
    }

    /// What has happened since the last look.
    pub fn look(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        if std::mem::take(&mut self.fresh) {
            let evidence = self.follower.evidence();
            for (key, told) in self.happened(&evidence) {
                if self.said.insert(key) {
                    news.push(told);
                }
            }
            self.last = Some(evidence);
        }
        news.extend(self.grown());
        news
    }

    /// Tells that no line came for so many seconds.
    pub fn silence(&mut self, seconds: f64) -> Option<News> {
        if seconds < SILENCE || seconds < 2.0 * self.silent {
            return None;
        }
        self.silent = seconds;
        let (run, phase) = self.now();
        let usual = match phase {
            Some(PhaseKind::Load | PhaseKind::Compile | PhaseKind::Capture | PhaseKind::WarmUp) => {
                ", as is usual while it does this"
            }
            // A server without requests has nothing to say.
            Some(PhaseKind::Serve) => ": no requests, or it hangs",
            _ => "",
        };
        let text = format!("no line for {}{usual}", spoken(seconds));
        Some(News { time: None, run, phase, kind: NewsKind::Silence, severity: Severity::Info, text })
    }

    /// How the last run stands; `None` before the first line.
    #[must_use]
    pub fn standing(&self) -> Option<Run> {
        self.follower.evidence().timeline.runs.last().cloned()
    }

    fn happened(&self, evidence: &LogEvidence) -> Vec<((NewsKind, u32, String), News)> {
        let timeline = &evidence.timeline;
        let mut found = Vec::new();
        let mut add = |key: String, news: News| found.push(((news.kind, news.run, key), news));
        for (at, phase) in timeline.phases.iter().enumerate() {
            let before =
                at.checked_sub(1).map(|at| &timeline.phases[at]).filter(|before| before.run == phase.run);
            // The end of a run is told once, below.
            if !matches!(phase.kind, PhaseKind::Crash | PhaseKind::Shutdown) {
                add(format!("{at}"), began(phase, before));
            }
        }
        for run in &timeline.runs {
            if run.served {
                let after = run.start_seconds().map_or_else(String::new, |seconds| {
                    format!(", {} after its first line", spoken(seconds))
                });
                let (phase, severity) = (Some(PhaseKind::Serve), Severity::Info);
                let text = format!("it serves{after}");
                add(
                    String::new(),
                    News { time: run.ready, run: run.number, phase, kind: NewsKind::Ready, severity, text },
                );
            }
            // A traceback that nothing follows yet may still be survived: only what the log itself says ends a run.
            let died = timeline.phases_of(run.number).any(|phase| phase.kind == PhaseKind::Crash);
            let (severity, text) = match run.end {
                RunEnd::Crashed if died => (Severity::Error, "it crashed"),
                RunEnd::Stopped => (Severity::Info, "it was told to stop"),
                RunEnd::StoppedStarting => (Severity::Warning, "it was told to stop before it served"),
                RunEnd::Vanished => (Severity::Warning, "it ended without a word"),
                RunEnd::Crashed | RunEnd::Serving | RunEnd::Starting => continue,
            };
            let place = run.ended_at.as_ref().unwrap_or(&run.last);
            let during = run.reached.map_or_else(String::new, |phase| format!(" during {phase}"));
            let text = format!("{text}{during}");
            add(
                String::new(),
                News {
                    time: place.time,
                    run: run.number,
                    phase: run.reached,
                    kind: NewsKind::Ended,
                    severity,
                    text,
                },
            );
        }
        for incident in &timeline.incidents {
            let news = News {
                time: incident.place.time,
                run: incident.run,
                phase: incident.phase,
                kind: NewsKind::Incident,
                severity: incident.severity,
                text: format!("{} ({})", incident.title, evidence.describe(&incident.place)),
            };
            add(incident.title.clone(), news);
        }
        found.sort_by_key(|(_, news)| (news.run, news.time));
        found
    }

    /// Memory that grows for certain: told when it does, and again at each half more.
    fn grown(&mut self) -> Vec<News> {
        let (run, phase) = self.now();
        let mut news = Vec::new();
        for (what, series, told) in &mut self.memory {
            let Some(growth) = growth(series).filter(|growth| growth.is_growth()) else { continue };
            if growth.last < 1.5 * *told {
                continue;
            }
            *told = growth.last;
            let text = format!("while serving, {what} grew from {growth}");
            let kind = NewsKind::Memory;
            news.push(News { time: None, run, phase, kind, severity: Severity::Warning, text });
        }
        news
    }
}

fn began(phase: &Phase, before: Option<&Phase>) -> News {
    let took = before.and_then(|before| Some((before.kind, before.seconds()?)));
    let after =
        took.map_or_else(String::new, |(kind, seconds)| format!(" ({kind} took {})", spoken(seconds)));
    News {
        time: phase.start,
        run: phase.run,
        phase: Some(phase.kind),
        kind: NewsKind::Phase,
        severity: Severity::Info,
        text: format!("{}{after}", doing(phase.kind)),
    }
}

fn doing(phase: PhaseKind) -> &'static str {
    match phase {
        PhaseKind::Start => "processes come up",
        PhaseKind::Load => "weights are being read",
        PhaseKind::Compile => "kernels are being compiled",
        PhaseKind::Capture => "CUDA graphs are being captured",
        PhaseKind::WarmUp => "memory is being profiled and the model warmed up",
        PhaseKind::Serve => "requests are being answered",
        PhaseKind::Crash => "it died",
        PhaseKind::Shutdown => "it is stopping",
    }
}
