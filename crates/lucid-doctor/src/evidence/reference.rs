//! The checkpoint as a witness: its template, its tokenizer, its model.

use std::collections::HashMap;

use lucid_checkpoint::{Checkpoint, Config, Files, TokenId};
use lucid_client::{Message, ScoredToken, TokenName};
use lucid_engine::{Scorer, SemanticsOptions};
use lucid_text::{ChatTemplate, Specials, Tokenizer};
use serde_json::{Map, json};

use super::{Claim, Observation, Observed, semantics_of};

/// A checkpoint, opened for comparisons. The model itself is loaded only when it is asked.
pub(crate) struct Reference {
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    by_bytes: HashMap<Vec<u8>, TokenId>,
    threads: Option<usize>,
}

impl Reference {
    pub(crate) fn open(files: Files, threads: Option<usize>) -> Result<Reference, String> {
        let tokenizer = Tokenizer::open(&files).map_err(|error| error.to_string())?;
        let template = ChatTemplate::open(&files).map_err(|error| error.to_string())?;
        let checkpoint = Checkpoint::open(files).map_err(|error| error.to_string())?;
        let ids = (0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX)).map(TokenId);
        let mut by_bytes = HashMap::new();
        for id in ids {
            if let Some(bytes) = tokenizer.bytes(id) {
                by_bytes.entry(bytes.to_vec()).or_insert(id);
            }
        }
        Ok(Reference { checkpoint, tokenizer, template, by_bytes, threads })
    }

    /// The ids of the prompt that the checkpoint's own template and tokenizer make of a conversation.
    pub(crate) fn prompt(&self, messages: &[Message]) -> Result<Vec<TokenId>, String> {
        let template = self.template.as_ref().ok_or("the checkpoint has no chat template")?;
        let text =
            template.render(&json!(messages), None, &Map::new(), true).map_err(|error| error.to_string())?;
        self.tokenizer.encode(&text, Specials::Recognize).map_err(|error| error.to_string())
    }

    /// How ids read, for messages.
    pub(crate) fn text(&self, ids: &[TokenId]) -> String {
        self.tokenizer.decode(ids, false)
    }

    /// Loads the model as the checkpoint says, with the latent-norm epsilon of the config, as vLLM, SGLang and llama.cpp have it: in
    /// the arithmetic that the server declares, exactly where it declares none that the reference has.
    pub(crate) fn scorer_as(&self, claim: Option<Claim>) -> Result<Scorer, String> {
        self.scorer_with(&semantics_of(claim))
    }

    /// Loads the model with another arithmetic, or with a mistake.
    pub(crate) fn scorer_with(&self, semantics: &SemanticsOptions) -> Result<Scorer, String> {
        Scorer::new(&self.checkpoint, semantics, self.threads).map_err(|error| error.to_string())
    }

    /// The model's sizes.
    pub(crate) fn config(&self) -> &Config {
        self.checkpoint.config()
    }

    /// The tokens that end an answer.
    pub(crate) fn ends(&self) -> Vec<TokenId> {
        let generation = &self.checkpoint.generation().eos_token_ids;
        self.config().eos_token_ids.iter().chain(generation).copied().collect()
    }

    /// The token with exactly these bytes.
    pub(crate) fn token_of(&self, bytes: &[u8]) -> Option<TokenId> {
        self.by_bytes.get(bytes).copied()
    }

    /// Longest sequence that can be scored.
    pub(crate) fn max_len(&self) -> usize {
        self.checkpoint.config().max_position_embeddings
    }

    /// The token that a server means.
    pub(crate) fn id(&self, name: &TokenName) -> Option<TokenId> {
        match name {
            TokenName::Id(id) => Some(TokenId(*id)),
            TokenName::Bytes(bytes) => self.by_bytes.get(bytes).copied(),
            TokenName::Text(text) if text.contains('\u{fffd}') => None,
            TokenName::Text(text) => self.by_bytes.get(text.as_bytes()).copied(),
        }
    }
}

/// Joins a prompt with what the server said about it and about the tokens that it generated; `id` tells which token is meant. The
/// sequence ends before the first generated token that can't be named for sure.
pub(crate) fn observed(
    id: &dyn Fn(&TokenName) -> Option<TokenId>,
    prompt: &[TokenId],
    of_prompt: &[ScoredToken],
    generated: &[ScoredToken],
    exchange: usize,
) -> Observed {
    let observation = |position: usize, scored: &ScoredToken| {
        let top = scored.top.iter().filter_map(|(name, logprob)| Some((id(name)?, *logprob))).collect();
        Observation { position, logprob: scored.logprob, top }
    };
    let mut observed = Observed {
        tokens: prompt.to_vec(),
        prompt: prompt.len(),
        end: None,
        observations: Vec::new(),
        exchange,
    };
    for (position, scored) in (1..).zip(of_prompt) {
        observed.observations.push(observation(position, scored));
    }
    for scored in generated {
        let Some(id) = id(&scored.token) else { break };
        observed.observations.push(observation(observed.tokens.len(), scored));
        observed.tokens.push(id);
    }
    observed
}
