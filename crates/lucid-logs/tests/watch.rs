//! What a watch says of a service: each thing once, whenever it is asked.
#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use lucid_findings::Severity;
use lucid_logs::{News, NewsKind, PhaseKind, RunEnd, Tail, Watch};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    log: String,
}

fn case(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/cases/{name}.toml"));
    toml::from_str::<Case>(&fs::read_to_string(path).unwrap()).unwrap().log
}

/// All news of a log, with a look after every `every` lines.
fn news(log: &str, every: usize) -> Vec<News> {
    let mut watch = Watch::new("log");
    let mut news = Vec::new();
    for (at, line) in log.lines().enumerate() {
        watch.line(line.as_bytes());
        if at % every == every - 1 {
            news.extend(watch.look());
        }
    }
    news.extend(watch.look());
    assert!(watch.look().is_empty(), "nothing new without a new line");
    news
}

#[test]
fn a_slow_start_is_told_phase_by_phase() {
    let news = news(&case("C000-slow"), 1);
    let kinds: Vec<(NewsKind, Option<PhaseKind>)> = news.iter().map(|news| (news.kind, news.phase)).collect();
    assert_eq!(kinds.first(), Some(&(NewsKind::Phase, Some(PhaseKind::Start))), "{news:#?}");
    let at = |wanted| {
        kinds.iter().position(|kind| *kind == wanted).unwrap_or_else(|| panic!("{wanted:?}: {news:#?}"))
    };
    assert!(at((NewsKind::Phase, Some(PhaseKind::Load))) < at((NewsKind::Ready, Some(PhaseKind::Serve))));
    let ready = news.iter().filter(|news| news.kind == NewsKind::Ready).collect::<Vec<_>>();
    assert_eq!(ready.len(), 1);
    assert!(ready[0].text.starts_with("it serves, 13 min"), "{}", ready[0].text);
    // The alarming line is harmless while weights load.
    assert!(news.iter().all(|news| news.severity == Severity::Info), "{news:#?}");
}

#[test]
fn a_stall_in_service_is_told_once() {
    let news = news(&case("C140"), 1);
    let incidents: Vec<&News> = news.iter().filter(|news| news.kind == NewsKind::Incident).collect();
    assert!(incidents.iter().any(|news| news.severity == Severity::Error), "{news:#?}");
    let mut titles: Vec<&str> = incidents.iter().map(|news| news.text.as_str()).collect();
    titles.sort_unstable();
    titles.dedup();
    assert_eq!(titles.len(), incidents.len(), "{incidents:#?}");
}

/// However often one looks, the end of all crashes and starts is told the same.
#[test]
fn looking_seldom_loses_no_end() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned();
        let log = case(&name);
        let decisive = |every| {
            let mut kept: Vec<(u32, NewsKind, String)> = news(&log, every)
                .into_iter()
                .filter(|news| matches!(news.kind, NewsKind::Ready | NewsKind::Ended))
                .map(|news| (news.run, news.kind, news.text.split(',').next().unwrap().to_owned()))
                .collect();
            kept.sort();
            kept
        };
        assert_eq!(decisive(1), decisive(1_000), "{name}");
    }
}

#[test]
fn a_restart_ends_a_run_and_begins_another() {
    let start = case("C000-slow");
    let mut watch = Watch::new("log");
    for line in start.lines().chain(["INFO:     Shutting down", "INFO:     Application shutdown complete."]) {
        watch.line(line.as_bytes());
    }
    let first = watch.look();
    assert!(first.iter().any(|news| news.kind == NewsKind::Ended && news.run == 0), "{first:#?}");
    assert_eq!(watch.standing().unwrap().end, RunEnd::Stopped);
    for line in start.replace("11-29", "11-30").lines() {
        watch.line(line.as_bytes());
    }
    let second = watch.look();
    assert!(second.iter().any(|news| news.kind == NewsKind::Ready && news.run == 1), "{second:#?}");
    assert_eq!(watch.standing().unwrap().end, RunEnd::Serving);
}

fn serving() -> Watch {
    let mut watch = Watch::new("log");
    for line in case("C000-slow").lines() {
        watch.line(line.as_bytes());
    }
    watch.look();
    watch
}

/// C146: GPU memory creeps up and is not freed; nothing but a trend tells.
#[test]
fn memory_that_creeps_up_is_told() {
    let mut watch = serving();
    for at in 0..40 {
        watch.memory("GPU memory", 900.0 + 5.0 * f64::from(at) + f64::from(at % 3));
        watch.memory("host memory", 50.0 + f64::from(at % 4));
    }
    let news = watch.look();
    assert_eq!(news.len(), 1, "{news:#?}");
    assert_eq!((news[0].kind, news[0].severity), (NewsKind::Memory, Severity::Warning));
    assert!(news[0].text.starts_with("while serving, GPU memory grew from 9"), "{}", news[0].text);
    assert!(watch.look().is_empty(), "it is told once");
    for at in 40..400 {
        watch.memory("GPU memory", 900.0 + 5.0 * f64::from(at));
    }
    assert_eq!(watch.look().len(), 1, "and again when it is half as much more");
}

/// Loading weights is no leak.
#[test]
fn memory_that_fills_while_loading_is_not() {
    let mut watch = Watch::new("log");
    for line in case("C000-slow").lines().take(2) {
        watch.line(line.as_bytes());
    }
    watch.look();
    for at in 0..40 {
        watch.memory("GPU memory", f64::from(at) * 20.0);
    }
    assert!(watch.look().is_empty());
}

#[test]
fn a_silence_is_told_when_it_has_doubled() {
    let mut watch = serving();
    let told: Vec<u32> = (0..600).filter(|second| watch.silence(f64::from(*second)).is_some()).collect();
    assert_eq!(told, [60, 120, 240, 480]);
    watch.line(b"INFO:     127.0.0.1:1 - \"GET /health HTTP/1.1\" 200 OK");
    assert!(watch.silence(59.0).is_none());
    assert!(watch.silence(60.0).unwrap().text.contains("no requests, or it hangs"));
}

fn taken(tail: &mut Tail) -> Vec<String> {
    let mut lines = Vec::new();
    tail.lines(&mut |line| lines.push(String::from_utf8_lossy(line).into_owned())).unwrap();
    lines
}

#[test]
fn a_file_is_followed_through_rotation_and_truncation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vllm.log");
    let add = |text: &str| {
        OpenOptions::new().append(true).create(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
    };
    add("one\ntwo\r\nthr");
    let mut tail = Tail::open(&path).unwrap();
    assert_eq!(taken(&mut tail), ["one", "two"]);
    assert!(taken(&mut tail).is_empty());
    add("ee\n");
    assert_eq!(taken(&mut tail), ["three"]);
    // Renamed, written to once more, and a new file in its place.
    add("four\nlast of the old");
    fs::rename(&path, folder.path().join("vllm.log.1")).unwrap();
    assert_eq!(taken(&mut tail), ["four"]);
    add("first of the new\n");
    assert_eq!(taken(&mut tail), ["last of the old", "first of the new"]);
    // Copied and cut.
    fs::write(&path, "cut\n").unwrap();
    assert_eq!(taken(&mut tail), ["cut"]);
    add("no end");
    assert!(taken(&mut tail).is_empty());
    let mut rest = Vec::new();
    assert!(tail.finish(&mut |line| rest.push(line.to_vec())));
    assert_eq!(rest, [b"no end"]);
}

#[test]
fn an_endless_line_is_cut_and_does_not_grow() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    fs::write(&path, format!("{}\nnext\n", "x".repeat(5 << 20))).unwrap();
    let lines = taken(&mut Tail::open(&path).unwrap());
    assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [1 << 20, 4]);
    assert!(Tail::open(folder.path()).is_err());
    assert!(Tail::open(&folder.path().join("none")).is_err());
}
