//! `/proc/PID/mountinfo`: what is mounted over the installed packages.

use serde::{Deserialize, Serialize};

/// A mount that lies on or in a folder of packages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where it is mounted.
    pub point: String,
    /// The file or folder of its file system that is shown there.
    pub source: String,
    /// Type of its file system: `ext4`, `overlay`.
    pub file_system: String,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}

/// Reads mountinfo lines; lines that are none are passed over.
///
/// Fields: id, parent id, device, root in the file system, mount point, options, optional fields, `-`, type, source, options
/// (`man 5 proc_pid_mountinfo`).
#[must_use]
pub fn parse(text: &str) -> Vec<Mount> {
    text.lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut left = left.split(' ').skip(3);
            let (root, point, options) = (left.next()?, left.next()?, left.next()?);
            let mut right = right.split(' ');
            Some(Mount {
                point: unescaped(point),
                source: unescaped(root),
                file_system: right.next()?.to_owned(),
                read_only: options.split(',').any(|option| option == "ro"),
            })
        })
        .collect()
}

/// Spaces, tabs, newlines and backslashes stand as three octal digits.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(char::from(code));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let mounts = parse(
            "36 35 98:0 /home/u/my\\040patch.py /opt/venv/a.py ro,noatime master:1 shared:3 - ext4 /dev/root rw\nnonsense\n22 1 0:20 / /proc rw - proc proc rw\n",
        );
        assert_eq!(mounts.len(), 2);
        assert_eq!(
            mounts[0],
            Mount {
                point: "/opt/venv/a.py".into(),
                source: "/home/u/my patch.py".into(),
                file_system: "ext4".into(),
                read_only: true
            }
        );
        assert_eq!(unescaped("a\\zb\\"), "a\\zb\\");
    }
}
