//! `GET /metrics`.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::App;
use crate::protocol::error::ApiError;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) async fn metrics(State(app): State<App>) -> Result<Response, ApiError> {
    let text = app.inner.metrics.text().map_err(|error| {
        ApiError::status(StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}"))
    })?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}
