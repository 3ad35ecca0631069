//! Which family a model belongs to.

use std::sync::LazyLock;

use lucid_findings::Deployment;
use regex::Regex;

use super::ModelConfig;

/// The families whose parsers, templates and faults differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Family {
    /// `kimi-k2.5`; matches `models` of rules and parsers.
    pub name: &'static str,
}

impl Family {
    /// By name first (a path or hub name says R1 or V3.1, which share an architecture), then by model type and shape.
    pub(crate) fn of(deployment: &Deployment, config: Option<&ModelConfig>) -> Option<Family> {
        static NAMES: LazyLock<Vec<(&'static str, Regex)>> = LazyLock::new(|| {
            [
                ("kimi-k3", r"(?i)kimi[-_]?k3"),
                ("kimi-k2.5", r"(?i)kimi[-_]?k2[._p-]?[5-9]"),
                ("kimi-k2-thinking", r"(?i)kimi[-_]?k2[-_]thinking"),
                ("kimi-k2", r"(?i)kimi[-_]?k2"),
                ("deepseek-v4", r"(?i)deepseek[-_]?v4"),
                ("deepseek-v3.2", r"(?i)deepseek[-_]?v3[._]2"),
                ("deepseek-v3.1", r"(?i)deepseek[-_]?v3[._]1"),
                ("deepseek-r1", r"(?i)deepseek[-_]?r1"),
                ("deepseek-v3", r"(?i)deepseek[-_]?v3"),
                ("glm-5", r"(?i)glm[-_]?5"),
                ("glm-4.7", r"(?i)glm[-_]?4[._]7"),
                ("glm-4.5", r"(?i)glm[-_]?4[._][56]"),
            ]
            .into_iter()
            .map(|(name, text)| (name, Regex::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))))
            .collect()
        });
        let by_name =
            |text: &str| NAMES.iter().find(|(_, pattern)| pattern.is_match(text)).map(|&(name, _)| name);
        let model = deployment.model.as_deref().and_then(by_name);
        let kind =
            config.and_then(|config| config.model_type.as_deref()).or(deployment.model_type.as_deref());
        let by_type = kind.and_then(|kind| match kind {
            "kimi_k3" => Some("kimi-k3"),
            "kimi_k25" => Some("kimi-k2.5"),
            "kimi_k2" => Some("kimi-k2"),
            "deepseek_v4" => Some("deepseek-v4"),
            "deepseek_v32" => Some("deepseek-v3.2"),
            "glm_moe_dsa" => Some("glm-5"),
            "glm4_moe" => Some("glm-4.5"),
            _ => None,
        });
        // The type is the file's own word; the name only refines it where types are shared.
        let name = match (by_type, model) {
            (Some(by_type), Some(model)) if model.starts_with(&by_type[..by_type.len().min(6)]) => model,
            (Some(by_type), _) => by_type,
            (None, model) => model?,
        };
        Some(Family { name })
    }

    pub(crate) fn is(&self, prefix: &str) -> bool {
        self.name.starts_with(prefix)
    }
}
