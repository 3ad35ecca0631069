//! What must match what, as data: `knowledge/version-sets.toml`.

use std::str::FromStr;
use std::sync::LazyLock;

use pep440_rs::{Version, VersionSpecifiers};
use serde::Deserialize;

pub(super) static RULES: LazyLock<VersionRules> = LazyLock::new(|| {
    let text = include_str!("../../knowledge/version-sets.toml");
    toml::from_str(text).unwrap_or_else(|error| panic!("knowledge/version-sets.toml: {error}"))
});

/// All rules.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VersionRules {
    pub equal: Vec<Equal>,
    pub exclusive: Vec<Exclusive>,
    pub built_for: Vec<BuiltFor>,
    pub left_behind: Vec<LeftBehind>,
    pub expected: Vec<Expected>,
    pub driver: Vec<Driver>,
}

/// Two packages of one version.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Equal {
    /// The package that others pin.
    pub leader: String,
    /// The package that must follow it.
    pub follower: String,
    pub compare: Compare,
    /// Versions that the library itself does not compare.
    #[serde(default)]
    pub ignore: Vec<String>,
    /// Variables that switch the library's check off.
    #[serde(default)]
    pub bypass: Vec<String>,
    /// Where versions of the follower are that the usual index does not have.
    pub channel: Option<Channel>,
    pub failure: String,
    pub source: String,
}

/// How two versions are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Compare {
    /// The texts are equal.
    Text,
    /// All but the local part is equal: `0.6.16+cu130` and `0.6.16`.
    Public,
}

/// Another index.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Channel {
    /// Versions that are only there.
    pub versions: String,
    pub index: String,
}

/// Packages of which only one may be installed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exclusive {
    pub packages: Vec<String>,
    /// What both install.
    pub files: String,
    pub failure: String,
    pub source: String,
}

/// A compiled package and what it was built for, which its metadata does not say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BuiltFor {
    pub package: String,
    pub versions: String,
    pub dependency: String,
    pub dependency_versions: String,
    pub failure: String,
    pub source: String,
}

/// A package that a newer engine no longer asks for, so that an upgrade leaves it behind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeftBehind {
    pub engine: String,
    pub versions: String,
    pub package: String,
    pub why: String,
}

/// A requirement whose failure is known to be harmless.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expected {
    pub requirer: String,
    pub requirement: String,
    pub why: String,
}

/// What a CUDA major needs of the driver.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Driver {
    pub cuda_major: u32,
    pub at_least: String,
    pub failure: String,
    pub source: String,
}

/// Whether a version lies in a range; a text that is no version lies in none.
pub(super) fn matches(specifiers: &str, version: &str) -> bool {
    let (Ok(specifiers), Ok(version)) = (VersionSpecifiers::from_str(specifiers), Version::from_str(version))
    else {
        return false;
    };
    // `==0.6.12` means every build of it.
    specifiers.contains(&version) || specifiers.contains(&version.without_local())
}

/// A version without its local part.
pub(super) fn public(version: &str) -> String {
    Version::from_str(version)
        .map_or_else(|_| version.to_owned(), |version| version.without_local().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_can_be_read() {
        let rules = &*RULES;
        let ranges = rules
            .built_for
            .iter()
            .flat_map(|rule| [&rule.versions, &rule.dependency_versions])
            .chain(rules.left_behind.iter().map(|rule| &rule.versions))
            .chain(
                rules.equal.iter().filter_map(|rule| rule.channel.as_ref()).map(|channel| &channel.versions),
            );
        for range in ranges {
            assert!(VersionSpecifiers::from_str(range).is_ok(), "{range}");
        }
        for driver in &rules.driver {
            assert!(Version::from_str(&driver.at_least).is_ok());
        }
        assert!(rules.exclusive.iter().all(|rule| rule.packages.len() > 1));
    }

    #[test]
    fn builds_of_a_version_are_that_version() {
        assert!(matches("==0.6.12", "0.6.12+cu130"));
        assert!(matches("<0.6.13", "0.6.8.post1"));
        assert!(!matches("<0.6.13", "0.6.13"));
        assert!(!matches("<0.6.13", "unknown"));
        assert_eq!(public("0.6.16+cu130"), "0.6.16");
    }
}
