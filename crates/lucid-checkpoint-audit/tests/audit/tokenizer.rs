//! Tokenizer, template and configs that disagree.

use lucid_findings::Severity;
use serde_json::{Value, json};

use crate::patient::Patient;

const CONFIGS: [&str; 2] = ["config.json", "generation_config.json"];

#[test]
fn a_turn_must_end_with_an_end() {
    // [EOS], a list without the turn's end, and the tokenizer's own eos changed too, as Kimi-K2's files say.
    for eos in [json!(3841), json!([3841, 3849]), json!([4095])] {
        let patient = Patient::canary();
        for name in CONFIGS {
            patient.edit_json(name, |json| json["eos_token_id"] = eos.clone());
        }
        patient.edit_json("tokenizer_config.json", |json| json["eos_token"] = json!("[EOS]"));
        let audit = patient.audit();
        audit.convicts("checkpoint.tokenizer/eos-turn", "chat-template");
        let finding = audit.find("checkpoint.tokenizer/eos-turn");
        assert_eq!(finding.severity, Severity::Error);
        assert!(finding.remedy.as_ref().unwrap().commands[0].contains("3842"));
    }
}

#[test]
fn an_end_in_generation_config_or_tokenizer_config_is_enough() {
    for (config, generation, tokenizer) in
        [(3841, 3842, "[EOS]"), (3841, 3841, "<|im_end|>"), (3842, 3842, "[EOS]")]
    {
        let patient = Patient::canary();
        patient.edit_json("config.json", |json| json["eos_token_id"] = json!(config));
        patient.edit_json("generation_config.json", |json| json["eos_token_id"] = json!(generation));
        patient.edit_json("tokenizer_config.json", |json| json["eos_token"] = json!(tokenizer));
        let audit = patient.audit();
        audit.is_clean();
        audit.find("checkpoint.tokenizer/eos-differs");
    }
}

#[test]
fn an_end_that_only_config_json_names_is_passed_over_by_vllm() {
    for generation in [json!(3841), json!([3849]), json!(null)] {
        let patient = Patient::canary();
        patient.edit_json("generation_config.json", |json| json["eos_token_id"] = generation.clone());
        patient.edit_json("tokenizer_config.json", |json| json["eos_token"] = json!("[EOS]"));
        patient.audit().convicts("checkpoint.tokenizer/eos-config-only", "chat-template");
    }
}

#[test]
fn no_end_at_all_is_told() {
    for keep_tokenizer_config in [true, false] {
        let patient = Patient::canary();
        for name in CONFIGS {
            patient.edit_json(name, |json| drop(json.as_object_mut().unwrap().remove("eos_token_id")));
        }
        if keep_tokenizer_config {
            patient.edit_json("tokenizer_config.json", |json| {
                drop(json.as_object_mut().unwrap().remove("eos_token"))
            });
        } else {
            patient.remove("tokenizer_config.json");
        }
        patient.audit().convicts("checkpoint.tokenizer/eos-absent", "chat-template");
    }
}

#[test]
fn ids_beyond_the_vocabulary_stand_for_nothing() {
    for (role, id) in [("eos_token_id", 163_586), ("pad_token_id", 4096), ("bos_token_id", 1 << 30)] {
        let patient = Patient::canary();
        patient.edit_json("generation_config.json", |json| json[role] = json!(id));
        let audit = patient.audit();
        let finding = audit.find("checkpoint.tokenizer/special-id");
        assert_eq!(finding.suggested_cause(), Some("tokenizer-decode"));
        assert!(finding.title.contains(&id.to_string()));
    }
}

fn template(text: &str) -> Patient {
    let patient = Patient::canary();
    patient.write("chat_template.jinja", text);
    patient
}

#[test]
fn a_template_must_compile_render_and_keep_the_messages() {
    let canary = String::from_utf8(Patient::canary().read("chat_template.jinja")).unwrap();
    for text in ["{% for m in messages %}", "{{ messages | }}", "{% if %}x{% endif %}"] {
        template(text).audit().convicts("checkpoint.tokenizer/template-invalid", "chat-template");
    }
    for text in ["{{ messages[9].content.x }}", "{{ raise_exception('no') }}", "{{ 1 + 'a' + messages }}"] {
        template(text).audit().convicts("checkpoint.tokenizer/template-fails", "chat-template");
    }
    let last = canary.replace("{{ m.content or '' }}", "");
    let first = canary.replace(
        "{%- for m in messages -%}\n{%- if m.role == 'system'",
        "{%- for m in messages[1:] -%}\n{%- if m.role == 'system'",
    );
    let users = canary.replace("{{ m.content }}<|im_end|>", "<|im_end|>");
    for text in [last, first, users] {
        assert_ne!(text, canary);
        template(&text).audit().convicts("checkpoint.tokenizer/template-loses", "chat-template");
    }
}

#[test]
fn no_template_is_told() {
    let patient = Patient::canary();
    patient.remove("chat_template.jinja");
    patient.audit().convicts("checkpoint.tokenizer/template-absent", "chat-template");
    for field in [json!(null), json!({}), json!([])] {
        let patient = Patient::canary();
        patient.remove("chat_template.jinja");
        patient.edit_json("tokenizer_config.json", |json| json["chat_template"] = field.clone());
        let audit = patient.audit();
        assert_eq!(audit.cause(), Some("chat-template"), "{}", audit.titles());
    }
    // In its other place.
    let patient = Patient::canary();
    let text = String::from_utf8(patient.read("chat_template.jinja")).unwrap();
    patient.remove("chat_template.jinja");
    patient.edit_json("tokenizer_config.json", |json| json["chat_template"] = json!(text));
    patient.audit().is_clean();
}

#[test]
fn another_model_s_template_writes_markers_that_are_no_tokens() {
    for text in [
        "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|im_end|>",
        "{% for m in messages %}<｜User｜>{{ m.content }}<|im_end|>{% endfor %}",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
    ] {
        template(text).audit().convicts("checkpoint.tokenizer/marker-broken", "chat-template");
    }
}

/// Edits an added token in both places.
pub(crate) fn token(patient: &Patient, name: &str, edit: impl Fn(&mut Value)) {
    patient.edit_json("tokenizer.json", |json| {
        let tokens = json["added_tokens"].as_array_mut().unwrap();
        edit(tokens.iter_mut().find(|token| token["content"] == name).unwrap());
    });
    patient.edit_json("tokenizer_config.json", |json| {
        let tokens = json["added_tokens_decoder"].as_object_mut().unwrap();
        edit(tokens.values_mut().find(|token| token["content"] == name).unwrap());
    });
}

#[test]
fn the_end_of_thinking_must_survive_decoding_and_the_end_of_a_turn_must_not() {
    for name in ["</think>", "<think>", "<|tool_calls_section_begin|>"] {
        let patient = Patient::canary();
        token(&patient, name, |token| token["special"] = json!(true));
        let audit = patient.audit();
        let finding = audit.find("checkpoint.tokenizer/marker-special");
        assert_eq!(finding.severity > Severity::Info, name == "</think>");
    }
    let patient = Patient::canary();
    token(&patient, "</think>", |token| token["special"] = json!(true));
    patient.audit().convicts("checkpoint.tokenizer/marker-special", "reasoning-parser");
    for name in ["<|im_end|>", "[EOS]"] {
        let patient = Patient::canary();
        token(&patient, name, |token| token["special"] = json!(false));
        patient.audit().convicts("checkpoint.tokenizer/end-not-special", "tokenizer-decode");
    }
}

#[test]
fn a_conversion_that_shifts_ids_is_found() {
    // Two names exchanged in tokenizer.json alone, or in the config alone, or a whole tail shifted by one.
    let exchange = |tokens: Vec<&mut Value>| {
        let mut found: Vec<&mut Value> =
            tokens.into_iter().filter(|t| t["content"] == "</think>" || t["content"] == "<think>").collect();
        let (one, other) = (found[0]["content"].clone(), found[1]["content"].clone());
        (found[0]["content"], found[1]["content"]) = (other, one);
    };
    let patient = Patient::canary();
    patient.edit_json("tokenizer.json", |json| {
        exchange(json["added_tokens"].as_array_mut().unwrap().iter_mut().collect())
    });
    patient.audit().convicts("checkpoint.tokenizer/added-differ", "tokenizer-decode");
    let patient = Patient::canary();
    patient.edit_json("tokenizer_config.json", |json| {
        exchange(json["added_tokens_decoder"].as_object_mut().unwrap().values_mut().collect());
    });
    patient.audit().convicts("checkpoint.tokenizer/added-differ", "tokenizer-decode");
    let patient = Patient::canary();
    patient.edit_json("tokenizer.json", |json| {
        let tokens = json["added_tokens"].as_array_mut().unwrap();
        let names: Vec<Value> = tokens.iter().map(|token| token["content"].clone()).collect();
        for (i, token) in tokens.iter_mut().enumerate().skip(20) {
            let from = if i + 1 < names.len() { i + 1 } else { 20 };
            token["content"] = names[from].clone();
        }
    });
    patient.audit().convicts("checkpoint.tokenizer/added-differ", "tokenizer-decode");
}

#[test]
fn twins_that_differ_are_two_tokenizers() {
    // Ranks exchanged in one of the two files.
    for (one, other) in [(300, 301), (1000, 2000), (65, 66)] {
        let patient = Patient::canary();
        let text = String::from_utf8(patient.read("tiktoken.model")).unwrap();
        let mut lines: Vec<(String, String)> = text
            .lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .collect();
        let kept = lines[one].0.clone();
        lines[one].0 = lines[other].0.clone();
        lines[other].0 = kept;
        patient.write(
            "tiktoken.model",
            lines.iter().map(|(token, rank)| format!("{token} {rank}\n")).collect::<String>(),
        );
        patient.audit().convicts("checkpoint.tokenizer/twins-differ", "tokenizer-decode");
    }
}

#[test]
fn a_tokenizer_that_is_larger_than_the_model_is_another_model_s() {
    for vocab in [4000, 3843, 4095] {
        let patient = Patient::canary();
        patient.edit_json("config.json", |json| {
            json["vocab_size"] = json!(vocab);
            json["pad_token_id"] = json!(3000);
        });
        let audit = patient.audit();
        audit.convicts("checkpoint.tokenizer/vocabulary-larger", "wrong-checkpoint");
    }
}

#[test]
fn damaged_tokenizer_files_are_told_apart_from_none() {
    for (name, text) in
        [("tokenizer.json", "{\"version\""), ("tokenizer.json", "[]"), ("tokenizer.json", "<html>")]
    {
        let patient = Patient::canary();
        patient.write(name, text);
        let audit = patient.audit();
        audit.find("checkpoint.tokenizer/unreadable");
    }
    let patient = Patient::canary();
    for name in ["tokenizer.json", "tiktoken.model", "tokenizer_config.json", "chat_template.jinja"] {
        patient.remove(name);
    }
    let audit = patient.audit();
    assert!(audit.findings.iter().all(|f| f.id != "checkpoint.tokenizer/agrees"));
}

#[test]
fn gaps_among_added_tokens_are_a_fact_with_a_warning_for_one_release() {
    for gaps in [1, 20, 200] {
        let patient = Patient::canary();
        patient.remove("tokenizer.json");
        patient.edit_json("tokenizer_config.json", |json| {
            json["tokenizer_class"] = json!("TikTokenTokenizer");
            let mut left = gaps;
            json["added_tokens_decoder"].as_object_mut().unwrap().retain(|_, token| {
                let drop = left > 0 && token["content"].as_str().unwrap().contains("reserved");
                left -= i32::from(drop);
                !drop
            });
        });
        let audit = patient.audit();
        audit.is_clean();
        assert_eq!(audit.find("checkpoint.tokenizer/gapped-ids").suggested_cause(), Some("tokenizer-decode"));
    }
}
