//! Errors as OpenAI's clients expect them: `{"error": {message, type, param, code}}`, the HTTP status equal to `code`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lucid_engine::Rejected;
use serde::Serialize;

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The field of the request that is to blame, as the client wrote it (`messages[0].content`).
    pub(crate) param: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: u16,
}

impl ApiError {
    /// 400: this field is wrong.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { status: StatusCode::BAD_REQUEST, message: message.into(), param: Some(param.into()) }
    }

    /// 400: this field would change the answer, and Lucid cannot do what it asks for.
    pub(crate) fn unsupported(param: impl Into<String>, what: &str) -> ApiError {
        let param = param.into();
        let message = format!("`{param}` is not supported yet: {what}. Leave the field out.");
        ApiError::field(param, message)
    }

    /// An error that no single field is to blame for.
    pub(crate) fn status(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None }
    }

    /// The engine refused a request. `prompt` names the field that the prompt came from.
    pub(crate) fn rejected(rejected: &Rejected, prompt: &str) -> ApiError {
        let message = rejected.to_string();
        match rejected {
            Rejected::EmptyPrompt | Rejected::TooLong { .. } | Rejected::UnknownToken { .. } => {
                ApiError::field(prompt, message)
            }
            Rejected::BadParameter { parameter, .. } => ApiError::field(*parameter, message),
            Rejected::Busy { .. } => ApiError::status(StatusCode::TOO_MANY_REQUESTS, message),
            Rejected::Stopped(_) => ApiError::status(StatusCode::SERVICE_UNAVAILABLE, message),
        }
    }

    /// The word in `type`: OpenAI's clients don't read it, people do.
    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowedError",
            StatusCode::REQUEST_TIMEOUT => "RequestTimeoutError",
            StatusCode::PAYLOAD_TOO_LARGE => "RequestTooLargeError",
            StatusCode::TOO_MANY_REQUESTS => "RateLimitError",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
            status if status.is_server_error() => "InternalServerError",
            _ => "BadRequestError",
        }
    }

    pub(crate) fn body(&self) -> ErrorBody<'_> {
        ErrorBody {
            error: ErrorObject {
                message: &self.message,
                r#type: self.kind(),
                param: self.param.as_deref(),
                code: self.status.as_u16(),
            },
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        // Without the message: it may quote a little of the request.
        tracing::debug!(status = self.status.as_u16(), param = self.param.as_deref(), "request refused");
        let mut response = (self.status, axum::Json(self.body())).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            // A decode step takes milliseconds to seconds; the smallest value that the header can say is right.
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_keep_their_field_and_status() {
        let rejected = Rejected::TooLong { prompt: 9000, max_model_len: 4096 };
        let error = ApiError::rejected(&rejected, "prompt");
        assert_eq!((error.status, error.param.as_deref()), (StatusCode::BAD_REQUEST, Some("prompt")));

        let rejected =
            Rejected::BadParameter { parameter: "top_p", value: "2".into(), expected: "at most 1" };
        assert_eq!(ApiError::rejected(&rejected, "prompt").param.as_deref(), Some("top_p"));

        let response = ApiError::rejected(&Rejected::Busy { waiting: 7 }, "prompt").into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
}
