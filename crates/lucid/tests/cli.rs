//! The binary as a user runs it: what it prints, what it refuses, and with which exit code.

// clippy.toml allows `unwrap` in test functions; here the functions around them are tests as well.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn lucid(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lucid")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// It must fail with exit code 2, without a panic, and say each of `texts`.
fn assert_refused(output: &Output, texts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    for text in texts {
        assert!(stderr.contains(text), "{text:?} is not in: {stderr}");
    }
}

fn canary() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary")
}

/// A copy of the canary that a test may damage.
fn copy_of_canary() -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(canary()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

fn change_json(path: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, serde_json::to_vec(&value).unwrap()).unwrap();
}

/// Changes the JSON header of a shard; the data keep their place.
fn change_header(path: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let bytes = fs::read(path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    change(&mut header);
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut changed = (header.len() as u64).to_le_bytes().to_vec();
    changed.extend(header);
    changed.extend(&bytes[8 + len..]);
    fs::write(path, changed).unwrap();
}

fn serve(folder: &Path) -> Output {
    lucid(&["serve", folder.to_str().unwrap(), "--port", "0"])
}

#[test]
fn inspect_knows_the_bundled_model_and_its_folder() {
    let bundled = lucid(&["inspect"]);
    assert!(bundled.status.success());
    let text = String::from_utf8(bundled.stdout).unwrap();
    for expected in
        ["DeepseekV3ForCausalLM", "NVFP4", "19.5 M parameters", "model.layers.{1..3}.mlp.experts.*.gate_proj"]
    {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    let folder = lucid(&["inspect", canary().to_str().unwrap(), "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&folder.stdout).unwrap();
    assert_eq!(json["config"]["num_hidden_layers"], 4);
}

#[test]
fn a_truncated_shard_is_named_with_what_is_missing() {
    let copy = copy_of_canary();
    let shard = copy.path().join("model-00002-of-00002.safetensors");
    let file = fs::OpenOptions::new().write(true).open(&shard).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1000).unwrap();
    assert_refused(&serve(copy.path()), &["model-00002-of-00002.safetensors", "1000 bytes are missing"]);
}

#[test]
fn a_header_that_points_past_the_end_is_refused() {
    let copy = copy_of_canary();
    let shard = copy.path().join("model-00001-of-00002.safetensors");
    change_header(&shard, |header| {
        let tensor = &mut header["model.norm.weight"];
        let owner = if tensor.is_null() { "model.embed_tokens.weight" } else { "model.norm.weight" };
        header[owner]["data_offsets"] = serde_json::json!([0, 1u64 << 40]);
    });
    assert_refused(&serve(copy.path()), &["model-00001-of-00002.safetensors"]);
}

#[test]
fn a_missing_tensor_is_named() {
    let copy = copy_of_canary();
    for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        change_header(&copy.path().join(shard), |header| {
            header.as_object_mut().unwrap().remove("model.layers.2.self_attn.o_proj.weight");
        });
    }
    assert_refused(&serve(copy.path()), &["model.layers.2.self_attn.o_proj.weight"]);
}

#[test]
fn a_wrong_shape_is_named_with_both_shapes() {
    let copy = copy_of_canary();
    change_json(&copy.path().join("config.json"), |config| config["q_lora_rank"] = 200.into());
    assert_refused(&serve(copy.path()), &["q_a_proj.weight", "[192, 256]", "[200, 256]"]);
}

#[test]
fn an_unknown_quantization_is_refused_not_misread() {
    let copy = copy_of_canary();
    for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
        change_header(&copy.path().join(shard), |header| {
            let tensors = header.as_object_mut().unwrap();
            if let Some(weight) = tensors.remove("model.layers.0.mlp.gate_proj.weight") {
                tensors.insert("model.layers.0.mlp.gate_proj.qweight".into(), weight);
            }
        });
    }
    assert_refused(&serve(copy.path()), &["model.layers.0.mlp.gate_proj", "GPTQ or AWQ", "not supported"]);
}

#[test]
fn an_unknown_architecture_is_named_with_what_is_supported() {
    let copy = copy_of_canary();
    change_json(&copy.path().join("config.json"), |config| {
        config["architectures"] = serde_json::json!(["LlamaForCausalLM"]);
    });
    assert_refused(
        &serve(copy.path()),
        &["config.json", "architectures", "LlamaForCausalLM", "DeepseekV3ForCausalLM"],
    );
}

#[test]
fn folders_that_are_none_are_refused() {
    assert_refused(&lucid(&["inspect", "/no/such/folder"]), &["/no/such/folder"]);
    let empty = tempfile::tempdir().unwrap();
    assert_refused(&serve(empty.path()), &["config.json", "missing"]);
}

#[test]
fn a_port_in_use_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    assert_refused(&lucid(&["serve", "--port", &port]), &[&format!("127.0.0.1:{port}"), "in use"]);
}

#[test]
fn a_device_that_is_none_is_refused() {
    assert_refused(&lucid(&["serve", "--device", "abacus"]), &["abacus", "cuda"]);
}

#[test]
fn faults_need_their_acknowledgement_and_a_name_that_exists() {
    assert_refused(&lucid(&["serve", "--plant", "rope-half-split"]), &["--i-know-this-breaks-the-model"]);
    let unknown = lucid(&["serve", "--plant", "gremlin", "--i-know-this-breaks-the-model"]);
    assert_refused(&unknown, &["gremlin", "rope-half-split", "think-end-dropped"]);
    assert_refused(&lucid(&["drill", "gremlin"]), &["gremlin", "--list"]);
}

#[test]
fn lists_show_every_check_and_fault() {
    let checks = String::from_utf8(lucid(&["doctor", "--list"]).stdout).unwrap();
    for id in ["endpoint.liveness", "endpoint.ladder", "endpoint.budget", "reference.logprobs"] {
        assert!(checks.contains(id), "{id} is not in {checks}");
    }
    let faults = String::from_utf8(lucid(&["drill", "--list"]).stdout).unwrap();
    for name in [
        "healthy",
        "rope-half-split",
        "router-bias-missing",
        "nvfp4-global-scale-inverted",
        "think-end-dropped",
    ] {
        assert!(faults.contains(name), "{name} is not in {faults}");
    }
}

#[test]
fn the_doctor_cannot_decide_without_a_server() {
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let output = lucid(&["doctor", "--endpoint", &format!("http://127.0.0.1:{port}"), "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["schema"], &report["verdict"]), (&1.into(), &"undecided".into()));
    assert_refused(&lucid(&["doctor"]), &["--endpoint"]);
    assert_refused(
        &lucid(&["doctor", "--endpoint", "http://127.0.0.1:1", "--checkpoint", "/no/such"]),
        &["/no/such"],
    );
}

#[test]
fn the_doctor_says_what_came_instead_of_json() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let page = std::thread::spawn(move || {
        // One request is enough for an endpoint that isn't one; the listener closes afterwards.
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).unwrap();
        let body = "<html>It works!</html>";
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
    });
    let output = lucid(&["doctor", "--endpoint", &format!("http://{address}")]);
    page.join().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("JSON") && text.contains("It works!"), "{text}");
}

#[test]
fn serve_answers_until_it_is_terminated() {
    let mut server = Command::new(env!("CARGO_BIN_EXE_lucid"))
        .args(["serve", "--port", "0", "--kv-cache-tokens", "4096"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let serving = lines.next().unwrap().unwrap();
    let address = serving.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().to_owned();
    assert!(lines.next().unwrap().unwrap().contains("serving mode"), "it says its arithmetic");

    let body = r#"{"model": "canary", "messages": [{"role": "user", "content": "What is 47 + 85?"}], "temperature": 0}"#;
    let mut stream = TcpStream::connect(&address).unwrap();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("47 + 85 = 132."), "{answer}");

    let killed = Command::new("kill").arg(server.id().to_string()).status().unwrap();
    assert!(killed.success());
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn chat_answers_lines_from_a_pipe() {
    let mut chat = Command::new(env!("CARGO_BIN_EXE_lucid"))
        .args(["chat", "--temperature", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    chat.stdin.take().unwrap().write_all(b"My name is Nina.\nWhat is my name?\n").unwrap();
    let output = chat.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("Your name is Nina."), "{text}");
}

#[test]
fn a_machine_is_collected_here_and_diagnosed_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("evidence.zip");
    let (archive, checkpoint) = (archive.to_str().unwrap(), canary());
    let checkpoint = checkpoint.to_str().unwrap();
    let collected = lucid(&["collect", "--checkpoint", checkpoint, "--output", archive]);
    assert!(collected.status.success(), "{}", String::from_utf8_lossy(&collected.stderr));
    assert!(String::from_utf8_lossy(&collected.stdout).contains("doctor --evidence"));
    let report = lucid(&["doctor", "--evidence", archive, "--json"]);
    assert_eq!(report.status.code(), Some(0), "{}", String::from_utf8_lossy(&report.stderr));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["verdict"], "healthy");
    let checks = report["checks"].as_array().unwrap();
    let extents = checks.iter().find(|check| check["id"] == "checkpoint.extents").unwrap();
    assert_eq!(extents["outcome"], "passed");
}

#[test]
fn a_damaged_checkpoint_is_examined_although_it_cannot_be_opened() {
    let copy = copy_of_canary();
    let shard = copy.path().join("model-00002-of-00002.safetensors");
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() / 2]).unwrap();
    let report = lucid(&["doctor", "--checkpoint", copy.path().to_str().unwrap(), "--json"]);
    assert_eq!(report.status.code(), Some(1), "{}", String::from_utf8_lossy(&report.stderr));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(
        (&report["verdict"], &report["causes"][0]["id"]),
        (&"faulty".into(), &"checkpoint-corrupt".into())
    );
}

#[test]
fn a_far_machine_is_read_by_a_copy_of_this_program_that_leaves_nothing_behind() {
    // What ssh does with its words: takes options and host away, joins the rest, and gives it to a shell.
    let far = tempfile::tempdir().unwrap();
    let ssh = far.path().join("ssh");
    fs::write(
        &ssh,
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do case \"$1\" in -o) shift 2;; -*) shift;; *) break;; esac; done\n[ \"$1\" = me@far ] || exit 255\nshift\nexec sh -c \"$*\"\n",
    )
    .unwrap();
    fs::set_permissions(&ssh, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let temporary = far.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let path = format!("{}:{}", far.path().display(), std::env::var("PATH").unwrap());
    let ask = |host: &str| {
        Command::new(env!("CARGO_BIN_EXE_lucid"))
            .args(["doctor", "--host", host, "--checkpoint-there", canary().to_str().unwrap(), "--json"])
            .env("PATH", &path)
            .env("TMPDIR", &temporary)
            .output()
            .unwrap()
    };
    let report = ask("me@far");
    assert_eq!(report.status.code(), Some(0), "{}", String::from_utf8_lossy(&report.stderr));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let outcome = |id: &str| checks.iter().find(|check| check["id"] == id).unwrap()["outcome"].clone();
    assert_eq!(outcome("checkpoint.index"), "passed");
    // What the machine of this test is like is not ours to say.
    assert_ne!(outcome("host.memory"), "skipped");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "the copy was removed");
    assert_refused(&ask("nobody@nowhere"), &["ssh", "255"]);
}

#[test]
fn what_is_named_must_be_there() {
    assert_refused(&lucid(&["doctor"]), &["there is nothing to examine", "--env"]);
    assert_refused(&lucid(&["collect"]), &["there is nothing to gather"]);
    assert_refused(&lucid(&["doctor", "--log", "/no/such.log"]), &["/no/such.log", "no such file"]);
    assert_refused(&lucid(&["doctor", "--evidence", "/no/such.zip"]), &["/no/such.zip"]);
    let report = lucid(&["doctor", "--env", "/no/such/venv"]);
    assert_eq!(report.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&report.stdout).contains("/no/such/venv"));
}

/// A conversation, a text and bare tokens, against what transformers computed for the first.
#[test]
fn a_reference_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let (prompts, output) = (folder.path().join("prompts.jsonl"), folder.path().join("record.json"));
    let golden: serde_json::Value =
        serde_json::from_slice(&fs::read(canary().join("../canary-golden/golden.json")).unwrap()).unwrap();
    let capital = &golden["capital"];
    let lines = [
        serde_json::json!({"name": "capital", "messages": capital["messages"], "answer_tokens": capital["completion_ids"]}),
        serde_json::json!({"text": capital["prompt"]}),
        serde_json::json!({"tokens": [5, 6, 7]}),
    ];
    fs::write(&prompts, lines.map(|line| line.to_string()).join("\n")).unwrap();
    let run = |more: &[&str]| {
        let mut arguments = vec!["reference", "--prompts", prompts.to_str().unwrap()];
        arguments.extend([
            "-o",
            output.to_str().unwrap(),
            "--latent-norm-eps",
            "1e-6",
            "--top-logprobs",
            "3",
        ]);
        arguments.extend(more);
        lucid(&arguments)
    };
    let ended = run(&[]);
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("layer 4/4") && stderr.contains("recorded"), "{stderr}");
    let record: serde_json::Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
    assert_eq!((&record["schema"], &record["semantics"]["kv_cache"]), (&1.into(), &"f32".into()));
    let [first, second, third] = &record["passages"].as_array().unwrap()[..] else { panic!("{record}") };
    let prompt = capital["prompt_ids"].as_array().unwrap();
    assert_eq!(
        (&first["name"], &second["name"], &third["name"]),
        (&"capital".into(), &"2".into(), &"3".into())
    );
    assert_eq!(first["tokens"].as_array().unwrap()[..prompt.len()], prompt[..]);
    assert_eq!(second["tokens"], capital["prompt_ids"]);
    assert_eq!(third["observations"].as_array().unwrap().len(), 2);
    // The completion is greedy: each of its tokens is the likeliest.
    let observations = first["observations"].as_array().unwrap();
    assert_eq!(observations.len() + 1, first["tokens"].as_array().unwrap().len());
    for observation in &observations[prompt.len() - 1..] {
        assert_eq!(observation["rank"], 1, "{observation}");
        assert_eq!(observation["top"].as_array().unwrap().len(), 3);
        assert_eq!(observation["top"][0][1], observation["logprob"]);
    }
    assert_refused(&run(&["--memory-limit", "10MB"]), &["memory_limit is 0.01 GB", "needs"]);
    assert_refused(&run(&["--memory-limit", "10"]), &["is no size", "4GB"]);
    fs::write(&prompts, "{\"text\": \"a\"}\n{\"text\": \"a\", \"tokens\": [1]}\n").unwrap();
    assert_refused(&run(&[]), &["prompts.jsonl, line 2", "exactly one of"]);
    fs::write(&prompts, "{\"txt\": \"a\"}\n").unwrap();
    assert_refused(&run(&[]), &["line 1", "txt"]);
    fs::write(&prompts, "\n").unwrap();
    assert_refused(&run(&[]), &["has no lines"]);
}

/// A drill goes on where its file of outcomes ends, and scores what several files hold.
#[test]
fn a_drill_keeps_its_outcomes_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("outcomes.jsonl");
    let path = file.to_str().unwrap();
    let drill = |runs: &str| {
        lucid(&["drill", "--runs", runs, "--outcomes", path, "healthy-machine*", "machine-killed-log"])
    };
    let first = drill("1");
    let stdout = String::from_utf8(first.stdout).unwrap();
    assert_eq!(first.status.code(), Some(0), "{stdout}");
    assert!(
        stdout.contains("✓ machine-killed-log") && stdout.contains("3/3") && stdout.contains("1 of 1"),
        "{stdout}"
    );
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 3);
    let second = drill("2");
    assert!(String::from_utf8_lossy(&second.stderr).contains("3 of 6 runs are in the file already"));
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 6);
    let scored = lucid(&["drill", "--json", "--score", path, path]);
    let score: serde_json::Value = serde_json::from_slice(&scored.stdout).unwrap();
    assert_eq!((&score["top_1"]["passed"], &score["false_alarms"]["trials"]), (&4.into(), &8.into()));
    // Two seeds of one fault teach too little to be written.
    let lesson = folder.path().join("weights.toml");
    let learned = lucid(&["drill", "--score", path, "--learn", lesson.to_str().unwrap()]);
    assert_eq!((learned.status.code(), lesson.exists()), (Some(1), false));
    assert!(String::from_utf8_lossy(&learned.stdout).contains("chosen weights stay"));
    fs::write(&file, "a shopping list\n").unwrap();
    assert_refused(&drill("1"), &["outcomes.jsonl", "line 1"]);
}

#[test]
fn a_record_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.json");
    fs::write(&path, "{\"schema\": 1}").unwrap();
    let refused = |arguments: &[&str], words: &[&str]| {
        let mut all = vec!["doctor", "--endpoint", "http://127.0.0.1:1"];
        all.extend(arguments);
        assert_refused(&lucid(&all), words);
    };
    refused(&["--reference", path.to_str().unwrap()], &["record.json", "lucid reference"]);
    refused(&["--reference", "/no/such/record"], &["/no/such/record"]);
    refused(&["--against", "http://127.0.0.1:1"], &["cannot record", "127.0.0.1:1"]);
    refused(&["--record", path.to_str().unwrap()], &["cannot record"]);
    assert_refused(&lucid(&["doctor", "--reference", "x"]), &["--endpoint"]);
}
