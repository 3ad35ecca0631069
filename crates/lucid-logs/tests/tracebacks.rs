//! Tracebacks are joined across interleaved processes, and the first cause is found.
#![allow(clippy::unwrap_used)]

mod reading;

use lucid_logs::{Link, Role, RunEnd};
use reading::{accusations, check, has, read, read_bytes, strongest};

const CUBIN: &str =
    "RuntimeError: flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4).";

/// What Python 3.11 printed for flashinfer-python 0.6.4 beside flashinfer-cubin 0.6.3.
#[test]
fn the_real_import_failure() {
    let evidence = read_bytes(include_bytes!("logs/flashinfer-cubin-mismatch.log"));
    assert_eq!(evidence.tracebacks.len(), 1);
    let root = evidence.tracebacks[0].root().unwrap();
    assert_eq!(root.exception, "RuntimeError");
    let frame = root.frames.last().unwrap();
    assert_eq!(
        (frame.short_file(), frame.line, frame.function.as_str()),
        ("flashinfer/jit/env.py", 76, "_get_cubin_dir")
    );
    assert_eq!(frame.code, "raise RuntimeError(");
    assert_eq!(root.frames[0].file, "<string>");
    assert_eq!(evidence.timeline.runs[0].end, RunEnd::Crashed);
    let findings = check(&evidence);
    assert_eq!(strongest(&findings), Some(("package-version-skew", 8.0)));
    let signature =
        findings.iter().find(|finding| finding.id == "logs.signatures/flashinfer-cubin-mismatch").unwrap();
    assert_eq!(signature.remedy.as_ref().unwrap().commands[0], "uv pip install 'flashinfer-cubin==0.6.4'");
}

/// The same failure as it comes deep under vLLM's executor: worker, engine core and API server each print their own, line by
/// line between each other's.
#[test]
fn three_processes_at_once() {
    let worker = format!(
        "WorkerProc failed to start.\nTraceback (most recent call last):\n  File \"/v/lib/python3.12/site-packages/vllm/v1/executor/multiproc_executor.py\", line 1050, in worker_main\n    worker = WorkerProc(*args, **kwargs)\n             ^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/v/lib/python3.12/site-packages/flashinfer/jit/env.py\", line 76, in _get_cubin_dir\n    raise RuntimeError(\n{CUBIN}"
    );
    let core = "EngineCore failed to start.\nTraceback (most recent call last):\n  File \"/v/lib/python3.12/site-packages/vllm/v1/engine/core.py\", line 1584, in run_engine_core\n    engine_core = EngineCoreProc(*args)\n  File \"/v/lib/python3.12/site-packages/vllm/v1/executor/multiproc_executor.py\", line 892, in wait_for_ready\n    raise e from None\nException: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.";
    let server = "Traceback (most recent call last):\n  File \"/v/bin/vllm\", line 10, in <module>\n    sys.exit(main())\nRuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}";
    let mut streams = [
        worker.lines().map(|l| format!("\x1b[0;36m(Worker_TP3 pid=33)\x1b[0;0m ERROR 11-29 12:00:01 [multiproc_executor.py:1057] {l}")).collect::<Vec<_>>(),
        worker.lines().map(|l| format!("(Worker_TP5 pid=35) ERROR 11-29 12:00:01 [multiproc_executor.py:1057] {l}")).collect(),
        core.lines().map(|l| format!("(EngineCore_DP0 pid=30) ERROR 11-29 12:00:02 [core.py:1584] {l}")).collect(),
        server.lines().map(|l| format!("(APIServer pid=20) {l}")).collect(),
    ]
    .map(Vec::into_iter);
    let mut log = String::new();
    // Round robin: no two lines of a traceback stand together.
    loop {
        let lines: Vec<String> = streams.iter_mut().filter_map(Iterator::next).collect();
        if lines.is_empty() {
            break;
        }
        for line in lines {
            log.push_str(&line);
            log.push('\n');
        }
    }
    let evidence = read(&log);
    let kinds: Vec<(Role, u64, &str)> = evidence
        .tracebacks
        .iter()
        .map(|traceback| (traceback.role, traceback.count, traceback.root().unwrap().exception.as_str()))
        .collect();
    assert!(kinds.contains(&(Role::Original, 2, "RuntimeError")), "{kinds:?}");
    assert!(kinds.contains(&(Role::Wrapper, 1, "Exception")), "{kinds:?}");
    assert!(kinds.contains(&(Role::Wrapper, 1, "RuntimeError")), "{kinds:?}");
    let findings = check(&evidence);
    let crash = findings.iter().find(|finding| finding.id == "logs.crash/first-cause").unwrap();
    assert!(crash.title.contains("flashinfer-cubin version (0.6.3)"), "{}", crash.title);
    assert!(crash.title.contains("flashinfer/jit/env.py:76"), "{}", crash.title);
    assert_eq!(strongest(&findings), Some(("package-version-skew", 8.0)));
    assert!(!has(&findings, "logs.crash/without-reason"));
}

fn chain(first: &str, link: &str, second: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/v/a.py\", line 1, in f\n    f()\n{first}\n\n{link}\n\nTraceback (most recent call last):\n  File \"/v/b.py\", line 2, in g\n    g()\n{second}\n"
    )
}

const CAUSE: &str = "The above exception was the direct cause of the following exception:";
const CONTEXT: &str = "During handling of the above exception, another exception occurred:";

#[test]
fn chains_lead_to_their_root() {
    for (log, links, root) in [
        (
            chain("OSError: [Errno 5] Input/output error", CAUSE, "RuntimeError: could not load"),
            Link::DirectCause,
            "OSError",
        ),
        (
            chain("OSError: [Errno 5] Input/output error", CONTEXT, "RuntimeError: could not load"),
            Link::DuringHandling,
            "OSError",
        ),
        // Looking a thing up and not finding it is how Python finds its way: what followed is the news.
        (
            chain("KeyError: 'kimi'", CONTEXT, "ValueError: no parser of that name"),
            Link::DuringHandling,
            "ValueError",
        ),
        // But whoever says `from` means it.
        (
            chain("KeyError: 'kimi'", CAUSE, "ValueError: no parser of that name"),
            Link::DirectCause,
            "KeyError",
        ),
        // A lost connection led to the real thing.
        (
            chain(
                "ConnectionResetError: [Errno 104] Connection reset by peer",
                CONTEXT,
                "OSError: disk gone",
            ),
            Link::DuringHandling,
            "OSError",
        ),
    ] {
        let evidence = read(&log);
        assert_eq!(evidence.tracebacks.len(), 1, "{log}");
        let traceback = &evidence.tracebacks[0];
        assert_eq!(traceback.parts.len(), 2, "{log}");
        assert_eq!(traceback.parts[1].link, links);
        assert_eq!(traceback.root().unwrap().exception, root, "{log}");
    }
}

/// `concurrent.futures` and `multiprocessing` print the child's traceback inside the parent's.
#[test]
fn remote_tracebacks_belong_to_their_parent() {
    let log = format!(
        "concurrent.futures.process._RemoteTraceback: \n\"\"\"\nTraceback (most recent call last):\n  File \"/v/worker.py\", line 7, in load\n    load()\nsafetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer\n\"\"\"\n\n{CAUSE}\n\nTraceback (most recent call last):\n  File \"/v/main.py\", line 3, in run\n    run()\nsafetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer\n"
    );
    let evidence = read(&log);
    assert_eq!(evidence.tracebacks.len(), 1, "{:?}", evidence.tracebacks);
    assert_eq!(evidence.tracebacks[0].root().unwrap().frames[0].file, "/v/worker.py");
    assert_eq!(strongest(&check(&evidence)), Some(("checkpoint-corrupt", 6.0)));
}

/// SGLang marks only the first line of a message; two ranks' tracebacks come one after the other.
#[test]
fn sglang_marks_first_lines_only() {
    let rank = |rank: u32| {
        format!(
            "[2026-11-29 12:00:0{rank} TP{rank}] Scheduler hit an exception: Traceback (most recent call last):\n  File \"/v/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py\", line 3100, in run_scheduler_process\n    scheduler.event_loop_overlap()\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {rank} has a total capacity of 95.00 GiB\n\n"
        )
    };
    let log = format!(
        "[2026-11-29 12:00:00 TP0] Load weight begin. avail mem=94.20 GB\n{}{}[2026-11-29 12:00:05] Received sigquit from a child process. It usually means the child failed.\n",
        rank(1),
        rank(2)
    );
    let evidence = read(&log);
    assert_eq!(evidence.tracebacks.len(), 1, "{:?}", evidence.tracebacks);
    assert_eq!(evidence.tracebacks[0].count, 2);
    assert_eq!(evidence.tracebacks[0].processes, ["TP1", "TP2"]);
    let findings = check(&evidence);
    assert_eq!(strongest(&findings).unwrap().0, "out-of-memory");
    // The wrapper's line accuses nobody.
    assert!(!accusations(&findings).contains(&"logs.signatures/sglang-child-failed"));
}

/// Rank 3 runs out of memory; the others only lose it.
#[test]
fn echoes_of_other_ranks_accuse_nobody() {
    let log = "(Worker_TP3 pid=33) INFO 11-29 12:00:00 [gpu_model_runner.py:1] Starting to load model /m...\n\
(Worker_TP3 pid=33) ERROR 11-29 12:00:10 [multiproc_executor.py:1057] Traceback (most recent call last):\n\
(Worker_TP3 pid=33) ERROR 11-29 12:00:10 [multiproc_executor.py:1057]   File \"/v/x.py\", line 1, in f\n\
(Worker_TP3 pid=33) ERROR 11-29 12:00:10 [multiproc_executor.py:1057] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB\n\
[rank1]: Traceback (most recent call last):\n\
[rank1]:   File \"/v/y.py\", line 1, in g\n\
[rank1]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n\
[rank1]: Connection closed by remote peer gpu2<41000>\n\
(EngineCore_DP0 pid=30) ERROR 11-29 12:00:12 [multiproc_executor.py:380] Worker proc VllmWorker-3 died unexpectedly (exit code: 1), shutting down executor.\n";
    let evidence = read(log);
    let findings = check(&evidence);
    assert_eq!(strongest(&findings).unwrap().0, "out-of-memory");
    let accused: Vec<&str> = findings
        .iter()
        .flat_map(|finding| &finding.suggests)
        .filter(|suggestion| suggestion.weight > 1.0)
        .map(|suggestion| suggestion.cause.as_str())
        .collect();
    assert!(!accused.contains(&"collectives"), "{accused:?}");
    let crash = findings.iter().find(|finding| finding.id == "logs.crash/first-cause").unwrap();
    assert!(crash.title.contains("OutOfMemoryError"), "{}", crash.title);
}

/// The twin: alone, the same line is all there is to go by.
#[test]
fn an_echo_alone_is_named() {
    let log = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/v/y.py\", line 1, in g\n[rank1]: torch.distributed.DistBackendError: NCCL error, ncclRemoteError: A call failed possibly due to a network error\n";
    assert_eq!(strongest(&check(&read(log))).unwrap().0, "collectives");
}

#[test]
fn debugging_code_in_a_stack_is_named() {
    let log = |code: &str, file: &str| {
        format!(
            "Traceback (most recent call last):\n  File \"{file}\", line 512, in forward\n    {code}\n  File \"/v/lib/python3.12/site-packages/torch/serialization.py\", line 900, in save\n    _save()\nRuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos\n"
        )
    };
    let model = "/v/lib/python3.12/site-packages/vllm/model_executor/models/deepseek_v2.py";
    for code in [
        "_t2.save(q, f'/tmp/nomla_debug_tp{rank}.pt')",
        "torch.save(x, path)",
        "pickle.dump(x, f)",
        "breakpoint()",
    ] {
        let findings = check(&read(&log(code, model)));
        assert_eq!(strongest(&findings), Some(("leftover-debug-code", 5.0)), "{code}");
    }
    // A user's own script may save what it likes.
    let findings = check(&read(&log("torch.save(x, path)", "/home/u/train.py")));
    assert!(!has(&findings, "logs.crash/debug-code-in-stack"));
    // And the engine's own saving of a model is not in a model's file.
    let findings =
        check(&read(&log("torch.save(x, path)", "/v/lib/python3.12/site-packages/vllm/config/save.py")));
    assert!(!has(&findings, "logs.crash/debug-code-in-stack"));
}

#[test]
fn errors_that_a_service_survives_are_no_crash() {
    let error = "ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n  File \"/v/serving.py\", line 1, in f\n    f()\nValueError: bad request\n";
    let log = format!(
        "INFO:     Application startup complete.\n{error}INFO:     1.2.3.4:5 - \"GET /health HTTP/1.1\" 200 OK\n"
    );
    let findings = check(&read(&log));
    assert!(has(&findings, "logs.crash/request-errors"));
    assert!(!has(&findings, "logs.crash/first-cause"));
}

#[test]
fn odd_tracebacks_are_taken_as_they_are() {
    for log in [
        "Traceback (most recent call last):\n",
        "Traceback (most recent call last):\n  File \"/v/a.py\", line 1, in f\n",
        "Traceback (most recent call last):\nTraceback (most recent call last):\nTraceback (most recent call last):\n",
        "Traceback (most recent call last):\n  File \"/v/a.py\", line 99999999999999999999, in f\n    x\nE\n",
        "  + Exception Group Traceback (most recent call last):\n  |   File \"/v/a.py\", line 1, in f\n  |     f()\n  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    |   File \"/v/b.py\", line 2, in g\n    |     g()\n    | ValueError: inner\n    +------------------------------------\n",
    ] {
        check(&read(log));
    }
    // A stack of a thousand frames keeps its ends.
    let deep: String = (0..1000).map(|n| format!("  File \"/v/a.py\", line {n}, in f\n    f()\n")).collect();
    let evidence = read(&format!(
        "Traceback (most recent call last):\n{deep}RecursionError: maximum recursion depth exceeded\n"
    ));
    let part = evidence.tracebacks[0].root().unwrap();
    assert_eq!(
        (part.frames.len(), part.left_out, part.frames[0].line, part.frames[19].line),
        (20, 980, 0, 999)
    );
    // A thousand processes that each begin one.
    let many: String =
        (0..1000).map(|n| format!("(W{n} pid={n}) Traceback (most recent call last):\n")).collect();
    assert!(read(&many).notes.iter().any(|note| note.contains("at the same time")));
}
