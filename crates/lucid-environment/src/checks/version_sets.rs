//! `env.version-sets`: whether the installed versions belong together.

use std::collections::{BTreeMap, BTreeSet};

use lucid_findings::{Deployment, Examined, Finding, ProofKind, Severity, Skip};

use super::requirements::{self, Failure, Requirements, Unmet};
use super::version_rules::{Compare, Equal, RULES, matches, public};
use super::{counted, grouped, known_faults, some};
use crate::distribution::Distribution;
use crate::gather::EnvironmentEvidence;
use crate::installer::Commands;
use crate::served_path::{Part, ServedPath};
use crate::shared_libraries::toolkit_library;

const CHECK: &str = "env.version-sets";
const CAUSE: &str = "package-version-skew";

/// Judges relations between packages, and every requirement that a package states.
///
/// # Errors
///
/// Nothing is installed, and nothing else is known that a rule could speak of.
pub fn version_sets(evidence: &EnvironmentEvidence, deployment: &Deployment) -> Result<Examined, Skip> {
    let known = known_faults::find(CHECK, evidence, deployment);
    if evidence.distributions.is_empty() && known.is_empty() {
        return Err(Skip(format!("no distributions in {}", evidence.python.prefix)));
    }
    let requirements = requirements::evaluate(evidence);
    let judge = Judge { evidence, deployment, requirements: &requirements };
    let mut findings = known;
    judge.equal(&mut findings);
    judge.exclusive(&mut findings);
    judge.built_for(&mut findings);
    judge.cuda(&mut findings);
    judge.unmet(&mut findings);
    judge.installed_twice(&mut findings);
    judge.python_version(&mut findings);
    let accuses = findings.iter().any(|finding| {
        finding.severity > Severity::Info
            && finding.suggests.iter().any(|s| s.cause == CAUSE && s.weight > 0.0)
    });
    let serves = evidence.distributions.iter().any(|d| ServedPath::known().part(&d.name) == Part::Engine);
    if !accuses && serves {
        findings.push(
            Finding::new(CHECK, "consistent", Severity::Info, "the serving stack's versions belong together")
                .detail(format!(
                    "{} requirements hold or fail harmlessly, and no known relation is broken.",
                    grouped(requirements.evaluated as u64)
                ))
                .suggests(CAUSE, -3.0),
        );
    }
    findings.sort_by(|a, b| {
        let weight = |f: &Finding| f.suggests.iter().map(|s| s.weight).fold(f64::NEG_INFINITY, f64::max);
        b.severity.cmp(&a.severity).then(weight(b).total_cmp(&weight(a)))
    });
    let rules = RULES.equal.len() + RULES.exclusive.len() + RULES.built_for.len() + RULES.driver.len();
    Ok(Examined {
        findings,
        covered: format!(
            "{}, {} requirements, {} relations, {} known faults{}",
            counted(evidence.distributions.len(), "distribution", "distributions"),
            grouped(requirements.evaluated as u64),
            rules,
            known_faults::count(),
            if requirements.unreadable.is_empty() {
                String::new()
            } else {
                format!(
                    "; {} requirements are no PEP 508 ({})",
                    requirements.unreadable.len(),
                    some(&requirements.unreadable, 2)
                )
            }
        ),
    })
}

struct Judge<'a> {
    evidence: &'a EnvironmentEvidence,
    deployment: &'a Deployment,
    requirements: &'a Requirements,
}

impl Judge<'_> {
    fn commands(&self) -> Commands<'_> {
        Commands::new(&self.evidence.python)
    }

    fn proof(finding: Finding, distribution: &Distribution) -> Finding {
        finding.proof(ProofKind::File, &distribution.info, format!("Version: {}", distribution.version))
    }

    /// The version that an engine, or else anybody, pins.
    fn pinned(&self, name: &str) -> Option<(&Distribution, &str)> {
        let pins = self.requirements.pins.get(name)?;
        let known = ServedPath::known();
        let requirer = |at: usize| &self.evidence.distributions[at];
        pins.iter()
            .find(|(at, _)| known.part(&requirer(*at).name) == Part::Engine)
            .map(|(at, version)| (requirer(*at), version.as_str()))
    }

    fn equal(&self, findings: &mut Vec<Finding>) {
        for rule in &RULES.equal {
            let (Some(leader), Some(follower)) =
                (self.evidence.distribution(&rule.leader), self.evidence.distribution(&rule.follower))
            else {
                continue;
            };
            let equal = match rule.compare {
                Compare::Text => leader.version == follower.version,
                Compare::Public => public(&leader.version) == public(&follower.version),
            };
            let ignored = [leader, follower].iter().any(|d| rule.ignore.contains(&d.version));
            if !equal && !ignored {
                findings.push(self.unequal(rule, leader, follower));
            }
        }
    }

    fn unequal(&self, rule: &Equal, leader: &Distribution, follower: &Distribution) -> Finding {
        let bypass = rule.bypass.iter().find(|name| {
            self.deployment.environment.get(name.as_str()).is_some_and(|value| !value.is_empty())
        });
        // What an engine pins is right; without a pin the package that is imported is.
        let pin = self.pinned(&rule.leader).or_else(|| self.pinned(&rule.follower));
        let wanted = pin.map_or(leader.version.as_str(), |(_, version)| version);
        let mut moved: Vec<(&Distribution, String)> = Vec::new();
        for distribution in [leader, follower] {
            let fits = match rule.compare {
                Compare::Text => distribution.version == wanted,
                Compare::Public => public(&distribution.version) == public(wanted),
            };
            if !fits {
                // The CUDA suffix of what is there says which build is wanted.
                let suffix = distribution
                    .version
                    .split_once('+')
                    .map(|(_, local)| format!("+{local}"))
                    .unwrap_or_default();
                let suffix = if rule.compare == Compare::Public { suffix } else { String::new() };
                moved.push((distribution, format!("{}=={wanted}{suffix}", distribution.name)));
            }
        }
        let index = rule.channel.as_ref().filter(|channel| {
            matches(&channel.versions, wanted) && moved.iter().any(|(d, _)| d.name == rule.follower)
        });
        let requirements: Vec<String> = moved.iter().map(|(_, requirement)| requirement.clone()).collect();
        let mut commands = vec![self.commands().install(
            moved.first().map(|(d, _)| *d),
            &requirements,
            index.map(|channel| channel.index.as_str()),
        )];
        let left_behind = RULES.left_behind.iter().find(|left| {
            left.package == rule.follower
                && self
                    .evidence
                    .distribution(&left.engine)
                    .is_some_and(|engine| matches(&left.versions, &engine.version))
        });
        if left_behind.is_some() {
            commands.push(format!(
                "{}   # or leave it out: the engine does not require it",
                self.commands().uninstall(Some(follower), &[&follower.name])
            ));
        }
        let mut detail = match pin {
            Some((engine, version)) => format!("{} asks for {version}.", engine.label()),
            None => format!("No installed engine pins either; {} is what is imported.", leader.label()),
        };
        if let Some(left) = left_behind {
            detail.push_str(&format!(" {}.", left.why));
        }
        if index.is_some() {
            detail
                .push_str(" The usual index does not carry that version, so a plain upgrade cannot move it.");
        }
        let title =
            format!("{} {} lies beside {} {}", follower.name, follower.version, leader.name, leader.version);
        let finding = match bypass {
            None => Finding::new(CHECK, "unequal", Severity::Error, format!("{title}: {}", rule.failure))
                .suggests(CAUSE, 8.0),
            Some(variable) => Finding::new(
                CHECK,
                "unequal-bypassed",
                Severity::Warning,
                format!("{title}, and {variable} hides it"),
            )
            .suggests(CAUSE, 2.5)
            .suggests("attention-kernel", 0.5),
        };
        if bypass.is_some() {
            detail.push_str(" The start goes on, with kernels that were compiled for other code: take the variable out once the versions are equal.");
        }
        let finding = finding
            .detail(format!("{detail} Source: {}", rule.source))
            .active(Some(true))
            .remedy(format!("Install exactly {}.", requirements.join(" and ")), commands);
        Self::proof(Self::proof(finding, follower), leader)
    }

    fn exclusive(&self, findings: &mut Vec<Finding>) {
        for rule in &RULES.exclusive {
            let there: Vec<&Distribution> =
                rule.packages.iter().filter_map(|name| self.evidence.distribution(name)).collect();
            let [first, second, ..] = there.as_slice() else { continue };
            // Which of them does something installed require?
            let required: BTreeSet<usize> = self.requirements.edges.values().flatten().copied().collect();
            let needed = |d: &Distribution| {
                self.evidence
                    .distributions
                    .iter()
                    .enumerate()
                    .any(|(at, other)| std::ptr::eq(other, d) && required.contains(&at))
            };
            let (keep, drop) =
                if needed(first) && !needed(second) { (first, second) } else { (second, first) };
            let pair = self.evidence.integrity.as_ref().and_then(|integrity| {
                integrity.shared.iter().find(|pair| {
                    [&pair.first, &pair.second]
                        .iter()
                        .all(|label| **label == first.label() || **label == second.label())
                })
            });
            // The hashes say whose files won.
            let (severity, weight, won) = match pair {
                Some(pair) if pair.differing == 0 => {
                    (Severity::Info, 0.5, " Both recorded the same contents.".to_owned())
                }
                Some(pair) => {
                    let keeps = if pair.first == keep.label() { pair.as_first } else { pair.as_second };
                    if keeps == pair.differing {
                        (Severity::Warning, 2.0, format!(" The files of {} are there.", keep.label()))
                    } else {
                        (
                            Severity::Error,
                            6.0,
                            format!(
                                " Of {} differing files only {keeps} are those of {}.",
                                pair.differing,
                                keep.label()
                            ),
                        )
                    }
                }
                None => (Severity::Warning, 3.5, " Whose files are there was not checked.".to_owned()),
            };
            let mut commands = vec![self.commands().uninstall(Some(drop), &[&drop.name])];
            commands.extend(self.commands().reinstall(keep));
            findings.push(Self::proof(
                Self::proof(
                    Finding::new(CHECK, "exclusive", severity, format!("{} and {} both install {}", first.label(), second.label(), rule.files))
                        .detail(format!("{}.{won} Source: {}", rule.failure, rule.source))
                        .active(Some(true))
                        .suggests(CAUSE, weight)
                        .remedy(format!("Remove {} and install {} anew: removing the one takes the other's files with it.", drop.name, keep.name), commands),
                    first,
                ),
                second,
            ));
        }
    }

    fn built_for(&self, findings: &mut Vec<Finding>) {
        for rule in &RULES.built_for {
            let (Some(package), Some(dependency)) =
                (self.evidence.distribution(&rule.package), self.evidence.distribution(&rule.dependency))
            else {
                continue;
            };
            if !matches(&rule.versions, &package.version)
                || matches(&rule.dependency_versions, &dependency.version)
            {
                continue;
            }
            let wanted = rule.dependency_versions.trim_start_matches("==");
            findings.push(Self::proof(
                Self::proof(
                    Finding::new(CHECK, "built-for-other", Severity::Error,
                        format!("{} was built for {} {wanted}, and {} is installed", package.label(), rule.dependency, dependency.version))
                    .detail(format!("{}. The message may name a missing GPU architecture; the first error beneath it is the true one. Source: {}", rule.failure, rule.source))
                    .active(Some(true))
                    .suggests(CAUSE, 6.0)
                    .remedy(
                        format!("Install {} {wanted}, with the packages that are built against it.", rule.dependency),
                        vec![self.commands().install(Some(dependency), &[format!("{}{}", rule.dependency, rule.dependency_versions)], None)],
                    ),
                    package,
                ),
                dependency,
            ));
        }
    }

    /// CUDA majors: torch's own, the suffixes of kernels, what compiled modules ask for, and the driver.
    fn cuda(&self, findings: &mut Vec<Finding>) {
        let torch = self.evidence.distribution("torch");
        let major = torch.and_then(cuda_major_of_torch);
        if let (Some(torch), Some(major)) = (torch, major) {
            for distribution in &self.evidence.distributions {
                let compiled = [
                    "vllm",
                    "sgl-kernel",
                    "sglang-kernel",
                    "flashinfer-jit-cache",
                    "torchvision",
                    "torchaudio",
                    "xformers",
                ];
                let Some(own) = cuda_suffix(&distribution.version) else { continue };
                if !compiled.contains(&distribution.name.as_str()) || own == major || distribution.shadowed {
                    continue;
                }
                findings.push(Self::proof(
                    Finding::new(
                        CHECK,
                        "cuda-major",
                        Severity::Warning,
                        format!(
                            "{} is a build for CUDA {own}, torch {} is one for CUDA {major}",
                            distribution.label(),
                            torch.version
                        ),
                    )
                    .detail("It looks for libraries of its own major, which torch does not bring.")
                    .active(Some(true))
                    .suggests(CAUSE, 3.5)
                    .remedy(
                        format!("Install the build for CUDA {major}."),
                        vec![self.commands().install(
                            Some(distribution),
                            &[format!("{}=={}", distribution.name, public(&distribution.version))],
                            None,
                        )],
                    ),
                    distribution,
                ));
            }
            if let (Some(driver), Some(rule)) =
                (&self.evidence.driver, RULES.driver.iter().find(|rule| rule.cuda_major == major))
                && matches(&format!("<{}", rule.at_least), driver)
            {
                findings.push(
                    Finding::new(CHECK, "driver-too-old", Severity::Error, format!("driver {driver} is older than CUDA {major} needs ({})", rule.at_least))
                        .detail(format!("{}. On data-centre GPUs a cuda-compat package can stand in; on others the driver itself must be newer. Source: {}", rule.failure, rule.source))
                        .confidence(0.8)
                        .suggests(CAUSE, 5.0)
                        .proof(ProofKind::File, "/proc/driver/nvidia/version", driver)
                        .remedy(format!("Install driver {} or later, or a torch built for CUDA {}.", rule.at_least, major - 1), vec!["nvidia-smi --query-gpu=driver_version --format=csv".to_owned()]),
                );
            }
        }
        self.libraries(findings);
    }

    fn libraries(&self, findings: &mut Vec<Finding>) {
        let libraries = &self.evidence.shared_libraries;
        let mut absent: BTreeMap<&str, (&str, Vec<&str>)> = BTreeMap::new();
        for module in &libraries.modules {
            for need in &module.needs {
                let answered = libraries
                    .provided
                    .iter()
                    .any(|name| name == need || name.starts_with(&format!("{need}.")));
                if !answered {
                    absent.entry(need).or_insert((&module.package, Vec::new())).1.push(&module.path);
                }
            }
        }
        for (need, (package, modules)) in absent {
            let Some((stem, _)) = toolkit_library(need) else { continue };
            let other: Vec<&String> = libraries
                .provided
                .iter()
                .filter(|name| toolkit_library(name).is_some_and(|(other, _)| other == stem))
                .collect();
            // Without any version of it the system's folders were probably not in what was pointed at.
            let Some(other) = other.first() else { continue };
            findings.push(
                Finding::new(CHECK, "library-absent", Severity::Error,
                    format!("{package} asks for {need}, and only {other} is there"))
                .detail(format!("{}: compiled for another CUDA major than the libraries of this environment. Nothing of that name is in the environment, in /usr/local/cuda* or in the system's library folders.", some(&modules, 4)))
                .confidence(0.85)
                .active(None)
                .suggests(CAUSE, 5.0)
                .proof(ProofKind::File, *modules.first().unwrap_or(&""), format!("NEEDED {need}"))
                .remedy("Install the build of that package for the CUDA major that torch has.", vec![format!("readelf -d {} | grep NEEDED", modules.first().unwrap_or(&""))]),
            );
        }
    }

    fn unmet(&self, findings: &mut Vec<Finding>) {
        let known = ServedPath::known();
        let engines: Vec<usize> = self
            .evidence
            .distributions
            .iter()
            .enumerate()
            .filter(|(_, d)| known.part(&d.name) == Part::Engine && !d.shadowed)
            .map(|(at, _)| at)
            .collect();
        let serving = self.requirements.closure(engines);
        let mut seen: BTreeSet<(String, String)> = BTreeSet::new();
        let mut missing: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        let mut other: Vec<String> = Vec::new();
        let mut expected: Vec<String> = Vec::new();
        // An engine's own word comes before what its dependencies say of the same package.
        let mut unmet: Vec<&Unmet> = self.requirements.unmet.iter().collect();
        unmet.sort_by_key(|u| known.part(&self.evidence.distributions[u.requirer].name));
        for unmet in unmet {
            let requirer = &self.evidence.distributions[unmet.requirer];
            if !seen.insert((unmet.name.clone(), unmet.specifiers.clone())) {
                continue;
            }
            let text = format!("{} requires {}{}", requirer.label(), unmet.name, unmet.specifiers);
            let harmless = RULES.expected.iter().find(|rule| {
                (rule.requirer == "*" || rule.requirer == requirer.name) && rule.requirement == unmet.name
            });
            match (&unmet.failure, harmless) {
                (Failure::Version(installed), Some(rule)) => {
                    expected.push(format!("{text}, {installed} is there: {}", rule.why))
                }
                (Failure::Missing, _) if serving.contains(&unmet.requirer) => {
                    missing.entry(unmet.requirer).or_default().push(unmet.name.clone());
                }
                (Failure::Missing, _) => other.push(format!("{text}, which is not installed")),
                (Failure::Build(installed), _) => {
                    findings.push(
                        Finding::new(
                            CHECK,
                            "other-build",
                            Severity::Info,
                            format!(
                                "{text}, and {installed} is installed: the same version in another build"
                            ),
                        )
                        .active(None)
                        .suggests(CAUSE, 0.3),
                    );
                }
                (Failure::Version(installed), None) => {
                    // A package that nothing of the serving stack needs cannot make it wrong.
                    if known.part(&requirer.name) != Part::Engine
                        && !serving.contains(&unmet.requirer)
                        && !serving.is_empty()
                    {
                        other.push(format!("{text}, {installed} is there"));
                    } else {
                        findings.push(self.violated(unmet, requirer, installed, &text));
                    }
                }
            }
        }
        for (requirer, names) in missing {
            let requirer = &self.evidence.distributions[requirer];
            let grave: Vec<&String> = names.iter().filter(|name| known.part(name) == Part::Stack).collect();
            let warn = !grave.is_empty() && known.part(&requirer.name) == Part::Engine;
            let mut finding = Finding::new(
                CHECK,
                "missing",
                if warn { Severity::Warning } else { Severity::Info },
                format!(
                    "{} requires {}, which {} not installed",
                    requirer.label(),
                    some(&names, 6),
                    if names.len() == 1 { "is" } else { "are" }
                ),
            )
            .detail("It may be wanted for other models or modalities only.")
            .active(None)
            .suggests(CAUSE, if warn { 2.0 } else { 0.3 });
            if warn {
                let list: Vec<String> = grave.iter().map(|name| (*name).clone()).collect();
                finding = finding
                    .remedy("Install what is missing.", vec![self.commands().install(None, &list, None)]);
            }
            findings.push(finding);
        }
        if !other.is_empty() {
            findings.push(
                Finding::new(
                    CHECK,
                    "other-requirement",
                    Severity::Info,
                    format!(
                        "{} outside the serving stack {} not hold",
                        counted(other.len(), "requirement", "requirements"),
                        if other.len() == 1 { "does" } else { "do" }
                    ),
                )
                .detail(some(&other, 10))
                .active(Some(false)),
            );
        }
        if !expected.is_empty() {
            findings.push(
                Finding::new(
                    CHECK,
                    "expected-deviation",
                    Severity::Info,
                    format!(
                        "{} not hold, as is known to be harmless",
                        if expected.len() == 1 {
                            "a requirement does".to_owned()
                        } else {
                            format!("{} requirements do", expected.len())
                        }
                    ),
                )
                .detail(some(&expected, 6))
                .active(Some(false)),
            );
        }
    }

    fn violated(&self, unmet: &Unmet, requirer: &Distribution, installed: &str, text: &str) -> Finding {
        let known = ServedPath::known();
        let target = self.evidence.distribution(&unmet.name);
        // Extension modules are bound to the very torch that they were compiled with.
        let bound = unmet.name == "torch" && unmet.exact.is_some();
        let (slug, severity, weight) = match (known.part(&requirer.name), known.part(&unmet.name)) {
            (Part::Engine, _) if bound => ("engine-pin", Severity::Error, 5.0),
            (Part::Engine, Part::Stack | Part::Engine) => {
                ("engine-pin", Severity::Warning, if unmet.exact.is_some() { 3.0 } else { 2.5 })
            }
            (Part::Engine, Part::Other) => ("engine-pin", Severity::Warning, 1.0),
            (Part::Stack, _) if bound => ("stack-requirement", Severity::Warning, 2.5),
            (Part::Stack, Part::Stack) => ("stack-requirement", Severity::Warning, 1.5),
            _ => ("stack-requirement", Severity::Info, 0.5),
        };
        let why = if bound { " Its compiled modules are bound to that torch." } else { "" };
        let requirement = match &unmet.exact {
            Some(version) if !unmet.specifiers.contains(',') => format!("{}=={version}", unmet.name),
            _ => format!("{}{}", unmet.name, unmet.specifiers.replace(' ', "")),
        };
        let finding = Finding::new(CHECK, slug, severity, format!("{text}, and {installed} is installed"))
            .detail(format!("{} states it in its metadata.{why}", requirer.name))
            .active(Some(true))
            .suggests(CAUSE, weight)
            .proof(
                ProofKind::File,
                format!("{}/METADATA", requirer.info),
                format!("Requires-Dist: {}{}", unmet.name, unmet.specifiers),
            )
            .remedy(
                format!(
                    "Install what {} asks for; see that nothing else asks for the other version.",
                    requirer.name
                ),
                vec![self.commands().install(target, &[requirement], None)],
            );
        match target {
            Some(target) => Self::proof(finding, target),
            None => finding,
        }
    }

    fn installed_twice(&self, findings: &mut Vec<Finding>) {
        let known = ServedPath::known();
        let mut by_name: BTreeMap<(usize, &str), Vec<&Distribution>> = BTreeMap::new();
        for distribution in &self.evidence.distributions {
            by_name.entry((distribution.site, &distribution.name)).or_default().push(distribution);
        }
        for ((_, name), list) in by_name {
            let [first, second, ..] = list.as_slice() else { continue };
            let grave = known.part(name) != Part::Other && first.version != second.version;
            let infos: Vec<&str> = list.iter().map(|d| d.info.as_str()).collect();
            findings.push(
                Finding::new(CHECK, "leftover-metadata", if grave { Severity::Warning } else { Severity::Info },
                    format!("{name} is installed twice in one folder: {}", some(&infos, 4)))
                .detail("Python reports whichever it lists first, and an upgrade that was interrupted or unpacked over the old version leaves files of both.")
                .active(None)
                .suggests(CAUSE, if grave { 2.5 } else { 0.3 })
                .suggests("modified-package-files", if grave { 1.0 } else { 0.1 })
                .remedy("Uninstall it until none is left, then install one version.", vec![self.commands().uninstall(Some(first), &[name]), self.commands().uninstall(Some(second), &[name]), self.commands().install(Some(second), &[second.requirement()], None)]),
            );
        }
    }

    fn python_version(&self, findings: &mut Vec<Finding>) {
        let known = ServedPath::known();
        for (at, text) in &self.requirements.python {
            let distribution = &self.evidence.distributions[*at];
            if known.part(&distribution.name) == Part::Other {
                continue;
            }
            let version = self.evidence.python.version.as_deref().unwrap_or("unknown");
            findings.push(Self::proof(
                Finding::new(
                    CHECK,
                    "python-version",
                    Severity::Warning,
                    format!("{} wants Python {text}, and this is {version}", distribution.label()),
                )
                .active(Some(true))
                .suggests(CAUSE, 2.0)
                .remedy(
                    "Make the environment anew with a Python that it supports.",
                    vec![format!(
                        "uv venv --python 3.12 {}",
                        crate::installer::quoted(&self.evidence.python.prefix)
                    )],
                ),
                distribution,
            ));
        }
    }
}

/// The CUDA major of a torch: its local version, or the names of the libraries that it requires.
fn cuda_major_of_torch(torch: &Distribution) -> Option<u32> {
    if torch.version.contains("+cpu") {
        return None;
    }
    cuda_suffix(&torch.version).or_else(|| {
        torch.requires.iter().find_map(|requirement| {
            let name =
                requirement.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_')).next()?;
            name.strip_prefix("nvidia-")?.rsplit_once("-cu").and_then(|(_, major)| major.parse().ok())
        })
    })
}

/// `0.6.16+cu130` is for CUDA 13, `+cu129` for 12.
fn cuda_suffix(version: &str) -> Option<u32> {
    let local = version.split_once('+')?.1;
    let digits: String = local.strip_prefix("cu")?.chars().take_while(char::is_ascii_digit).collect();
    digits.get(..2)?.parse().ok()
}
