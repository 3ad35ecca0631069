//! How much memory a process and its descendants hold of their own.

use std::io;
use std::path::Path;

use crate::patient::process_table;

/// Bytes of private memory (heap, stacks: `RssAnon`) that process `pid` and everything below it hold; pages of files, such as a mapped
/// checkpoint, come and go and are not counted. `proc` is `/proc`.
///
/// # Errors
/// The process is gone, or may not be read.
pub fn resident_memory(proc: &Path, pid: u32) -> io::Result<u64> {
    let table = process_table(proc);
    let mut family = vec![pid];
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        at += 1;
        // The parents of a moment may form a loop when numbers are given anew.
        let children = table.iter().filter(|(child, of)| **of == parent && !family.contains(child));
        let children: Vec<u32> = children.map(|(child, _)| *child).collect();
        family.extend(children);
    }
    let mut sum = private_bytes(proc, pid)?;
    // A worker that has just ended is no error.
    sum += family[1..].iter().filter_map(|pid| private_bytes(proc, *pid).ok()).sum::<u64>();
    Ok(sum)
}

fn private_bytes(proc: &Path, pid: u32) -> io::Result<u64> {
    let path = proc.join(pid.to_string()).join("status");
    let text = std::fs::read_to_string(&path)?;
    let kilobytes = text.lines().find_map(|line| {
        line.strip_prefix("RssAnon:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    // A process that has ended and was not waited for has no memory, and no such line.
    Ok(kilobytes.unwrap_or(0) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_summed() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, parent, kilobytes) in [(1, 0, 999), (70, 1, 100), (71, 70, 20), (72, 71, 3), (80, 1, 999)] {
            let folder = proc.path().join(pid.to_string());
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("stat"), format!("{pid} (vllm (x)) S {parent} 0 0")).unwrap();
            let status =
                format!("Name:\tvllm\nVmRSS:\t 5000 kB\nRssAnon:\t{kilobytes:>8} kB\nRssFile:\t 4000 kB\n");
            std::fs::write(folder.join("status"), status).unwrap();
        }
        // Between two looks a worker ends.
        std::fs::write(proc.path().join("72/status"), "Name:\tvllm\nState:\tZ (zombie)\n").unwrap();
        assert_eq!(resident_memory(proc.path(), 70).unwrap(), 120 * 1024);
        assert!(resident_memory(proc.path(), 4_000).is_err());
    }

    #[test]
    fn this_process_has_memory() {
        let held: Vec<u8> = vec![1; 64 << 20];
        let bytes = resident_memory(Path::new("/proc"), std::process::id()).unwrap();
        assert!(bytes >= held.len() as u64, "{bytes}");
    }
}
