//! The checks: functions of the evidence alone, one file each.

mod caches;
mod known_faults;
mod overlay;
mod record_integrity;
mod requirements;
mod startup_hooks;
mod version_rules;
mod version_sets;

use lucid_findings::{Deployment, Examined, Skip};

use crate::gather::EnvironmentEvidence;

pub use caches::caches;
pub use overlay::overlay;
pub use record_integrity::{IsActive, record_integrity};
pub use startup_hooks::startup_hooks;
pub use version_sets::version_sets;

/// Runs every check; each with its id.
#[must_use]
pub fn all(
    evidence: &EnvironmentEvidence,
    deployment: &Deployment,
    active: Option<IsActive<'_>>,
) -> Vec<(&'static str, Result<Examined, Skip>)> {
    vec![
        ("env.record-integrity", record_integrity(evidence, deployment, active)),
        ("env.version-sets", version_sets(evidence, deployment)),
        ("env.monkeypatch", startup_hooks(evidence, deployment)),
        ("env.overlay", overlay(evidence, deployment)),
        ("env.caches", caches(evidence, deployment)),
    ]
}

/// Every finding of this crate: its id, and what it means.
pub const FINDINGS: &[(&str, &str)] = &[
    (
        "env.record-integrity/modified-code",
        "a source file, header or compiled module is not what its distribution published",
    ),
    (
        "env.record-integrity/modified-inactive-code",
        "such a file, on a path that the served model does not take",
    ),
    (
        "env.record-integrity/modified-package",
        "so many files of a distribution differ that another build of it lies there",
    ),
    ("env.record-integrity/broken-code", "a modified Python file no longer parses, so importing it fails"),
    (
        "env.record-integrity/stripped-libraries",
        "several compiled modules are smaller than published, as `strip` leaves them",
    ),
    ("env.record-integrity/modified-other", "data, launchers or metadata differ from what was published"),
    ("env.record-integrity/missing-code", "recorded code is gone"),
    ("env.record-integrity/missing-other", "recorded files that hold no code are gone"),
    ("env.record-integrity/unrecorded-code", "code lies in a distribution's folder that it did not publish"),
    ("env.record-integrity/hiding-module", "an unrecorded file is imported instead of a published module"),
    ("env.record-integrity/backup-files", "copies that an editor or a patch left beside the published files"),
    ("env.record-integrity/unowned-modules", "modules that no installed distribution owns"),
    ("env.record-integrity/shared-files", "two distributions record the same files with the same contents"),
    (
        "env.record-integrity/overwritten-files",
        "two distributions record the same files with different contents; the later one won",
    ),
    (
        "env.record-integrity/refused-paths",
        "RECORD names paths outside the environment; they were not followed",
    ),
    ("env.record-integrity/unreadable", "recorded files could not be read"),
    (
        "env.record-integrity/unchecked",
        "distributions without recorded hashes: nothing vouches for their files",
    ),
    (
        "env.record-integrity/unreleased",
        "parts of the serving stack are nightly, development or local builds",
    ),
    (
        "env.record-integrity/clean",
        "every recorded file of the serving stack is as published, and no code lies beside them",
    ),
    ("env.version-sets/unequal", "two packages that must have the same version do not"),
    ("env.version-sets/unequal-bypassed", "the same, with the library's own check switched off"),
    ("env.version-sets/exclusive", "two distributions that install the same files are both there"),
    (
        "env.version-sets/built-for-other",
        "a compiled package was built for another version of what it is loaded into",
    ),
    ("env.version-sets/cuda-major", "packages of different CUDA majors are mixed"),
    (
        "env.version-sets/library-absent",
        "a compiled module asks for a CUDA library of a major that is not there",
    ),
    ("env.version-sets/driver-too-old", "the NVIDIA driver is older than the CUDA libraries need"),
    ("env.version-sets/engine-pin", "a version that an engine pins is not the installed one"),
    ("env.version-sets/stack-requirement", "a requirement of a package that the engine runs on is not met"),
    ("env.version-sets/other-requirement", "requirements of packages outside the serving stack are not met"),
    ("env.version-sets/missing", "packages that the serving stack requires are not installed"),
    ("env.version-sets/other-build", "the required version is installed in another build"),
    ("env.version-sets/expected-deviation", "a requirement is not met, as is known to be harmless"),
    ("env.version-sets/leftover-metadata", "a distribution is installed twice in one folder"),
    ("env.version-sets/python-version", "a package of the serving stack does not support this Python"),
    ("env.version-sets/known-fault", "an installed version is known to be wrong in just this use"),
    ("env.version-sets/consistent", "every known relation and every requirement of the serving stack holds"),
    ("env.monkeypatch/pth-code", "a .pth file that no distribution recorded runs code at every start"),
    ("env.monkeypatch/known-pth", "a .pth file runs code that is known or recorded"),
    ("env.monkeypatch/pth-folder", "a .pth file adds folders to the import path"),
    ("env.monkeypatch/customize", "a sitecustomize or usercustomize module runs at every start"),
    (
        "env.monkeypatch/shadowing",
        "a folder before the installed packages hides modules of the serving stack",
    ),
    ("env.monkeypatch/earlier-folder", "a folder comes before the installed packages"),
    ("env.monkeypatch/plugins", "other distributions load code into the engine through entry points"),
    ("env.monkeypatch/preload", "libraries are preloaded into every process"),
    ("env.monkeypatch/none", "nothing runs before the engine but Python itself"),
    ("env.overlay/mounted-code", "a file or folder of code is mounted over an installed package"),
    ("env.overlay/mounted-other", "something else is mounted in the folders of packages"),
    ("env.overlay/other-owner", "parts of the environment were installed by different users"),
    ("env.overlay/foreign-abi", "compiled modules of another Python lie in the environment"),
    ("env.overlay/mixed-interpreters", "package folders of different Python versions are on one path"),
    (
        "env.overlay/newer-files",
        "code of the serving stack was written long after its install, and was not hashed",
    ),
    ("env.overlay/none", "nothing is mounted over the packages"),
    ("env.caches/left-lock", "a build was killed and left its lock"),
    (
        "env.caches/objects-before-edit",
        "compiled objects are older than a header that was edited after the install",
    ),
    ("env.caches/objects-before-install", "compiled objects are older than the installed package"),
    ("env.caches/other-versions", "a cache holds objects of other versions, which are not read"),
    ("env.caches/stale-autotune", "tuning results of a version with a key collision are still there"),
    ("env.caches/shared", "files of several users lie in one cache"),
    ("env.caches/summary", "which caches of compiled code are there"),
    ("env.caches/none", "no cache of compiled code is there, so none can be stale"),
];

/// Lists some names and says how many more there are.
pub(crate) fn some<T: AsRef<str>>(names: &[T], shown: usize) -> String {
    let mut text = names.iter().take(shown).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    if names.len() > shown {
        text.push_str(&format!(" and {} more", names.len() - shown));
    }
    text
}

/// `1 file`, `3 files`.
pub(crate) fn counted(number: usize, one: &str, many: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{} {many}", grouped(number as u64)) }
}

/// `43,308`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `3 days`, `5 hours`.
pub(crate) fn duration(seconds: i64) -> String {
    let seconds = seconds.unsigned_abs();
    let (number, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7_200 => (seconds / 60, "minute"),
        7_200..172_800 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
}

/// With a capital at its beginning.
pub(crate) fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(43_308), "43,308");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(6_186_571_008), "6,186,571,008");
        assert_eq!(duration(90_000), "25 hours");
        assert_eq!(duration(600_000), "6 days");
        assert_eq!(some(&["a", "b", "c"], 2), "a, b and 1 more");
    }

    #[test]
    fn every_finding_has_one_meaning() {
        let ids: std::collections::BTreeSet<_> = FINDINGS.iter().map(|(id, _)| id).collect();
        assert_eq!(ids.len(), FINDINGS.len());
    }
}
