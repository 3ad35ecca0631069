//! Tool calls in a model's answer: a file for each dialect.

pub(crate) mod kimi;
