//! The requests: limited in time and size, errors that say whom was asked and what came.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use ureq::http::{Response, StatusCode, header};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::FetchError;
use super::address::Address;

/// To reach a server.
const CONNECT: Duration = Duration::from_secs(10);

/// Asks, until its time is up.
#[derive(Debug)]
pub(super) struct Http {
    agent: Agent,
    direct: Agent,
    deadline: Instant,
}

impl Http {
    /// `certificates` is a PEM file of those to trust; the public ones if there is none.
    pub(super) fn new(certificates: Option<&Path>, time: Duration) -> io::Result<Http> {
        let tls = match certificates {
            Some(file) => TlsConfig::builder().root_certs(trusted(file)?).build(),
            None => TlsConfig::default(),
        };
        let config = || {
            Agent::config_builder()
                .tls_config(tls.clone())
                .timeout_connect(Some(CONNECT))
                .http_status_as_error(false)
                // The credentials stay behind at a redirect, as it is the library's default.
                .max_redirects(5)
                .user_agent(concat!("lucid/", env!("CARGO_PKG_VERSION")))
        };
        let (agent, direct) = (config().build().new_agent(), config().proxy(None).build().new_agent());
        Ok(Http { agent, direct, deadline: Instant::now() + time })
    }

    /// Sends a GET with more headers; whatever status comes is an answer.
    pub(super) fn get(
        &self,
        address: &Address,
        headers: &[(&str, &str)],
    ) -> Result<Response<Body>, FetchError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(FetchError::OutOfTime);
        }
        let agent = if address.is_loopback() { &self.direct } else { &self.agent };
        let mut request = agent.get(address.request());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(value) = address.authorization() {
            request = request.header(header::AUTHORIZATION, value);
        }
        let answer = request.config().timeout_global(Some(left)).build().call();
        answer.map_err(|error| match error {
            ureq::Error::Timeout(ureq::Timeout::Global) => FetchError::OutOfTime,
            error => FetchError::Unreachable { address: address.to_string(), reason: reason(&error) },
        })
    }

    /// As [`Http::get`], where only success is an answer.
    pub(super) fn get_well(
        &self,
        address: &Address,
        headers: &[(&str, &str)],
    ) -> Result<Response<Body>, FetchError> {
        let answer = self.get(address, headers)?;
        let status = answer.status();
        let address = || address.to_string();
        match status {
            _ if status.is_success() => Ok(answer),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(FetchError::Refused { address: address(), status: status.as_u16() })
            }
            _ => Err(FetchError::Status { address: address(), status: status.as_u16() }),
        }
    }
}

/// Reads a body of at most `limit` bytes.
pub(super) fn read_body(
    answer: Response<Body>,
    address: &Address,
    limit: u64,
) -> Result<Vec<u8>, FetchError> {
    let mut bytes = Vec::new();
    let read = answer.into_body().into_reader().take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|error| FetchError::Unreachable {
        address: address.to_string(),
        reason: error.to_string(),
    })?;
    if bytes.len() as u64 > limit {
        return Err(FetchError::TooLarge { address: address.to_string(), limit });
    }
    Ok(bytes)
}

/// The library's words, without the address, which may hold a password.
fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::BadUri(_) => "no address that can be asked".to_owned(),
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => {
            format!("{error}; pip's `cert` setting or SSL_CERT_FILE names a file of certificates to trust")
        }
        error => error.to_string(),
    }
}

fn trusted(file: &Path) -> io::Result<RootCerts> {
    let named = |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", file.display()));
    let pem = fs::read(file).map_err(|error| named(&error))?;
    let mut certificates: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| named(&error))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(named(&"no certificates in it"));
    }
    Ok(RootCerts::from(certificates))
}
