//! Whether a file lies on the path that the served model takes, as far as its name tells.

use std::sync::LazyLock;

use lucid_findings::{Deployment, LoadFormat};
use serde::Deserialize;

static KNOWN: LazyLock<ServedPath> = LazyLock::new(|| {
    let text = include_str!("../knowledge/served-path.toml");
    toml::from_str(text).unwrap_or_else(|error| panic!("knowledge/served-path.toml: {error}"))
});

/// Which packages and files take part in serving.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServedPath {
    pub compiled_packages: Vec<String>,
    pub engines: Vec<String>,
    stack: Vec<String>,
    inactive_folders: Vec<String>,
    model_folders: Vec<String>,
    shared_model_files: Vec<String>,
    architecture: Vec<Architecture>,
    loader: Vec<Loader>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Architecture {
    begins: Vec<String>,
    files: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Loader {
    only_for: LoadFormat,
    files: Vec<String>,
}

/// How near a distribution is to the served model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// An engine.
    Engine,
    /// What engines run on.
    Stack,
    /// Anything else.
    Other,
}

/// Whether a file runs, and why that is thought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Active {
    pub active: Option<bool>,
    pub reason: String,
}

impl ServedPath {
    pub(crate) fn known() -> &'static ServedPath {
        &KNOWN
    }

    pub(crate) fn part(&self, distribution: &str) -> Part {
        if self.engines.iter().any(|name| name == distribution) {
            Part::Engine
        } else if self.stack.iter().any(|name| name == distribution) || distribution.starts_with("nvidia-") {
            Part::Stack
        } else {
            Part::Other
        }
    }

    /// Judges a file below its site folder.
    pub(crate) fn active(&self, path: &str, distribution: &str, deployment: &Deployment) -> Active {
        let no = |reason: String| Active { active: Some(false), reason };
        let rooted = format!("/{path}");
        if let Some(folder) = self.inactive_folders.iter().find(|folder| rooted.contains(folder.as_str())) {
            return no(format!("a server runs nothing in {}", folder.trim_matches('/')));
        }
        for loader in &self.loader {
            if loader.files.iter().any(|file| rooted.ends_with(&format!("/{file}"))) {
                return match deployment.load_format {
                    Some(format) if format == loader.only_for => Active {
                        active: Some(true),
                        reason: format!("the model is loaded as {}", named(format)),
                    },
                    Some(format) => no(format!(
                        "only models in {} run it; this one is loaded as {}",
                        named(loader.only_for),
                        named(format)
                    )),
                    None => Active {
                        active: None,
                        reason: format!("only models in {} run it", named(loader.only_for)),
                    },
                };
            }
        }
        if let Some(file) = self.model_folders.iter().find_map(|folder| path.strip_prefix(folder.as_str()))
            && !self.shared_model_files.iter().any(|shared| shared == file)
            && !deployment.architectures.is_empty()
        {
            return self.of_model(file, deployment);
        }
        let reason = match self.part(distribution) {
            Part::Engine => "part of the engine; which of its files run is not told by the name",
            Part::Stack => "the engine runs on this package; which of its files run is not told by the name",
            Part::Other => "no part of the serving stack by its name",
        };
        Active { active: None, reason: reason.to_owned() }
    }

    fn of_model(&self, file: &str, deployment: &Deployment) -> Active {
        let architecture = deployment.architectures.join(", ");
        let known: Vec<&Architecture> = self
            .architecture
            .iter()
            .filter(|known| {
                known.begins.iter().any(|begin| deployment.architectures.iter().any(|a| a.starts_with(begin)))
            })
            .collect();
        if known.is_empty() {
            return Active {
                active: None,
                reason: format!("which model files {architecture} runs is not known"),
            };
        }
        let runs = known.iter().any(|known| {
            known
                .files
                .iter()
                .any(|run| run == file || (run.ends_with('/') && file.starts_with(run.as_str())))
        });
        Active {
            active: Some(runs),
            reason: if runs {
                format!("{architecture} runs {file}")
            } else {
                format!("{architecture} does not run {file}, as far as the names of the model files tell")
            },
        }
    }
}

fn named(format: LoadFormat) -> &'static str {
    match format {
        LoadFormat::Safetensors => "safetensors",
        LoadFormat::Gguf => "GGUF",
        LoadFormat::Pickle => "pickled files",
        LoadFormat::Dummy => "random values",
        LoadFormat::Other => "another format",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_incident_s_files_are_told_apart() {
        let deployment = Deployment {
            architectures: vec!["KimiK25ForConditionalGeneration".into()],
            load_format: Some(LoadFormat::Safetensors),
            ..Deployment::default()
        };
        for (path, expected) in [
            ("vllm/model_executor/models/deepseek_v2.py", Some(true)),
            ("vllm/model_executor/models/llama.py", Some(false)),
            ("vllm/model_executor/model_loader/gguf_loader.py", Some(false)),
            ("vllm/model_executor/model_loader/weight_utils.py", None),
            ("vllm/model_executor/models/registry.py", None),
            ("sglang/test/runners.py", Some(false)),
        ] {
            let active = ServedPath::known().active(path, "vllm", &deployment);
            assert_eq!(active.active, expected, "{path}: {}", active.reason);
        }
        let unknown =
            ServedPath::known().active("vllm/model_executor/models/llama.py", "vllm", &Deployment::default());
        assert_eq!(unknown.active, None);
    }
}
