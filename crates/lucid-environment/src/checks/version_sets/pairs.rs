//! Packages that must be equal, that exclude each other, or that were built for one another.

use std::collections::BTreeSet;

use lucid_findings::{Finding, Severity};

use super::{CAUSE, CHECK, Judge};
use crate::checks::version_rules::{Compare, Equal, RULES, matches, public};
use crate::distribution::Distribution;

impl Judge<'_> {
    pub(super) fn equal(&self, findings: &mut Vec<Finding>) {
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

    pub(super) fn exclusive(&self, findings: &mut Vec<Finding>) {
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

    pub(super) fn built_for(&self, findings: &mut Vec<Finding>) {
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
}
