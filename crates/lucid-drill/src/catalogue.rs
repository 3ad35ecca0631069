//! What can be planted, and which cause the doctor should say.

use lucid_engine::Plant as Engine;
use lucid_server::Plant;

/// One entry: a planted fault, or a healthy run as a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is planted; `None` is a healthy run.
    pub plant: Option<Plant>,
    /// The cause that the doctor should say; `None` for a healthy run.
    pub cause: Option<&'static str>,
    /// Neither hypotheses nor weights of the doctor were made with this fault in mind: its score is reported apart.
    pub held_out: bool,
    /// How the server runs; healthy servers differ in it.
    pub setup: Setup,
    /// What happens, in a sentence.
    pub about: &'static str,
}

/// How a server of the drill runs, apart from its fault: honest ways to be different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// As `lucid serve` does.
    Usual,
    /// f32 everywhere.
    Reference,
    /// The latent-norm epsilon that transformers has.
    LatentEps,
    /// Prompts are cut into chunks of 48 tokens, and four requests run together.
    SmallSteps,
    /// One thread.
    OneThread,
    /// A KV cache that holds little more than one long request.
    SmallCache,
}

const fn fault(name: &'static str, plant: Plant, cause: &'static str, about: &'static str) -> Case {
    Case { name, plant: Some(plant), cause: Some(cause), held_out: false, setup: Setup::Usual, about }
}

const fn held_out(case: Case) -> Case {
    Case { held_out: true, ..case }
}

const fn with(case: Case, setup: Setup) -> Case {
    Case { setup, ..case }
}

const fn healthy(name: &'static str, setup: Setup, about: &'static str) -> Case {
    Case { name, plant: None, cause: None, held_out: false, setup, about }
}

/// All cases, the healthy ones first.
pub const CATALOGUE: &[Case] = &[
    healthy("healthy", Setup::Usual, "nothing is planted: whatever the doctor says is a false alarm"),
    healthy("healthy-reference", Setup::Reference, "nothing is planted; f32 everywhere"),
    healthy("healthy-latent-eps", Setup::LatentEps, "nothing is planted; latent norms as in transformers"),
    healthy("healthy-small-steps", Setup::SmallSteps, "nothing is planted; prompts come in small chunks"),
    healthy("healthy-one-thread", Setup::OneThread, "nothing is planted; one thread"),
    healthy("healthy-small-cache", Setup::SmallCache, "nothing is planted; pages are reused all the time"),
    fault(
        "rope-half-split",
        Plant::Engine(Engine::RopeHalfSplit),
        "rope-scaling",
        "RoPE turns halves instead of neighbours: the most common porting error",
    ),
    fault(
        "yarn-factor-half",
        Plant::Engine(Engine::YarnFactorHalf),
        "rope-scaling",
        "YaRN's factor is a half or a quarter of the checkpoint's",
    ),
    fault(
        "yarn-mscale-missing",
        Plant::Engine(Engine::YarnMscaleMissing),
        "rope-scaling",
        "the softmax scale lacks YaRN's magnitude",
    ),
    fault(
        "router-bias-missing",
        Plant::Engine(Engine::RouterBiasMissing),
        "moe-routing",
        "experts are chosen without e_score_correction_bias",
    ),
    fault(
        "router-bias-in-weights",
        Plant::Engine(Engine::RouterBiasInWeights),
        "moe-routing",
        "experts are weighed with e_score_correction_bias",
    ),
    fault(
        "routed-scaling-missing",
        Plant::Engine(Engine::RoutedScalingMissing),
        "moe-routing",
        "routed_scaling_factor is left out",
    ),
    fault(
        "shared-expert-dropped",
        Plant::Engine(Engine::SharedExpertDropped),
        "moe-routing",
        "the shared expert is left out",
    ),
    fault(
        "expert-top-k-minus-one",
        Plant::Engine(Engine::ExpertTopKMinusOne),
        "moe-routing",
        "one expert fewer than the config says is asked",
    ),
    fault(
        "gate-up-swapped",
        Plant::Engine(Engine::GateUpSwapped),
        "quantization-loader",
        "the experts' gate and up projections are exchanged",
    ),
    fault(
        "kv-b-shard-order",
        Plant::Engine(Engine::KvBShardOrder),
        "tp-sharding",
        "tensor-parallel ranks hold each other's heads of kv_b_proj",
    ),
    fault(
        "nvfp4-global-scale-inverted",
        Plant::Engine(Engine::Nvfp4GlobalScaleInverted),
        "quantization-loader",
        "NVFP4 weights are divided by weight_scale_2 instead of multiplied",
    ),
    fault(
        "nvfp4-scales-swizzled",
        Plant::Engine(Engine::Nvfp4ScalesSwizzled),
        "quantization-loader",
        "swizzled block scales are read as plain rows",
    ),
    fault(
        "nvfp4-nibbles-swapped",
        Plant::Engine(Engine::Nvfp4NibblesSwapped),
        "quantization-loader",
        "the two codes of a byte are exchanged",
    ),
    fault(
        "latent-norm-eps",
        Plant::Engine(Engine::LatentNormEps),
        "attention-kernel",
        "the epsilon of the latent norms is far too large",
    ),
    fault(
        "weights-requantized-4bit",
        Plant::Engine(Engine::WeightsRequantized4Bit),
        "wrong-checkpoint",
        "one layer's experts were rounded to INT4 a second time",
    ),
    fault(
        "causal-off-by-one",
        Plant::Engine(Engine::CausalOffByOne),
        "attention-kernel",
        "a token doesn't see itself",
    ),
    fault(
        "kv-scale-missing-on-read",
        Plant::Engine(Engine::KvScaleMissingOnRead),
        "kv-cache-scales",
        "entries of earlier steps are read without undoing their scale",
    ),
    fault(
        "drift-after-n-tokens",
        Plant::Engine(Engine::DriftAfterNTokens),
        "kv-cache-scales",
        "entries written while decoding lose their scale more and more",
    ),
    fault(
        "prefix-partial-hash",
        Plant::Engine(Engine::PrefixPartialHash),
        "prefix-cache",
        "a page is taken for another one that begins with the same tokens",
    ),
    held_out(with(
        fault(
            "stale-kv-page",
            Plant::Engine(Engine::StaleKvPage),
            "prefix-cache",
            "a reused page keeps what its former owner wrote",
        ),
        Setup::SmallCache,
    )),
    fault(
        "batch-cross-talk",
        Plant::Engine(Engine::BatchCrossTalk),
        "attention-kernel",
        "in a batch, a sequence reads its neighbour's first page",
    ),
    fault(
        "prefill-over-64-garbage",
        Plant::Engine(Engine::PrefillOver64Garbage),
        "size-threshold",
        "rows of a step beyond a power of two get no attention output in one layer",
    ),
    fault(
        "nan-after-n-requests",
        Plant::Engine(Engine::NanAfterNRequests),
        "nan-logits",
        "after some requests every logit is NaN",
    ),
    fault(
        "think-end-dropped",
        Plant::ThinkEndDropped,
        "reasoning-parser",
        "the text of </think> never reaches the reasoning parser",
    ),
    fault("eos-ignored", Plant::EosIgnored, "sampling-defaults", "the model's end tokens end nothing"),
    fault(
        "template-drift",
        Plant::TemplateDrift,
        "chat-template",
        "the prompt is rendered a little differently",
    ),
    fault(
        "tool-arguments-broken",
        Plant::ToolArgumentsBroken,
        "tool-parser",
        "arguments of tool calls are no JSON",
    ),
    fault("seed-ignored", Plant::SeedIgnored, "sampling-defaults", "`seed` is taken and not used"),
    fault(
        "temperature-ignored",
        Plant::TemperatureIgnored,
        "sampling-defaults",
        "temperature 0 is replaced by a default",
    ),
    fault("memory-growth", Plant::MemoryGrowth, "memory-leak", "every request leaves memory behind"),
    fault(
        "stall-on-five-tokens",
        Plant::StallOnFiveTokens,
        "collectives",
        "answers stop after five tokens, and nothing more comes",
    ),
    held_out(fault(
        "stream-splits-characters",
        Plant::StreamSplitsCharacters,
        "tokenizer-decode",
        "streams decode every token alone",
    )),
    fault(
        "budget-capped",
        Plant::BudgetCapped,
        "reasoning-budget",
        "the server cuts every budget to a small one of its own",
    ),
    held_out(fault(
        "router-softmax",
        Plant::Engine(Engine::RouterSoftmax),
        "moe-routing",
        "experts are scored by softmax instead of sigmoid",
    )),
    held_out(fault(
        "rope-theta-default",
        Plant::Engine(Engine::RopeThetaDefault),
        "rope-scaling",
        "RoPE has its usual base instead of the config's",
    )),
    held_out(fault(
        "history-cut",
        Plant::HistoryCut,
        "chat-template",
        "earlier parts of a conversation never reach the model",
    )),
    held_out(fault(
        "penalty-by-default",
        Plant::PenaltyByDefault,
        "sampling-defaults",
        "a repetition penalty that nobody asked for",
    )),
    held_out(fault(
        "tool-name-unparsed",
        Plant::ToolNameUnparsed,
        "tool-parser",
        "tool calls keep the model's namespace or number in the function's name",
    )),
];

/// The case of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Case> {
    CATALOGUE.iter().find(|case| case.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_fault_that_can_be_planted_is_here_once_under_its_own_name() {
        for plant in Plant::ALL {
            let cases: Vec<_> = CATALOGUE.iter().filter(|case| case.plant == Some(plant)).collect();
            assert_eq!(cases.len(), 1, "{plant}");
            assert_eq!(cases[0].name, plant.name());
        }
        assert!(CATALOGUE.iter().all(|case| case.plant.is_some() == case.cause.is_some()));
        let names: HashSet<_> = CATALOGUE.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CATALOGUE.len());
    }
}
