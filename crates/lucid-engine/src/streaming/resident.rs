//! The process' own memory, as the operating system counts it.

/// Bytes in memory now, and at the most so far (`VmRSS` and `VmHWM`); `None` where there is no `/proc`.
#[must_use]
pub fn resident() -> Option<(u64, u64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    Some((of("VmRSS:")? * 1024, of("VmHWM:")? * 1024))
}
