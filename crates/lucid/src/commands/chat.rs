//! `lucid chat`: talk to a model in the terminal. Reasoning is shown apart, in grey.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use lucid_client::{AnswerMessage, ApiKey, ChatRequest, Endpoint, EndpointOptions, Message};
use lucid_engine::EngineOptions;
use lucid_server::{App, RunningServer, ServerOptions, spawn};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::arguments::Chat;
use crate::{model, style};

/// Reads questions and prints answers until the input ends.
pub fn run(arguments: &Chat) -> Result<ExitCode> {
    let (_server, endpoint) = connect(arguments)?;
    let mut conversation = Conversation::new(endpoint, arguments);
    if std::io::stdin().is_terminal() {
        anstream::println!(
            "{} {}",
            style::heading(&conversation.endpoint.info().model),
            style::dim("· /new starts over, Ctrl-D ends")
        );
        interactive(&mut conversation)?;
    } else {
        for line in std::io::stdin().lines() {
            conversation.say(line.context("standard input is not text")?.trim())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The server to talk to; one of our own when a folder or nothing was given.
fn connect(arguments: &Chat) -> Result<(Option<RunningServer>, Endpoint)> {
    let options = EndpointOptions {
        model: arguments.model_name.clone(),
        api_key: ApiKey::from_env(&arguments.api_key_env),
        ..EndpointOptions::default()
    };
    match arguments.model.as_deref() {
        Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
            Ok((None, Endpoint::connect(url, options)?))
        }
        folder => {
            let path = folder.map(Path::new);
            let name = model::default_name(path);
            let app = App::load(&model::files(path)?, &EngineOptions::default(), ServerOptions::new(&name))?;
            let server = spawn("127.0.0.1:0", app)?;
            // Our own server needs no key, and must not see the user's.
            let endpoint = Endpoint::connect(server.url(), EndpointOptions { api_key: None, ..options })?;
            Ok((Some(server), endpoint))
        }
    }
}

fn interactive(conversation: &mut Conversation) -> Result<()> {
    let mut editor = DefaultEditor::new().context("the terminal can't be used")?;
    loop {
        match editor.readline("› ") {
            Ok(line) => {
                let line = line.trim();
                if line == "/new" {
                    conversation.start_over();
                    anstream::println!("{}", style::dim("(a new conversation)"));
                } else if !line.is_empty() {
                    // A history that can't grow is no reason to stop talking.
                    let _ = editor.add_history_entry(line);
                    if let Err(error) = conversation.say(line) {
                        anstream::eprintln!("{}: {error:#}", style::error("error"));
                    }
                }
            }
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error).context("the terminal can't be read"),
        }
    }
}

struct Conversation {
    endpoint: Endpoint,
    request: ChatRequest,
    system: Option<String>,
}

impl Conversation {
    fn new(endpoint: Endpoint, arguments: &Chat) -> Conversation {
        let mut request = ChatRequest::new(Vec::new());
        request.max_tokens = arguments.max_tokens;
        request.temperature = arguments.temperature;
        if arguments.no_thinking {
            request.extra.insert("chat_template_kwargs".into(), serde_json::json!({ "thinking": false }));
        }
        let mut conversation = Conversation { endpoint, request, system: arguments.system.clone() };
        conversation.start_over();
        conversation
    }

    fn start_over(&mut self) {
        self.request.messages = self.system.iter().map(Message::system).collect();
    }

    /// Asks, prints the answer as it comes, and keeps both.
    fn say(&mut self, question: &str) -> Result<()> {
        if question.is_empty() {
            return Ok(());
        }
        self.request.messages.push(Message::user(question));
        let mut printer = AnswerPrinter::default();
        let reply = self.endpoint.chat_stream(&self.request, |delta| printer.print(delta));
        printer.end();
        match reply.outcome {
            Ok(streamed) => {
                if let Some(error) = &streamed.error {
                    self.request.messages.pop();
                    anyhow::bail!("the server broke off: {error}");
                }
                if streamed.answer.finish_reason() == Some("length") {
                    anstream::println!("{}", style::dim("(cut: the answer reached its token limit)"));
                }
                let mut answer = Message::new("assistant", streamed.answer.content());
                if let Some(reasoning) = streamed.answer.reasoning() {
                    answer.extra.insert("reasoning".into(), reasoning.into());
                }
                self.request.messages.push(answer);
                Ok(())
            }
            Err(error) => {
                self.request.messages.pop();
                Err(error.into())
            }
        }
    }
}

/// Prints an answer piece by piece: reasoning grey, content plain on a line of its own.
#[derive(Default)]
pub struct AnswerPrinter {
    reasoning: bool,
    content: bool,
}

impl AnswerPrinter {
    /// Prints one piece.
    pub fn print(&mut self, delta: &AnswerMessage) {
        let mut out = anstream::stdout();
        // A closed pipe ends the conversation at the next question.
        if let Some(reasoning) = delta.reasoning() {
            self.reasoning = true;
            let _ = write!(out, "{}", style::dim(clean(reasoning)));
        }
        let content = delta.content();
        if !content.is_empty() {
            if self.reasoning && !self.content {
                let _ = writeln!(out);
            }
            self.content = true;
            let _ = write!(out, "{}", clean(content));
        }
        let _ = out.flush();
    }

    /// Ends the answer's last line.
    pub fn end(&self) {
        if self.reasoning || self.content {
            anstream::println!();
        } else {
            anstream::println!("{}", style::dim("(no text)"));
        }
    }
}

/// A model's text without what would steer the terminal.
fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}
