//! How a deployment is kept alive, and by what it may be killed: systemd, container runtime, Kubernetes' probes.

use serde::{Deserialize, Serialize};

/// How a deployment is kept alive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceEvidence {
    /// Its systemd unit.
    pub unit: Option<UnitFacts>,
    /// Its container, or its container's place in a pod.
    pub container: Option<ContainerFacts>,
    /// What asks whether it lives.
    pub probes: Vec<Probe>,
    /// What could not be read.
    pub notes: Vec<String>,
}

/// Properties of a systemd unit, with times in seconds; `None`: not said, infinite where the text says so.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnitFacts {
    /// `vllm.service`.
    pub name: String,
    /// `simple`, `exec`, `notify`, `forking`, `oneshot`.
    pub kind: Option<String>,
    /// `active`, `activating`, `failed`, `inactive`.
    pub active_state: Option<String>,
    /// `running`, `auto-restart`, `start`, `dead`.
    pub sub_state: Option<String>,
    /// How it last ended: `success`, `exit-code`, `signal`, `timeout`, `watchdog`, `oom-kill`, `start-limit-hit`.
    pub result: Option<String>,
    /// Restarts since it was last started by hand.
    pub restarts: Option<u64>,
    /// `always`, `on-failure`, `no`.
    pub restart: Option<String>,
    /// Seconds between restarts.
    pub restart_delay_s: Option<f64>,
    /// Seconds a start may take; only `notify`, `forking` and `oneshot` units can exceed it.
    pub start_timeout_s: Option<f64>,
    /// Seconds a stop may take.
    pub stop_timeout_s: Option<f64>,
    /// Seconds after which a unit that sends no keep-alive is killed; 0 or `None`: never.
    pub watchdog_s: Option<f64>,
    /// Seconds a unit may run at all.
    pub most_runtime_s: Option<f64>,
    /// `control-group` kills all ranks, `process` only the first process.
    pub kill_mode: Option<String>,
    /// Seconds since it became active.
    pub uptime_s: Option<f64>,
    /// Memory limit in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// Limit of open files.
    pub open_files_limit: Option<u64>,
    /// Limit of locked memory in bytes.
    pub locked_memory_limit_bytes: Option<u64>,
    /// Exit code or signal of the last run.
    pub exit_status: Option<i64>,
    /// `yes` if it lacks the host's `/tmp`.
    pub private_tmp: Option<bool>,
}

/// What a container runtime knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerFacts {
    /// `docker`, `podman`, `kubernetes`, `compose`.
    pub runtime: String,
    /// `running`, `exited`, `restarting`; `CrashLoopBackOff` of a pod.
    pub state: Option<String>,
    /// How often it was restarted.
    pub restarts: Option<u64>,
    /// Why it last ended: `OOMKilled`, `Error`, `Completed`.
    pub last_reason: Option<String>,
    /// Exit code of the last run.
    pub exit_code: Option<i64>,
    /// Whether the kernel killed it for memory.
    pub out_of_memory_killed: Option<bool>,
    /// `always`, `unless-stopped`, `on-failure`, `no`.
    pub restart_policy: Option<String>,
    /// Size of its `/dev/shm`; 64 MiB if nothing is said.
    pub shared_memory_bytes: Option<u64>,
    /// `host`: it uses the host's shared memory; `private` otherwise.
    pub ipc: Option<String>,
    /// Memory limit in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// Seconds that the last run lasted.
    pub last_run_s: Option<f64>,
}

/// What a probe decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeKind {
    /// Failing restarts the container; the other probes wait for it.
    Startup,
    /// Failing restarts the container.
    Liveness,
    /// Failing takes it out of the load balancer.
    Readiness,
    /// A container's own `HEALTHCHECK`: failing marks it unhealthy; an orchestrator or watcher may kill it.
    Healthcheck,
}

/// A health check from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// What it decides.
    pub kind: ProbeKind,
    /// What it asks: `GET :8000/health`, `exec cat /tmp/ready`.
    pub asks: String,
    /// Seconds before the first question (`initialDelaySeconds`, `start_period`).
    pub delay_s: f64,
    /// Seconds between questions.
    pub period_s: f64,
    /// Failures in a row that count.
    pub failures: u32,
    /// Seconds one answer may take.
    pub timeout_s: f64,
}

impl Probe {
    /// Seconds after the start at which a server that doesn't answer yet has failed.
    #[must_use]
    pub fn budget_s(&self) -> f64 {
        self.delay_s + self.period_s * f64::from(self.failures.max(1))
    }
}
