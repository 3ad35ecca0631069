//! Asks any OpenAI-compatible server, in the dialects of vLLM, SGLang, llama.cpp and Lucid.
//!
//! Everything that was sent and received is kept as an [`Exchange`]: the evidence of a diagnosis. API keys never
//! are part of it.
//!
//! ```no_run
//! use lucid_client::{ChatRequest, Endpoint, EndpointOptions, Message};
//!
//! let endpoint = Endpoint::connect("http://127.0.0.1:8000", EndpointOptions::default())?;
//! let request = ChatRequest { max_tokens: Some(64), ..ChatRequest::new(vec![Message::user("Hi")]) };
//! let reply = endpoint.chat(&request);
//! println!("{:?} in {:.1} s", reply.outcome?.content(), reply.exchange.seconds);
//! # Ok::<(), lucid_client::Error>(())
//! ```

mod base_url;
mod chat;
mod completion;
mod dialect;
mod endpoint;
mod error;
mod exchange;
mod http;
mod logprobs;
mod routes;
mod secret;
mod stream;

pub use base_url::BaseUrl;
pub use chat::{AnswerMessage, ChatAnswer, ChatChoice, ChatRequest, Message, ToolCall, Usage};
pub use completion::{CompletionAnswer, CompletionChoice, CompletionRequest, Prompt};
pub use dialect::{Capabilities, Dialect};
pub use endpoint::{Endpoint, EndpointOptions, ServerInfo};
pub use error::Error;
pub use exchange::{Exchange, Reply};
pub use logprobs::{ScoredToken, TokenName};
pub use routes::RoutedExperts;
pub use secret::ApiKey;
pub use stream::{Frame, SseParser, StreamedChat};
