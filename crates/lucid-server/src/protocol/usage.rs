//! Counts of tokens.

use serde::Serialize;

/// `usage` of a whole answer. `prompt_tokens_details` is null where nothing came from the prefix cache, as on vLLM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
}

/// `usage` in a stream, where unset fields are absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct StreamUsage {
    prompt_tokens: usize,
    total_tokens: usize,
    completion_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<PromptDetails>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
}

/// What was counted; `reasoning` only where a parser splits reasoning from content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) prompt: usize,
    /// Of these, what came from the prefix cache.
    pub(crate) cached: usize,
    pub(crate) completion: usize,
    pub(crate) reasoning: Option<usize>,
}

impl Counts {
    pub(crate) fn usage(self) -> Usage {
        Usage {
            prompt_tokens: self.prompt,
            total_tokens: self.prompt.saturating_add(self.completion),
            completion_tokens: self.completion,
            prompt_tokens_details: self.prompt_details(),
            completion_tokens_details: self.details(),
        }
    }

    /// At the end of a stream.
    pub(crate) fn last(self) -> StreamUsage {
        StreamUsage {
            prompt_tokens_details: self.prompt_details(),
            completion_tokens_details: self.details(),
            ..self.so_far()
        }
    }

    /// In the middle of a stream.
    pub(crate) fn so_far(self) -> StreamUsage {
        StreamUsage {
            prompt_tokens: self.prompt,
            total_tokens: self.prompt.saturating_add(self.completion),
            completion_tokens: self.completion,
            prompt_tokens_details: None,
            completion_tokens_details: None,
        }
    }

    fn prompt_details(self) -> Option<PromptDetails> {
        (self.cached > 0).then_some(PromptDetails { cached_tokens: self.cached })
    }

    fn details(self) -> Option<CompletionDetails> {
        self.reasoning.map(|reasoning_tokens| CompletionDetails { reasoning_tokens })
    }
}
