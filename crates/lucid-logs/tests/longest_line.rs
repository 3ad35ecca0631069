//! A tensor that somebody printed is one line of a gigabyte: it is read in little memory, and what stands after it is found.
//! In a program of its own, since the peak of a process' memory is of all its tests.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use lucid_logs::{Options, Source, gather};

const OOM: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB";
/// What reading may take beside what the process has anyway: buffers, and the megabyte that is kept of a line.
const MOST: u64 = 48 << 20;

/// Writes a line of as many bytes in a wrapping, and a known line after it.
fn write(path: &Path, wrapping: &str, bytes: u64) {
    let (before, after, end) = match wrapping {
        "docker" => {
            ("{\"log\":\"tensor([", "])\\n\",\"stream\":\"stderr\",\"time\":\"2026-11-29T17:24:00Z\"}\n", "}")
        }
        "journal" => (
            "{\"MESSAGE\":\"tensor([",
            "])\",\"_PID\":\"7\",\"__REALTIME_TIMESTAMP\":\"1764437040000000\"}\n",
            "}",
        ),
        "cri" => (
            "2026-11-29T17:24:00.123456789Z stderr P tensor([",
            "])\n2026-11-29T17:24:00.123456790Z stderr F \n",
            "",
        ),
        _ => ("ERROR 11-29 12:00:01 [core.py:2] tensor([", "])\n", ""),
    };
    let last = match wrapping {
        "docker" => {
            format!("{{\"log\":\"{OOM}\\n\",\"stream\":\"stderr\",\"time\":\"2026-11-29T17:24:01Z\"{end}\n")
        }
        "journal" => format!(
            "{{\"MESSAGE\":\"{OOM}\",\"_PID\":\"7\",\"__REALTIME_TIMESTAMP\":\"1764437041000000\"{end}\n"
        ),
        "cri" => format!("2026-11-29T17:24:01.1Z stderr F {OOM}\n"),
        _ => format!("{OOM}\n"),
    };
    let file = File::create(path).unwrap();
    let mut out: Box<dyn Write> = match wrapping {
        "gzip" => Box::new(GzEncoder::new(file, Compression::fast())),
        _ => Box::new(BufWriter::new(file)),
    };
    out.write_all(before.as_bytes()).unwrap();
    let part = "0.12345, ".repeat(1 << 17);
    for _ in 0..bytes.div_ceil(part.len() as u64) {
        out.write_all(part.as_bytes()).unwrap();
    }
    out.write_all(after.as_bytes()).unwrap();
    out.write_all(last.as_bytes()).unwrap();
}

fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn line_of(bytes: u64) {
    let folder = tempfile::tempdir().unwrap();
    for wrapping in ["plain", "docker", "journal", "cri", "gzip"] {
        let path =
            folder.path().join(format!("{wrapping}.log{}", if wrapping == "gzip" { ".gz" } else { "" }));
        write(&path, wrapping, bytes);
        let before = peak();
        let evidence =
            gather(Path::new("/"), &[Source::File(path.clone())], &Options::default(), &mut |_| {});
        let more = peak() - before;
        assert!(
            evidence.hits.iter().any(|hit| hit.text.contains("OutOfMemoryError")),
            "{wrapping}: {:?}",
            evidence.sources
        );
        assert!(more < MOST, "{wrapping}: {more} bytes more");
        assert!(serde_json::to_string(&evidence).unwrap().len() < 20_000, "{wrapping}");
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_line_of_128_megabytes() {
    line_of(128 << 20);
}

#[test]
#[ignore = "writes a gigabyte five times: cargo test -p lucid-logs --test longest_line -- --ignored"]
fn a_line_of_a_gigabyte() {
    line_of(1 << 30);
}
