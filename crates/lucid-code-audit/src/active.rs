//! Whether a piece of code runs for the model that is served.

use std::sync::LazyLock;

use lucid_findings::{Deployment, EngineKind, LoadFormat};
use serde::Deserialize;

use crate::glob;
use crate::knowledge::PATHS;
pub use crate::model_map::{Entry, MODULE, ModelMap, Use};

/// Whether a file or function runs, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// `None`: not known.
    pub active: Option<bool>,
    /// The reason, in a sentence.
    pub why: String,
}

impl Activity {
    fn new(active: impl Into<Option<bool>>, why: impl Into<String>) -> Activity {
        Activity { active: active.into(), why: why.into() }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Needs {
    load_format: Vec<String>,
    quantization: Vec<String>,
    vendor: Vec<String>,
    architecture: Vec<String>,
    flag: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    paths: Vec<String>,
    #[serde(default)]
    functions: Vec<String>,
    #[serde(default)]
    needs: Needs,
    #[serde(default)]
    always: bool,
    unknown: Option<String>,
    what: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Architecture {
    engine: String,
    names: Vec<String>,
    files: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    rule: Vec<Rule>,
    architecture: Vec<Architecture>,
}

static RULES: LazyLock<Rules> = LazyLock::new(|| {
    toml::from_str(include_str!("../knowledge/active.toml"))
        .unwrap_or_else(|error| panic!("knowledge/active.toml: {error}"))
});

/// Whether a function of a file (relative to site-packages) runs in a deployment, from data alone. With the patient's
/// site-packages at hand, [`ModelMap::activity`] knows more.
#[must_use]
pub fn is_active(relative_path: &str, function: &str, deployment: &Deployment) -> Activity {
    ModelMap::default().activity(relative_path, function, deployment)
}

impl ModelMap {
    /// Whether a function of a file runs in a deployment: the engine's own registry decides about model files, the rules of
    /// `knowledge/active.toml` about the rest.
    #[must_use]
    pub fn activity(&self, relative_path: &str, function: &str, deployment: &Deployment) -> Activity {
        let package = PATHS.engine(relative_path).map_or("", |engine| engine.package.as_str());
        if let (Some(engine), "vllm" | "sglang") = (deployment.engine, package) {
            let serving = match engine {
                EngineKind::Vllm => "vllm",
                EngineKind::Sglang => "sglang",
                EngineKind::LlamaCpp => "llama.cpp",
                EngineKind::Lucid => "Lucid",
            };
            if serving != package {
                return Activity::new(false, format!("{serving} serves, this file is {package}'s"));
            }
        }
        if let Some(activity) =
            RULES.rule.iter().find_map(|rule| rule.decide(relative_path, function, deployment))
        {
            return activity;
        }
        if crate::model_map::is_model_file(relative_path) {
            return self.model_activity(package, relative_path, function, deployment);
        }
        Activity::new(None, "nothing says whether the served model runs it")
    }

    fn model_activity(&self, engine: &str, file: &str, function: &str, deployment: &Deployment) -> Activity {
        let Some(architecture) = deployment.architectures.first() else {
            return Activity::new(None, "the served architecture is not known");
        };
        let runs = self.files(engine, architecture);
        if runs.is_empty() {
            return by_data(engine, file, architecture);
        }
        let entry = &self.entries[engine][architecture.as_str()];
        match runs.get(file) {
            Some(names) => {
                let top = function.split('.').next().unwrap_or(function);
                // The served model's own name stands for what it is built from, wherever it is defined.
                let own = top == architecture || top == entry.class;
                let led = self.leads_to(file, names, top).filter(|led| *led || !(names.is_empty() || own));
                let some = names.iter().take(4).copied().collect::<Vec<_>>().join(", ");
                if led == Some(false) {
                    Activity::new(
                        false,
                        format!(
                            "{architecture} takes {some} from this file, and nothing of that leads to {top}"
                        ),
                    )
                } else if led == Some(true) && file != entry.file && !names.is_empty() && !names.contains(top)
                {
                    Activity::new(
                        true,
                        format!("{architecture} takes {some} from this file, which leads to {top}"),
                    )
                } else if file == entry.file {
                    Activity::new(
                        true,
                        format!("{architecture} is built from this file, says the engine's registry"),
                    )
                } else if names.is_empty() {
                    Activity::new(
                        true,
                        format!("{architecture} ({}) builds its language model from this file", entry.file),
                    )
                } else if names.contains(top) {
                    Activity::new(true, format!("{architecture} ({}) takes {top} from this file", entry.file))
                } else {
                    Activity::new(
                        None,
                        format!(
                            "{architecture} takes {some} from this file; whether those lead to {top} is not known"
                        ),
                    )
                }
            }
            None if self.runs_for_another(engine, file) => Activity::new(
                false,
                format!("{architecture} runs {} and what that imports, not this file", entry.file),
            ),
            None => Activity::new(None, "no model is known to run this file"),
        }
    }
}

/// Without the engine's registry.
fn by_data(engine: &str, file: &str, architecture: &str) -> Activity {
    let of_engine = || RULES.architecture.iter().filter(|known| known.engine == engine);
    let runs = |known: &Architecture| known.files.iter().any(|pattern| glob::matches(pattern, file));
    match of_engine().find(|known| known.names.iter().any(|name| name == architecture)) {
        Some(known) if runs(known) => Activity::new(true, format!("{architecture} runs this file")),
        Some(known) => Activity::new(false, format!("{architecture} runs {}", known.files.join(", "))),
        None => Activity::new(None, format!("nothing says which files {architecture} runs")),
    }
}

impl Rule {
    fn decide(&self, file: &str, function: &str, deployment: &Deployment) -> Option<Activity> {
        if !self.paths.iter().any(|pattern| glob::matches(pattern, file)) {
            return None;
        }
        if !self.functions.is_empty()
            && !self.functions.iter().any(|pattern| glob::component_matches(pattern, function))
        {
            return None;
        }
        let what = &self.what;
        if self.always {
            return Some(Activity::new(true, format!("it is part of {what}")));
        }
        if let Some(why) = &self.unknown {
            return Some(Activity::new(None, why.as_str()));
        }
        let needs = &self.needs;
        let one_of = |known: Option<&str>, wanted: &[String], field: &str| {
            let Some(known) = known else {
                return Activity::new(
                    None,
                    format!("it is {what}, and the deployment's {field} is not known"),
                );
            };
            let plain = |name: &str| name.to_ascii_lowercase().replace('_', "-");
            if wanted.iter().any(|wanted| glob::component_matches(&plain(wanted), &plain(known))) {
                Activity::new(true, format!("it is {what}, and the deployment's {field} is {known}"))
            } else {
                Activity::new(false, format!("it is {what}, but the deployment's {field} is {known}"))
            }
        };
        if !needs.load_format.is_empty() {
            return Some(one_of(deployment.load_format.map(load_format), &needs.load_format, "load format"));
        }
        if !needs.quantization.is_empty() {
            return Some(one_of(deployment.quantization.as_deref(), &needs.quantization, "quantization"));
        }
        if !needs.vendor.is_empty() {
            return Some(one_of(vendor(deployment), &needs.vendor, "hardware"));
        }
        if !needs.architecture.is_empty() {
            return Some(one_of(
                deployment.architectures.first().map(String::as_str),
                &needs.architecture,
                "architecture",
            ));
        }
        if deployment.command.is_empty() {
            return Some(Activity::new(None, format!("it is {what}, and the serving command is not known")));
        }
        let given = deployment
            .command
            .iter()
            .find(|argument| needs.flag.iter().any(|flag| argument.starts_with(flag.as_str())));
        Some(match given {
            Some(flag) => Activity::new(true, format!("it is {what}, and the command says {flag}")),
            None => Activity::new(false, format!("it is {what}, which the command does not turn on")),
        })
    }
}

fn load_format(format: LoadFormat) -> &'static str {
    match format {
        LoadFormat::Safetensors => "safetensors",
        LoadFormat::Gguf => "gguf",
        LoadFormat::Pickle => "pickle",
        LoadFormat::Dummy => "dummy",
        LoadFormat::Other => "other",
    }
}

fn vendor(deployment: &Deployment) -> Option<&'static str> {
    if deployment.engine_version.as_ref().is_some_and(|version| version.ends_with("+cpu")) {
        return Some("cpu");
    }
    let name = deployment.gpus.first()?.name.to_ascii_lowercase();
    Some(match name {
        _ if name.contains("amd") || name.contains("instinct") || name.contains("radeon") => "amd",
        _ if name.contains("intel") => "intel",
        _ => "nvidia",
    })
}
