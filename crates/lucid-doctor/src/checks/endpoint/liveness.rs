//! Does a server answer at all, and which?

use lucid_client::{BaseUrl, ChatRequest, Dialect, Endpoint, EndpointOptions, Message};

use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Claim, Examination};
use crate::report::{Finding, ProofKind, Severity};

pub(crate) struct Liveness;

/// Tokens of an answer that say how fast a server is: fewer than any after which one stands still.
const PACE: u32 = 4;

impl Check for Liveness {
    fn id(&self) -> &'static str {
        "endpoint.liveness"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Address]
    }

    fn covers(&self) -> &'static str {
        "the server answers, names its model, and calls itself healthy (which says nothing about what it writes)"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 5, tokens: 60 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let subject = examination.subject;
        let given = subject.endpoint.clone().unwrap_or_default();
        let options = EndpointOptions {
            model: subject.model.clone(),
            api_key: subject.api_key.clone(),
            timeout: subject.timeout,
            ..EndpointOptions::default()
        };
        let (exchanges, connected) = match BaseUrl::parse(&given) {
            Ok(base) => Endpoint::introduce(&base, options),
            Err(error) => (Vec::new(), Err(error)),
        };
        for exchange in exchanges {
            examination.keep(exchange);
        }
        let endpoint = match connected {
            Ok(endpoint) => endpoint,
            Err(error) => {
                examination.evidence.obstacles.push(error.to_string());
                let slug = if error.is_unreachable() { "unreachable" } else { "not-a-model-server" };
                let finding = Finding::new(
                    self.id(),
                    slug,
                    Severity::Error,
                    "No OpenAI-compatible server answers at the endpoint",
                )
                .detail(error.to_string())
                .proof(ProofKind::Exchange, "1", error.to_string());
                return Ok(Examined {
                    findings: vec![finding],
                    covered: "nothing: no server answered".to_owned(),
                });
            }
        };
        if endpoint.dialect() == Dialect::Lucid {
            let (_, declared) = examination.take(endpoint.server_info());
            examination.evidence.claim = declared.ok().and_then(|info| Claim::of(&info));
        }
        let info = endpoint.info().clone();
        let (number, health) = examination.take(endpoint.health());
        let mut findings = Vec::new();
        // A server without /health (404) is no finding; one that says 503 is.
        if let Err(error) = health
            && !matches!(error, lucid_client::Error::Status { status: 404 | 405, .. })
        {
            let finding = Finding::new(
                "endpoint.liveness",
                "unhealthy",
                Severity::Warning,
                "The server calls itself unhealthy",
            )
            .detail(error.to_string())
            .proof(ProofKind::Exchange, number.to_string(), error.to_string());
            findings.push(finding);
        }
        // How fast it is says how long answers are waited for.
        let request = ChatRequest {
            max_tokens: Some(PACE),
            temperature: Some(0.0),
            ..ChatRequest::new(vec![Message::user("Hello")])
        };
        // A refusal is the ladder's to find.
        let _ = examination.chat(&endpoint, &request);
        let version = info.version.map(|version| format!(" {version}")).unwrap_or_default();
        let length = info.max_model_len.map(|length| format!(", context {length}")).unwrap_or_default();
        let covered =
            format!("{}{version} answers with the model `{}`{length}", info.dialect.name(), info.model);
        examination.endpoint = Some(endpoint);
        Ok(Examined { findings, covered })
    }
}
