//! Which path leads where.

mod body;
mod chat;
mod completions;
mod health;
mod metrics;
mod models;
mod prefix_cache;
mod tokenize;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::routing::{get, post};

use crate::App;
use crate::protocol::error::ApiError;

/// All routes of a server.
pub(crate) fn router(app: App) -> Router {
    let body_limit = DefaultBodyLimit::max(app.inner.limits.body_bytes);
    let (guise, positions) = (app.inner.guise, app.inner.facts.max_model_len);
    let dev_mode = app.inner.dev_mode;
    let mut router = Router::new()
        .route("/health", get(health::health))
        .route("/ping", get(health::health).post(health::health))
        .route("/version", get(models::version))
        .route("/server_info", get(models::server_info))
        .route("/metrics", get(metrics::metrics))
        .route("/v1/models", get(models::models))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize));
    if dev_mode {
        // vLLM's name for it, and SGLang's.
        router = router
            .route("/reset_prefix_cache", post(prefix_cache::reset))
            .route("/flush_cache", post(prefix_cache::reset));
    }
    let router = router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(body_limit)
        .with_state(app);
    match guise {
        None => router,
        Some(guise) => {
            router.layer(from_fn(move |request: Request, next: Next| guise.wear(positions, request, next)))
        }
    }
}

pub(crate) async fn not_found(uri: Uri) -> ApiError {
    ApiError::status(StatusCode::NOT_FOUND, format!("there is no {:.200}", uri.path()))
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let message = format!("{:.200} does not take {method:.20}", uri.path());
    ApiError::status(StatusCode::METHOD_NOT_ALLOWED, message)
}
