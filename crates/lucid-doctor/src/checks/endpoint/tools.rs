//! Tool calls: are there any, are their ids well-formed, do their arguments validate, and does a stream carry the same?

use lucid_client::{ChatRequest, Endpoint, Message, ToolCall};
use serde_json::{Map, Value, json};

use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::Examination;
use crate::report::{Finding, ProbeTable, ProofKind, Severity};
use crate::subject::Depth;

pub(crate) struct Tools;

/// Tokens of an answer.
const ANSWER: u32 = 160;
/// How calls look in text that no parser has read.
const MARKERS: [&str; 4] = ["<|tool_call", "<tool_call>", "<\u{ff5c}tool", "functions."];

/// A question that only a tool answers.
struct Task {
    question: &'static str,
    tool: &'static str,
    /// What the arguments have to be.
    expected: &'static [(&'static str, Expected)],
}

enum Expected {
    Text(&'static str),
    Number(i64),
}

const TASKS: [Task; 4] = [
    Task {
        question: "What is the weather in Oslo?",
        tool: "get_weather",
        expected: &[("city", Expected::Text("Oslo"))],
    },
    Task {
        question: "Add 412 and 319 with the tool.",
        tool: "add",
        expected: &[("a", Expected::Number(412)), ("b", Expected::Number(319))],
    },
    Task {
        question: "What is the weather in Paris?",
        tool: "get_weather",
        expected: &[("city", Expected::Text("Paris"))],
    },
    Task {
        question: "Add 57 and 86 with the tool.",
        tool: "add",
        expected: &[("a", Expected::Number(57)), ("b", Expected::Number(86))],
    },
];

fn declared() -> Value {
    let tool = |name: &str, description: &str, properties: Value, required: &[&str]| {
        json!({"type": "function", "function": {"name": name, "description": description,
            "parameters": {"type": "object", "properties": properties, "required": required}}})
    };
    json!([
        tool("get_weather", "Get the weather of a city", json!({"city": {"type": "string"}}), &["city"]),
        tool(
            "add",
            "Add two numbers",
            json!({"a": {"type": "integer"}, "b": {"type": "integer"}}),
            &["a", "b"]
        ),
    ])
}

impl Check for Tools {
    fn id(&self) -> &'static str {
        "endpoint.tools"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server]
    }

    fn covers(&self) -> &'static str {
        "tool calls are recognized, their ids are distinct, their arguments are the JSON that the tool declares, streamed or not"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 4, tokens: 700 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        let tasks = match examination.depth {
            Depth::Quick => 1,
            Depth::Standard => 2,
            Depth::Thorough => TASKS.len(),
        };
        let mut table = ProbeTable::new(self.id(), "Tool calls", &["question", "streamed", "call", "judged"]);
        let (mut judged, mut faults, mut refused) = (0, Vec::new(), None);
        for task in TASKS.iter().take(tasks) {
            for streamed in [false, true] {
                examination.step(judged, 2 * tasks, task.question);
                let (number, calls, text) = match ask(examination, &endpoint, task, streamed) {
                    Ok(answer) => answer,
                    Err(reason) => {
                        refused.get_or_insert(reason);
                        continue;
                    }
                };
                let fault = judge(task, &calls, &text);
                let call = calls.first().map_or_else(
                    || text.chars().take(60).collect(),
                    |call| format!("{} {} {}", call.id, call.name, call.arguments),
                );
                let word = match &fault {
                    Verdict::Right => "right".to_owned(),
                    Verdict::NoCall => "no call".to_owned(),
                    Verdict::Fault(_, reason) => reason.clone(),
                };
                table.row(&[&task.question, &if streamed { "yes" } else { "no" }, &call, &word]);
                judged += usize::from(!matches!(fault, Verdict::NoCall));
                if let Verdict::Fault(slug, reason) = fault {
                    faults.push((slug, reason, number, call));
                }
            }
        }
        if judged == 0 {
            return Err(Skip(
                refused.unwrap_or_else(|| "the model called no tool: nothing could be judged".to_owned()),
            ));
        }
        examination.evidence.probes.push(table);
        let mut findings = Vec::new();
        if let Some((slug, reason, number, call)) = faults.first() {
            let title = match *slug {
                "not-parsed" => "Tool calls stay in the text: no parser reads them",
                "ids" => "Tool calls have no ids of their own",
                _ => "The arguments of tool calls are not what the tools declare",
            };
            findings.push(
                Finding::new(self.id(), slug, Severity::Error, title)
                    .detail(format!("{} of {judged} calls; the first: {reason}.", faults.len()))
                    .proof(ProofKind::Exchange, number.to_string(), call.clone())
                    .suggests("tool-parser", 9.0),
            );
        } else {
            findings.push(
                Finding::new(self.id(), "valid", Severity::Info, "Tool calls validate, streamed and whole")
                    .suggests("tool-parser", -4.0),
            );
        }
        Ok(Examined { findings, covered: format!("{judged} tool calls, half of them streamed") })
    }
}

fn ask(
    examination: &mut Examination<'_>,
    endpoint: &Endpoint,
    task: &Task,
    streamed: bool,
) -> Result<(usize, Vec<ToolCall>, String), String> {
    if let Some(reason) = examination.out_of_patience() {
        return Err(reason);
    }
    let mut extra = Map::new();
    extra.insert("tools".to_owned(), declared());
    let request = ChatRequest {
        max_tokens: Some(ANSWER),
        temperature: Some(0.0),
        extra,
        ..ChatRequest::new(vec![Message::user(task.question)])
    };
    let (number, answer) = if streamed {
        let (number, outcome) = examination.take(endpoint.chat_stream(&request, |_| {}));
        (number, outcome.map(|streamed| streamed.answer))
    } else {
        examination.chat(endpoint, &request)
    };
    let answer = answer.map_err(|error| error.to_string())?;
    // A call that its budget cut is no call that a parser broke.
    if answer.finish_reason() == Some("length") {
        return Err("the answer was cut by its token budget".to_owned());
    }
    let message = answer.choices.first().map(|choice| &choice.message);
    let calls = message.map(lucid_client::AnswerMessage::tool_calls).unwrap_or_default();
    Ok((number, calls, format!("{}{}", answer.reasoning().unwrap_or_default(), answer.content())))
}

enum Verdict {
    Right,
    /// The model didn't call: no fault of the server's.
    NoCall,
    /// What kind, and why.
    Fault(&'static str, String),
}

fn judge(task: &Task, calls: &[ToolCall], text: &str) -> Verdict {
    let Some(call) = calls.first() else {
        return match MARKERS.iter().find(|marker| text.contains(**marker)) {
            Some(marker) => {
                Verdict::Fault("not-parsed", format!("the text has `{marker}`, and `tool_calls` is empty"))
            }
            None => Verdict::NoCall,
        };
    };
    let mut ids: Vec<&str> = calls.iter().map(|call| call.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() != calls.len() || ids.first().is_some_and(|id| id.is_empty()) {
        return Verdict::Fault("ids", format!("ids {ids:?} of {} calls", calls.len()));
    }
    let arguments: Map<String, Value> = match serde_json::from_str(&call.arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            return Verdict::Fault("arguments", format!("`{}` is no JSON object: {error}", call.arguments));
        }
    };
    // Another tool than the obvious one is the model's choice; only what the declaration forbids is a fault.
    if call.name != task.tool {
        let known = ["get_weather", "add"].contains(&call.name.as_str());
        return if known {
            Verdict::NoCall
        } else {
            Verdict::Fault("arguments", format!("`{}` is none of the tools", call.name))
        };
    }
    for (name, expected) in task.expected {
        let right = match (expected, arguments.get(*name)) {
            (Expected::Text(text), Some(Value::String(found))) => found.eq_ignore_ascii_case(text),
            (Expected::Number(number), Some(found)) => found.as_i64() == Some(*number),
            _ => false,
        };
        // A wrong city or number may be the model's mistake, a missing or ill-typed field as well: unlike broken JSON.
        if !right && arguments.get(*name).is_none() {
            return Verdict::Fault("arguments", format!("`{name}` is missing from `{}`", call.arguments));
        }
    }
    Verdict::Right
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
    }

    fn verdict(calls: &[ToolCall], text: &str) -> &'static str {
        match judge(&TASKS[0], calls, text) {
            Verdict::Right => "right",
            Verdict::NoCall => "no call",
            Verdict::Fault(slug, _) => slug,
        }
    }

    #[test]
    fn calls_are_judged_by_their_declaration() {
        let right = call("functions.get_weather:0", "get_weather", r#"{"city": "Oslo"}"#);
        assert_eq!(verdict(std::slice::from_ref(&right), ""), "right");
        assert_eq!(verdict(&[], "I can't know the weather."), "no call");
        assert_eq!(verdict(&[], "<|tool_calls_section_begin|>…"), "not-parsed");
        for broken in ["\"city\": \"Oslo\"}", "{'city': 'Oslo'}", "{\"city\": \"Oslo\"", "{}", "[]", ""] {
            assert_eq!(verdict(&[call("a", "get_weather", broken)], ""), "arguments", "{broken}");
        }
        assert_eq!(verdict(&[right.clone(), right.clone()], ""), "ids");
        assert_eq!(verdict(&[call("", "get_weather", r#"{"city": "Oslo"}"#)], ""), "ids");
        assert_eq!(verdict(&[call("a", "weather", "{}")], ""), "arguments");
    }
}
