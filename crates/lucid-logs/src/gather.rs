//! Reads logs into evidence.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lucid_findings::Step;

use crate::analysis::Analysis;
use crate::evidence::{LogEvidence, SourceSummary};
use crate::moment::Moment;
use crate::source::{self, Record, Source, Stream};

/// How to read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The latest time that a line can have: the year of dates without one follows from it. Left out, it is when the file
    /// was last written, or now.
    pub latest: Option<Moment>,
}

/// How many lines are read between two steps.
const STEP: u64 = 50_000;

/// Reads all sources, several merged by time. Files are looked for below `root`; a source that can't be read leaves its
/// reason in its summary.
///
/// ```
/// use std::path::Path;
/// use lucid_logs::{Options, Source, gather};
///
/// let log = b"INFO 11-29 12:00:00 [core.py:1] No available shared memory broadcast block found in 60 seconds.\n";
/// let sources = [Source::Text { name: "vllm.log".into(), bytes: log.to_vec() }];
/// let evidence = gather(Path::new("/"), &sources, &Options::default(), &mut |_| {});
/// assert_eq!(evidence.hits[0].signature, "shm-broadcast-wait");
/// ```
pub fn gather(
    root: &Path,
    sources: &[Source],
    options: &Options,
    progress: &mut dyn FnMut(Step),
) -> LogEvidence {
    let read = Arc::new(AtomicU64::new(0));
    let paths: Vec<&Path> = sources
        .iter()
        .filter_map(|source| match source {
            Source::File(path) => Some(path.as_path()),
            _ => None,
        })
        .collect();
    let source::Expanded { groups, errors, notes } = source::expand(root, &paths);
    let total: u64 = groups.iter().flatten().filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    let mut summaries: Vec<SourceSummary> = errors
        .into_iter()
        .map(|error| SourceSummary {
            name: error.to_string().split(':').next().unwrap_or("log").to_owned(),
            format: "unread".to_owned(),
            error: Some(error.to_string()),
            ..SourceSummary::default()
        })
        .collect();
    let mut streams: Vec<Stream> = groups.into_iter().map(|group| Stream::files(group, &read)).collect();
    let others = sources.iter().filter(|source| !matches!(source, Source::File(_)));
    streams.extend(others.map(|source| Stream::of(source, &read)));

    let mut analysis = Analysis::new(options.latest);
    let mut lines = 0;
    let mut step = |force: bool| {
        lines += 1;
        if force || lines % STEP == 0 {
            progress(Step {
                done: read.load(Ordering::Relaxed).min(total),
                of: total,
                unit: "bytes",
                text: "reading logs".to_owned(),
            });
        }
    };
    merge(&mut streams, &mut analysis, &mut summaries, &mut || step(false));
    step(true);
    analysis.evidence(&summaries, notes)
}

/// Feeds lines in the order of their times.
fn merge(
    streams: &mut [Stream],
    analysis: &mut Analysis,
    summaries: &mut Vec<SourceSummary>,
    step: &mut dyn FnMut(),
) {
    let apart = streams.len() > 1;
    let mut live = vec![false; streams.len()];
    for (index, stream) in streams.iter_mut().enumerate() {
        live[index] = advance(stream, analysis, summaries, apart);
    }
    loop {
        // A log's head without times comes before everything that has one.
        let next = (0..streams.len()).filter(|index| live[*index]).min_by_key(|index| streams[*index].time);
        let Some(index) = next else { return };
        let other = (0..streams.len())
            .filter(|other| live[*other] && *other != index)
            .map(|other| streams[other].time)
            .min();
        // As long as no other log has an earlier line, this one goes on.
        loop {
            let stream = &mut streams[index];
            analysis.line(stream.source, apart.then_some(index), &stream.record);
            step();
            if !advance(stream, analysis, summaries, apart) {
                live[index] = false;
                break;
            }
            if other.is_some_and(|other| streams[index].time > other) {
                break;
            }
        }
    }
}

fn advance(
    stream: &mut Stream,
    analysis: &mut Analysis,
    summaries: &mut Vec<SourceSummary>,
    timed: bool,
) -> bool {
    if !stream.advance(summaries, &mut |source, written| analysis.opened(source, written)) {
        return false;
    }
    if timed {
        let time = analysis.time_of(stream.source, &stream.record);
        stream.time = stream.time.max(time);
    }
    true
}

/// Follows a log that is still being written.
///
/// ```
/// let mut follower = lucid_logs::Follower::new("vllm");
/// follower.line(b"INFO:     Application startup complete.");
/// assert!(follower.evidence().timeline.runs[0].served);
/// ```
pub struct Follower {
    analysis: Analysis,
    summary: SourceSummary,
    record: Record,
}

impl Follower {
    /// Of a log with that name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Follower {
        let mut analysis = Analysis::new(None);
        analysis.opened(0, None);
        let summary =
            SourceSummary { name: name.into(), format: "plain".to_owned(), ..SourceSummary::default() };
        Follower { analysis, summary, record: Record::default() }
    }

    /// Takes a line, without its end. At most 1 MiB of it is looked at.
    pub fn line(&mut self, line: &[u8]) {
        self.record.text.clear();
        self.record.text.extend_from_slice(&line[..line.len().min(source::MOST_LINE)]);
        crate::ansi::strip(&mut self.record.text);
        self.record.line += 1;
        self.summary.bytes += line.len() as u64 + 1;
        self.analysis.line(0, None, &self.record);
    }

    /// What has been read so far.
    #[must_use]
    pub fn evidence(&self) -> LogEvidence {
        self.analysis.evidence(std::slice::from_ref(&self.summary), Vec::new())
    }
}
