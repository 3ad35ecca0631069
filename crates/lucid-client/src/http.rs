//! The one place that speaks HTTP: time limits, size limits, no redirects, errors that say what came.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::{ApiKey, BaseUrl, Error, Exchange, Reply};

/// Limits of one client.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    agent: ureq::Agent,
    key: Option<ApiKey>,
    limit: Duration,
    max_body: usize,
}

impl Http {
    pub(crate) fn new(
        base: &BaseUrl,
        key: Option<ApiKey>,
        connect: Duration,
        limit: Duration,
        max_body: usize,
    ) -> Http {
        let mut config = ureq::Agent::config_builder()
            .timeout_connect(Some(connect))
            .http_status_as_error(false)
            // A redirect would carry the key to another host, and hides where the answer came from.
            .max_redirects(0)
            // Every request has a connection of its own: servers close used ones without a word, llama-server after each stream, and a request
            // that is on its way then looks as if they broke off.
            .max_idle_connections(0)
            .max_idle_connections_per_host(0)
            .user_agent(concat!("lucid/", env!("CARGO_PKG_VERSION")));
        if base.is_loopback() {
            config = config.proxy(None);
        }
        Http { agent: config.build().new_agent(), key, limit, max_body }
    }

    /// The same that waits so long.
    pub(crate) fn waiting(&self, limit: Duration) -> Http {
        Http { limit, ..self.clone() }
    }

    /// Sends one request. `each` sees the body as it arrives, with the seconds since it was sent.
    pub(crate) fn send(
        &self,
        method: &str,
        url: &str,
        body: Option<&Value>,
        mut each: impl FnMut(&[u8], f64),
    ) -> Reply<Vec<u8>> {
        let sent = Instant::now();
        let mut exchange = Exchange {
            method: method.to_owned(),
            url: url.to_owned(),
            request: body.cloned(),
            status: None,
            content_type: None,
            body: String::new(),
            truncated: false,
            sent_unix_ms: unix_ms(),
            first_byte_seconds: None,
            seconds: 0.0,
            error: None,
        };
        let mut bytes = Vec::new();
        let result = self.receive(method, url, body, sent, &mut exchange, &mut bytes, &mut each);
        exchange.seconds = sent.elapsed().as_secs_f64();
        exchange.body = self.redact(&String::from_utf8_lossy(&bytes));
        let outcome = result.and_then(|()| self.check_status(&exchange)).map(|()| bytes);
        if let Err(error) = &outcome {
            exchange.error = Some(error.to_string());
        }
        Reply { exchange, outcome }
    }

    #[allow(clippy::too_many_arguments)] // one call site; the arguments are the parts of one exchange
    fn receive(
        &self,
        method: &str,
        url: &str,
        body: Option<&Value>,
        sent: Instant,
        exchange: &mut Exchange,
        bytes: &mut Vec<u8>,
        each: &mut impl FnMut(&[u8], f64),
    ) -> Result<(), Error> {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(url)
            .header("accept", "application/json, text/event-stream");
        if let Some(key) = &self.key {
            request = request.header("authorization", key.bearer());
        }
        let payload = body.map(Value::to_string).unwrap_or_default();
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let bad_header = |error: ureq::http::Error| Error::Broken {
            url: url.to_owned(),
            reason: self.redact(&error.to_string()),
        };
        let response = if body.is_some() {
            self.run(request.body(payload).map_err(bad_header)?)
        } else {
            self.run(request.body(()).map_err(bad_header)?)
        };
        let response = response.map_err(|error| self.transport(url, &error))?;
        exchange.first_byte_seconds = Some(sent.elapsed().as_secs_f64());
        exchange.status = Some(response.status().as_u16());
        exchange.content_type =
            response.headers().get("content-type").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let mut reader = response.into_body().into_reader();
        let mut chunk = vec![0_u8; 16 * 1024];
        loop {
            let read = match reader.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.transport(url, &ureq::Error::from(error))),
            };
            let room = self.max_body - bytes.len().min(self.max_body);
            let part = chunk.get(..read.min(room)).unwrap_or_default();
            bytes.extend_from_slice(part);
            each(part, sent.elapsed().as_secs_f64());
            if read > room {
                exchange.truncated = true;
                return Err(Error::TooLarge { url: url.to_owned(), limit: self.max_body });
            }
        }
    }

    fn run(
        &self,
        request: ureq::http::Request<impl ureq::AsSendBody>,
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        self.agent.run(self.agent.configure_request(request).timeout_global(Some(self.limit)).build())
    }

    fn transport(&self, url: &str, error: &ureq::Error) -> Error {
        let url = url.to_owned();
        let reason = self.redact(&error.to_string());
        match error {
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed => Error::Unreachable { url, reason },
            ureq::Error::Timeout(_) => Error::Timeout { url, limit: self.limit },
            ureq::Error::Io(io) => match io.kind() {
                ErrorKind::ConnectionRefused
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::AddrNotAvailable => Error::Unreachable { url, reason },
                ErrorKind::TimedOut => Error::Timeout { url, limit: self.limit },
                _ => Error::Broken { url, reason },
            },
            ureq::Error::Tls(_) | ureq::Error::Rustls(_) => {
                Error::Unreachable { url, reason: format!("TLS failed: {reason}") }
            }
            _ => Error::Broken { url, reason },
        }
    }

    fn check_status(&self, exchange: &Exchange) -> Result<(), Error> {
        let status = exchange.status.unwrap_or_default();
        if (200..300).contains(&status) {
            return Ok(());
        }
        let json: Option<Value> = serde_json::from_str(&exchange.body).ok();
        // OpenAI nests {"error": {"message", "param"}}; FastAPI's own errors are {"detail": "…"}.
        let error = json.as_ref().and_then(|json| json.get("error"));
        let message = error
            .and_then(|error| error.get("message").or(Some(error)))
            .or_else(|| json.as_ref().and_then(|json| json.get("detail").or_else(|| json.get("message"))))
            .map_or_else(
                || beginning(&exchange.body),
                |value| value.as_str().map_or_else(|| beginning(&value.to_string()), beginning),
            );
        let param = error.and_then(|error| error.get("param")).and_then(Value::as_str).map(str::to_owned);
        Err(Error::Status { url: exchange.url.clone(), status, message, param })
    }

    fn redact(&self, text: &str) -> String {
        self.key.as_ref().map_or_else(|| text.to_owned(), |key| key.redact(text))
    }
}

/// Reads the body as JSON, or says what it is instead.
pub(crate) fn json(exchange: &Exchange, body: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(body).map_err(|_| {
        let text = exchange.body.trim_start();
        let html = exchange.content_type.as_deref().is_some_and(|kind| kind.contains("html"))
            || text.get(..1) == Some("<");
        let what = match () {
            () if text.is_empty() => "an empty body",
            () if html => "HTML (a proxy, a login page, or another service?)",
            () if text.starts_with('{') || text.starts_with('[') => "broken or cut JSON",
            () => "something else",
        };
        Error::NotJson { url: exchange.url.clone(), what, beginning: beginning(text) }
    })
}

/// The first 200 characters on one line.
pub(crate) fn beginning(text: &str) -> String {
    let line: String = text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(200).is_some() { format!("{line}…") } else { line }
}

fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|time| u64::try_from(time.as_millis()).ok())
        .unwrap_or_default()
}
