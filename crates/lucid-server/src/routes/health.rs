//! `GET /health` and `/ping`: an empty 200, or 503 with the reason.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::App;
use crate::protocol::error::ApiError;

pub(crate) async fn health(State(app): State<App>) -> Response {
    match app.inner.engine.unhealthy() {
        None => StatusCode::OK.into_response(),
        Some(why) => {
            ApiError::status(StatusCode::SERVICE_UNAVAILABLE, format!("the engine is not healthy: {why}"))
                .into_response()
        }
    }
}
