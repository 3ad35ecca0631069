//! `POST /v1/completions`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::body::{RawBody, blocking};
use crate::App;
use crate::completions::{Completions, CompletionsStream, collect};
use crate::protocol::error::ApiError;
use crate::sse;

pub(crate) async fn completions(
    State(app): State<App>,
    RawBody(body): RawBody,
) -> Result<Response, ApiError> {
    let (completions, guide) = blocking(move || Completions::prepare(app.inner, &body)).await?;
    let generation = completions.start(&guide)?;
    if completions.request.common.stream.is_some() {
        return Ok(sse::response(CompletionsStream::new(completions, generation)));
    }
    Ok(Json(collect(&completions, generation).await?).into_response())
}
