//! Answers that are told to follow a JSON schema.

use lucid_client::{ChatRequest, Dialect, Message};
use serde_json::{Map, Value, json};

use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::Examination;
use crate::report::{Finding, ProofKind, Severity};

pub(crate) struct Schema;

/// Tokens of an answer.
const ANSWER: u32 = 200;

impl Check for Schema {
    fn id(&self) -> &'static str {
        "endpoint.schema"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server]
    }

    fn covers(&self) -> &'static str {
        "an answer under `response_format` is JSON of the schema that was asked for"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 2, tokens: 200 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        let mut findings = Vec::new();
        let mut judged = 0;
        for (name, age) in [("Emma", 31), ("Peter", 28)] {
            let mut extra = Map::new();
            extra.insert("response_format".to_owned(), response_format());
            let request = ChatRequest {
                max_tokens: Some(ANSWER),
                temperature: Some(0.0),
                extra,
                ..ChatRequest::new(vec![Message::user(format!(
                    "Return a JSON object with name {name} and age {age}."
                ))])
            };
            let (number, outcome) = examination.chat(&endpoint, &request);
            let answer = match outcome {
                Ok(answer) => answer,
                // A server that says that it can't is honest.
                Err(lucid_client::Error::Status { status: 400..=499, message, .. }) => {
                    return Err(Skip(format!(
                        "{} refuses `response_format`: {message}",
                        endpoint.dialect().name()
                    )));
                }
                Err(error) => return Err(Skip(error.to_string())),
            };
            if answer.finish_reason() == Some("length") {
                continue;
            }
            judged += 1;
            if let Some(reason) = violation(answer.content())
                && findings.is_empty()
            {
                let told = matches!(endpoint.dialect(), Dialect::Unknown);
                findings.push(
                    Finding::new(
                        self.id(),
                        "violated",
                        if told { Severity::Info } else { Severity::Error },
                        "An answer under `response_format` does not follow its schema",
                    )
                    .detail(reason)
                    .proof(
                        ProofKind::Exchange,
                        number.to_string(),
                        answer.content().chars().take(120).collect::<String>(),
                    )
                    .suggests("wrong-flags", 2.0)
                    .suggests("reasoning-parser", 2.0),
                );
            }
        }
        if judged == 0 {
            return Err(Skip("every answer was cut by its token budget".to_owned()));
        }
        Ok(Examined { findings, covered: format!("{judged} answers under a schema") })
    }
}

fn response_format() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "person", "strict": true, "schema": {
        "type": "object", "additionalProperties": false, "required": ["name", "age"],
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}}})
}

/// Why a text is not of the schema; `None` if it is.
fn violation(text: &str) -> Option<String> {
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => return Some(format!("it is no JSON: {error}")),
    };
    let Some(object) = value.as_object() else { return Some("it is JSON, but no object".to_owned()) };
    if let Some(name) = object.keys().find(|name| !["name", "age"].contains(&name.as_str())) {
        return Some(format!("`{name}` is not in the schema"));
    }
    match (object.get("name"), object.get("age")) {
        (Some(Value::String(_)), Some(age)) if age.is_i64() => None,
        (name, age) => Some(format!("`name` is {}, `age` is {}", shown(name), shown(age))),
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "missing".to_owned(), Value::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_held() {
        assert_eq!(violation(r#"{"name": "Emma", "age": 31}"#), None);
        for text in [
            "",
            "Sure: {}",
            "[]",
            r#"{"name": "Emma"}"#,
            r#"{"name": "Emma", "age": "31"}"#,
            r#"{"name": "Emma", "age": 31, "x": 1}"#,
        ] {
            assert!(violation(text).is_some(), "{text}");
        }
    }
}
