//! Reads line after line and keeps what matters.

use std::collections::BTreeMap;

use jiff::civil::Date;

use crate::assembler::{Assembler, Finished};
use crate::evidence::{Clock, Fact, LogEvidence, MOST_HITS, Sample, Series, SourceSummary, excerpt};
use crate::hits::Hits;
use crate::incidents::{end_in_traceback, incidents};
use crate::kept_tracebacks::KeptTracebacks;
use crate::knowledge::{Knowledge, KnownLine, knowledge};
use crate::line::{Level, Parsed, Stamp, parse};
use crate::machine::{Edge, Machine};
use crate::moment::Moment;
use crate::python_pairs::pairs;
use crate::scanner::{Known, candidates};
use crate::source::Record;
use crate::spot::{Processes, Spot};
use crate::timeline::{Gap, Measure, PhaseKind, Timeline};
use crate::unknown_lines::UnknownLines;

/// Silences from this long on are kept.
const GAP_SECONDS: f64 = 120.0;

/// What is known of a source while it is read.
#[derive(Clone, Default)]
struct SourceState {
    /// When it was last written: the year of dates without one follows from it.
    reference: Option<Moment>,
    first: Option<Moment>,
    last: Option<Moment>,
    clock: Clock,
    lines: u64,
    /// Number of the process that writes unmarked lines, and of the one that last put its mark only on a first line.
    unmarked: Option<u32>,
    owner: Option<(u32, Option<u32>)>,
    /// The last date without a year, and its midnight.
    midnight: Option<((i8, i8), i64)>,
}

/// Which machine a line belongs to: the shared one, or that of a log without times, which can't be merged with others.
type Track = Option<usize>;

pub(crate) struct Analysis {
    knowledge: &'static Knowledge,
    reference: Option<Moment>,
    processes: Processes,
    sources: Vec<SourceState>,
    machines: BTreeMap<Track, Machine>,
    hits: Hits,
    assembler: Assembler,
    tracebacks: KeptTracebacks,
    unknown: UnknownLines,
    series: BTreeMap<String, Series>,
    facts: BTreeMap<String, Fact>,
    arguments: BTreeMap<String, String>,
    measures: Vec<Measure>,
    gaps: Vec<Gap>,
    /// Requests that run, the time of the line that said so, and how many such lines came one soon after the other.
    running: Option<(u64, Option<Moment>, u32)>,
    previous: Option<Spot>,
    previous_text: Vec<u8>,
    found: Vec<Known>,
}

impl Analysis {
    /// `reference`: the latest time that a line can have, where its source doesn't say.
    pub fn new(reference: Option<Moment>) -> Analysis {
        Analysis {
            knowledge: knowledge(),
            reference,
            processes: Processes::default(),
            sources: Vec::new(),
            machines: BTreeMap::new(),
            hits: Hits::default(),
            assembler: Assembler::default(),
            tracebacks: KeptTracebacks::default(),
            unknown: UnknownLines::default(),
            series: BTreeMap::new(),
            facts: BTreeMap::new(),
            arguments: BTreeMap::new(),
            measures: Vec::new(),
            gaps: Vec::new(),
            running: None,
            previous: None,
            previous_text: Vec::new(),
            found: Vec::new(),
        }
    }

    /// Tells of a source, and when it was last written.
    pub fn opened(&mut self, source: usize, written: Option<Moment>) {
        if self.sources.len() <= source {
            self.sources.resize(source + 1, SourceState::default());
        }
        self.sources[source].reference = self.reference.or(written);
    }

    /// The time of a line that comes next, to merge sources by it.
    pub fn time_of(&mut self, source: usize, record: &Record) -> Option<Moment> {
        record.time.or_else(|| self.resolve(source, parse(&record.text).stamp?))
    }

    /// Takes a line. `stream`: the log that it belongs to, if it may stand apart from the others.
    pub fn line(&mut self, source: usize, stream: Option<usize>, record: &Record) {
        if self.sources.len() <= source {
            self.opened(source, None);
        }
        let parsed = parse(&record.text);
        let time = record.time.or_else(|| self.resolve(source, parsed.stamp?));
        let process = self.process(source, record, &parsed);
        let state = &mut self.sources[source];
        state.lines += 1;
        if let Some(time) = time {
            if record.time.is_some() {
                state.clock = Clock::Utc;
            } else if state.clock == Clock::None {
                state.clock = if matches!(parsed.stamp, Some(Stamp::Relative(_))) {
                    Clock::Relative
                } else {
                    Clock::Local
                };
            }
            state.first = Some(state.first.map_or(time, |first| first.min(time)));
            state.last = Some(time);
        }
        let spot = Spot { source: source as u32, line: record.line, time: state.last, process };
        let track = if state.last.is_some() { None } else { stream };
        self.machines.entry(track).or_default().touch(spot);
        if track.is_none() && time.is_some() {
            self.gap(spot, &record.text);
        }

        let mut found = std::mem::take(&mut self.found);
        // Most lines of a busy server are answered requests: they say that it serves, which is known by then.
        let answered = parsed.message.ends_with(b"\" 200 OK")
            && self.machines.get(&track).and_then(Machine::phase) == Some(PhaseKind::Serve);
        if answered {
            found.clear();
        } else {
            candidates(parsed.message, &mut found);
        }
        let starts = found.contains(&Known::Traceback);
        // Before the line itself is taken in: it may begin another phase or run, and what it ends belongs to the one before.
        let mut in_traceback = false;
        if starts || !self.assembler.is_idle() {
            if let Some(finished) = self.assembler.feed(spot, &parsed, starts) {
                self.keep(finished, track);
            }
            in_traceback = self.assembler.is_open(process);
            if in_traceback && parsed.first_line_only {
                self.sources[source].owner = Some((process, record.pid));
            }
        }
        let mut known = false;
        for candidate in &found {
            if let Known::Signature(index) = candidate {
                let (_, regex) = &self.knowledge.signatures[usize::from(*index)];
                if regex.is_match(parsed.message) {
                    let machine = self.machines.entry(track).or_default();
                    let (run, phase) = (machine.run(), machine.phase());
                    self.hits.add(*index, track, run, phase, spot, parsed.message);
                    known = true;
                }
            }
        }
        for candidate in &found {
            if let Known::Line(index) = candidate {
                known |= self.known_line(*index, track, spot, parsed.message);
            }
        }
        self.found = found;

        let level = parsed.level.or(record.level);
        if !known && !in_traceback && level >= Some(Level::Warning) {
            let phase = self.machines.get(&track).and_then(Machine::phase);
            self.unknown.add(parsed.message, level, spot, &self.processes, phase);
        }
    }

    /// Who wrote a line.
    fn process(&mut self, source: usize, record: &Record, parsed: &Parsed<'_>) -> u32 {
        let state = &self.sources[source];
        if let Some(name) = parsed.process {
            return self.processes.number(source as u32, name, parsed.pid.or(record.pid));
        }
        // The rest of a message whose first line alone was marked.
        if parsed.stamp.is_none()
            && parsed.level.is_none()
            && let Some((owner, pid)) = state.owner
            && pid == record.pid
            && self.assembler.is_open(owner)
        {
            return owner;
        }
        match &record.ident {
            Some(name) => self.processes.number(source as u32, name.as_bytes(), record.pid),
            None if record.pid.is_some() => self.processes.number(source as u32, b"", record.pid),
            None => match state.unmarked {
                Some(process) => process,
                None => {
                    let process = self.processes.number(source as u32, b"", None);
                    self.sources[source].unmarked = Some(process);
                    process
                }
            },
        }
    }

    /// A written time as a moment.
    fn resolve(&mut self, source: usize, stamp: Stamp) -> Option<Moment> {
        match stamp {
            Stamp::Full(moment) => Some(moment),
            Stamp::Relative(millis) => {
                let clock = self.sources.get(source).map_or(Clock::None, |state| state.clock);
                matches!(clock, Clock::None | Clock::Relative).then(|| Moment::from_millis(millis))
            }
            Stamp::Yearless { month, day, time } => {
                let state = self.sources.get_mut(source)?;
                let seconds =
                    (i64::from(time.hour()) * 60 + i64::from(time.minute())) * 60 + i64::from(time.second());
                let of_day = seconds * 1000 + i64::from(time.millisecond());
                let midnight = match state.midnight {
                    Some((date, midnight)) if date == (month, day) => midnight,
                    _ => {
                        let midnight = midnight(state.reference.unwrap_or_else(Moment::now), month, day)?;
                        state.midnight = Some(((month, day), midnight));
                        midnight
                    }
                };
                Some(Moment::from_millis(midnight + of_day))
            }
        }
    }

    fn gap(&mut self, spot: Spot, text: &[u8]) {
        if let (Some(previous), Some(time)) = (self.previous, spot.time) {
            let seconds = previous.time.map_or(0.0, |before| time.seconds_since(before));
            if seconds >= GAP_SECONDS {
                let machine = self.machines.entry(None).or_default();
                self.gaps.push(Gap {
                    phase: machine.phase(),
                    run: machine.run(),
                    before: self.processes.place(previous),
                    text: excerpt(parse(&self.previous_text).message),
                    seconds,
                    // Only where they came regularly: somebody may have cut lines out of the log.
                    running: self.running.filter(|(_, _, streak)| *streak >= 3).map(|(running, ..)| running),
                });
                if self.gaps.len() > 4 * Timeline::MOST_GAPS {
                    longest(&mut self.gaps);
                }
            }
            // Clocks of several sources may differ a little: time doesn't run back.
            if seconds < 0.0 {
                return;
            }
        }
        self.previous = Some(spot);
        self.previous_text.clear();
        self.previous_text.extend_from_slice(&text[..text.len().min(400)]);
    }

    fn known_line(&mut self, index: u16, track: Track, spot: Spot, message: &[u8]) -> bool {
        let (line, regex) = &self.knowledge.lines[usize::from(index)];
        let wanted = regex.captures_len() > 1;
        // Nine of ten lines of a busy server say that it serves: known already.
        if line.edge == Edge::Implied && !wanted {
            let phase = self.machines.get(&track).and_then(Machine::phase);
            if phase == line.enters && phase == Some(PhaseKind::Serve) {
                return true;
            }
        }
        let captures = if wanted { regex.captures(message) } else { None };
        if captures.is_none() && (wanted || !regex.is_match(message)) {
            return false;
        }
        if line.enters == Some(PhaseKind::Start) {
            // What an earlier run was printing belongs to it.
            for finished in self.assembler.finish() {
                self.keep(finished, track);
            }
        }
        let machine = self.machines.entry(track).or_default();
        if let Some(kind) = line.enters {
            machine.mark(kind, line.edge, spot);
        }
        let (run, phase) = (machine.run(), machine.phase());
        if let Some(engine) = &line.engine {
            let place = || self.processes.place(spot);
            self.facts
                .entry("engine".to_owned())
                .or_insert_with(|| Fact { value: engine.clone(), place: place() });
        }
        let Some(captures) = captures else { return true };
        let group = |name: &str| captures.name(name).map(|found| found.as_bytes());
        if let Some(what) = &line.measure {
            let measure = Measure {
                what: what.clone(),
                run,
                seconds: group("seconds").and_then(value),
                gib: group("gib").and_then(value),
                place: self.processes.place(spot),
            };
            if self.measures.len() < Timeline::MOST {
                self.measures.push(measure);
            }
        }
        if let Some(running) = group("running").and_then(value) {
            let soon = |before: Option<Moment>| {
                before.zip(spot.time).is_some_and(|(before, now)| now.seconds_since(before) <= 60.0)
            };
            let streak = match self.running {
                Some((_, before, streak)) if soon(before) => streak.saturating_add(1),
                _ => 1,
            };
            self.running = Some((running as u64, spot.time, streak));
        }
        for name in regex.capture_names().flatten() {
            let Some(text) = group(name) else { continue };
            if let Some(fact) = name.strip_prefix("fact_") {
                self.fact(line, fact, text, spot);
            } else if let Some(series) = name.strip_prefix("sample_")
                && let Some(value) = value(text)
            {
                let sample = Sample { time: spot.time, run, phase, value };
                self.series.entry(series.replace('_', "-")).or_default().push(sample);
            }
        }
        true
    }

    fn fact(&mut self, line: &KnownLine, name: &str, text: &[u8], spot: Spot) {
        if name == "arguments" {
            // Redacted as a whole: a value alone doesn't show that it is a key.
            let text = String::from_utf8_lossy(text);
            let text = lucid_findings::redact(&text);
            let cut = |value: String| excerpt(value.as_bytes());
            self.arguments = pairs(&text).into_iter().map(|(key, value)| (key, cut(value))).collect();
            return;
        }
        let value = excerpt(text.trim_ascii());
        if name == "config" {
            const WANTED: [&str; 9] = [
                "model",
                "quantization",
                "tensor_parallel_size",
                "pipeline_parallel_size",
                "load_format",
                "kv_cache_dtype",
                "dtype",
                "max_seq_len",
                "enforce_eager",
            ];
            let text = String::from_utf8_lossy(text);
            for (key, value) in pairs(&lucid_findings::redact(&text)) {
                if WANTED.contains(&key.as_str()) && value != "None" {
                    let fact = Fact { value: excerpt(value.as_bytes()), place: self.processes.place(spot) };
                    self.facts.insert(key.replace('_', "-"), fact);
                }
            }
            return;
        }
        debug_assert!(!line.id.is_empty());
        if !value.is_empty() {
            self.facts.insert(name.replace('_', "-"), Fact { value, place: self.processes.place(spot) });
        }
    }

    fn keep(&mut self, finished: Finished, track: Track) {
        let machine = self.machines.entry(track).or_default();
        machine.traceback(finished.last);
        let (run, phase) = (machine.run(), machine.phase());
        self.tracebacks.add(finished, self.knowledge, &self.processes, run, phase);
    }

    /// Everything read so far.
    pub fn evidence(&self, sources: &[SourceSummary], mut notes: Vec<String>) -> LogEvidence {
        let mut sources = sources.to_vec();
        for (summary, state) in sources.iter_mut().zip(&self.sources) {
            summary.lines = state.lines;
            (summary.first, summary.last, summary.clock) = (state.first, state.last, state.clock);
        }
        // The machine that saw the most tells the story; ties go to the shared one, which sorts first.
        let best =
            self.machines.iter().rev().max_by_key(|(_, machine)| machine.phases()).map(|(track, _)| *track);
        let mut timeline =
            Timeline { measures: self.measures.clone(), gaps: self.gaps.clone(), ..Timeline::default() };
        longest(&mut timeline.gaps);
        let before = |track: Track| self.machines.get(&track).and_then(Machine::before_first_mark);
        let (hits, left_out) = self.hits.write(self.knowledge, &self.processes, MOST_HITS, &before);

        let mut tracebacks = self.tracebacks.clone();
        let mut open = self.assembler.clone();
        let track = best.flatten();
        let machine = self.machines.get(&track);
        let unfinished = open.finish();
        for finished in unfinished {
            let (run, phase) = machine.map_or((0, None), |machine| (machine.run(), machine.phase()));
            tracebacks.add(finished, self.knowledge, &self.processes, run, phase);
        }
        if let Some(machine) = machine {
            machine.write(&self.processes, &mut timeline);
        }
        // A log that ends inside a traceback ends with a crash, too.
        end_in_traceback(&mut timeline, &tracebacks.all);
        incidents(&mut timeline, &hits, &tracebacks.all, self.knowledge);

        for (count, what) in [
            (left_out, "kinds of known lines"),
            (tracebacks.left_out, "tracebacks"),
            (self.unknown.left_out, "unknown warnings"),
            (self.assembler.dropped, "tracebacks printed at the same time"),
            (timeline.left_out, "entries of the time line"),
        ] {
            if count > 0 {
                notes.push(format!("{count} {what} did not fit and were left out"));
            }
        }
        let clocks: Vec<&str> =
            sources.iter().filter(|s| s.clock == Clock::Utc).map(|s| s.name.as_str()).collect();
        let local = sources.iter().find(|source| source.clock == Clock::Local);
        if let (Some(utc), Some(local)) = (clocks.first(), local) {
            notes.push(format!(
                "{utc} has UTC times, {} has local times of an unknown zone: their lines may be out of order by hours",
                local.name
            ));
        }
        LogEvidence {
            sources,
            hits,
            tracebacks: tracebacks.all,
            unknown: self.unknown.in_order(),
            timeline,
            series: self.series.clone(),
            facts: self.facts.clone(),
            arguments: self.arguments.clone(),
            notes,
        }
    }
}

/// The last midnight of a date that lies not after the moment when the log was last written.
fn midnight(reference: Moment, month: i8, day: i8) -> Option<i64> {
    // Zones lie up to 14 hours apart: a line may seem to be from tomorrow.
    let latest = Moment::from_millis(reference.millis() + 26 * 3_600_000);
    let year = latest.civil()?.year();
    // 29 February comes every fourth year, and once in eight.
    (0..=8).find_map(|back| {
        let date = Date::new(year - back, month, day).ok()?;
        let moment = Moment::from_civil(date.at(0, 0, 0, 0));
        (moment <= latest).then_some(moment.millis())
    })
}

fn value(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.replace(',', "");
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Keeps the longest gaps, in order.
fn longest(gaps: &mut Vec<Gap>) {
    if gaps.len() > Timeline::MOST_GAPS {
        let mut lengths: Vec<f64> = gaps.iter().map(|gap| gap.seconds).collect();
        lengths.sort_by(|a, b| b.total_cmp(a));
        let bar = lengths[Timeline::MOST_GAPS - 1];
        gaps.retain(|gap| gap.seconds >= bar);
        gaps.truncate(Timeline::MOST_GAPS);
    }
}
