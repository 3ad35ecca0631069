//! What can be planted, and which cause the doctor should say.

use lucid_engine::Plant as Engine;
use lucid_server::{Guise, Plant};

use crate::Machine;

/// One entry: a planted fault, or a healthy run as a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is planted in a server; `None` is a healthy run, or a machine.
    pub plant: Option<Plant>,
    /// A machine's files in place of a server.
    pub machine: Option<Machine>,
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
    /// With another server's surface: nothing is declared, and less is returned.
    As(Guise),
}

const fn fault(name: &'static str, plant: Plant, cause: &'static str, about: &'static str) -> Case {
    Case {
        name,
        plant: Some(plant),
        machine: None,
        cause: Some(cause),
        held_out: false,
        setup: Setup::Usual,
        about,
    }
}

const fn held_out(case: Case) -> Case {
    Case { held_out: true, ..case }
}

const fn with(case: Case, setup: Setup) -> Case {
    Case { setup, ..case }
}

const fn healthy(name: &'static str, setup: Setup, about: &'static str) -> Case {
    Case { name, plant: None, machine: None, cause: None, held_out: false, setup, about }
}

const fn machine(
    name: &'static str,
    machine: Machine,
    cause: Option<&'static str>,
    about: &'static str,
) -> Case {
    Case { name, plant: None, machine: Some(machine), cause, held_out: false, setup: Setup::Usual, about }
}

/// All cases, the healthy ones first.
pub const CATALOGUE: &[Case] = &[
    healthy("healthy", Setup::Usual, "nothing is planted: whatever the doctor says is a false alarm"),
    healthy("healthy-reference", Setup::Reference, "nothing is planted; f32 everywhere"),
    healthy("healthy-latent-eps", Setup::LatentEps, "nothing is planted; latent norms as in transformers"),
    healthy("healthy-small-steps", Setup::SmallSteps, "nothing is planted; prompts come in small chunks"),
    healthy("healthy-one-thread", Setup::OneThread, "nothing is planted; one thread"),
    healthy("healthy-small-cache", Setup::SmallCache, "nothing is planted; pages are reused all the time"),
    healthy("healthy-as-vllm", Setup::As(Guise::Vllm), "nothing is planted; what vLLM tells, and no more"),
    healthy(
        "healthy-as-sglang",
        Setup::As(Guise::Sglang),
        "nothing is planted; what SGLang tells, and no more",
    ),
    healthy(
        "healthy-as-llama-cpp",
        Setup::As(Guise::LlamaCpp),
        "nothing is planted; what llama-server tells, and no more",
    ),
    machine(
        "healthy-machine",
        Machine::Clean,
        None,
        "nothing is wrong with environment, flags and checkpoint",
    ),
    machine(
        "healthy-machine-log",
        Machine::CleanLog,
        None,
        "nothing is wrong in the log of a start and some service",
    ),
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
        "decode-softmax-scale",
        Plant::Engine(Engine::DecodeSoftmaxScale),
        "attention-kernel",
        "answers are attended to with another softmax scale than prompts",
    ),
    fault(
        "decode-position-shifted",
        Plant::Engine(Engine::DecodePositionShifted),
        "rope-scaling",
        "tokens of answers are rotated as if they stood one position off",
    ),
    fault(
        "decode-kv-scale",
        Plant::Engine(Engine::DecodeKvScale),
        "kv-cache-scales",
        "entries of answers are written with a scale that nobody undoes",
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
    fault(
        "router-softmax",
        Plant::Engine(Engine::RouterSoftmax),
        "moe-routing",
        "experts are scored by softmax instead of sigmoid",
    ),
    fault(
        "router-groups",
        Plant::Engine(Engine::RouterGroups),
        "moe-routing",
        "experts are chosen within groups that the config doesn't have",
    ),
    fault(
        "norm-topk-prob-missing",
        Plant::Engine(Engine::NormTopkProbMissing),
        "moe-routing",
        "the chosen experts' scores are not divided by their sum",
    ),
    fault(
        "rope-theta-default",
        Plant::Engine(Engine::RopeThetaDefault),
        "rope-scaling",
        "RoPE has another base than the config's",
    ),
    fault(
        "softmax-scale",
        Plant::Engine(Engine::SoftmaxScale),
        "attention-kernel",
        "the softmax scale is multiplied by something",
    ),
    fault(
        "rms-norm-eps",
        Plant::Engine(Engine::RmsNormEps),
        "attention-kernel",
        "every norm has another epsilon than the config's",
    ),
    fault(
        "nvfp4-scales-folded",
        Plant::Engine(Engine::Nvfp4ScalesFolded),
        "quantization-loader",
        "NVFP4's global scale is folded into the coarse block scales",
    ),
    fault(
        "nvfp4-global-scale-left-out",
        Plant::Engine(Engine::Nvfp4GlobalScaleLeftOut),
        "quantization-loader",
        "NVFP4's global scale is left out, or applied twice",
    ),
    fault(
        "prompts-together",
        Plant::Engine(Engine::PromptsTogether),
        "attention-kernel",
        "prompts that share a step with another one get no attention output in one layer",
    ),
    fault(
        "nan-sanitized",
        Plant::Engine(Engine::NanSanitized),
        "nan-logits",
        "after some requests every logit is NaN, and what hides that makes an even distribution of it",
    ),
    fault(
        "gemm-zeros-at-sizes",
        Plant::Engine(Engine::GemmZerosAtSizes),
        "attention-kernel",
        "in one layer, a matrix product is zero for some numbers of rows",
    ),
    fault(
        "experts-of-first-rank-alone",
        Plant::Engine(Engine::ExpertsOfFirstRankAlone),
        "tp-sharding",
        "only the experts of the first rank of a group answer",
    ),
    fault(
        "experts-of-one-rank-lost",
        Plant::Engine(Engine::ExpertsOfOneRankLost),
        "tp-sharding",
        "the experts of one rank of a group never answer",
    ),
    fault(
        "small-sums-lack-a-rank",
        Plant::Engine(Engine::SmallSumsLackARank),
        "collectives",
        "sums over ranks lack the last rank's part while a step has few rows",
    ),
    fault(
        "loader-view-overwritten",
        Plant::Engine(Engine::LoaderViewOverwritten),
        "quantization-loader",
        "one layer's query projection is the next layer's: its buffer was used again",
    ),
    fault(
        "router-bias-coarse",
        Plant::Engine(Engine::RouterBiasCoarse),
        "moe-routing",
        "e_score_correction_bias lost its low bits, so that different biases are equal",
    ),
    fault(
        "router-logits-coarse",
        Plant::Engine(Engine::RouterLogitsCoarse),
        "moe-routing",
        "the router's logits are computed in FP8",
    ),
    fault(
        "decode-context-shard-lost",
        Plant::Engine(Engine::DecodeContextShardLost),
        "attention-kernel",
        "answers beyond a length attend to a part of their context alone",
    ),
    fault(
        "attention-sums-lack-a-rank",
        Plant::Engine(Engine::AttentionSumsLackARank),
        "collectives",
        "sums after attention lack one rank's part",
    ),
    fault(
        "sums-lack-a-rank",
        Plant::Engine(Engine::SumsLackARank),
        "collectives",
        "sums after attention, experts and MLPs lack one rank's part",
    ),
    held_out(fault(
        "shared-expert-underweighted",
        Plant::Engine(Engine::SharedExpertUnderweighted),
        "moe-routing",
        "the shared expert has a share of its weight, or a multiple",
    )),
    held_out(with(
        fault(
            "chunked-context-merge",
            Plant::Engine(Engine::ChunkedContextMerge),
            "attention-kernel",
            "a prompt's later steps merge what they attended to at wrong offsets",
        ),
        Setup::SmallSteps,
    )),
    fault(
        "repeat-answered-empty",
        Plant::RepeatAnsweredEmpty,
        "prefix-cache",
        "a prompt that came before is answered with nothing",
    ),
    held_out(fault(
        "stream-think-unparsed",
        Plant::StreamThinkUnparsed,
        "reasoning-parser",
        "in streams, reasoning is not told from the answer",
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
    machine(
        "machine-debug-code",
        Machine::DebugCode,
        Some("leftover-debug-code"),
        "debugging code was left in a file that serves",
    ),
    machine(
        "machine-edited-file",
        Machine::EditedFile,
        Some("modified-package-files"),
        "a line of a file that serves was changed",
    ),
    machine(
        "machine-version-skew",
        Machine::VersionSkew,
        Some("package-version-skew"),
        "two packages don't belong together",
    ),
    machine(
        "machine-stale-cache",
        Machine::StaleCache,
        Some("stale-cache"),
        "what was compiled or tuned earlier is wrong now",
    ),
    machine(
        "machine-damaged-shard",
        Machine::DamagedShard,
        Some("checkpoint-corrupt"),
        "a shard is cut, hollow, or a pointer",
    ),
    machine(
        "machine-inverted-scales",
        Machine::InvertedScales,
        Some("checkpoint-scales"),
        "NVFP4 global scales are reciprocals",
    ),
    machine(
        "machine-foreign-template",
        Machine::ForeignTemplate,
        Some("chat-template"),
        "the template's turns end otherwise than answers do",
    ),
    machine(
        "machine-foreign-tokenizer",
        Machine::ForeignTokenizer,
        Some("tokenizer-decode"),
        "the vocabulary is another revision's",
    ),
    machine(
        "machine-reasoning-parser",
        Machine::ReasoningParserFlag,
        Some("reasoning-parser"),
        "the reasoning parser is another family's",
    ),
    machine(
        "machine-tool-parser",
        Machine::ToolParserFlag,
        Some("tool-parser"),
        "the tool parser is another family's",
    ),
    machine("machine-nan-log", Machine::NanLog, Some("nan-logits"), "the log ends with NaN in sampling"),
    machine(
        "machine-memory-log",
        Machine::MemoryLog,
        Some("out-of-memory"),
        "the log ends with the GPU's memory used up",
    ),
    machine(
        "machine-collective-log",
        Machine::CollectiveLog,
        Some("collectives"),
        "the log ends with a collective operation timed out",
    ),
    machine("machine-gpu-log", Machine::GpuLog, Some("gpu-hardware"), "the log ends with a GPU lost"),
    machine("machine-killed-log", Machine::KilledLog, Some("startup-killed"), "systemd ended the start"),
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
        let has_fault = |case: &Case| {
            case.plant.is_some() || (case.machine.is_some() && !case.name.starts_with("healthy"))
        };
        assert!(CATALOGUE.iter().all(|case| has_fault(case) == case.cause.is_some()));
        assert!(CATALOGUE.iter().filter(|case| case.held_out).count() >= 7);
        let names: HashSet<_> = CATALOGUE.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CATALOGUE.len());
    }
}
