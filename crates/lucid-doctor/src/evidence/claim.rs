//! What a server says of its own arithmetic, and whether that can be held against it.
//!
//! Most servers compute in bfloat16, whose sums depend on kernels and batches: they are near the checkpoint, and nobody can
//! say how near they have to be. A server that declares f32 activations and a known cache leaves no such room: the reference
//! computes the same numbers, up to the order of sums. Then the smallest systematic deviation is a fault, whatever its size
//! in nats.

use lucid_engine::{Activations, KvCacheDtype, Mode, SemanticsOptions};
use serde_json::Value;

use super::PromptScore;
use crate::statistics::{Decision, SequentialTest};

/// Largest |Δ log-probability| that another order of f32 sums explains, nats. Between Lucid's server and the reference on one
/// processor there is none at all: the bits are the same. A layer whose 4-bit experts were rounded a second time moves 93 % of the
/// canary's tokens by more.
pub(crate) const ROUNDING: f64 = 1e-3;
/// Share of positions beyond `ROUNDING` that a server of the declared arithmetic stays below: two experts that are as good may
/// change places by rounding, and move what follows.
pub(crate) const FEW: f64 = 0.05;
/// Share above which it does not compute what it declares.
const MANY: f64 = 0.3;
/// Error rate of the decision.
const ALPHA: f64 = 0.01;

/// An arithmetic that the reference can reproduce.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Claim {
    mode: Mode,
    kv_cache: KvCacheDtype,
    activations: Activations,
    /// Epsilon of the latent norms, where what the server says shows another one than the checkpoint's; never read from what it
    /// declares.
    latent_norm_eps: Option<f64>,
}

impl Claim {
    /// Reads Lucid's `/server_info`. `None` where the declared arithmetic is not f32 with a cache that the reference has.
    ///
    /// How exactly it computes is all that is taken: what it computes (epsilons, pairings, scales) comes from the checkpoint, or a
    /// server that declares its mistake would be right.
    pub(crate) fn of(info: &Value) -> Option<Claim> {
        let declared = |name: &str| info.get("semantics")?.get(name)?.as_str();
        declared("products")?;
        let activations = match declared("activations")? {
            plain if plain.starts_with("f32") => Activations::W4A16,
            quantized if quantized.ends_with("else f32 (W4A4)") => Activations::W4A4,
            _ => return None,
        };
        let name = declared("kv_cache")?;
        let dtypes = [KvCacheDtype::F32, KvCacheDtype::Bf16, KvCacheDtype::Fp8E4m3];
        let kv_cache = dtypes.into_iter().find(|dtype| dtype.as_str() == name)?;
        let mode = if kv_cache == KvCacheDtype::F32 { Mode::Reference } else { Mode::Serving };
        Some(Claim { mode, kv_cache, activations, latent_norm_eps: None })
    }

    /// The same with an epsilon of the latent norms that the server was seen to have.
    pub(crate) fn with_latent_norm_eps(self, eps: f64) -> Claim {
        Claim { latent_norm_eps: Some(eps), ..self }
    }

    /// The arithmetic, as the reference is asked for it.
    pub(crate) fn semantics(self) -> SemanticsOptions {
        SemanticsOptions {
            mode: self.mode,
            kv_cache: Some(self.kv_cache),
            activations: self.activations,
            latent_norm_eps: self.latent_norm_eps,
            ..SemanticsOptions::default()
        }
    }
}

/// The arithmetic in which a server is compared: the declared one, else the exact one.
pub(crate) fn semantics_of(claim: Option<Claim>) -> SemanticsOptions {
    claim.map_or_else(
        || SemanticsOptions { mode: Mode::Reference, ..SemanticsOptions::default() },
        Claim::semantics,
    )
}

/// Whether answers are what a server of a declared arithmetic says: decided over prompts, which are independent, not over
/// positions, which are not.
pub(crate) fn holds(scores: &[PromptScore]) -> Option<bool> {
    let mut test = SequentialTest::new(FEW, MANY, ALPHA);
    let mut decision = Decision::Open;
    for score in scores.iter().filter(|score| !score.positions.is_empty()) {
        decision = test.observe(score.beyond());
        if decision != Decision::Open {
            break;
        }
    }
    match decision {
        Decision::Different => Some(false),
        Decision::Same => Some(true),
        // Too few prompts for a decision in favour: what was seen is all that can be said.
        Decision::Open => (share(scores) <= FEW && !scores.is_empty()).then_some(true),
    }
}

/// Share of all positions that are beyond rounding.
#[allow(clippy::cast_precision_loss)] // counts of tokens
pub(crate) fn share(scores: &[PromptScore]) -> f64 {
    let all: usize = scores.iter().map(|score| score.positions.len()).sum();
    let beyond = scores.iter().map(|score| score.beyond() * score.positions.len() as f64).sum::<f64>();
    beyond / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::evidence::PositionScore;

    fn info(activations: &str, products: &str, kv_cache: &str) -> Value {
        json!({"semantics": {"activations": activations, "products": products, "kv_cache": kv_cache,
            "latent_norm_eps": 3.0, "plant": "latent-norm-eps"}})
    }

    #[test]
    fn only_f32_is_held_to_rounding() {
        let lucid = Claim::of(&info("f32 (weight-only quantization)", "f32", "bf16")).unwrap();
        let semantics = lucid.semantics();
        assert_eq!((semantics.mode, semantics.kv_cache), (Mode::Serving, Some(KvCacheDtype::Bf16)));
        assert!(
            semantics.latent_norm_eps.is_none() && semantics.plant.is_none(),
            "mistakes are not believed"
        );
        let claimed = |activations: &str, kv_cache: &str| {
            Claim::of(&info(activations, "f32", kv_cache)).map(|claim| (claim.mode, claim.activations))
        };
        assert_eq!(claimed("f32", "f32"), Some((Mode::Reference, Activations::W4A16)));
        let w4a4 = "NVFP4 where the weights are, else f32 (W4A4)";
        assert_eq!(claimed(w4a4, "fp8_e4m3"), Some((Mode::Serving, Activations::W4A4)));
        assert_eq!(claimed("bf16 (weight-only quantization)", "bf16"), None);
        assert_eq!(claimed("f32", "int8"), None);
        assert_eq!(Claim::of(&json!({})), None);
    }

    fn prompts(beyond: &[usize]) -> Vec<PromptScore> {
        let position = |gap| PositionScore { gap, ..PositionScore::default() };
        let score = |beyond: &usize| PromptScore {
            positions: (0..20).map(|i| position(if i < *beyond { 0.02 } else { 1e-6 })).collect(),
        };
        beyond.iter().map(score).collect()
    }

    #[test]
    fn systematic_deviations_are_decided_in_a_few_prompts() {
        assert_eq!(holds(&prompts(&[18, 20])), Some(false));
        assert_eq!(holds(&prompts(&[0, 0, 0])), Some(true));
        assert_eq!(holds(&prompts(&[1, 0, 0, 0])), Some(true), "one expert changed places");
        assert_eq!(holds(&prompts(&[0, 8, 0])), None, "one prompt decides nothing");
        assert_eq!(holds(&[]), None);
    }
}
