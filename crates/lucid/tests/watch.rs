//! `lucid watch` as a user runs it.
#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const START: &str = "(APIServer pid=600) INFO 11-29 12:00:00 [api_utils.py:286] non-default args: {'model': '/models/kimi', 'tensor_parallel_size': 8}\n(Worker_TP0 pid=801) INFO 11-29 12:00:20 [gpu_model_runner.py:4979] Starting to load model /models/kimi...\n(Worker_TP0 pid=801) INFO 11-29 12:11:00 [default_loader.py:501] Loading weights took 640.10 seconds\n";
const READY: &str = "(EngineCore_DP0 pid=700) INFO 11-29 12:13:30 [core.py:402] init engine (profile, create kv cache, warmup model) took 80.41 s\nINFO:     Application startup complete.\n";
const CRASH: &str = "(EngineCore_DP0 pid=700) ERROR 11-29 12:12:00 [core.py:708] EngineCore failed to start.\n(EngineCore_DP0 pid=700) ERROR 11-29 12:12:00 [core.py:708] Traceback (most recent call last):\n(EngineCore_DP0 pid=700) ERROR 11-29 12:12:00 [core.py:708]   File \"/opt/v/lib/python3.12/site-packages/vllm/v1/engine/core.py\", line 699, in run_engine_core\n(EngineCore_DP0 pid=700) ERROR 11-29 12:12:00 [core.py:708]     engine_core = EngineCoreProc(*args, **kwargs)\n(EngineCore_DP0 pid=700) ERROR 11-29 12:12:00 [core.py:708] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.\n";

fn lucid() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lucid"));
    command.arg("watch").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn piped(arguments: &[&str], log: &str) -> Output {
    let mut child = lucid().args(arguments).args(["--log", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    // It may have seen enough before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(log.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_start_is_followed_until_it_serves() {
    let output = piped(&["--until", "ready"], &format!("{START}{READY}"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for words in ["weights are being read", "it serves, 13 min 30 s after its first line"] {
        assert!(text(&output).contains(words), "{words}: {}", text(&output));
    }
}

#[test]
fn a_crash_is_told_as_json_and_by_the_exit_code() {
    let output = piped(&["--json", "--until", "ready"], &format!("{START}{CRASH}"));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let news: Vec<serde_json::Value> =
        text(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(news.iter().any(|news| news["kind"] == "phase" && news["phase"] == "load"), "{news:#?}");
    let memory = |news: &&serde_json::Value| news["text"].as_str().unwrap().contains("out of memory");
    assert!(news.iter().any(|news| news["kind"] == "incident" && memory(&news)), "{news:#?}");
    // A log that ends in the middle of a start is no success either, but nothing to accuse.
    assert_eq!(piped(&["--until", "ready"], START).status.code(), Some(1));
    assert_eq!(piped(&[], START).status.code(), Some(0));
}

#[test]
fn a_file_is_followed_while_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vllm.log");
    fs::write(&path, START).unwrap();
    let mut child = lucid().args(["--until", "ready", "--for", "300", "--log"]).arg(&path).spawn().unwrap();
    // Its first news means that it has read what was there; the rest comes while it looks.
    let mut first = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    OpenOptions::new().append(true).open(&path).unwrap().write_all(READY.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output).contains("it serves"), "{}", text(&output));
}

/// A unit's journal and a container's log come from the programs that have them; here from stand-ins.
#[test]
fn programs_are_followed_and_their_failure_is_told() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("log"), format!("{START}{READY}")).unwrap();
    let script = |name: &str, body: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    };
    let run = |arguments: &[&str]| {
        let path = format!("{}:/usr/bin:/bin", folder.path().display());
        lucid().args(arguments).env("PATH", path).output().unwrap()
    };
    let log = folder.path().join("log");
    script(
        "journalctl",
        &format!("[ \"$6\" = vllm.service ] || exit 9\ncat {}\nexec sleep 1000", log.display()),
    );
    // It follows for ever, and ends with the watch.
    let output = run(&["--unit", "vllm.service", "--until", "ready"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    script("docker", &format!("cat {} >&2", log.display()));
    let output = run(&["--container", "kimi"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output).contains("it serves"), "{}", text(&output));
    script("docker", "echo 'Error: No such container: kimi' >&2\nexit 1");
    let output = run(&["--container", "kimi"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let both = ["docker logs --follow -- kimi` failed", "No such container"];
    assert!(both.iter().all(|words| stderr.contains(words)), "{stderr}");
    // A client without a daemon: the program that knows the container is asked.
    script("podman", &format!("cat {}", log.display()));
    let output = run(&["--container", "kimi"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn what_cannot_be_followed_is_said() {
    for (arguments, words) in [
        (vec![], "give --log FILE"),
        (vec!["--log", "/nonexistent/vllm.log"], "/nonexistent/vllm.log"),
        (vec!["--log", "/"], "no regular file"),
    ] {
        let output = lucid().args(&arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(words) && !stderr.contains("panicked"), "{stderr}");
    }
    assert_eq!(piped(&[], "").status.code(), Some(2));
    let output = piped(&["--pid", "4000000"], START);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(Path::new("/proc/self").exists());
}
