//! Every kind of finding of this crate: three logs or more in which it comes about, written by different engines and in
//! different wrappings, and twins without it.
#![allow(clippy::unwrap_used)]

#[path = "kinds/runs.rs"]
mod runs;

mod reading;

use std::collections::BTreeMap;

use lucid_logs::{findings, signatures};
use reading::{check, has, read};

/// Known lines as each writer dresses them: engines, torch's ranks, syslog, Docker, Kubernetes, compose with colours.
fn dressed(line: &str) -> Vec<(&'static str, String)> {
    vec![
        ("bare", format!("first line\n{line}\nlast line\n")),
        ("vLLM", format!("(EngineCore_DP0 pid=700) ERROR 11-29 12:30:20 [core.py:1584] {line}\n")),
        ("an older vLLM", format!("WARNING 11-29 12:30:20 model_runner.py:1057] {line}\n")),
        ("SGLang", format!("[2026-11-29 12:00:00 TP3] {line}\n")),
        ("torch", format!("[rank3]: {line}\n")),
        ("syslog", format!("Nov 29 12:00:00 gpu1 vllm[22787]: {line}\n")),
        (
            "Docker",
            serde_json::json!({"log": format!("{line}\n"), "stream": "stderr", "time": "2026-11-29T12:00:00.1Z"}).to_string()
                + "\n",
        ),
        ("Kubernetes", format!("2026-11-29T12:00:00.123456789Z stderr F {line}\n")),
        ("compose", format!("engine-1  | \x1b[31m{line}\x1b[0m\r\n")),
        (
            "the journal",
            serde_json::json!({"__REALTIME_TIMESTAMP": "1796040000123456", "MESSAGE": line.as_bytes(), "_PID": "9"})
                .to_string()
                + "\n",
        ),
    ]
}

#[test]
fn every_known_line_is_known_in_every_dress_and_its_twin_is_not() {
    let twins: BTreeMap<String, String> = toml::from_str(include_str!("kinds/twins.toml")).unwrap();
    let mut wrong = Vec::new();
    for signature in signatures() {
        let id = format!("logs.signatures/{}", signature.id);
        for example in &signature.examples {
            for (dress, log) in dressed(example) {
                if !has(&check(&read(&log)), &id) {
                    wrong.push(format!("{id} is not found, dressed by {dress}: {example}"));
                }
            }
        }
        let twin = twins.get(&signature.id).unwrap_or_else(|| panic!("{id} has no twin"));
        for (dress, log) in dressed(twin) {
            if has(&check(&read(&log)), &id) {
                wrong.push(format!("{id} is found of its twin, dressed by {dress}: {twin}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(twins.len(), signatures().count(), "twins of lines that are not known");
}

#[test]
fn three_logs_are_found_and_the_twins_are_not() {
    let mut wrong = Vec::new();
    for (id, logs, twins) in runs::KINDS {
        for (planted, list) in [(true, logs), (false, twins)] {
            for (number, log) in list.iter().enumerate() {
                let found = check(&log());
                if has(&found, id) != planted {
                    let ids: Vec<&str> = found.iter().map(|finding| finding.id.as_str()).collect();
                    let what = if planted { "way" } else { "twin" };
                    wrong.push(format!("{id}, {what} {number}: {}", ids.join(", ")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_kind_is_left_out() {
    for (id, _) in findings() {
        let known_line = id
            .strip_prefix("logs.signatures/")
            .is_some_and(|slug| signatures().any(|signature| signature.id == slug));
        let count = runs::KINDS.iter().filter(|(kind, ..)| *kind == id).count() + usize::from(known_line);
        assert_eq!(count, 1, "{id} must stand once in a table");
    }
    for (id, logs, twins) in runs::KINDS {
        assert!(findings().any(|(known, _)| known == *id), "{id} is no finding");
        assert!(logs.len() >= 3 && !twins.is_empty(), "{id}: three logs and a twin");
    }
}
