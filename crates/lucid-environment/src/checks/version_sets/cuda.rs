//! CUDA majors: torch's own, the suffixes of kernels, what compiled modules ask for, and the driver.

use std::collections::BTreeMap;

use lucid_findings::{Finding, ProofKind, Severity};

use super::{CAUSE, CHECK, Judge};
use crate::checks::some;
use crate::checks::version_rules::{RULES, matches, public};
use crate::distribution::Distribution;
use crate::metadata::normalized;
use crate::shared_libraries::toolkit_library;

impl Judge<'_> {
    /// CUDA majors: torch's own, the suffixes of kernels, what compiled modules ask for, and the driver.
    pub(super) fn cuda(&self, findings: &mut Vec<Finding>) {
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
            // Where other modules of the package find what they ask for, this may be a variant that is never loaded.
            let all = libraries.modules.iter().filter(|module| module.package == package).count();
            let (severity, weight) =
                if modules.len() == all { (Severity::Error, 5.0) } else { (Severity::Warning, 2.0) };
            findings.push(
                Finding::new(CHECK, "library-absent", severity,
                    format!("{package} asks for {need}, and only {other} is there"))
                .detail(format!("{}: compiled for another CUDA major than the libraries of this environment. Nothing of that name is in the environment, in /usr/local/cuda* or in the system's library folders.", some(&modules, 4)))
                .confidence(0.85)
                .active(None)
                .suggests(CAUSE, weight)
                .proof(ProofKind::File, *modules.first().unwrap_or(&""), format!("NEEDED {need}"))
                .remedy("Install the build of that package for the CUDA major that torch has.", vec![format!("readelf -d {} | grep NEEDED", modules.first().unwrap_or(&""))]),
            );
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
            normalized(name)
                .strip_prefix("nvidia-")?
                .rsplit_once("-cu")
                .and_then(|(_, major)| major.parse().ok())
        })
    })
}

/// `0.6.16+cu130` is for CUDA 13, `+cu129` for 12.
fn cuda_suffix(version: &str) -> Option<u32> {
    let local = version.split_once('+')?.1;
    let digits: String = local.strip_prefix("cu")?.chars().take_while(char::is_ascii_digit).collect();
    digits.get(..2)?.parse().ok()
}
