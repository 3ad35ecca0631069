//! `lucid watch`: follows a start-up or a running service.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lucid_findings::Severity;
use lucid_logs::{News, NewsKind, RunEnd, Tail, Watch as State, spoken};

use crate::arguments::{Until, Watch};
use crate::{machine, style};

/// Between two looks at a file.
const LOOK: Duration = Duration::from_millis(200);
/// Between two measurements of memory.
const MEASURE: Duration = Duration::from_secs(5);
/// Lines that may wait to be read.
const WAITING: usize = 10_000;
/// Bytes of a line that are read; the rest is another line.
const LONGEST: u64 = 1 << 20;
const GIB: f64 = (1u64 << 30) as f64;

/// Where lines come from.
enum Lines {
    File(Tail),
    Stream { lines: Receiver<Vec<u8>>, program: Option<(String, Child)>, last: Vec<u8> },
}

/// Follows until what was waited for has happened, or the log ends.
pub fn run(arguments: &Watch) -> Result<ExitCode> {
    let (name, mut lines) = open(arguments)?;
    let mut state = State::new(name);
    let began = Instant::now();
    let limit = arguments.seconds.map(Duration::from_secs);
    let (mut heard, mut measured) = (Instant::now(), None::<Instant>);
    let mut worst = Severity::Info;
    loop {
        let more = lines.take(&mut state, &mut heard)?;
        let mut news = Vec::new();
        if measured.is_none_or(|at| at.elapsed() >= MEASURE) {
            measured = Some(Instant::now());
            measure(arguments, &mut state)?;
        }
        news.extend(state.look());
        news.extend(state.silence(heard.elapsed().as_secs_f64()));
        for news in &news {
            worst = worst.max(news.severity);
            tell(news, arguments.json)?;
        }
        let ready = news.iter().any(|news| news.kind == NewsKind::Ready);
        let ended = news.iter().any(|news| news.kind == NewsKind::Ended);
        match arguments.until {
            Some(Until::Ready) if ready => return Ok(ExitCode::SUCCESS),
            // A supervisor may start it again: only its word about the whole service counts, and this log has none.
            Some(Until::Ready | Until::End) if ended => break,
            _ => {}
        }
        if !more {
            break;
        }
        if limit.is_some_and(|limit| began.elapsed() >= limit) {
            if arguments.until == Some(Until::Ready) {
                bail!("it was not ready within {}", spoken(began.elapsed().as_secs_f64()));
            }
            break;
        }
    }
    let Some(run) = state.standing() else { bail!("there was no line to read") };
    let failed = matches!(run.end, RunEnd::Crashed | RunEnd::Vanished)
        || arguments.until == Some(Until::Ready)
        || worst == Severity::Error;
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn open(arguments: &Watch) -> Result<(String, Lines)> {
    let program = |words: Vec<&str>| -> Result<(String, Lines)> {
        let command = words.join(" ");
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!("`{command}` could not be started; pipe the log into `lucid watch --log -`")
            })?;
        let (sender, lines) = mpsc::sync_channel(WAITING);
        // A container's log comes on both.
        let streams: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
            child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
        ];
        for stream in streams.into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || pump(stream, &sender));
        }
        Ok((command.clone(), Lines::Stream { lines, program: Some((command, child)), last: Vec::new() }))
    };
    if let Some(unit) = &arguments.unit {
        return program(vec![
            "journalctl",
            "--follow",
            "--output=cat",
            "--no-pager",
            "--lines=10000",
            "-u",
            unit,
        ]);
    }
    if let Some(name) = &arguments.container {
        return program(vec![machine::tool(name), "logs", "--follow", "--", name]);
    }
    let Some(path) = &arguments.log else {
        bail!(
            "there is nothing to follow: give --log FILE (`-` for standard input), --unit NAME or --container NAME"
        )
    };
    if path == Path::new("-") {
        let (sender, lines) = mpsc::sync_channel(WAITING);
        std::thread::spawn(move || pump(std::io::stdin(), &sender));
        return Ok(("standard input".to_owned(), Lines::Stream { lines, program: None, last: Vec::new() }));
    }
    let tail = Tail::open(path).with_context(|| format!("--log {}", path.display()))?;
    Ok((path.display().to_string(), Lines::File(tail)))
}

/// Sends lines on until there are no more, or nobody takes them.
fn pump(stream: impl Read, lines: &mpsc::SyncSender<Vec<u8>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        match stream.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let end = line.iter().rposition(|byte| !b"\r\n".contains(byte)).map_or(0, |last| last + 1);
                line.truncate(end);
                if lines.send(line).is_err() {
                    return;
                }
            }
        }
    }
}

impl Lines {
    /// Hands over what is there, or waits a moment; `false` at the end.
    fn take(&mut self, state: &mut State, heard: &mut Instant) -> Result<bool> {
        match self {
            Lines::File(tail) => {
                if tail.lines(&mut |line| state.line(line)).context("the log can't be read any more")? {
                    *heard = Instant::now();
                } else {
                    std::thread::sleep(LOOK);
                }
                Ok(true)
            }
            Lines::Stream { lines, program, last } => {
                match lines.recv_timeout(LOOK) {
                    Ok(line) => {
                        state.line(&line);
                        // As many as are there, but not for ever: a flood must not keep the news waiting.
                        *last = line;
                        for line in lines.try_iter().take(WAITING) {
                            state.line(&line);
                            *last = line;
                        }
                        *heard = Instant::now();
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        if let Some((command, mut child)) = program.take() {
                            let status = child.wait().with_context(|| format!("`{command}`"))?;
                            if !status.success() {
                                let said = String::from_utf8_lossy(last);
                                bail!("`{command}` failed ({status}): {said}");
                            }
                        }
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if let Lines::Stream { program: Some((_, child)), .. } = self {
            // It follows for ever; when nobody listens any more, it ends with us.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn measure(arguments: &Watch, state: &mut State) -> Result<()> {
    let Some(pid) = arguments.pid else { return Ok(()) };
    match lucid_host::resident_memory(Path::new("/proc"), pid) {
        Ok(bytes) => state.memory("host memory", bytes as f64 / GIB),
        // Before the first look at the log that is a mistake, later the log tells of its end.
        Err(error) if state.now().1.is_none() => return Err(error).with_context(|| format!("--pid {pid}")),
        Err(_) => {}
    }
    if let Some(bytes) = lucid_host::GpuEvidence::bytes_in_use() {
        state.memory("GPU memory", bytes as f64 / GIB);
    }
    Ok(())
}

fn tell(news: &News, json: bool) -> Result<()> {
    if json {
        anstream::println!("{}", serde_json::to_string(news)?);
        return Ok(());
    }
    let time = news.time.map_or_else(|| " ".repeat(19), |time| time.to_string());
    let phase = news.phase.map_or_else(String::new, |phase| phase.to_string());
    let text = match (news.severity, news.kind) {
        (Severity::Error, _) => style::error(&news.text),
        (Severity::Warning, _) => style::heading(&news.text),
        (_, NewsKind::Ready) => style::good(&news.text),
        (_, NewsKind::Silence) => style::dim(&news.text),
        _ => news.text.clone(),
    };
    anstream::println!("{} {phase:<8} {text}", style::dim(time));
    Ok(())
}
