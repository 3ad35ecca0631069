//! Reads `/proc`, `/sys` and file systems; parsers are pure functions of their text.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lucid_findings::Step;

use super::{CgroupMemory, Clock, FileSystem, Limit, MemoryEvidence};
use crate::{Patient, Root};

/// Limits that serving runs into.
const LIMITS: [&str; 5] =
    ["Max locked memory", "Max open files", "Max processes", "Max address space", "Max core file size"];

impl MemoryEvidence {
    /// Reads the machine at `system` (`/`, or a recorded tree with `proc` and `sys`) and what `patient` sees of it.
    #[must_use]
    pub fn gather(
        system: &Path,
        patient: Option<&Patient>,
        progress: &mut dyn FnMut(Step),
    ) -> MemoryEvidence {
        let mut step =
            |done, text: &str| progress(Step { done, of: 4, unit: "parts", text: text.to_owned() });
        let mut evidence = MemoryEvidence::default();
        let read = |path: &str| fs::read_to_string(system.join(path));
        step(0, "reading memory");
        match read("proc/meminfo") {
            Ok(text) => evidence.read_meminfo(&text),
            Err(error) => evidence.notes.push(format!("/proc/meminfo: {error}")),
        }
        evidence.transparent_huge_pages =
            read("sys/kernel/mm/transparent_hugepage/enabled").ok().and_then(|text| chosen(&text));
        evidence.node_balancing = read("proc/sys/kernel/numa_balancing").ok().map(|text| text.trim() != "0");
        evidence.kernel_kills =
            read("proc/vmstat").ok().and_then(|text| counter(&text, "oom_kill")).unwrap_or(0);
        evidence.memory_nodes = fs::read_dir(system.join("sys/devices/system/node"))
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| {
                entry
                    .file_name()
                    .to_string_lossy()
                    .strip_prefix("node")
                    .is_some_and(|n| n.parse::<u32>().is_ok())
            })
            .count() as u32;
        step(1, "reading limits and the control group");
        let pid = patient.and_then(|patient| patient.processes.first()).map(|process| process.pid);
        let base = pid.map_or_else(|| "proc/self".to_owned(), |pid| format!("proc/{pid}"));
        match read(&format!("{base}/limits")) {
            Ok(text) => evidence.limits = read_limits(&text),
            Err(error) => evidence.notes.push(format!("/{base}/limits: {error}")),
        }
        if let Ok(text) = read(&format!("{base}/cgroup")) {
            evidence.cgroup = read_cgroup(&system.join("sys/fs/cgroup"), &text);
        }
        step(2, "reading file systems");
        if let Some(patient) = patient {
            evidence.resident_bytes = patient.processes.iter().map(|process| process.resident_bytes).sum();
            evidence.processes = patient.processes.len() as u32;
            evidence.oldest_s =
                patient.processes.iter().filter_map(|process| process.uptime_s).reduce(f64::max);
        }
        evidence.read_file_systems(system, patient);
        step(3, "asking for the clock");
        evidence.clock = read_clock(system);
        evidence
    }

    fn read_meminfo(&mut self, text: &str) {
        let kilobytes = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
        };
        let plain = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        self.total_bytes = kilobytes("MemTotal");
        self.available_bytes = kilobytes("MemAvailable").or_else(|| kilobytes("MemFree"));
        self.cached_bytes = kilobytes("Cached");
        self.shared_bytes = kilobytes("Shmem");
        self.swap_bytes = kilobytes("SwapTotal");
        self.swap_used_bytes =
            self.swap_bytes.zip(kilobytes("SwapFree")).map(|(all, free)| all.saturating_sub(free));
        self.huge_bytes = kilobytes("Hugetlb");
        self.huge_free_bytes = plain("HugePages_Free")
            .zip(kilobytes("Hugepagesize"))
            .map(|(pages, size)| pages.saturating_mul(size));
    }

    fn read_file_systems(&mut self, system: &Path, patient: Option<&Patient>) {
        let root =
            Root::new(patient.and_then(|patient| patient.root.clone()).unwrap_or_else(|| system.to_owned()));
        self.shared_memory = file_system(&root, "/dev/shm", "shared memory");
        if self.shared_memory.is_none() {
            self.notes.push("/dev/shm was not found".to_owned());
        }
        let environment = patient.map(|patient| &patient.deployment.environment);
        let variable = |name: &str| environment.and_then(|environment| environment.get(name)).cloned();
        let home = variable("HOME").unwrap_or_else(|| "/root".to_owned());
        let cache = variable("XDG_CACHE_HOME").unwrap_or_else(|| format!("{home}/.cache"));
        let places = [
            (variable("TMPDIR").unwrap_or_else(|| "/tmp".to_owned()), "temporary files"),
            (variable("HF_HOME").unwrap_or_else(|| format!("{cache}/huggingface")), "Hugging Face cache"),
            (variable("VLLM_CACHE_ROOT").unwrap_or_else(|| format!("{cache}/vllm")), "compile cache"),
            (variable("TRITON_CACHE_DIR").unwrap_or_else(|| format!("{home}/.triton")), "Triton cache"),
            (variable("FLASHINFER_WORKSPACE_BASE").unwrap_or(home), "FlashInfer cache"),
        ];
        let model = patient
            .and_then(|patient| patient.deployment.model.clone())
            .filter(|model| model.starts_with('/'));
        let places = places.into_iter().chain(model.map(|model| (model, "checkpoint")));
        self.disks = places.filter_map(|(path, purpose)| file_system(&root, &path, purpose)).collect();
    }
}

/// The file system behind a folder or, if the folder isn't there yet, behind the nearest one above it.
fn file_system(root: &Root, path: &str, purpose: &str) -> Option<FileSystem> {
    let mut at = PathBuf::from(path);
    let place = loop {
        match root.existing(&at) {
            Ok(place) => break place,
            Err(_) if purpose != "shared memory" && at.pop() => {}
            Err(_) => return None,
        }
    };
    let stat = rustix::fs::statvfs(&place).ok()?;
    Some(FileSystem {
        path: path.to_owned(),
        purpose: purpose.to_owned(),
        bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        read_only: stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
    })
}

/// `always [madvise] never`
fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

fn counter(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// `/proc/PID/limits`: name in 26 columns, then soft, hard, unit.
fn read_limits(text: &str) -> Vec<Limit> {
    text.lines()
        .filter_map(|line| {
            let name = LIMITS.iter().find(|name| line.starts_with(**name))?;
            let mut values = line[name.len()..].split_whitespace();
            let mut value = || match values.next()? {
                "unlimited" => Some(None),
                number => number.parse().ok().map(Some),
            };
            Some(Limit { name: (*name).to_owned(), soft: value()?, hard: value()? })
        })
        .collect()
}

/// The control group of a process, of either generation; limits count from it up to the mount.
fn read_cgroup(mount: &Path, text: &str) -> Option<CgroupMemory> {
    let groups: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((parts.next()?, parts.next()?))
        })
        .collect();
    let old = groups
        .iter()
        .find(|(controllers, _)| controllers.split(',').any(|name| name == "memory"))
        .map(|(_, path)| *path);
    let (base, path, second) = match (old, groups.get("")) {
        (Some(path), _) => (mount.join("memory"), path, false),
        (None, Some(path)) => (mount.to_owned(), *path, true),
        (None, None) => return None,
    };
    // Inside a container the path is often the host's and the mount already is the group: then the mount itself counts.
    let mut place = base.join(path.trim_start_matches('/').trim_start_matches("../"));
    if !place.is_dir() {
        place = base.clone();
    }
    let number = |folder: &Path, name: &str| -> Option<u64> {
        // The first generation writes "no limit" as a number near 2^63.
        fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok().filter(|&n| n < 1 << 60)
    };
    let (limit, used) = if second {
        ("memory.max", "memory.current")
    } else {
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
    };
    let limit_bytes = place
        .ancestors()
        .take_while(|above| above.starts_with(&base))
        .filter_map(|above| number(above, limit))
        .min();
    let events = fs::read_to_string(place.join(if second { "memory.events" } else { "memory.oom_control" }))
        .unwrap_or_default();
    let stat = fs::read_to_string(place.join("memory.stat")).unwrap_or_default();
    Some(CgroupMemory {
        path: path.to_owned(),
        limit_bytes,
        used_bytes: number(&place, used),
        file_bytes: counter(&stat, if second { "file" } else { "total_cache" }),
        limit_hits: if second {
            counter(&events, "max").unwrap_or(0)
        } else {
            number(&place, "memory.failcnt").unwrap_or(0)
        },
        kills: counter(&events, "oom_kill").unwrap_or(0),
    })
}

fn read_clock(system: &Path) -> Clock {
    // systemd-timesyncd leaves this file once it has the time.
    if system.join("run/systemd/timesync/synchronized").exists() {
        return Clock { synchronized: Some(true), source: "systemd-timesyncd".to_owned() };
    }
    if system != Path::new("/") {
        return Clock::default();
    }
    match crate::patient::tool_output(&["timedatectl", "show", "-p", "NTPSynchronized", "--value"]) {
        Ok(text) if matches!(text.trim(), "yes" | "no") => {
            Clock { synchronized: Some(text.trim() == "yes"), source: "timedatectl".to_owned() }
        }
        _ => Clock::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_recorded_machine_is_read() {
        let machine = tempfile::tempdir().unwrap();
        let root = machine.path();
        write(
            root,
            "proc/meminfo",
            "MemTotal:       2113654320 kB\nMemAvailable:   1900000000 kB\nShmem:  10 kB\nSwapTotal: 8 kB\nSwapFree: 2 kB\nHugePages_Free:     512\nHugepagesize:       2048 kB\nHugetlb:  1048576 kB\n",
        );
        write(root, "proc/vmstat", "pgfault 1\noom_kill 3\n");
        write(
            root,
            "proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         65536                unlimited            bytes     \nMax open files            1024                 524288               files     \n",
        );
        write(root, "proc/self/cgroup", "0::/system.slice/vllm.service\n");
        write(root, "sys/fs/cgroup/system.slice/memory.max", "68719476736\n");
        write(root, "sys/fs/cgroup/system.slice/vllm.service/memory.max", "max\n");
        write(root, "sys/fs/cgroup/system.slice/vllm.service/memory.current", "1000\n");
        write(
            root,
            "sys/fs/cgroup/system.slice/vllm.service/memory.events",
            "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\n",
        );
        write(root, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        write(root, "sys/devices/system/node/node0/cpulist", "0-1\n");
        write(root, "sys/devices/system/node/node1/cpulist", "2-3\n");
        write(root, "dev/shm/x", "");
        let evidence = MemoryEvidence::gather(root, None, &mut |_| {});
        assert_eq!(evidence.total_bytes, Some(2_113_654_320 * 1024));
        assert_eq!(evidence.huge_free_bytes, Some(1 << 30));
        assert_eq!(evidence.swap_used_bytes, Some(6 * 1024));
        assert_eq!((evidence.kernel_kills, evidence.memory_nodes), (3, 2));
        assert_eq!(
            evidence.limits[0],
            Limit { name: "Max locked memory".to_owned(), soft: Some(65_536), hard: None }
        );
        let group = evidence.cgroup.unwrap();
        // The limit of the slice above holds for the service.
        assert_eq!((group.limit_bytes, group.kills, group.limit_hits), (Some(64 << 30), 1, 7));
        assert_eq!(evidence.transparent_huge_pages.as_deref(), Some("madvise"));
        assert!(evidence.shared_memory.is_some());
    }

    #[test]
    fn an_older_control_group_is_read() {
        let machine = tempfile::tempdir().unwrap();
        let root = machine.path();
        write(root, "memory/docker/abc/memory.limit_in_bytes", "17179869184\n");
        write(root, "memory/docker/memory.limit_in_bytes", "9223372036854771712\n");
        write(root, "memory/docker/abc/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
        let group = read_cgroup(root, "9:name=systemd:/\n4:memory:/docker/abc\n0::/\n").unwrap();
        assert_eq!((group.limit_bytes, group.kills), (Some(16 << 30), 2));
        assert_eq!(read_cgroup(root, "nonsense\n"), None);
    }

    #[test]
    fn an_empty_machine_is_told_not_fatal() {
        let machine = tempfile::tempdir().unwrap();
        let evidence = MemoryEvidence::gather(machine.path(), None, &mut |_| {});
        assert!(evidence.notes.len() >= 2 && evidence.total_bytes.is_none());
    }
}
