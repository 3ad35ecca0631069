//! `POST /v1/chat/completions`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::body::{RawBody, blocking};
use crate::App;
use crate::chat::{Chat, ChatStream, collect};
use crate::protocol::error::ApiError;
use crate::sse;

pub(crate) async fn chat(State(app): State<App>, RawBody(body): RawBody) -> Result<Response, ApiError> {
    let (chat, guide) = blocking(move || Chat::prepare(app.inner, &body)).await?;
    let generation = chat.start(&guide)?;
    if chat.request.common.stream.is_some() {
        return Ok(sse::response(ChatStream::new(chat, generation)));
    }
    Ok(Json(collect(&chat, generation).await?).into_response())
}
