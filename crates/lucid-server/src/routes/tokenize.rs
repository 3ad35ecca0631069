//! `POST /tokenize` and `/detokenize`.

use axum::Json;
use axum::extract::State;

use super::body::{RawBody, blocking};
use crate::App;
use crate::protocol::error::ApiError;
use crate::protocol::tokenize::{Detokenized, Tokenized};
use crate::validate::tokenize::{self, Source};

pub(crate) async fn tokenize(
    State(app): State<App>,
    RawBody(body): RawBody,
) -> Result<Json<Tokenized>, ApiError> {
    let app = app.inner;
    blocking(move || {
        let request = tokenize::parse(&body, &app.facts)?;
        let tokens = match &request.source {
            Source::Prompt(text) => app.encode(text, "prompt")?,
            Source::Chat(chat, tools) => app.encode(&app.render(chat, tools.as_ref())?, "messages")?,
        };
        let names = || tokens.iter().map(|&id| app.tokenizer.decode(&[id], false)).collect();
        Ok(Json(Tokenized {
            count: tokens.len(),
            max_model_len: app.facts.max_model_len,
            token_strs: request.return_token_strs.then(names),
            tokens,
        }))
    })
    .await
}

pub(crate) async fn detokenize(
    State(app): State<App>,
    RawBody(body): RawBody,
) -> Result<Json<Detokenized>, ApiError> {
    let app = app.inner;
    blocking(move || {
        let tokens = tokenize::parse_detokenize(&body, &app.facts)?;
        Ok(Json(Detokenized { prompt: app.tokenizer.decode(&tokens, false) }))
    })
    .await
}
