//! The OpenAI-compatible HTTP surface on a Lucid engine.
