//! Which CUDA libraries the compiled kernels ask for, and which are there. A kernel wheel built for CUDA 12 in an environment
//! of CUDA 13 asks for `libnvrtc.so.12`, whatever its version number says.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use lucid_root::Root;
use serde::{Deserialize, Serialize};

use crate::python::PythonEnvironment;

/// Shared objects looked at.
const OBJECTS_READ: usize = 400;
/// Bytes of a dynamic section's strings.
const STRINGS_READ: u64 = 4 << 20;

/// Libraries of the CUDA toolkit, whose major version is in their name.
const TOOLKIT: &[&str] = &[
    "libcudart",
    "libnvrtc",
    "libcublas",
    "libcublasLt",
    "libcufft",
    "libcurand",
    "libcusolver",
    "libcusparse",
    "libnvJitLink",
    "libcudnn",
    "libnccl",
    "libnvshmem_host",
    "libcupti",
];

/// A compiled module and the toolkit libraries that it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompiledModule {
    /// Below its site folder.
    pub path: String,
    /// The distribution in whose folder it lies, by the folder's name.
    pub package: String,
    /// `libnvrtc.so.12`.
    pub needs: Vec<String>,
}

/// Compiled modules of engines and kernels, and the toolkit libraries that could answer them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedLibraries {
    /// Modules that ask for any.
    pub modules: Vec<CompiledModule>,
    /// Modules beyond those read.
    pub modules_left_out: usize,
    /// Names of toolkit libraries in the environment and the system: `libnvrtc.so.13`.
    pub provided: BTreeSet<String>,
}

/// Reads the dynamic sections of the packages named.
pub(crate) fn gather(
    root: &Root,
    python: &PythonEnvironment,
    packages: &[String],
    library_path: &str,
) -> SharedLibraries {
    let mut found = SharedLibraries::default();
    let wanted: BTreeSet<&str> = packages.iter().map(String::as_str).collect();
    for directory in &python.site_directories {
        let site = PathBuf::from(&directory.path);
        let Ok(host) = root.resolve(&site) else { continue };
        for name in root.names(&site) {
            if name == "nvidia" || name.ends_with(".libs") || name == "torch" {
                provided(&host.join(&name), 0, &mut found.provided);
            }
            if wanted.contains(name.as_str()) {
                modules(&host.join(&name), Path::new(&name), &name, 0, &mut found);
            }
        }
    }
    let mut folders: Vec<PathBuf> =
        library_path.split(':').filter(|p| !p.is_empty()).map(PathBuf::from).collect();
    for name in root.names(Path::new("/usr/local")) {
        if name.starts_with("cuda") {
            for library in ["lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"] {
                folders.push(Path::new("/usr/local").join(&name).join(library));
            }
        }
    }
    folders.extend(
        [
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
            "/usr/lib",
            "/usr/local/lib",
        ]
        .map(PathBuf::from),
    );
    folders.push(Path::new(&python.prefix).join("lib"));
    for folder in folders {
        found.provided.extend(root.names(&folder).into_iter().filter(|name| toolkit_library(name).is_some()));
    }
    found
}

/// Library and major version of `libnvrtc.so.13` or `libnccl.so.2.30.7`.
pub(crate) fn toolkit_library(name: &str) -> Option<(&str, &str)> {
    let (stem, version) = name.split_once(".so.")?;
    TOOLKIT.contains(&stem).then(|| (stem, version.split('.').next().unwrap_or(version)))
}

fn provided(host: &Path, depth: usize, found: &mut BTreeSet<String>) {
    if depth > 6 || found.len() > 2_000 {
        return;
    }
    for entry in fs::read_dir(host).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.file_type() {
            // Headers are many and hold no libraries.
            Ok(kind) if kind.is_dir() && name != "include" => provided(&entry.path(), depth + 1, found),
            Ok(kind) if !kind.is_dir() && toolkit_library(&name).is_some() => {
                found.insert(name);
            }
            _ => {}
        }
    }
}

fn modules(host: &Path, relative: &Path, package: &str, depth: usize, found: &mut SharedLibraries) {
    if depth > 8 {
        return;
    }
    for entry in fs::read_dir(host).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let relative = relative.join(&name);
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            modules(&entry.path(), &relative, package, depth + 1, found);
        } else if kind.is_file() && name.ends_with(".so") {
            if found.modules.len() >= OBJECTS_READ {
                found.modules_left_out += 1;
                continue;
            }
            let Ok(needed) = needed(&entry.path()) else { continue };
            let needs: Vec<String> = needed.into_iter().filter(|n| toolkit_library(n).is_some()).collect();
            if !needs.is_empty() {
                found.modules.push(CompiledModule {
                    path: relative.to_string_lossy().into_owned(),
                    package: package.to_owned(),
                    needs,
                });
            }
        }
    }
}

/// `DT_NEEDED` of a 64-bit little-endian ELF file. Every offset comes from the file, so every one is bounded.
fn needed(path: &Path) -> io::Result<Vec<String>> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "no ELF file of 64 bits");
    let mut file = File::open(path)?;
    let header = at(&mut file, 0, 64)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return Err(bad());
    }
    let (offset, size, count) =
        (u64_at(&header, 32), u64::from(u16_at(&header, 54)), u64::from(u16_at(&header, 56)));
    let table = at(&mut file, offset, (size * count).min(1 << 20))?;
    let mut loads = Vec::new();
    let mut dynamic = None;
    for entry in table.chunks_exact(usize::try_from(size.max(56)).map_err(|_| bad())?) {
        let kind = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let (offset, address, length) = (u64_at(entry, 8), u64_at(entry, 16), u64_at(entry, 32));
        match kind {
            1 => loads.push((address, offset, length)),
            2 => dynamic = Some((offset, length)),
            _ => {}
        }
    }
    let (offset, length) = dynamic.ok_or_else(bad)?;
    let section = at(&mut file, offset, length.min(1 << 20))?;
    let entries: Vec<(u64, u64)> = section
        .chunks_exact(16)
        .map(|entry| (u64_at(entry, 0), u64_at(entry, 8)))
        .take_while(|(tag, _)| *tag != 0)
        .collect();
    let value = |tag: u64| entries.iter().find(|(t, _)| *t == tag).map(|(_, value)| *value);
    let (strings, length) = (value(5).ok_or_else(bad)?, value(10).ok_or_else(bad)?);
    let (address, offset, _) = loads
        .iter()
        .find(|(address, _, length)| strings >= *address && strings - address < *length)
        .ok_or_else(bad)?;
    let strings = at(&mut file, offset.saturating_add(strings - address), length.min(STRINGS_READ))?;
    Ok(entries
        .iter()
        .filter(|(tag, _)| *tag == 1)
        .filter_map(|(_, at)| {
            let rest = strings.get(usize::try_from(*at).ok()?..)?;
            let end = rest.iter().position(|&byte| byte == 0)?;
            std::str::from_utf8(&rest[..end]).ok().map(str::to_owned)
        })
        .collect())
}

fn at(file: &mut File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length {
        Ok(bytes)
    } else {
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before its header says"))
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_s_own_program_needs_the_c_library() {
        let program = std::env::current_exe().unwrap();
        let needed = needed(&program).unwrap();
        assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{needed:?}");
    }

    #[test]
    fn broken_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.so");
        let whole = fs::read(std::env::current_exe().unwrap()).unwrap();
        for bytes in [&b""[..], b"\x7fELF", &whole[..64], &whole[..500], &[0xff; 4096]] {
            fs::write(&path, bytes).unwrap();
            assert!(needed(&path).is_err());
        }
    }

    #[test]
    fn toolkit_libraries_are_told_by_name() {
        assert_eq!(toolkit_library("libnvrtc.so.12"), Some(("libnvrtc", "12")));
        assert_eq!(toolkit_library("libnccl.so.2.30.7"), Some(("libnccl", "2")));
        assert_eq!(toolkit_library("libcuda.so.1"), None);
        assert_eq!(toolkit_library("libnvrtc.so"), None);
    }
}
