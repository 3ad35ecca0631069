//! `knowledge/hypotheses.toml`.

use std::sync::LazyLock;

use lucid_engine::{Activations, KvCacheDtype, KvScales, Mode, Plant, SemanticsOptions};
use serde::Deserialize;

use crate::evidence::{Claim, semantics_of};
use crate::report::Remedy;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HypothesisTable {
    #[serde(rename = "mistake")]
    pub(crate) mistakes: Vec<Mistake>,
    #[serde(rename = "variation")]
    pub(crate) variations: Vec<Variation>,
}

/// A mistake that engines really make.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mistake {
    plant: String,
    pub(crate) title: String,
    pub(crate) cause: String,
    /// Strengths beside the usual one.
    #[serde(default)]
    pub(crate) strengths: Vec<f64>,
    /// Least and largest strength, where it can be any number between: the nearest one is searched for.
    pub(crate) range: Option<[f64; 2]>,
    /// The mistake of which this one is a single strength.
    within: Option<String>,
    /// The strength that the engine's fault usually has, where the title has to tell it.
    usual: Option<f64>,
    /// Whether it is held only against servers that declare f32: others may honestly compute so.
    #[serde(default)]
    pub(crate) declared: bool,
    /// Whether it is a projection of one layer that holds another layer's, which has places in place of strengths.
    #[serde(default)]
    pub(crate) copies: bool,
    /// What to do, in place of the cause's own remedy.
    pub(crate) remedy: Option<Remedy>,
}

impl Mistake {
    /// The engine's fault of that name; the test holds that there is one.
    pub(crate) fn plant(&self) -> Option<Plant> {
        Plant::from_name(&self.plant)
    }

    /// What it is in one strength, or as usual.
    pub(crate) fn title_in(&self, strength: Option<f64>) -> String {
        match (self.plant(), strength.or(self.usual)) {
            (
                Some(Plant::ExpertsOfOneRankLost | Plant::AttentionSumsLackARank | Plant::SumsLackARank),
                Some(strength),
            ) => {
                let (ranks, lost) = (strength.trunc(), strength.fract());
                format!("{}: rank {} of {ranks}, counted from 0", self.title, (lost * ranks).round())
            }
            _ => self.title.clone(),
        }
    }

    /// The engine's fault of which this one is a single strength.
    pub(crate) fn within(&self) -> Option<Plant> {
        Plant::from_name(self.within.as_deref()?)
    }
}

/// An arithmetic that an honest server may have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Variation {
    pub(crate) name: String,
    pub(crate) title: String,
    /// The cause that it speaks for, if it is no honest one.
    pub(crate) cause: Option<String>,
    #[serde(default)]
    serving: bool,
    /// An fp8 KV cache.
    #[serde(default)]
    kv_cache_fp8: bool,
    /// That has lost the checkpoint's scales.
    #[serde(default)]
    kv_scales_lost: bool,
    /// Activations in NVFP4.
    #[serde(default)]
    w4a4: bool,
    latent_norm_eps: Option<f64>,
}

impl Variation {
    /// Epsilon of the latent norms, of an honest arithmetic that differs in nothing else.
    pub(crate) fn other_epsilon(&self) -> Option<f64> {
        let else_usual = !self.serving && !self.kv_cache_fp8 && !self.w4a4 && self.cause.is_none();
        self.latent_norm_eps.filter(|_| else_usual)
    }

    /// The arithmetic, in the one that the server declares where this one says nothing else.
    pub(crate) fn semantics(&self, claim: Option<Claim>) -> SemanticsOptions {
        let usual = semantics_of(claim);
        SemanticsOptions {
            mode: if self.serving { Mode::Serving } else { usual.mode },
            kv_cache: match (self.kv_cache_fp8, self.serving) {
                (true, _) => Some(KvCacheDtype::Fp8E4m3),
                (false, true) => None,
                (false, false) => usual.kv_cache,
            },
            kv_scales: if self.kv_scales_lost { KvScales::Lost } else { KvScales::Checkpoint },
            activations: if self.w4a4 { Activations::W4A4 } else { usual.activations },
            latent_norm_eps: self.latent_norm_eps.or(usual.latent_norm_eps),
            ..usual
        }
    }
}

static HYPOTHESES: LazyLock<HypothesisTable> = LazyLock::new(|| {
    toml::from_str(include_str!("../../knowledge/hypotheses.toml"))
        .unwrap_or_else(|error| panic!("knowledge/hypotheses.toml: {error}"))
});

/// The hypotheses, parsed once.
pub(crate) fn hypotheses() -> &'static HypothesisTable {
    &HYPOTHESES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knowledge::causes;

    #[test]
    fn a_lost_rank_is_told_by_its_number() {
        let mistakes = &hypotheses().mistakes;
        let lost =
            mistakes.iter().find(|mistake| mistake.plant() == Some(Plant::ExpertsOfOneRankLost)).unwrap();
        assert!(
            lost.title_in(Some(4.25)).ends_with("rank 1 of 4, counted from 0"),
            "{}",
            lost.title_in(Some(4.25))
        );
        assert!(lost.title_in(Some(8.0)).ends_with("rank 0 of 8, counted from 0"));
        assert!(lost.title_in(None).ends_with("rank 3 of 4, counted from 0"));
        assert_eq!(mistakes[0].title_in(Some(2.0)), mistakes[0].title);
    }

    #[test]
    fn the_file_is_sound() {
        for mistake in &hypotheses().mistakes {
            let plant = mistake.plant().unwrap_or_else(|| panic!("no fault {}", mistake.plant));
            assert!(plant.is_of_the_model(), "{plant}: teacher forcing doesn't show it");
            assert!(causes().causes.iter().any(|cause| cause.id == mistake.cause), "{}", mistake.cause);
            assert!(!mistake.title.is_empty());
            assert_eq!(
                mistake.copies,
                plant == Plant::LoaderViewOverwritten,
                "{plant}: only that one has places"
            );
            if let Some(wider) = &mistake.within {
                let known = hypotheses().mistakes.iter().find(|known| known.plant == *wider);
                assert!(
                    known.is_some_and(|known| known.range.is_some()),
                    "{plant} is no strength of {wider}"
                );
            }
        }
        for cause in hypotheses().variations.iter().filter_map(|variation| variation.cause.as_ref()) {
            assert!(causes().causes.iter().any(|known| known.id == *cause), "{cause}");
        }
        assert!(hypotheses().variations.iter().all(|v| !v.title.is_empty() && !v.name.is_empty()));
    }
}
