//! Every installed package's own `Requires-Dist`, evaluated for this interpreter as an installer would.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::str::FromStr;

use pep440_rs::{Operator, Version, VersionSpecifiers};
use pep508_rs::{
    ExtraName, MarkerEnvironment, MarkerEnvironmentBuilder, Requirement, VerbatimUrl, VersionOrUrl,
};

use crate::distribution::Distribution;
use crate::gather::EnvironmentEvidence;
use crate::metadata::normalized;

/// How a requirement fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Not installed.
    Missing,
    /// Installed in a version that it excludes.
    Version(String),
    /// Installed in the public version, in another build: `2.13.0` for `==2.13.0+cpu`.
    Build(String),
}

/// A requirement that does not hold.
#[derive(Clone, Debug)]
pub(super) struct Unmet {
    /// Index of the distribution that requires it.
    pub requirer: usize,
    /// Normalized name of what it requires.
    pub name: String,
    /// `==0.7.0.post1`, without extras and marker; empty if any version would do.
    pub specifiers: String,
    /// Whether it names one exact version.
    pub exact: Option<String>,
    pub failure: Failure,
}

/// All requirements of an environment.
#[derive(Clone, Debug, Default)]
pub(super) struct Requirements {
    /// Requirements that apply.
    pub evaluated: usize,
    /// Requirements that are no PEP 508, at most a few kept.
    pub unreadable: Vec<String>,
    pub unmet: Vec<Unmet>,
    /// Which distributions require which, by index, met or not, where the required one is installed.
    pub edges: BTreeMap<usize, BTreeSet<usize>>,
    /// `Requires-Python` that exclude this interpreter.
    pub python: Vec<(usize, String)>,
    /// Exact versions that distributions ask for, by name: requirer and version.
    pub pins: BTreeMap<String, Vec<(usize, String)>>,
}

impl Requirements {
    /// Everything that these distributions need, directly or not, themselves included.
    pub(super) fn closure(&self, roots: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        let mut reached: BTreeSet<usize> = BTreeSet::new();
        let mut pending: VecDeque<usize> = roots.into_iter().collect();
        while let Some(at) = pending.pop_front() {
            if reached.insert(at) {
                pending.extend(self.edges.get(&at).into_iter().flatten());
            }
        }
        reached
    }
}

/// Evaluates everything that is installed and seen.
pub(super) fn evaluate(evidence: &EnvironmentEvidence) -> Requirements {
    let mut result = Requirements::default();
    let Some(environment) = markers(evidence) else { return result };
    let seen: Vec<(usize, &Distribution)> =
        evidence.distributions.iter().enumerate().filter(|(_, d)| !d.shadowed).collect();
    let mut by_name: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, distribution) in &seen {
        by_name.entry(&distribution.name).or_insert(*at);
    }
    let mut parsed: BTreeMap<usize, Vec<Requirement<VerbatimUrl>>> = BTreeMap::new();
    for (at, distribution) in &seen {
        let list = parsed.entry(*at).or_default();
        for text in &distribution.requires {
            match Requirement::from_str(text) {
                Ok(requirement) => list.push(requirement),
                Err(_) if result.unreadable.len() < 20 => {
                    result.unreadable.push(format!("{}: {text}", distribution.name));
                }
                Err(_) => {}
            }
        }
    }
    // `flashinfer-python[cu13]` switches on requirements of flashinfer-python, which may name extras again.
    let mut extras: BTreeMap<usize, BTreeSet<ExtraName>> = BTreeMap::new();
    loop {
        let mut grown = false;
        for (at, list) in &parsed {
            let own: Vec<ExtraName> = extras.get(at).into_iter().flatten().cloned().collect();
            for requirement in list.iter().filter(|r| r.evaluate_markers(&environment, &own)) {
                if let Some(&target) = by_name.get(requirement.name.as_ref()) {
                    let wanted = extras.entry(target).or_default();
                    for extra in &requirement.extras {
                        grown |= wanted.insert(extra.clone());
                    }
                }
            }
        }
        if !grown {
            break;
        }
    }
    for (at, list) in &parsed {
        let own: Vec<ExtraName> = extras.get(at).into_iter().flatten().cloned().collect();
        for requirement in list.iter().filter(|r| r.evaluate_markers(&environment, &own)) {
            result.evaluated += 1;
            check(&mut result, evidence, *at, requirement, &by_name);
        }
    }
    for (at, distribution) in seen {
        if let Some(text) = &distribution.requires_python
            && let Ok(specifiers) = VersionSpecifiers::from_str(text)
            && !specifiers.contains(environment.python_full_version())
        {
            result.python.push((at, text.clone()));
        }
    }
    result
}

fn check(
    result: &mut Requirements,
    evidence: &EnvironmentEvidence,
    requirer: usize,
    requirement: &Requirement<VerbatimUrl>,
    by_name: &BTreeMap<&str, usize>,
) {
    let name = normalized(requirement.name.as_ref());
    let (specifiers, text) = match &requirement.version_or_url {
        Some(VersionOrUrl::VersionSpecifier(specifiers)) => (Some(specifiers), specifiers.to_string()),
        // A direct address says nothing that a version could be compared with.
        Some(VersionOrUrl::Url(_)) => (None, String::new()),
        None => (None, String::new()),
    };
    let exact = specifiers.and_then(|specifiers| {
        specifiers
            .iter()
            .find(|s| matches!(s.operator(), Operator::Equal | Operator::ExactEqual))
            .map(|s| s.version().to_string())
    });
    if let Some(version) = &exact {
        result.pins.entry(name.clone()).or_default().push((requirer, version.clone()));
    }
    let mut fail = |failure| {
        result.unmet.push(Unmet {
            requirer,
            name: name.clone(),
            specifiers: text.clone(),
            exact: exact.clone(),
            failure,
        });
    };
    let Some(&target) = by_name.get(name.as_str()) else {
        fail(Failure::Missing);
        return;
    };
    if let Some(specifiers) = specifiers {
        let installed = &evidence.distributions[target].version;
        match Version::from_str(installed) {
            Ok(version) if specifiers.contains(&version) => {}
            Ok(version) => {
                let public = version.clone().without_local();
                let but_for_build = specifiers.iter().all(|specifier| {
                    specifier.contains(&version)
                        || (matches!(specifier.operator(), Operator::Equal | Operator::ExactEqual)
                            && specifier.version().clone().without_local() == public)
                });
                fail(if but_for_build {
                    Failure::Build(installed.clone())
                } else {
                    Failure::Version(installed.clone())
                });
            }
            // A version that is no PEP 440 cannot be judged.
            Err(_) => {}
        }
    }
    result.edges.entry(requirer).or_default().insert(target);
}

/// What PEP 508 markers are evaluated against: this environment's interpreter, not the one that runs here.
fn markers(evidence: &EnvironmentEvidence) -> Option<MarkerEnvironment> {
    let (major, minor) = evidence.python.minor_version().unwrap_or((3, 12));
    let short = format!("{major}.{minor}");
    let full =
        evidence.python.version.clone().filter(|v| v.starts_with(&short)).unwrap_or_else(|| short.clone());
    MarkerEnvironment::try_from(MarkerEnvironmentBuilder {
        implementation_name: "cpython",
        implementation_version: &full,
        os_name: "posix",
        platform_machine: &evidence.python.machine,
        platform_python_implementation: "CPython",
        platform_release: "",
        platform_system: "Linux",
        platform_version: "",
        python_full_version: &full,
        python_version: &short,
        sys_platform: "linux",
    })
    .ok()
}
