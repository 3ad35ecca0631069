//! `checkpoint.tokenizer`: ids, ends, markers, templates, twins.

use serde_json::{Value, json};

use super::{Kind, evidence, headers};
use crate::patient::{Audit, Patient};
use crate::tokenizer::token;

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer_config.json";

/// What the three files say that ends a generation; `null` says nothing.
fn ends(config: Value, generation: Value, tokenizer: Value) -> Audit {
    headers(|p| {
        p.edit_json(CONFIG, |json| json["eos_token_id"] = config);
        p.edit_json(GENERATION, |json| json["eos_token_id"] = generation);
        p.edit_json(TOKENIZER, |json| json["eos_token"] = tokenizer);
    })
}

fn set(file: &'static str, field: &'static str, value: Value) -> Audit {
    headers(|p| p.edit_json(file, |json| json[field] = value))
}

fn template(text: &str) -> Audit {
    headers(|p| p.write("chat_template.jinja", text))
}

fn changed(from: &str, to: &str) -> Audit {
    headers(|p| {
        let text = String::from_utf8(p.read("chat_template.jinja")).unwrap();
        let new = text.replace(from, to);
        assert_ne!(text, new);
        p.write("chat_template.jinja", new);
    })
}

fn special(name: &'static str, value: bool) -> Audit {
    headers(|p| token(p, name, |token| token["special"] = json!(value)))
}

/// Lines of `tiktoken.model` exchange their tokens.
fn exchanged(one: usize, other: usize) -> Audit {
    headers(|p| {
        let text = String::from_utf8(p.read("tiktoken.model")).unwrap();
        let mut lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        (lines[one][0], lines[other][0]) = (lines[other][0], lines[one][0]);
        p.write("tiktoken.model", lines.iter().map(|line| line.join(" ") + "\n").collect::<String>());
    })
}

/// Two added tokens exchange their names in one file.
fn swapped(file: &'static str, list: &'static str, names: [&'static str; 2]) -> Audit {
    headers(|p| {
        p.edit_json(file, |json| {
            let tokens: Vec<&mut Value> = match &mut json[list] {
                Value::Array(tokens) => tokens.iter_mut().collect(),
                tokens => tokens.as_object_mut().unwrap().values_mut().collect(),
            };
            for token in tokens {
                if let Some(at) = names.iter().position(|name| token["content"] == *name) {
                    token["content"] = json!(names[1 - at]);
                }
            }
        });
    })
}

fn gaps(class: &'static str, count: usize) -> Audit {
    headers(|p| {
        p.remove("tokenizer.json");
        p.edit_json(TOKENIZER, |json| {
            json["tokenizer_class"] = json!(class);
            let mut left = count;
            json["added_tokens_decoder"].as_object_mut().unwrap().retain(|_, token| {
                let drop = left > 0 && token["content"].as_str().unwrap().contains("reserved");
                left -= usize::from(drop);
                !drop
            });
        });
    })
}

fn no_template(edit: impl FnOnce(&Patient)) -> Audit {
    headers(|p| {
        p.remove("chat_template.jinja");
        edit(p);
    })
}

fn rows(vocab: u64) -> Audit {
    headers(|p| {
        p.edit_json(CONFIG, |json| {
            json["vocab_size"] = json!(vocab);
            json["pad_token_id"] = json!(3000);
        });
    })
}

/// A marker that the tokenizer decodes to something else: the reader of tokenizers that is used here can't be made to.
fn decoded(at: usize, text: &'static str) -> Audit {
    evidence(|e| e.tokenizer.as_mut().unwrap().markers[at].decoded = text.to_owned())
}

pub(super) const KINDS: &[Kind] = &[
    (
        "tokenizer/added-differ",
        &[
            || swapped("tokenizer.json", "added_tokens", ["<think>", "</think>"]),
            || swapped(TOKENIZER, "added_tokens_decoder", ["<think>", "</think>"]),
            || swapped("tokenizer.json", "added_tokens", ["<|im_end|>", "[EOS]"]),
        ],
        &[|| headers(|_| {}), || headers(|p| p.remove("tokenizer.json"))],
    ),
    (
        "tokenizer/agrees",
        &[
            || headers(|_| {}),
            || headers(|p| p.remove("tokenizer.json")),
            || headers(|p| p.remove("tiktoken.model")),
        ],
        &[|| template("{% if %}x{% endif %}"), || exchanged(300, 301)],
    ),
    (
        "tokenizer/end-not-special",
        &[
            || special("<|im_end|>", false),
            || special("[EOS]", false),
            || {
                headers(|p| {
                    token(p, "<|im_end|>", |token| token["special"] = json!(false));
                    p.remove("tokenizer.json");
                })
            },
        ],
        &[|| headers(|_| {}), || special("<|tool_call_end|>", false)],
    ),
    (
        "tokenizer/eos-absent",
        &[
            || ends(json!(null), json!(null), json!(null)),
            || {
                headers(|p| {
                    for name in [CONFIG, GENERATION] {
                        p.edit_json(name, |json| drop(json.as_object_mut().unwrap().remove("eos_token_id")));
                    }
                    p.remove(TOKENIZER);
                })
            },
            || ends(json!([]), json!([]), json!(null)),
        ],
        &[|| ends(json!(3842), json!(null), json!(null)), || headers(|_| {})],
    ),
    (
        "tokenizer/eos-config-only",
        &[
            || ends(json!(3842), json!(3841), json!("[EOS]")),
            || ends(json!([3841, 3842]), json!([3849]), json!("[EOS]")),
            || ends(json!(3842), json!(null), json!({"content": "[EOS]"})),
        ],
        &[|| ends(json!(3841), json!([3842]), json!("[EOS]")), || headers(|_| {})],
    ),
    (
        "tokenizer/eos-differs",
        &[
            || ends(json!(3841), json!(3842), json!("[EOS]")),
            || ends(json!(3841), json!([3841]), json!("<|im_end|>")),
            || ends(json!([3842]), json!([3842, 3841]), json!({"content": "<|im_end|>", "lstrip": false})),
        ],
        &[|| ends(json!(3842), json!([3842]), json!("<|im_end|>"))],
    ),
    (
        "tokenizer/eos-turn",
        &[
            || ends(json!(3841), json!(3841), json!("[EOS]")),
            || ends(json!([3841, 3849]), json!([3841]), json!({"content": "[EOS]"})),
            || ends(json!(4095), json!(4095), json!("[EOS]")),
        ],
        &[|| ends(json!(3842), json!(3841), json!("[EOS]")), || headers(|_| {})],
    ),
    (
        "tokenizer/gapped-ids",
        &[
            || gaps("TikTokenTokenizer", 1),
            || gaps("TikTokenTokenizer", 20),
            || gaps("TikTokenTokenizerFast", 200),
        ],
        &[|| gaps("PreTrainedTokenizerFast", 20), || gaps("TikTokenTokenizer", 0)],
    ),
    (
        "tokenizer/ids-differ",
        &[
            || set(GENERATION, "bos_token_id", json!(3841)),
            || set(GENERATION, "pad_token_id", json!(3841)),
            || set(TOKENIZER, "bos_token", json!({"content": "<|im_end|>"})),
        ],
        &[|| headers(|_| {}), || set(GENERATION, "eos_token_id", json!([3842, 3841]))],
    ),
    (
        "tokenizer/marker-broken",
        &[
            || {
                template(
                    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|im_end|>",
                )
            },
            || template("{% for m in messages %}<｜User｜>{{ m.content }}<|im_end|>{% endfor %}"),
            || changed("<|im_end|>", "<|im_stop|>"),
        ],
        &[|| headers(|_| {}), || changed("<|im_end|>", "<|im_end|>\n")],
    ),
    (
        "tokenizer/marker-decodes",
        &[|| decoded(0, ""), || decoded(1, "<think >"), || decoded(2, "\u{fffd}")],
        &[|| headers(|_| {})],
    ),
    (
        "tokenizer/marker-special",
        &[
            || special("</think>", true),
            || special("<think>", true),
            || special("<|tool_calls_section_begin|>", true),
        ],
        &[|| headers(|_| {}), || special("<|im_user|>", true)],
    ),
    (
        "tokenizer/special-id",
        &[
            || set(GENERATION, "eos_token_id", json!([3842, 163_586])),
            || set(GENERATION, "pad_token_id", json!(4096)),
            || set(CONFIG, "bos_token_id", json!(1 << 30)),
            || set(TOKENIZER, "pad_token", json!("<|nothing|>")),
        ],
        &[|| headers(|_| {}), || set(GENERATION, "pad_token_id", json!(null))],
    ),
    (
        "tokenizer/template-absent",
        &[
            || no_template(|_| {}),
            || no_template(|p| p.edit_json(TOKENIZER, |json| json["chat_template"] = json!(null))),
            || no_template(|p| p.remove(TOKENIZER)),
        ],
        &[
            || {
                no_template(|p| {
                    let text = String::from_utf8(Patient::canary().read("chat_template.jinja")).unwrap();
                    p.edit_json(TOKENIZER, |json| json["chat_template"] = json!(text));
                })
            },
            || {
                no_template(|p| {
                    let text = String::from_utf8(Patient::canary().read("chat_template.jinja")).unwrap();
                    p.edit_json(TOKENIZER, |json| {
                        json["chat_template"] = json!([{"name": "default", "template": text}]);
                    });
                })
            },
        ],
    ),
    (
        "tokenizer/template-fails",
        &[
            || template("{{ messages[9].content.x }}"),
            || template("{{ raise_exception('no') }}"),
            || template("{{ 1 + 'a' + messages }}"),
        ],
        &[|| headers(|_| {}), || changed("<|im_end|>", "<|im_end|>{{ '' }}")],
    ),
    (
        "tokenizer/template-invalid",
        &[
            || template("{% for m in messages %}"),
            || template("{{ messages | }}"),
            || template("{% if %}x{% endif %}"),
        ],
        &[|| headers(|_| {})],
    ),
    (
        "tokenizer/template-loses",
        &[
            || changed("{{ m.content or '' }}", ""),
            || {
                changed(
                    "{%- for m in messages -%}\n{%- if m.role == 'system'",
                    "{%- for m in messages[1:] -%}\n{%- if m.role == 'system'",
                )
            },
            || changed("{{ m.content }}<|im_end|>", "<|im_end|>"),
        ],
        &[|| headers(|_| {})],
    ),
    (
        "tokenizer/twins-differ",
        &[|| exchanged(300, 301), || exchanged(1000, 2000), || exchanged(65, 66)],
        &[|| headers(|_| {}), || headers(|p| p.remove("tokenizer.json"))],
    ),
    (
        "tokenizer/unreadable",
        &[
            || headers(|p| p.write("tokenizer.json", "{\"version\"")),
            || headers(|p| p.write("tokenizer.json", "[]")),
            || headers(|p| p.write("tokenizer.json", "<html>")),
        ],
        &[|| headers(|p| p.remove("tokenizer.json")), || headers(|_| {})],
    ),
    (
        "tokenizer/vocabulary-larger",
        &[|| rows(4000), || rows(3843), || rows(4095)],
        &[|| headers(|_| {}), || rows(4096)],
    ),
];
