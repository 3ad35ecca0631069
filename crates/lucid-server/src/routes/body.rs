//! Reads a request's body within its bounds of size and time.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;

use crate::App;
use crate::protocol::error::ApiError;

/// A whole body. Whatever `Content-Type` says, it is read as JSON later: that is what vLLM's clients rely on.
pub(crate) struct RawBody(pub(crate) Bytes);

impl FromRequest<App> for RawBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<RawBody, ApiError> {
        let limits = &app.inner.limits;
        match tokio::time::timeout(limits.read_timeout, Bytes::from_request(request, app)).await {
            Ok(Ok(bytes)) => Ok(RawBody(bytes)),
            Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                let message = format!("the body is larger than {} bytes", limits.body_bytes);
                Err(ApiError::status(StatusCode::PAYLOAD_TOO_LARGE, message))
            }
            Ok(Err(rejection)) => Err(ApiError::field("body", rejection.body_text())),
            Err(_) => {
                let message = format!("the body did not arrive within {} s", limits.read_timeout.as_secs());
                Err(ApiError::status(StatusCode::REQUEST_TIMEOUT, message))
            }
        }
    }
}

/// Runs work that takes time in proportion to a prompt where it does not hold up other connections.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panicked| {
        tracing::error!(%panicked, "preparing a request panicked");
        let message = "preparing the request failed: this is a bug in the server";
        Err(ApiError::status(StatusCode::INTERNAL_SERVER_ERROR, message))
    })
}
