//! Whether a checkpoint's files are whole, and what their scales, names and tokenizer say.
