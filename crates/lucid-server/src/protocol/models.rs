//! `GET /v1/models`.

use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct ModelList<'a> {
    object: &'static str,
    data: [Model<'a>; 1],
}

#[derive(Debug, Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: &'a str,
    parent: (),
    max_model_len: usize,
    permission: [Permission; 1],
}

/// A relic of OpenAI's first API that clients still parse.
#[derive(Debug, Serialize)]
struct Permission {
    id: String,
    object: &'static str,
    created: u64,
    allow_create_engine: bool,
    allow_sampling: bool,
    allow_logprobs: bool,
    allow_search_indices: bool,
    allow_view: bool,
    allow_fine_tuning: bool,
    organization: &'static str,
    group: (),
    is_blocking: bool,
}

impl<'a> ModelList<'a> {
    /// The one model; `owned_by` is which server it is, `root` is where it was read from, `created` when the server started (Unix seconds).
    pub(crate) fn new(
        id: &'a str,
        owned_by: &'static str,
        root: &'a str,
        created: u64,
        max_model_len: usize,
    ) -> ModelList<'a> {
        let permission = Permission {
            id: format!("modelperm-{created:x}"),
            object: "model_permission",
            created,
            allow_create_engine: false,
            allow_sampling: true,
            allow_logprobs: true,
            allow_search_indices: false,
            allow_view: true,
            allow_fine_tuning: false,
            organization: "*",
            group: (),
            is_blocking: false,
        };
        let model = Model {
            id,
            object: "model",
            created,
            owned_by,
            root,
            parent: (),
            max_model_len,
            permission: [permission],
        };
        ModelList { object: "list", data: [model] }
    }
}
