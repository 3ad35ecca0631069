//! A series of lines from one place, with a look at the next one so that several places can be merged by time.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Cursor};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::container::Unwrapper;
use super::lines::Lines;
use super::program::{Program, command};
use super::{Format, Record, Source, SourceError, files, journal};
use crate::ansi;
use crate::evidence::{SourceSummary, excerpt};
use crate::moment::Moment;

/// What a stream reads, one after the other.
enum Input {
    File(PathBuf),
    Program { words: Vec<String>, both: bool },
    Piped,
    Text { name: String, bytes: Vec<u8> },
}

/// The input that is being read.
struct Reading {
    source: usize,
    lines: Lines<Box<dyn BufRead>>,
    unwrapper: Unwrapper,
    export: bool,
    program: Option<Program>,
    last: Vec<u8>,
}

/// What is left of a record that holds several lines.
#[derive(Default)]
struct Rest {
    text: Vec<u8>,
    at: usize,
}

impl Rest {
    /// Takes a record's text.
    fn fill(&mut self, text: &mut Vec<u8>) {
        std::mem::swap(&mut self.text, text);
        self.at = 0;
    }

    /// Puts the next line into `line`; false if nothing is left.
    fn next(&mut self, line: &mut Vec<u8>) -> bool {
        if self.at >= self.text.len() {
            return false;
        }
        let left = &self.text[self.at..];
        let end = memchr::memchr2(b'\n', b'\r', left).unwrap_or(left.len());
        line.clear();
        line.extend_from_slice(&left[..end]);
        self.at += end + if left[end..].starts_with(b"\r\n") { 2 } else { 1 };
        ansi::strip(line);
        true
    }
}

/// Lines of one log, in order.
pub(crate) struct Stream {
    inputs: VecDeque<Input>,
    reading: Option<Reading>,
    raw: Vec<u8>,
    rest: Rest,
    /// The line that comes next.
    pub record: Record,
    /// Its source.
    pub source: usize,
    /// The time up to which this log has been read.
    pub time: Option<Moment>,
    read: Arc<AtomicU64>,
}

impl Stream {
    /// Files of one log, oldest first.
    pub fn files(paths: Vec<PathBuf>, read: &Arc<AtomicU64>) -> Stream {
        Stream::new(paths.into_iter().map(Input::File).collect(), read)
    }

    /// Any other source.
    pub fn of(source: &Source, read: &Arc<AtomicU64>) -> Stream {
        if let Source::Kubernetes { pod, namespace, container, previous: true } = source {
            let now = Source::Kubernetes {
                pod: pod.clone(),
                namespace: namespace.clone(),
                container: container.clone(),
                previous: false,
            };
            let inputs = [source, &now].into_iter().filter_map(command);
            return Stream::new(inputs.map(|(words, both)| Input::Program { words, both }).collect(), read);
        }
        let input = match source {
            Source::File(path) => Input::File(path.clone()),
            Source::StandardInput => Input::Piped,
            Source::Text { name, bytes } => Input::Text { name: name.clone(), bytes: bytes.clone() },
            program => match command(program) {
                Some((words, both)) => Input::Program { words, both },
                None => Input::Text { name: String::new(), bytes: Vec::new() },
            },
        };
        Stream::new(VecDeque::from([input]), read)
    }

    fn new(inputs: VecDeque<Input>, read: &Arc<AtomicU64>) -> Stream {
        Stream {
            inputs,
            reading: None,
            raw: Vec::new(),
            rest: Rest::default(),
            record: Record::default(),
            source: 0,
            time: None,
            read: Arc::clone(read),
        }
    }

    /// Reads the next line into `record`; false at the end of the last input. Adds what it opens to `sources`; `opened` is
    /// told the moment when each was last written.
    pub fn advance(
        &mut self,
        sources: &mut Vec<SourceSummary>,
        opened: &mut dyn FnMut(usize, Option<Moment>),
    ) -> bool {
        if self.rest.next(&mut self.record.text) {
            return true;
        }
        loop {
            if self.reading.is_none() {
                let Some(input) = self.inputs.pop_front() else { return false };
                let source = sources.len();
                match self.open(input, source) {
                    Ok((reading, name, modified)) => {
                        sources.push(SourceSummary { name, ..SourceSummary::default() });
                        opened(source, modified);
                        self.reading = Some(reading);
                    }
                    Err((name, error)) => sources.push(SourceSummary {
                        name,
                        format: "unread".to_owned(),
                        error: Some(error.to_string()),
                        ..SourceSummary::default()
                    }),
                }
                continue;
            }
            let Some(reading) = self.reading.as_mut() else { continue };
            let summary = &mut sources[reading.source];
            match reading.next(&mut self.raw, &mut self.record) {
                Ok(true) => {
                    self.source = reading.source;
                    if summary.format.is_empty() || self.record.format != Format::Plain {
                        let name = self.record.format.name();
                        if summary.format != name {
                            summary.format = name.to_owned();
                        }
                    }
                    self.record.line = reading.lines.number.max(1);
                    if self.record.format != Format::Plain
                        && memchr::memchr2(b'\n', b'\r', &self.record.text).is_some()
                    {
                        self.rest.fill(&mut self.record.text);
                        self.rest.next(&mut self.record.text);
                    } else {
                        ansi::strip(&mut self.record.text);
                    }
                    if reading.program.is_some() {
                        reading.last.clear();
                        reading
                            .last
                            .extend_from_slice(&self.record.text[..self.record.text.len().min(2_000)]);
                    }
                    return true;
                }
                Ok(false) => {}
                Err(error) => summary.error = Some(format!("reading stopped: {error}")),
            }
            if let Some(reading) = self.reading.take() {
                summary.bytes = reading.lines.bytes;
                summary.cut_lines = reading.lines.cut;
                if let Some(program) = reading.program
                    && let Err(error) = program.finish(&excerpt(&reading.last))
                {
                    summary.error = Some(error.to_string());
                }
            }
        }
    }

    #[allow(clippy::type_complexity)]
    fn open(
        &self,
        input: Input,
        source: usize,
    ) -> Result<(Reading, String, Option<Moment>), (String, SourceError)> {
        let (name, reader, modified, program): (String, Box<dyn BufRead>, _, _) = match input {
            Input::File(path) => {
                let name = path.display().to_string();
                match files::open(&path, Arc::clone(&self.read)) {
                    Ok(opened) => (name, opened.reader, opened.modified, None),
                    Err(error) => return Err((name, error)),
                }
            }
            Input::Program { words, both } => {
                let name = words.join(" ");
                match Program::start(&words, both) {
                    Ok((program, output)) => {
                        (name, Box::new(BufReader::new(output)), Some(Moment::now()), Some(program))
                    }
                    Err(error) => return Err((name, error)),
                }
            }
            Input::Piped => {
                ("standard input".to_owned(), Box::new(std::io::stdin().lock()), Some(Moment::now()), None)
            }
            Input::Text { name, bytes } => (name, Box::new(Cursor::new(bytes)), None, None),
        };
        let mut lines = Lines::new(reader);
        let export = lines.peek().is_ok_and(|head| head.starts_with(journal::MAGIC));
        // There a line is a field, whatever is in it.
        lines.repaints = !export;
        let reading =
            Reading { source, lines, unwrapper: Unwrapper::default(), export, program, last: Vec::new() };
        Ok((reading, name, modified))
    }
}

impl Reading {
    fn next(&mut self, raw: &mut Vec<u8>, record: &mut Record) -> std::io::Result<bool> {
        loop {
            record.clear();
            if self.export {
                return journal::next(&mut self.lines, raw, record);
            }
            if !self.lines.next(raw)? {
                return Ok(self.unwrapper.finish(record));
            }
            if self.unwrapper.unwrap(raw, record) {
                return Ok(true);
            }
        }
    }
}
