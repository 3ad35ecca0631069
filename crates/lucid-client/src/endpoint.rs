//! A server that can be asked.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::http::{self, Http};
use crate::{
    AnswerMessage, ApiKey, BaseUrl, ChatAnswer, ChatRequest, CompletionAnswer, CompletionRequest, Dialect,
    Error, Exchange, Message, Reply, RoutedExperts, ScoredToken, SseParser, StreamedChat, logprobs,
};

/// Limits and names for one endpoint.
#[derive(Clone, Debug)]
pub struct EndpointOptions {
    /// Which of the server's models to ask; `None` takes the only one.
    pub model: Option<String>,
    /// Sent as a bearer token.
    pub api_key: Option<ApiKey>,
    /// Until the connection stands.
    pub connect_timeout: Duration,
    /// For a whole call, generation included.
    pub timeout: Duration,
    /// Bytes of an answer that are read at the most.
    pub max_body: usize,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        EndpointOptions {
            model: None,
            api_key: None,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(300),
            max_body: 32 << 20,
        }
    }
}

/// What is known about the server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerInfo {
    /// Which server it is.
    pub dialect: Dialect,
    /// Its version, if it tells.
    pub version: Option<String>,
    /// The model that is asked.
    pub model: String,
    /// Longest sequence, if the server tells.
    pub max_model_len: Option<u64>,
}

/// One model on one server.
#[derive(Clone, Debug)]
pub struct Endpoint {
    base: BaseUrl,
    http: Http,
    info: ServerInfo,
    /// What was asked to find out who answers.
    pub introduction: Vec<Exchange>,
}

/// Time that a question about the server itself may take: no model is involved.
const INTRODUCTION_TIMEOUT: Duration = Duration::from_secs(15);

impl Endpoint {
    /// Finds out who answers at that address, and which models it has.
    ///
    /// # Errors
    /// [`Error`]: an address that can't be used, nobody there, no JSON, no model of that name.
    pub fn connect(url: &str, options: EndpointOptions) -> Result<Endpoint, Error> {
        Endpoint::introduce(&BaseUrl::parse(url)?, options).1
    }

    /// [`Endpoint::connect`] that also gives the exchanges when it fails: they are evidence.
    pub fn introduce(base: &BaseUrl, options: EndpointOptions) -> (Vec<Exchange>, Result<Endpoint, Error>) {
        let http = |limit| {
            Http::new(base, options.api_key.clone(), options.connect_timeout, limit, options.max_body)
        };
        let questions = http(options.timeout.min(INTRODUCTION_TIMEOUT));
        let mut exchanges = Vec::new();
        let models = get_json(&questions, &base.join("/v1/models"));
        exchanges.push(models.exchange.clone());
        let models_url = models.exchange.url.clone();
        let card =
            models.outcome.and_then(|models| choose_model(&models, options.model.as_deref(), &models_url));
        let (name, card) = match card {
            Ok(found) => found,
            Err(error) => return (exchanges, Err(error)),
        };
        let owned_by = card.get("owned_by").and_then(Value::as_str).unwrap_or_default();
        let mut ask = |path: &str| {
            let reply = get_json(&questions, &base.join(path));
            exchanges.push(reply.exchange);
            reply.outcome.ok()
        };
        let mut dialect = Dialect::from_owned_by(owned_by);
        let version = match dialect {
            Some(Dialect::Sglang | Dialect::LlamaCpp) => None,
            _ => ask("/version").and_then(|answer| answer.get("version")?.as_str().map(str::to_owned)),
        };
        let mut max_model_len = card.get("max_model_len").and_then(Value::as_u64);
        if matches!(dialect, None | Some(Dialect::LlamaCpp)) {
            // Gateways rewrite `owned_by`; /props is llama.cpp's alone.
            if let Some(props) =
                ask("/props").filter(|props| props.get("default_generation_settings").is_some())
            {
                dialect = Some(Dialect::LlamaCpp);
                max_model_len = max_model_len
                    .or_else(|| props.get("default_generation_settings")?.get("n_ctx")?.as_u64())
                    .or_else(|| card.get("meta")?.get("n_ctx")?.as_u64());
            }
        }
        if dialect.is_none() && version.is_some() && max_model_len.is_some() {
            dialect = Some(Dialect::Vllm);
        }
        let info =
            ServerInfo { dialect: dialect.unwrap_or(Dialect::Unknown), version, model: name, max_model_len };
        let endpoint = Endpoint {
            base: base.clone(),
            http: http(options.timeout),
            info,
            introduction: exchanges.clone(),
        };
        (exchanges, Ok(endpoint))
    }

    /// The same server, whose calls may take so long, generation included.
    #[must_use]
    pub fn waiting(&self, limit: Duration) -> Endpoint {
        Endpoint { http: self.http.waiting(limit), ..self.clone() }
    }

    /// The server's address.
    #[must_use]
    pub fn url(&self) -> &BaseUrl {
        &self.base
    }

    /// What is known about the server.
    #[must_use]
    pub fn info(&self) -> &ServerInfo {
        &self.info
    }

    /// The dialect.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.info.dialect
    }

    /// `GET /health`: the body is free.
    pub fn health(&self) -> Reply<()> {
        self.http.send("GET", &self.base.join("/health"), None, |_, _| {}).and_then(|_, _| Ok(()))
    }

    /// `GET /server_info`: what a Lucid server says of itself and its arithmetic.
    pub fn server_info(&self) -> Reply<Value> {
        get_json(&self.http, &self.base.join("/server_info"))
    }

    /// `GET /metrics`: Prometheus' text form.
    pub fn metrics(&self) -> Reply<String> {
        self.http
            .send("GET", &self.base.join("/metrics"), None, |_, _| {})
            .and_then(|_, bytes| Ok(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Empties the server's prefix cache, with the request that its dialect has for it; `None` if it has none. Everybody's next prompts are
    /// computed again, so nobody does this unasked.
    ///
    /// vLLM (0.32) has `POST /reset_prefix_cache` where it was started with `VLLM_SERVER_DEV_MODE=1`, and answers `{"success": bool}`;
    /// SGLang (0.5.23) has `POST /flush_cache`, with a status alone.
    pub fn flush_cache(&self) -> Option<Reply<()>> {
        let path = self.dialect().capabilities().flush?;
        let reply = self.http.send("POST", &self.base.join(path), Some(&json!({})), |_, _| {});
        Some(reply.and_then(|exchange, bytes| {
            let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            if answer.get("success").and_then(Value::as_bool) == Some(false) {
                return Err(shape(exchange, "the cache was not emptied: requests hold parts of it"));
            }
            Ok(())
        }))
    }

    /// `POST /v1/chat/completions`.
    pub fn chat(&self, request: &ChatRequest) -> Reply<ChatAnswer> {
        let mut body = json!(request);
        self.fill_model(&mut body);
        let reply: Reply<ChatAnswer> = self.post("/v1/chat/completions", &body);
        reply.and_then(|exchange, answer| {
            if answer.choices.is_empty() { Err(shape(exchange, "`choices` is empty")) } else { Ok(answer) }
        })
    }

    /// The same, streamed; `each` sees every piece of text as it comes. Frames that break the rules are in the answer.
    pub fn chat_stream(
        &self,
        request: &ChatRequest,
        mut each: impl FnMut(&AnswerMessage),
    ) -> Reply<StreamedChat> {
        let mut body = json!(request);
        self.fill_model(&mut body);
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        let mut parser = SseParser::default();
        let mut streamed = StreamedChat::default();
        let reply =
            self.http.send("POST", &self.base.join("/v1/chat/completions"), Some(&body), |bytes, seconds| {
                parser.push(bytes, |frame| streamed.push(frame, seconds, &mut each));
            });
        let end = reply.exchange.seconds;
        parser.finish(|frame| streamed.push(frame, end, &mut each));
        reply.and_then(|exchange, _| {
            if streamed.answer.choices.is_empty() && streamed.error.is_none() {
                return Err(shape(exchange, "the stream has no `choices`"));
            }
            Ok(streamed)
        })
    }

    /// `POST /v1/completions`.
    pub fn complete(&self, request: &CompletionRequest) -> Reply<CompletionAnswer> {
        let mut body = json!(request);
        self.fill_model(&mut body);
        let reply: Reply<CompletionAnswer> = self.post("/v1/completions", &body);
        reply.and_then(|exchange, answer| {
            if answer.choices.is_empty() { Err(shape(exchange, "`choices` is empty")) } else { Ok(answer) }
        })
    }

    /// Completes token ids and returns the log-probabilities of the answer and, where the dialect has them, of the
    /// prompt: `(scores of prompt tokens 1.., scores of generated tokens)`, the latter named by id where possible. With `past_end` the answer
    /// goes on where the model would have ended it.
    pub fn score_tokens(
        &self,
        prompt: &[u32],
        max_tokens: u32,
        top: u32,
        past_end: bool,
    ) -> Reply<(Vec<ScoredToken>, Vec<ScoredToken>)> {
        let capabilities = self.dialect().capabilities();
        let request = self.scoring_request(prompt, max_tokens, top, past_end);
        self.complete(&request).and_then(|exchange, answer| {
            let choice = answer.choices.first().ok_or_else(|| shape(exchange, "`choices` is empty"))?;
            let generated =
                self.dialect().completion_logprobs(choice).map_err(|reason| shape(exchange, &reason))?;
            let of_prompt = match &choice.prompt_logprobs {
                Some(value) if capabilities.prompt_logprobs => {
                    logprobs::from_prompt(value, prompt).map_err(|reason| shape(exchange, &reason))?
                }
                _ => Vec::new(),
            };
            Ok((of_prompt, generated))
        })
    }

    /// The same where nothing is asked of the prompt itself: a server computes what it is asked about, and reads from its prefix cache what it
    /// is not.
    pub fn follow_tokens(
        &self,
        prompt: &[u32],
        max_tokens: u32,
        top: u32,
        past_end: bool,
    ) -> Reply<Vec<ScoredToken>> {
        let mut request = self.scoring_request(prompt, max_tokens, top, past_end);
        request.extra.remove("prompt_logprobs");
        self.complete(&request).and_then(|exchange, answer| {
            let choice = answer.choices.first().ok_or_else(|| shape(exchange, "`choices` is empty"))?;
            self.dialect().completion_logprobs(choice).map_err(|reason| shape(exchange, &reason))
        })
    }

    fn scoring_request(
        &self,
        prompt: &[u32],
        max_tokens: u32,
        top: u32,
        past_end: bool,
    ) -> CompletionRequest {
        let top = top.min(self.dialect().capabilities().max_logprobs);
        let mut request = CompletionRequest::greedy(crate::Prompt::Tokens(prompt.to_vec()), max_tokens);
        request.logprobs = Some(top);
        request.extra = self.dialect().scoring_fields(top);
        if past_end {
            // All of them have this one.
            request.extra.insert("ignore_eos".into(), true.into());
        }
        request
    }

    /// The experts that the tokens of a prompt went to, of a model with so many layers and so many experts a token. `None` if the server
    /// doesn't tell: vLLM (0.32), SGLang and Lucid do where they were started with `--enable-return-routed-experts`.
    pub fn routed_experts(
        &self,
        prompt: &[u32],
        layers: usize,
        top_k: usize,
    ) -> Reply<Option<RoutedExperts>> {
        let mut request = CompletionRequest::greedy(crate::Prompt::Tokens(prompt.to_vec()), 1);
        // vLLM returns them unasked.
        request.extra.insert("return_routed_experts".into(), true.into());
        self.complete(&request).and_then(|exchange, answer| {
            let of_choice = answer.choices.first().and_then(|choice| choice.extra.get("routed_experts"));
            let of_answer = answer.extra.get("sglext").and_then(|more| more.get("routed_experts"));
            let read = match (of_choice.and_then(Value::as_str), of_answer.and_then(Value::as_str)) {
                (Some(text), _) => RoutedExperts::from_npy(text),
                (None, Some(text)) => RoutedExperts::from_numbers(text, layers, top_k),
                (None, None) => return Ok(None),
            };
            read.map(Some).map_err(|reason| shape(exchange, &format!("`routed_experts`: {reason}")))
        })
    }

    /// Log-probabilities of a chat answer's tokens; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Shape`] if they are there but can't be read.
    pub fn chat_logprobs(
        exchange: &Exchange,
        answer: &ChatAnswer,
    ) -> Result<Option<Vec<ScoredToken>>, Error> {
        let value = answer.choices.first().and_then(|choice| choice.logprobs.as_ref());
        value
            .filter(|value| !value.is_null())
            .map(|value| logprobs::from_content(value).map_err(|reason| shape(exchange, &reason)))
            .transpose()
    }

    /// The token ids of a conversation, with the server's own template and tokenizer. `None` if the dialect can't.
    pub fn tokenize(&self, messages: &[Message]) -> Option<Reply<Vec<u32>>> {
        if !self.dialect().capabilities().tokenize_messages {
            return None;
        }
        let body = json!({ "model": self.info.model, "messages": messages });
        let reply: Reply<Value> = self.post("/tokenize", &body);
        Some(reply.and_then(|exchange, answer| {
            let tokens = answer.get("tokens").cloned().unwrap_or_default();
            serde_json::from_value(tokens).map_err(|error| shape(exchange, &format!("`tokens`: {error}")))
        }))
    }

    fn fill_model(&self, body: &mut Value) {
        if body.get("model").and_then(Value::as_str).is_none_or(str::is_empty) {
            body["model"] = self.info.model.clone().into();
        }
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Reply<T> {
        self.http.send("POST", &self.base.join(path), Some(body), |_, _| {}).and_then(|exchange, bytes| {
            let value = http::json(exchange, &bytes)?;
            serde_json::from_value(value).map_err(|error| shape(exchange, &error.to_string()))
        })
    }
}

fn get_json(http: &Http, url: &str) -> Reply<Value> {
    http.send("GET", url, None, |_, _| {}).and_then(|exchange, bytes| http::json(exchange, &bytes))
}

fn shape(exchange: &Exchange, reason: &str) -> Error {
    Error::Shape {
        url: exchange.url.clone(),
        reason: reason.to_owned(),
        beginning: http::beginning(&exchange.body),
    }
}

/// The model's name and its card in `/v1/models`.
fn choose_model(models: &Value, wanted: Option<&str>, url: &str) -> Result<(String, Value), Error> {
    let cards = models.get("data").and_then(Value::as_array).ok_or_else(|| Error::Shape {
        url: url.to_owned(),
        reason: "`data` is not a list of models".to_owned(),
        beginning: http::beginning(&models.to_string()),
    })?;
    let name = |card: &Value| card.get("id").and_then(Value::as_str).map(str::to_owned);
    let names: Vec<String> = cards.iter().filter_map(name).collect();
    let refuse = |reason: String| Err(Error::Model { url: url.to_owned(), reason });
    let chosen = match (wanted, names.as_slice()) {
        (_, []) => return refuse("lists no model".to_owned()),
        (Some(wanted), names) if names.iter().any(|name| name == wanted) => wanted.to_owned(),
        (Some(wanted), names) => {
            return refuse(format!("has no model `{wanted}`; it has: {}", names.join(", ")));
        }
        (None, [only]) => only.clone(),
        // vLLM lists adapters (LoRA) with a parent; the base model has none.
        (None, _) => {
            let bases: Vec<&Value> =
                cards.iter().filter(|card| card.get("parent").is_none_or(Value::is_null)).collect();
            match bases.as_slice() {
                [base] => name(base).unwrap_or_default(),
                _ => return refuse(format!("has several models; choose one: {}", names.join(", "))),
            }
        }
    };
    let card = cards.iter().find(|card| name(card).as_deref() == Some(&chosen)).cloned().unwrap_or_default();
    Ok((chosen, card))
}
