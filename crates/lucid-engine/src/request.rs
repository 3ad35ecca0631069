//! What is asked of the engine, and what it answers, token by token.

use lucid_checkpoint::TokenId;
use serde::{Deserialize, Serialize};

use crate::guide::Guide;

/// How the next token is drawn. The defaults are greedy and neutral.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy; below 0.01 is raised to 0.01, as vLLM does.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches `top_p` (0 < `top_p` ≤ 1).
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the likeliest.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token already generated.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token for each time it was generated.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// The same seed gives the same draws; `None` takes one from the operating system.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

/// One generation.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The prompt's tokens; not empty.
    pub prompt: Vec<TokenId>,
    /// Stop after so many generated tokens. The engine caps it at what the context still holds. 0 scores the prompt only.
    pub max_tokens: usize,
    /// Don't stop before so many tokens.
    pub min_tokens: usize,
    /// How to draw.
    pub sampling: Sampling,
    /// Tokens that end the answer (they are part of the event stream, as the last token).
    pub stop_tokens: Vec<TokenId>,
    /// Report this many most likely tokens beside each generated one; `Some(0)` reports the generated one alone.
    pub logprobs: Option<usize>,
    /// The same for each token of the prompt.
    pub prompt_logprobs: Option<usize>,
    /// Report the experts that every token went to.
    pub routes: bool,
    /// What the answer is held to.
    pub guide: Option<Box<dyn Guide>>,
}

/// The experts that the tokens of a sequence went to. The last token of an answer went nowhere: nothing came after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Layers of the model; those without experts have zeros.
    pub layers: usize,
    /// Experts that a token goes to.
    pub top_k: usize,
    /// `[tokens, layers, top_k]`, best first.
    pub experts: Vec<u16>,
}

/// One candidate for a position: log-softmax of the raw logits, before temperature and penalties.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The token.
    pub id: TokenId,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// 1 for the most likely token, counted over the whole vocabulary.
    pub rank: usize,
}

/// The distribution at one position: the token that stands there, and the most likely ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// The token that stands there.
    pub token: Candidate,
    /// The most likely tokens, best first; ties by the lower id.
    pub top: Vec<Candidate>,
}

/// Why a generation ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Finish {
    /// One of the request's stop tokens was generated.
    Stop(TokenId),
    /// `max_tokens` or the context was reached.
    Length,
    /// The receiver went away or asked for it.
    Cancelled,
    /// The engine could not go on; the text says why (a NaN in the logits, for one).
    Failed(String),
}

/// What the engine tells about a request, in this order: `Prompt` once, `Token` for each token, `Routes` if asked for and nothing went
/// wrong, `Finished` once.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The prompt is in the cache.
    Prompt {
        /// Tokens of it that came from the prefix cache.
        cached_tokens: usize,
        /// If asked for: one entry a prompt token, the first `None`.
        logprobs: Option<Vec<Option<TokenLogprobs>>>,
    },
    /// One generated token.
    Token {
        /// The token.
        id: TokenId,
        /// If asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// Where the tokens went.
    Routes(Routes),
    /// The end; nothing follows.
    Finished(Finish),
}
