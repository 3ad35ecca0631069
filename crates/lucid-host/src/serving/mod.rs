//! What is served and how: the flags, the checkpoint's config, the engine's own list of arguments.

mod argument_list;
mod config;
mod family;
mod flags;
mod gather;

use lucid_findings::{Deployment, LoadFormat};
use serde::{Deserialize, Serialize};

pub use argument_list::ArgumentList;
pub(crate) use argument_list::nearest;
pub(crate) use config::normal_layout;
pub use config::{KvCacheScheme, ModelConfig, Quantization, Rope, WeightLayout};
pub(crate) use family::Family;
#[cfg(test)]
pub(crate) use flags::canonical;
pub use flags::{Flag, Flags};

/// Everything that `config.flags` reads beside the [`Deployment`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServingEvidence {
    /// The flags of the serving command; a config file's options (`--config FILE`) stand before them, so that the command wins.
    pub flags: Flags,
    /// What the checkpoint's config says, if it could be read.
    pub config: Option<ModelConfig>,
    /// Bytes of all weight files, if they are local.
    pub checkpoint_bytes: Option<u64>,
    /// The form of the weight files: what an engine takes that isn't told otherwise.
    pub weight_files: Option<LoadFormat>,
    /// The engine's own list of arguments and variables, read from its sources.
    pub arguments: Option<ArgumentList>,
    /// Whether the patient was seen running: then its engine has accepted its flags.
    pub running: bool,
    /// What could not be read.
    pub notes: Vec<String>,
}

impl ServingEvidence {
    /// Adds to a deployment what the checkpoint and the packages say and the command doesn't.
    pub fn inform(&self, deployment: &mut Deployment) {
        if let Some(config) = &self.config {
            if deployment.architectures.is_empty() {
                deployment.architectures.clone_from(&config.architectures);
            }
            deployment.model_type = deployment.model_type.take().or_else(|| config.model_type.clone());
            let stored = config.quantization.as_ref().and_then(|quantization| quantization.name());
            deployment.quantization = deployment.quantization.take().or(stored);
        }
        deployment.load_format = deployment.load_format.or(self.weight_files);
        if let Some(arguments) = &self.arguments {
            deployment.engine_version =
                deployment.engine_version.take().or_else(|| arguments.version.clone());
        }
    }
}
