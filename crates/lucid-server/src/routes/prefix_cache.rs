//! `POST /reset_prefix_cache`, only in development mode: it makes everybody's next prompts slower.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::App;
use crate::protocol::error::ApiError;

/// Answers once the cache is empty, as vLLM does.
pub(crate) async fn reset(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    let (done, emptied) = oneshot::channel();
    let tell = move || {
        // Nobody waits for it any more if the client is gone.
        let _ = done.send(());
    };
    app.inner.engine.reset_prefix_cache(tell).map_err(|rejected| ApiError::rejected(&rejected, "engine"))?;
    emptied.await.map_err(|_| {
        ApiError::status(StatusCode::SERVICE_UNAVAILABLE, "the engine has stopped".to_owned())
    })?;
    Ok(Json(json!({ "success": true })))
}
