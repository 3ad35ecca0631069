//! Server-sent events: `data: {json}` and a blank line each, at the end `data: [DONE]`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;

use crate::protocol::error::ApiError;

/// Events that are ready to be sent.
#[derive(Default)]
pub(crate) struct Events {
    ready: VecDeque<String>,
}

impl Events {
    pub(crate) fn push(&mut self, event: &impl Serialize) {
        match serde_json::to_string(event) {
            Ok(json) => self.ready.push_back(format!("data: {json}\n\n")),
            // Our own types always serialize; if one ever does not, the client must not wait for it in vain.
            Err(error) => {
                self.ready.push_back(format!("data: {{\"error\":{{\"message\":\"{error}\"}}}}\n\n"))
            }
        }
    }

    pub(crate) fn done(&mut self) {
        self.ready.push_back("data: [DONE]\n\n".to_owned());
    }

    /// Everything that is ready as one piece, so that a reader that lags gets few large writes.
    fn take(&mut self) -> Option<String> {
        (!self.ready.is_empty()).then(|| self.ready.drain(..).collect())
    }
}

/// A source of events.
pub(crate) trait EventSource: Send + 'static {
    /// Waits for the next thing that happens and adds its events, perhaps none. `false`: that was the last.
    ///
    /// An error becomes an event, and ends the stream: the status has been sent long ago.
    fn advance(&mut self, events: &mut Events) -> impl Future<Output = Result<bool, ApiError>> + Send;
}

/// The response that sends a source's events. When the client goes away, the source is dropped.
pub(crate) fn response(source: impl EventSource) -> Response {
    let start = (source, Events::default(), true);
    let body = stream::unfold(start, |(mut source, mut events, mut open)| async move {
        loop {
            if let Some(text) = events.take() {
                return Some((Ok::<_, Infallible>(text), (source, events, open)));
            }
            if !open {
                return None;
            }
            match source.advance(&mut events).await {
                Ok(more) => open = more,
                Err(error) => {
                    open = false;
                    events.push(&error.body());
                }
            }
            if !open {
                events.done();
            }
        }
    });
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(body)).into_response()
}
