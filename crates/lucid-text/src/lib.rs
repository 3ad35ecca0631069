//! Text in and out of a model: tokenizers, chat templates, reasoning and tool-call parsers, streaming detokenizer.
