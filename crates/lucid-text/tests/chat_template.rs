//! Chat templates, against Python's Jinja2 and the prompts of transformers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use lucid_checkpoint::Files;
use lucid_text::{ChatTemplate, Error};
use serde_json::{Map, Value, json};

fn read_json(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn canary() -> ChatTemplate {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary");
    ChatTemplate::open(&Files::Folder(folder)).unwrap().unwrap()
}

/// A checkpoint with these files and nothing else.
fn checkpoint(files: &[(&str, &str)]) -> (tempfile::TempDir, Files) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let files = Files::Folder(folder.path().to_owned());
    (folder, files)
}

fn template(text: &str) -> ChatTemplate {
    let (_folder, files) = checkpoint(&[("chat_template.jinja", text)]);
    ChatTemplate::open(&files).unwrap().unwrap()
}

fn render(template: &ChatTemplate, variables: &Value) -> Result<String, Error> {
    let mut kwargs = variables.as_object().unwrap().clone();
    let messages = kwargs.remove("messages").unwrap_or_default();
    let tools = kwargs.remove("tools").filter(|tools| !tools.is_null());
    let prompt = kwargs.remove("add_generation_prompt").unwrap_or_default().as_bool().unwrap_or_default();
    template.render(&messages, tools.as_ref(), &kwargs, prompt)
}

#[test]
fn golden_prompts_are_those_of_transformers() {
    let golden = read_json("canary/golden.json");
    let golden = golden.as_object().unwrap();
    assert_eq!(golden.len(), 14);
    for (name, case) in golden {
        let kwargs: Map<String, Value> = case
            .get("thinking")
            .map(|thinking| ("thinking".to_owned(), thinking.clone()))
            .into_iter()
            .collect();
        let prompt = canary().render(&case["messages"], case.get("tools"), &kwargs, true).unwrap();
        assert_eq!(prompt, case["prompt"].as_str().unwrap(), "{name}");
    }
}

#[test]
fn templates_render_as_in_jinja2() {
    let mut wrong = String::new();
    for case in read_json("templates/cases.json").as_array().unwrap() {
        let (name, expected) = (&case["name"], case["expected"].as_str().unwrap());
        match render(&template(case["template"].as_str().unwrap()), &case["variables"]) {
            Ok(text) if text == expected => {}
            Ok(text) => wrong.push_str(&format!("\n{name}:\n  want {expected:?}\n  got  {text:?}")),
            Err(error) => wrong.push_str(&format!("\n{name}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_refusal_of_the_template_keeps_its_words() {
    let template =
        template("{% if messages[0].role != 'user' %}{{ raise_exception('user first, please') }}{% endif %}");
    let error = render(&template, &json!({"messages": [{"role": "tool"}]})).unwrap_err();
    assert!(matches!(&error, Error::Refused { message } if message == "user first, please"), "{error}");
    assert_eq!(render(&template, &json!({"messages": [{"role": "user"}]})).unwrap(), "");
}

#[test]
fn faults_name_file_and_line() {
    let (_folder, files) = checkpoint(&[("chat_template.jinja", "a\n{% if %}\n")]);
    let error = ChatTemplate::open(&files).unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja") && error.contains(":2"), "{error}");

    let error = render(&template("a\nb\n{{ messages.a.b }}"), &json!({"messages": []})).unwrap_err();
    assert!(matches!(error, Error::Render { .. }));
    let error = error.to_string();
    assert!(error.contains("chat_template.jinja") && error.contains(":3"), "{error}");

    for undefined in
        ["{{ nope | tojson }}", "{{ [nope] | tojson }}", "{{ nope() }}", "{{ messages | tojson(colour=1) }}"]
    {
        assert!(render(&template(undefined), &json!({"messages": []})).is_err(), "{undefined}");
    }
}

#[test]
fn bombs_run_out_of_fuel() {
    let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let swelling =
        "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
    let deep = "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}";
    let wide = "{{ 'x' * 10000000000 }}";
    for bomb in [endless, swelling, deep, wide] {
        let error = render(&template(bomb), &json!({"messages": []})).unwrap_err();
        assert!(matches!(error, Error::Render { .. }), "{bomb}: {error}");
    }
}

#[test]
fn kwargs_cannot_replace_the_conversation() {
    let kwargs =
        json!({"messages": "theirs", "tools": "theirs", "add_generation_prompt": "theirs", "own": "kept"});
    let text = template("{{ messages }} {{ tools }} {{ add_generation_prompt }} {{ own }}")
        .render(&json!("ours"), None, kwargs.as_object().unwrap(), false)
        .unwrap();
    assert_eq!(text, "ours None False kept");
}

#[test]
fn special_tokens_of_the_config_are_variables() {
    let config =
        r#"{"bos_token": "<s>", "eos_token": {"content": "</s>", "special": true}, "pad_token": null}"#;
    let text = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}";
    let (_folder, files) = checkpoint(&[("chat_template.jinja", text), ("tokenizer_config.json", config)]);
    let template = ChatTemplate::open(&files).unwrap().unwrap();
    assert_eq!(template.render(&json!([]), None, &Map::new(), false).unwrap(), "<s>|</s>|");
}

#[test]
fn the_template_is_found_where_checkpoints_keep_it() {
    let open = |files: &[(&str, &str)]| {
        let (_folder, files) = checkpoint(files);
        ChatTemplate::open(&files)
    };
    let show = |template: &ChatTemplate, tools: Option<&Value>| {
        template.render(&json!([]), tools, &Map::new(), false).unwrap()
    };
    assert!(open(&[]).unwrap().is_none());
    assert!(open(&[("tokenizer_config.json", "{}")]).unwrap().is_none());

    let in_config = ("tokenizer_config.json", r#"{"chat_template": "config"}"#);
    assert_eq!(show(&open(&[in_config]).unwrap().unwrap(), None), "config");
    let both = open(&[in_config, ("chat_template.jinja", "file")]).unwrap().unwrap();
    assert_eq!(show(&both, None), "file");

    let list = r#"{"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]}"#;
    let list = open(&[("tokenizer_config.json", list)]).unwrap().unwrap();
    assert_eq!(show(&list, None), "plain");
    assert_eq!(show(&list, Some(&json!([{}]))), "tools");

    for wrong in
        [r#"{"chat_template": 5}"#, r#"{"chat_template": [{"name": "x"}]}"#, r#"{"chat_template": []}"#, "{"]
    {
        let error = open(&[("tokenizer_config.json", wrong)]).unwrap_err().to_string();
        assert!(error.contains("tokenizer_config.json"), "{error}");
    }
}
