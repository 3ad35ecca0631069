//! Server-sent events. Frames that break the rules are kept: they are evidence.

use serde_json::Value;

use crate::{AnswerMessage, ChatAnswer, ChatChoice, Usage};

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// `data: {…}`
    Json(Value),
    /// `data: [DONE]`
    Done,
    /// Data that isn't JSON, or a line that is none of `data:`, `event:`, `id:`, `retry:`, `:comment`.
    Malformed(String),
}

/// Longest event that is still collected, in bytes.
const LONGEST_EVENT: usize = 4 << 20;

/// Cuts bytes into events, at whatever places the network cut them.
/// Source: the WHATWG HTML standard, "Server-sent events", 9.2.5 and 9.2.6.
#[derive(Debug, Default)]
pub struct SseParser {
    line: Vec<u8>,
    data: Option<String>,
    after_cr: bool,
}

impl SseParser {
    /// Takes the next bytes; `each` gets every event that they complete.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(Frame)) {
        for &byte in bytes {
            // A line ends with LF, CR, or CR LF.
            if byte == b'\n' && std::mem::take(&mut self.after_cr) {
                continue;
            }
            self.after_cr = byte == b'\r';
            if byte == b'\n' || byte == b'\r' {
                let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
                self.end_of_line(&line, &mut each);
            } else {
                self.line.push(byte);
                if self.line.len() > LONGEST_EVENT {
                    let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
                    each(Frame::Malformed(line));
                }
            }
        }
    }

    /// The stream ended. An event without its empty line was cut off: the standard drops it, we report it.
    pub fn finish(mut self, mut each: impl FnMut(Frame)) {
        if !self.line.is_empty() {
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
            self.end_of_line(&line, &mut each);
        }
        if let Some(data) = self.data {
            each(Frame::Malformed(data));
        }
    }

    fn end_of_line(&mut self, line: &str, each: &mut impl FnMut(Frame)) {
        if line.is_empty() {
            if let Some(data) = self.data.take() {
                each(read_event(data));
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        match field {
            "data" => {
                let value = value.strip_prefix(' ').unwrap_or(value);
                match &mut self.data {
                    Some(data) if data.len() < LONGEST_EVENT => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    Some(_) => each(Frame::Malformed(value.to_owned())),
                    None => self.data = Some(value.to_owned()),
                }
            }
            "" | "event" | "id" | "retry" => {}
            _ => each(Frame::Malformed(line.to_owned())),
        }
    }
}

fn read_event(data: String) -> Frame {
    if data.trim() == "[DONE]" {
        return Frame::Done;
    }
    serde_json::from_str(&data).map_or(Frame::Malformed(data), Frame::Json)
}

/// A chat answer put together from its stream.
#[derive(Clone, Debug, Default)]
pub struct StreamedChat {
    /// The whole answer.
    pub answer: ChatAnswer,
    /// Seconds from the request to each frame with text.
    pub text_seconds: Vec<f64>,
    /// Whether `[DONE]` came.
    pub done: bool,
    /// What broke the rules.
    pub malformed: Vec<String>,
    /// An error that the server sent inside the stream.
    pub error: Option<String>,
}

impl StreamedChat {
    /// Adds one frame that arrived `seconds` after the request; `each` sees the text that it brought, if any.
    pub fn push(&mut self, frame: Frame, seconds: f64, each: &mut dyn FnMut(&AnswerMessage)) {
        let chunk = match frame {
            Frame::Done => {
                self.done = true;
                return;
            }
            Frame::Malformed(text) => {
                self.malformed.push(text);
                return;
            }
            Frame::Json(chunk) => chunk,
        };
        if let Some(error) = chunk.get("error") {
            self.error = Some(
                error.get("message").and_then(Value::as_str).map_or_else(|| error.to_string(), str::to_owned),
            );
            return;
        }
        if let Some(usage) =
            chunk.get("usage").and_then(|usage| serde_json::from_value::<Usage>(usage.clone()).ok())
        {
            self.answer.usage = Some(usage);
        }
        if let Some(model) = chunk.get("model").and_then(Value::as_str) {
            self.answer.model.get_or_insert_with(|| model.to_owned());
        }
        // One choice is all that we ever ask for.
        let Some(choice) = chunk.get("choices").and_then(|choices| choices.get(0)) else { return };
        if self.answer.choices.is_empty() {
            self.answer.choices.push(ChatChoice::default());
        }
        let Some(whole) = self.answer.choices.first_mut() else { return };
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            whole.finish_reason = Some(reason.to_owned());
        }
        let Some(delta) = choice.get("delta") else { return };
        match serde_json::from_value::<AnswerMessage>(delta.clone()) {
            Ok(delta) => {
                if !delta.content().is_empty() || delta.reasoning().is_some() {
                    self.text_seconds.push(seconds);
                    each(&delta);
                }
                whole.message.push_delta(&delta);
            }
            Err(error) => self.malformed.push(format!("delta {delta}: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(pieces: &[&[u8]]) -> Vec<Frame> {
        let mut parser = SseParser::default();
        let mut all = Vec::new();
        for piece in pieces {
            parser.push(piece, |frame| all.push(frame));
        }
        parser.finish(|frame| all.push(frame));
        all
    }

    #[test]
    fn cuts_anywhere() {
        let text = "data: {\"a\":\"é\"}\r\n\r\n: ping\n\nevent: x\ndata: [DONE]\n\n".as_bytes();
        let whole = frames(&[text]);
        assert_eq!(whole, [Frame::Json(serde_json::json!({"a": "é"})), Frame::Done]);
        for cut in 0..text.len() {
            assert_eq!(frames(&[&text[..cut], &text[cut..]]), whole, "cut at {cut}");
        }
    }

    #[test]
    fn several_data_lines_are_one_event() {
        assert_eq!(frames(&[b"data: [1,\ndata: 2]\n\n"]), [Frame::Json(serde_json::json!([1, 2]))]);
    }

    #[test]
    fn malformed_frames_are_kept() {
        assert_eq!(frames(&[b"data: {\"a\":\n\n"]), [Frame::Malformed("{\"a\":".into())]);
        assert_eq!(frames(&[b"{\"naked\": 1}\n\n"]), [Frame::Malformed("{\"naked\": 1}".into())]);
        assert_eq!(frames(&[b"data: {\"cut\": 1}"]), [Frame::Malformed("{\"cut\": 1}".into())]);
    }
}
