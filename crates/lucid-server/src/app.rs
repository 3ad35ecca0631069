//! What all requests share: the engine, the texts around it, and the metrics.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use lucid_checkpoint::{Checkpoint, Files, TokenId};
use lucid_engine::{Engine, EngineOptions, LoadFormat, Semantics};
use lucid_grammar::Grammars;
use lucid_text::{ChatTemplate, Tokenizer};

use crate::metrics::Metrics;
use crate::plant::Act;
use crate::validate::ModelFacts;
use crate::{Error, Guise, Limits, Plant, ServerOptions};

/// A model that can be asked: everything behind the routes. Cheap to clone.
#[derive(Clone)]
pub struct App {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) engine: Engine,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) facts: ModelFacts,
    /// End-of-sequence tokens of both configs. Kimi's differ (`[EOS]` and `<|im_end|>`), and both end an answer.
    pub(crate) eos: Vec<TokenId>,
    /// The one of config.json: an answer that it ends has no `stop_reason`.
    pub(crate) primary_eos: Option<TokenId>,
    /// Where the model was read from.
    pub(crate) root: String,
    /// When the server was made, in Unix seconds.
    pub(crate) created: u64,
    /// Changes when the version or the arithmetic changes.
    pub(crate) fingerprint: String,
    pub(crate) plant: Option<Plant>,
    pub(crate) act: Act,
    pub(crate) guise: Option<Guise>,
    pub(crate) dev_mode: bool,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    /// Made when the first request wants one: that goes through the whole vocabulary.
    pub(crate) grammars: OnceLock<Result<Grammars, lucid_grammar::Error>>,
    request_ids: RequestIds,
}

impl App {
    /// Loads a model with its tokenizer and template, and starts its engine; a fault that `options` plants in the engine is
    /// planted there.
    ///
    /// # Errors
    /// When a file is missing or damaged, or the model is not supported.
    pub fn load(files: &Files, engine: &EngineOptions, options: ServerOptions) -> Result<App, Error> {
        let checkpoint = match engine.load_format {
            LoadFormat::Checkpoint => Checkpoint::open(files.clone())?,
            LoadFormat::Dummy => Checkpoint::without_weights(files.clone())?,
        };
        for notice in checkpoint.notices() {
            tracing::warn!("{notice}");
        }
        let tokenizer = Tokenizer::open(files)?;
        let template = ChatTemplate::open(files)?;
        let mut engine = engine.clone();
        engine.semantics.plant = options.plant.and_then(|plant| plant.engine(options.plant_seed));
        let engine = Engine::start(&checkpoint, &engine)?;
        Ok(App::new(engine, tokenizer, template, &checkpoint, options))
    }

    /// Bytes of memory taken and in all, of each GPU.
    #[must_use]
    pub fn memory(&self) -> &[(usize, usize)] {
        self.inner.engine.memory()
    }

    /// The arithmetic that answers are computed with.
    #[must_use]
    pub fn semantics(&self) -> &Semantics {
        self.inner.engine.semantics()
    }

    /// Puts a server together. `checkpoint` gives the sampling defaults and the end-of-sequence tokens; without a
    /// `template`, chat requests are refused.
    #[must_use]
    pub fn new(
        engine: Engine,
        tokenizer: Tokenizer,
        template: Option<ChatTemplate>,
        checkpoint: &Checkpoint,
        options: ServerOptions,
    ) -> App {
        let ServerOptions { model_name, plant, plant_seed, guise, return_routed_experts, dev_mode, limits } =
            options;
        let generation = checkpoint.generation();
        let config_eos = &checkpoint.config().eos_token_ids;
        let mut eos: Vec<TokenId> = config_eos.iter().chain(&generation.eos_token_ids).copied().collect();
        // An id that the model cannot generate ends nothing, and the engine would refuse every request with it.
        eos.retain(|id| id.row() < engine.vocab_size());
        eos.sort_unstable();
        eos.dedup();
        let facts = ModelFacts {
            name: model_name,
            vocab_size: engine.vocab_size(),
            max_model_len: engine.max_model_len(),
            defaults: generation.clone(),
            max_n: limits.n,
            max_prompts: limits.prompts,
            // Where their forms are worn, nobody would look for this one.
            tells_routes: return_routed_experts && !matches!(guise, Some(Guise::Sglang | Guise::LlamaCpp)),
        };
        let inner = Inner {
            primary_eos: config_eos.first().or(generation.eos_token_ids.first()).copied(),
            eos,
            root: checkpoint.files().root(),
            created: unix_seconds(),
            fingerprint: fingerprint(&engine),
            metrics: Metrics::new(&facts.name, engine.clone()),
            engine,
            tokenizer,
            template,
            facts,
            plant,
            act: Act::new(plant, plant_seed),
            guise,
            dev_mode,
            limits,
            grammars: OnceLock::new(),
            request_ids: RequestIds::default(),
        };
        App { inner: Arc::new(inner) }
    }
}

impl Inner {
    /// A name for an answer that no other answer of any server has, in practice.
    pub(crate) fn request_id(&self, prefix: &str) -> String {
        format!("{prefix}-{:016x}", self.request_ids.next())
    }
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

/// The version, and a digest (FNV-1a) of the declared semantics.
fn fingerprint(engine: &Engine) -> String {
    let digest = engine
        .semantics()
        .to_string()
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("lucid-{}-{digest:08x}", env!("CARGO_PKG_VERSION"))
}

/// Numbers that look random: a counter, hashed with a key that each process draws from the operating system.
#[derive(Default)]
struct RequestIds {
    key: RandomState,
    count: AtomicU64,
}

impl RequestIds {
    fn next(&self) -> u64 {
        self.key.hash_one(self.count.fetch_add(1, Ordering::Relaxed))
    }
}
