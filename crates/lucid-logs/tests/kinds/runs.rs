//! `logs.crash`, `logs.timeline` and the clean log: whole runs of vLLM, SGLang and llama.cpp.

use std::path::Path;

use lucid_logs::{LogEvidence, Source, gather};

use crate::reading::{latest, read};

type Log = fn() -> LogEvidence;

const BANNER: &str =
    "(APIServer pid=600) INFO 11-29 12:00:00 [api_utils.py:286] non-default args: {'model': '/m'}\n";
const LOAD: &str =
    "(Worker_TP0 pid=801) INFO 11-29 12:00:20 [gpu_model_runner.py:1] Starting to load model /m...\n";
const READY: &str = "INFO:     Application startup complete.\n";
const STOPPED: &str = "INFO:     Shutting down\n";
const FATAL: &str =
    "(EngineCore_DP0 pid=700) ERROR 11-29 12:00:30 [core.py:1584] EngineCore encountered a fatal error.\n";

/// SGLang's start, from its banner to its last word, with so many minutes of loading.
fn sglang(minutes: u32) -> String {
    format!(
        "[2026-11-29 12:00:00] server_args=ServerArgs(model_path='/m/kimi', tp_size=8)\n\
[2026-11-29 12:00:10 TP0] Load weight begin. avail mem=138.20 GB\n\
[2026-11-29 12:{minutes:02}:10 TP0] Load weight end. elapsed=540.12 s, type=X, dtype=torch.bfloat16, avail mem=60.10 GB, mem usage=78.10 GB.\n\
[2026-11-29 12:{minutes:02}:40] The server is fired up and ready to roll!\n"
    )
}

const LLAMA: &str = "build: 5272 (ae803bfc) with cc (Ubuntu) for x86_64-linux-gnu\n\
srv    load_model: loading model '/m/kimi.gguf'\n\
llama_model_loader: loaded meta data with 50 key-value pairs and 1096 tensors from /m/kimi.gguf (version GGUF V3 (latest))\n\
srv  update_slots: all slots are idle\n";

/// A start of vLLM that is ready after so many minutes, told by its API server.
fn vllm(minutes: u32) -> String {
    format!(
        "{BANNER}{LOAD}(APIServer pid=600) INFO 11-29 12:{minutes:02}:00 [launcher.py:1] Starting vLLM API server on http://0.0.0.0:8000\n{READY}"
    )
}

fn at_hour(text: &str, hour: u32) -> String {
    text.replace("11-29 12:", &format!("11-29 {hour:02}:"))
}

/// The same lines as another wrapping has them.
fn journal(text: &str) -> LogEvidence {
    let line = |line: &str| {
        serde_json::json!({"__REALTIME_TIMESTAMP": "1796040000123456", "MESSAGE": line, "_PID": "22787"})
            .to_string()
            + "\n"
    };
    read(&text.lines().map(line).collect::<String>())
}

fn kubernetes(text: &str) -> LogEvidence {
    read(&text.lines().map(|line| format!("2026-11-29T12:00:00.1Z stderr F {line}\n")).collect::<String>())
}

fn files(texts: &[(&str, &str)]) -> LogEvidence {
    let sources: Vec<Source> = texts
        .iter()
        .map(|(name, text)| Source::Text { name: (*name).to_owned(), bytes: text.as_bytes().to_vec() })
        .collect();
    gather(Path::new("/"), &sources, &latest(), &mut |_| {})
}

/// A traceback, with `mark` before each line.
fn traceback(mark: &str, frame: &str, exception: &str) -> String {
    format!(
        "{mark}Traceback (most recent call last):\n{mark}  File \"/v/lib/python3.12/site-packages/{frame}\n{exception_line}",
        exception_line = format_args!("{mark}{exception}\n")
    )
}

const MODEL: &str = "vllm/model_executor/models/deepseek_v2.py\", line 90, in forward\n";

fn waiting(minute: u32) -> String {
    format!(
        "(EngineCore_DP0 pid=700) INFO 11-29 12:{minute:02}:20 [shm_broadcast.py:871] No available shared memory broadcast block found in 60 seconds.\n"
    )
}

fn statistics(time: &str, running: u32) -> String {
    format!(
        "(APIServer pid=600) INFO 11-29 {time} [loggers.py:1] Engine 000: Avg prompt throughput: 5.3 tokens/s, Avg generation throughput: 16.8 tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%\n"
    )
}

fn decoding(time: &str, running: u32) -> String {
    format!(
        "[2026-11-29 {time} TP0] Decode batch. #running-req: {running}, #token: 4096, token usage: 0.01, cuda graph: True, gen throughput (token/s): 55.1, #queue-req: 0, \n"
    )
}

/// Four ranks' loading times, from this file system.
fn loads(seconds: [f64; 4], gib: u32) -> String {
    let ranks: String = seconds
        .iter()
        .enumerate()
        .map(|(n, s)| {
            format!(
                "(Worker_TP{n} pid=80{n}) INFO 11-29 14:30:00 [default_loader.py:501] Loading weights took {s:.2} seconds\n"
            )
        })
        .collect();
    format!(
        "{BANNER}{LOAD}INFO 11-29 12:00:21 [weight_utils.py:1108] Filesystem type for checkpoints: NFS. Checkpoint size: {gib}.00 GiB. Available RAM: 900 GiB.\n{ranks}"
    )
}

fn loaded(rank: u32, gib: f64) -> String {
    format!(
        "[2026-11-29 12:05:10 TP{rank}] Load weight end. elapsed=30.12 s, type=X, dtype=torch.bfloat16, avail mem=38.10 GB, mem usage={gib:.2} GB.\n"
    )
}

/// A number every ten minutes while serving, as this line says it.
fn grown(line: fn(f64) -> String, value: fn(f64) -> f64) -> LogEvidence {
    let lines: String = (0..24)
        .map(|n| {
            format!(
                "2026-11-29 {:02}:{}0:00 - monitor - INFO - {}\n",
                13 + n / 6,
                n % 6,
                line(value(f64::from(n)))
            )
        })
        .collect();
    read(&format!("{BANNER}{LOAD}{READY}{lines}"))
}

fn drafts(length: f64, first: f64) -> LogEvidence {
    let lines: String = (0..5).map(|n| format!("INFO 11-29 12:3{n}:00 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: {length:.2}, Accepted throughput: 0.30 tokens/s, Drafted throughput: 45.00 tokens/s, Accepted: 3 tokens, Drafted: 450 tokens, Per-position acceptance rate: {first:.3}, 0.000, Avg Draft acceptance rate: 0.7%\n")).collect();
    read(&lines)
}

pub const KINDS: &[(&str, &[Log], &[Log])] = &[
    (
        "logs.signatures/clean",
        &[|| read(&vllm(2)), || read(&sglang(2)), || read(LLAMA), || journal(&vllm(1))],
        &[
            || read("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB\n"),
            || {
                read(
                    "Nov 29 12:00:00 gpu1 kernel: NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n",
                )
            },
        ],
    ),
    (
        "logs.crash/first-cause",
        &[
            || read(&(traceback("", MODEL, "ValueError: shapes differ") + FATAL)),
            || {
                let mark = "(Worker_TP3 pid=33) ERROR 11-29 12:00:01 [multiproc_executor.py:1057] ";
                read(&format!(
                    "{BANNER}{LOAD}{}{FATAL}",
                    traceback(mark, MODEL, "torch.OutOfMemoryError: CUDA out of memory.")
                ))
            },
            || {
                let text = traceback(
                    "",
                    "sglang/srt/managers/scheduler.py\", line 3100, in run\n",
                    "AssertionError: rank",
                );
                let first = format!("[2026-11-29 12:00:01 TP1] Scheduler hit an exception: {text}\n");
                read(&format!(
                    "[2026-11-29 12:00:00 TP0] Load weight begin. avail mem=94.20 GB\n{first}[2026-11-29 12:00:05] Received sigquit from a child process. It usually means the child failed.\n"
                ))
            },
            || kubernetes(include_str!("../logs/flashinfer-cubin-mismatch.log")),
        ],
        &[
            || read(&vllm(2)),
            || {
                read(&format!(
                    "{BANNER}{LOAD}{READY}{}",
                    traceback("ERROR 11-29 12:40:01 [serving.py:1] ", MODEL, "ValueError: bad request")
                ))
            },
        ],
    ),
    (
        "logs.crash/without-reason",
        &[
            || read(&format!("{BANNER}{LOAD}{FATAL}")),
            || {
                read(
                    "[2026-11-29 12:00:00 TP0] Load weight begin. avail mem=94.20 GB\n[2026-11-29 12:00:05] Received sigquit from a child process. It usually means the child failed.\n",
                )
            },
            || {
                let echo = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.";
                read(&format!(
                    "{BANNER}{LOAD}{READY}{}{FATAL}",
                    traceback("(APIServer pid=600) ", MODEL, echo)
                ))
            },
        ],
        &[|| read(&vllm(2)), || read(&(traceback("", MODEL, "ValueError: shapes differ") + FATAL))],
    ),
    (
        "logs.crash/debug-code-in-stack",
        &[
            || {
                read(
                    &(traceback(
                        "",
                        &format!("{MODEL}    torch.save(q, '/tmp/q.pt')"),
                        "OSError: [Errno 28] No space left on device",
                    ) + FATAL),
                )
            },
            || {
                let mark = "(Worker_TP0 pid=33) ERROR 11-29 12:00:01 [x.py:1] ";
                let text = traceback(
                    "",
                    "vllm/model_executor/layers/linear.py\", line 5, in forward\n    breakpoint()",
                    "bdb.BdbQuit",
                );
                read(&text.lines().map(|line| format!("{mark}{line}\n")).collect::<String>())
            },
            || {
                read(&traceback(
                    "",
                    "sglang/srt/models/deepseek_v2.py\", line 7, in forward\n    x.numpy().tofile(f\"/dump/{i}.bin\")",
                    "RuntimeError: x",
                ))
            },
        ],
        &[
            || read(&traceback("", &format!("{MODEL}    return self.model(q)"), "RuntimeError: x")),
            || {
                read(&traceback(
                    "",
                    "torch/serialization.py\", line 5, in save\n    torch.save(obj, f)",
                    "RuntimeError: x",
                ))
            },
        ],
    ),
    (
        "logs.crash/request-errors",
        &[
            || {
                read(&format!(
                    "{BANNER}{LOAD}{READY}{}",
                    traceback(
                        "(APIServer pid=600) ERROR 11-29 12:40:01 [serving.py:1] ",
                        MODEL,
                        "ValueError: bad request"
                    )
                ))
            },
            || read(&format!("{}{}", sglang(2), traceback("", MODEL, "KeyError: 'role'"))),
            || {
                read(&format!(
                    "{BANNER}{LOAD}{READY}{}{STOPPED}",
                    format_args!(
                        "ERROR:    Exception in ASGI application\n{}",
                        traceback("", MODEL, "jinja2.exceptions.TemplateError: no")
                    )
                ))
            },
        ],
        &[
            || read(&vllm(2)),
            || read(&format!("{BANNER}{LOAD}{}", traceback("", MODEL, "ValueError: shapes differ"))),
        ],
    ),
    (
        "logs.crash/none",
        &[|| read(&vllm(2)), || read(&sglang(2)), || read(LLAMA), || kubernetes(&vllm(2))],
        &[|| read(&format!("{BANNER}{LOAD}")), || read(&format!("{BANNER}{LOAD}{READY}{FATAL}"))],
    ),
    (
        "logs.timeline/start",
        &[|| read(&vllm(1)), || read(&sglang(1)), || read(&at_hour(&vllm(2), 3))],
        &[|| read(&vllm(20)), || read(&format!("{BANNER}{LOAD}"))],
    ),
    (
        "logs.timeline/slow-start",
        &[
            || read(&vllm(13)),
            || read(&sglang(9)),
            || files(&[("server", &vllm(20)), ("rank1", &waiting(5))]),
        ],
        &[|| read(&vllm(1)), || read(&format!("{BANNER}{LOAD}"))],
    ),
    (
        "logs.timeline/slow-load",
        &[
            || read(&loads([6000.0, 6010.0, 6020.0, 6005.0], 540)),
            || read(&loads([150.0, 150.0, 150.0, 150.0], 60)),
            || journal(&loads([2000.0, 2001.0, 2002.0, 2003.0], 595)),
        ],
        &[|| read(&loads([100.0, 105.0, 110.0, 120.0], 540)), || read(&vllm(2))],
    ),
    (
        "logs.timeline/slow-rank",
        &[
            || read(&loads([100.0, 105.0, 110.0, 700.0], 540)),
            || read(&loads([1000.0, 20.0, 21.0, 22.0], 540)),
            || kubernetes(&loads([50.0, 51.0, 300.0, 52.0], 540)),
        ],
        &[|| read(&loads([100.0, 105.0, 110.0, 120.0], 540)), || read(&loads([1.0, 1.0, 1.0, 9.0], 540))],
    ),
    (
        "logs.timeline/loaded-twice",
        &[
            || read(&(loaded(0, 57.0) + &loaded(0, 57.1))),
            || read(&(loaded(0, 57.0) + &loaded(1, 57.0) + &loaded(1, 56.2))),
            || journal(&(loaded(3, 90.5) + &loaded(3, 2.0) + &loaded(3, 90.5))),
        ],
        &[
            || read(&(loaded(0, 57.0) + &loaded(0, 2.1))),
            || read(&(loaded(0, 57.0) + READY + &loaded(0, 57.0))),
            || files(&[("a", &loaded(0, 57.0)), ("b", &loaded(0, 57.0))]),
        ],
    ),
    (
        "logs.timeline/starting",
        &[
            || read(&format!("{BANNER}{LOAD}")),
            || {
                read(
                    "[2026-11-29 12:00:00] server_args=ServerArgs(model_path='/m')\n[2026-11-29 12:02:10 TP0] Load weight begin. avail mem=138.20 GB\n",
                )
            },
            || read(&format!("{BANNER}{LOAD}{}{}", waiting(3), waiting(4))),
        ],
        &[|| read(&vllm(2)), || read(&format!("{BANNER}{LOAD}{FATAL}"))],
    ),
    (
        "logs.timeline/killed-while-starting",
        &[
            || read(&format!("{BANNER}{LOAD}(APIServer pid=600) KeyboardInterrupt: terminated\n")),
            || {
                read(&format!(
                    "{BANNER}{LOAD}Nov 29 12:10:00 gpu1 systemd[1]: vllm.service: start operation timed out. Terminating.\n"
                ))
            },
            || read(&format!("{BANNER}{LOAD}{STOPPED}")),
        ],
        &[|| read(&format!("{BANNER}{LOAD}{READY}{STOPPED}")), || read(&format!("{BANNER}{LOAD}{FATAL}"))],
    ),
    (
        "logs.timeline/restarts",
        &[
            || read(&(1..6).map(|hour| at_hour(&format!("{BANNER}{LOAD}{READY}"), hour)).collect::<String>()),
            || read(&(1..5).map(|hour| at_hour(&format!("{BANNER}{LOAD}{FATAL}"), hour)).collect::<String>()),
            || {
                read(
                    "Nov 29 12:00:00 gpu1 systemd[1]: vllm.service: Scheduled restart job, restart counter is at 7.\n",
                )
            },
        ],
        &[
            || {
                read(
                    &(1..6)
                        .map(|hour| at_hour(&format!("{BANNER}{LOAD}{READY}{STOPPED}"), hour))
                        .collect::<String>(),
                )
            },
            || read(&vllm(2)),
        ],
    ),
    (
        "logs.timeline/vanished",
        &[
            || read(&(at_hour(&format!("{BANNER}{LOAD}{READY}"), 1) + &at_hour(&vllm(2), 2))),
            || read(&(at_hour(&format!("{BANNER}{LOAD}"), 1) + &at_hour(&format!("{BANNER}{LOAD}"), 2))),
            || read(&(sglang(2) + &sglang(2).replace("2026-11-29 12", "2026-11-29 15"))),
        ],
        &[
            || read(&(at_hour(&format!("{BANNER}{LOAD}{READY}{STOPPED}"), 1) + &at_hour(&vllm(2), 2))),
            || read(&(at_hour(&format!("{BANNER}{LOAD}{FATAL}"), 1) + &at_hour(&vllm(2), 2))),
        ],
    ),
    (
        "logs.timeline/stall",
        &[
            || {
                read(
                    &["13:00:00", "13:00:10", "13:00:20", "13:10:20"]
                        .map(|time| statistics(time, 3))
                        .concat(),
                )
            },
            || {
                let lines =
                    ["13:00:00", "13:00:10", "13:00:20", "13:30:20"].map(|time| statistics(time, 1)).concat();
                read(&lines.replace("(APIServer pid=600) ", "").replace("[loggers.py:1]", "loggers.py:1]"))
            },
            || read(&["13:00:00", "13:00:10", "13:00:20", "13:10:20"].map(|time| decoding(time, 8)).concat()),
        ],
        &[
            // Idle engines are silent.
            || {
                read(
                    &["13:00:00", "13:00:10", "13:00:20", "13:10:20"]
                        .map(|time| statistics(time, 0))
                        .concat(),
                )
            },
            || {
                read(
                    &["13:00:00", "13:00:10", "13:00:20", "13:00:30"]
                        .map(|time| statistics(time, 3))
                        .concat(),
                )
            },
        ],
    ),
    (
        "logs.timeline/silence",
        &[|| read(&vllm(13)), || read(&sglang(9)), || read(&format!("{BANNER}{LOAD}{}", waiting(40)))],
        &[|| read(&vllm(2)), || read(&format!("{BANNER}{LOAD}{}{}", waiting(2), waiting(4)))],
    ),
    (
        "logs.timeline/memory-growth",
        &[
            || grown(|gib| format!("rank 0 RSS: {gib:.1} GiB"), |n| 100.0 + 5.0 * n),
            || grown(|gib| format!("host memory used = {gib:.1} GB"), |n| 50.0 * 1.05f64.powf(n)),
            || grown(|gib| format!("GPU memory used: {gib:.2} GiB"), |n| 80.0 + 3.0 * n + n % 3.0),
            || grown(|gib| format!("resident set size {gib:.1} GiB"), |n| 20.0 + n),
        ],
        &[
            || grown(|gib| format!("rank 0 RSS: {gib:.1} GiB"), |n| 100.0 + n % 4.0),
            // One peak proves nothing.
            || grown(|gib| format!("rank 0 RSS: {gib:.1} GiB"), |n| if n == 12.0 { 180.0 } else { 100.0 }),
        ],
    ),
    (
        "logs.timeline/memory-steady",
        &[
            || grown(|gib| format!("rank 0 RSS: {gib:.1} GiB"), |n| 100.0 + n % 4.0),
            || grown(|gib| format!("GPU memory usage: {gib:.1} GiB"), |_| 120.0),
            || grown(|gib| format!("cpu memory used: {gib:.1} GB"), |n| 60.0 - n % 2.0),
        ],
        &[|| grown(|gib| format!("rank 0 RSS: {gib:.1} GiB"), |n| 100.0 + 5.0 * n), || read(&vllm(2))],
    ),
    (
        "logs.timeline/draft-rejected",
        &[
            || drafts(1.02, 0.024),
            || drafts(1.0, 0.0),
            || {
                read(&(0..5).map(|n| format!("[2026-11-29 12:3{n}:00 TP0] Decode batch. #running-req: 1, #token: 40, token usage: 0.01, accept len: 1.00, cuda graph: True, gen throughput (token/s): 55.1, #queue-req: 0, \n")).collect::<String>())
            },
        ],
        &[|| drafts(2.4, 0.83), || read(&vllm(2))],
    ),
];
