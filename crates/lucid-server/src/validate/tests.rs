//! Every bad field is refused with its name, and every good one is understood.

use lucid_checkpoint::TokenId;
use serde_json::{Value, json};

use super::*;
use crate::validate::completions::Prompt;
use crate::validate::tools::Tools;
use lucid_grammar::Grammar;

fn chat_with(more: &Value) -> Result<chat::ChatRequest, ApiError> {
    let mut body = json!({"model": "canary", "messages": [{"role": "user", "content": "Hi"}]});
    merge(&mut body, more);
    chat::parse(body.to_string().as_bytes(), &test_facts())
}

fn completion_with(more: &Value) -> Result<completions::CompletionsRequest, ApiError> {
    let mut body = json!({"prompt": "Hi"});
    merge(&mut body, more);
    completions::parse(body.to_string().as_bytes(), &test_facts())
}

fn merge(body: &mut Value, more: &Value) {
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
}

/// Of both endpoints.
const BAD: &[(&str, &str)] = &[
    (r#"{"temperature": -1}"#, "temperature"),
    (r#"{"temperature": "hot"}"#, "temperature"),
    (r#"{"top_p": 0}"#, "top_p"),
    (r#"{"top_p": 1.5}"#, "top_p"),
    (r#"{"top_k": -2}"#, "top_k"),
    (r#"{"top_k": 1.5}"#, "top_k"),
    (r#"{"min_p": 2}"#, "min_p"),
    (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
    (r#"{"presence_penalty": 3}"#, "presence_penalty"),
    (r#"{"frequency_penalty": -3}"#, "frequency_penalty"),
    (r#"{"logit_bias": [1]}"#, "logit_bias"),
    (r#"{"logit_bias": {"x": 1}}"#, "logit_bias"),
    (r#"{"logit_bias": {"4096": 1}}"#, "logit_bias"),
    (r#"{"logit_bias": {"5": 101}}"#, "logit_bias.5"),
    (r#"{"logit_bias": {"5": "a"}}"#, "logit_bias.5"),
    (r#"{"seed": "x"}"#, "seed"),
    (r#"{"n": 0}"#, "n"),
    (r#"{"n": 17}"#, "n"),
    (r#"{"min_tokens": -1}"#, "min_tokens"),
    (r#"{"stop": 1}"#, "stop"),
    (r#"{"stop": ["a", null]}"#, "stop"),
    (r#"{"stop": ""}"#, "stop"),
    (r#"{"stop": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]}"#, "stop"),
    (r#"{"stop_token_ids": [4096]}"#, "stop_token_ids"),
    (r#"{"stop_token_ids": [-1]}"#, "stop_token_ids"),
    (r#"{"stop_token_ids": "a"}"#, "stop_token_ids"),
    (r#"{"include_stop_str_in_output": 1}"#, "include_stop_str_in_output"),
    (r#"{"ignore_eos": "no"}"#, "ignore_eos"),
    (r#"{"skip_special_tokens": 0}"#, "skip_special_tokens"),
    (r#"{"prompt_logprobs": 21}"#, "prompt_logprobs"),
    (r#"{"prompt_logprobs": -1}"#, "prompt_logprobs"),
    (r#"{"prompt_logprobs": 1, "stream": true}"#, "prompt_logprobs"),
    (r#"{"return_token_ids": "a"}"#, "return_token_ids"),
    (r#"{"return_tokens_as_token_ids": 2}"#, "return_tokens_as_token_ids"),
    (r#"{"stream": "yes"}"#, "stream"),
    (r#"{"stream_options": {"include_usage": true}}"#, "stream_options"),
    (r#"{"stream": true, "stream_options": {"include_usage": 1}}"#, "stream_options.include_usage"),
    (r#"{"max_tokens": -5}"#, "max_tokens"),
    (r#"{"max_tokens": "many"}"#, "max_tokens"),
    (r#"{"best_of": 2}"#, "best_of"),
    (r#"{"use_beam_search": true}"#, "use_beam_search"),
    (r#"{"guided_json": 5}"#, "guided_json"),
    (r#"{"guided_json": "{"}"#, "guided_json"),
    (r#"{"guided_regex": ["a"]}"#, "guided_regex"),
    (r#"{"guided_choice": []}"#, "guided_choice"),
    (r#"{"guided_choice": ["a", ""]}"#, "guided_choice"),
    (r#"{"guided_grammar": {}}"#, "guided_grammar"),
    (r#"{"guided_whitespace_pattern": " "}"#, "guided_whitespace_pattern"),
    (r#"{"grammar": "root ::= \"a\""}"#, "grammar"),
    (r#"{"ebnf": "root ::= \"a\""}"#, "ebnf"),
    (r#"{"structural_tag": "{}"}"#, "structural_tag"),
    (r#"{"structured_outputs": {"structural_tag": "{}"}}"#, "structured_outputs.structural_tag"),
    (r#"{"structured_outputs": {"choice": "a"}}"#, "structured_outputs.choice"),
    (r#"{"structured_outputs": {"regex": "a", "json": {}}}"#, "structured_outputs.json"),
    (r#"{"structured_outputs": {"regex": "a"}, "guided_regex": "a"}"#, "guided_regex"),
    (r#"{"response_format": {"type": "structural_tag"}}"#, "response_format"),
    (r#"{"response_format": {"type": "json_schema"}}"#, "response_format.json_schema"),
    (
        r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}"#,
        "response_format.json_schema.schema",
    ),
    (
        r#"{"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}"#,
        "response_format.json_schema.schema",
    ),
    (r#"{"response_format": {"type": "poem"}}"#, "response_format.type"),
    (r#"{"response_format": "text"}"#, "response_format"),
    (r#"{"bad_words": ["x"]}"#, "bad_words"),
    (r#"{"allowed_token_ids": [1]}"#, "allowed_token_ids"),
    (r#"{"truncate_prompt_tokens": 5}"#, "truncate_prompt_tokens"),
    (r#"{"model": 5}"#, "model"),
    (r#"{"model": "nope"}"#, "model"),
];

#[test]
fn bad_fields_of_both_endpoints_are_named() {
    for (more, param) in BAD {
        let more: Value = serde_json::from_str(more).unwrap();
        assert_eq!(chat_with(&more).unwrap_err().param.as_deref(), Some(*param), "chat {more}");
        assert_eq!(completion_with(&more).unwrap_err().param.as_deref(), Some(*param), "completions {more}");
    }
}

#[test]
fn bad_fields_of_chat_are_named() {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    for (more, param) in [
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].type",
        ),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens"),
        (json!({"logprobs": 3}), "logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"tools": []}), "tools"),
        (json!({"tools": [{"type": "retrieval"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tools": [{"function": {"name": ""}}]}), "tools[0].function.name"),
        (json!({"tools": [{"function": {"name": "f", "parameters": 1}}]}), "tools[0].function.parameters"),
        (json!({"tool_choice": "auto"}), "tool_choice"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tools": [tool], "tool_choice": {"type": "allowed_tools"}}), "tool_choice.type"),
        (json!({"tools": [tool], "tool_choice": {"type": "function"}}), "tool_choice.function.name"),
        (
            json!({"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "tool_choice.function.name",
        ),
        (
            json!({"tools": [tool], "tool_choice": "required", "response_format": {"type": "json_object"}}),
            "tool_choice",
        ),
        (json!({"tools": [tool], "tool_choice": "some"}), "tool_choice"),
        (json!({"tools": [tool], "parallel_tool_calls": false}), "parallel_tool_calls"),
        (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs.messages"),
        (json!({"chat_template_kwargs": {"thinking": "no"}}), "chat_template_kwargs.thinking"),
        (json!({"chat_template": "{{ 1 }}"}), "chat_template"),
        (json!({"reasoning_effort": "none"}), "reasoning_effort"),
        (json!({"include_reasoning": 1}), "include_reasoning"),
        (json!({"functions": []}), "functions"),
        (json!({"audio": {"voice": "x"}}), "audio"),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"echo": true}), "echo"),
        (json!({"continue_final_message": true}), "continue_final_message"),
    ] {
        assert_eq!(chat_with(&more).unwrap_err().param.as_deref(), Some(param), "{more}");
    }
}

#[test]
fn bad_fields_of_completions_are_named() {
    for (more, param) in [
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": 5}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [[]]}), "prompt[0]"),
        (json!({"prompt": ["a", 5]}), "prompt[1]"),
        (json!({"prompt": [5, 4096]}), "prompt"),
        (json!({"prompt": [[5], [1.5]]}), "prompt[1]"),
        (json!({"prompt": ["1", "2", "3", "4", "5", "6", "7", "8", "9"]}), "prompt"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"logprobs": 21}), "logprobs"),
        (json!({"echo": "yes"}), "echo"),
        (json!({"suffix": "end"}), "suffix"),
    ] {
        assert_eq!(completion_with(&more).unwrap_err().param.as_deref(), Some(param), "{more}");
    }
}

#[test]
fn an_unknown_model_is_404() {
    assert_eq!(chat_with(&json!({"model": "nope"})).unwrap_err().status, 404);
}

#[test]
fn fields_that_ask_for_nothing_are_accepted() {
    let nothing = json!({
        "best_of": 1, "use_beam_search": false, "length_penalty": 1.0, "bad_words": [], "response_format": {"type": "text"},
        "modalities": ["text"], "echo": false, "parallel_tool_calls": true, "guided_json": null, "user": "u", "metadata": {},
        "some_field_of_the_future": 1, "top_logprobs": 0, "tool_choice": "none",
    });
    chat_with(&nothing).unwrap();
    completion_with(&json!({"suffix": "", "best_of": 1, "add_special_tokens": true, "user": "u"})).unwrap();
}

#[test]
fn omitted_parameters_come_from_the_checkpoint_and_given_ones_win() {
    let omitted = chat_with(&json!({})).unwrap().common.sampling;
    assert_eq!((omitted.temperature, omitted.top_p, omitted.top_k), (0.6, 0.95, 0));
    let given =
        chat_with(&json!({"temperature": 0, "top_p": 1, "top_k": -1, "seed": -1})).unwrap().common.sampling;
    assert_eq!((given.temperature, given.top_p, given.top_k, given.seed), (0.0, 1.0, 0, Some(u64::MAX)));
}

#[test]
fn answers_have_seeds_of_their_own() {
    let common = chat_with(&json!({"seed": 7, "n": 3})).unwrap().common;
    let seeds: Vec<_> = (0..common.n).map(|index| common.sampling_of(index).seed).collect();
    assert_eq!(seeds, [Some(7), Some(8), Some(9)]);
}

#[test]
fn the_newer_name_of_the_limit_wins() {
    let request = chat_with(&json!({"max_tokens": 5, "max_completion_tokens": 6})).unwrap();
    assert_eq!(request.max_tokens, Some((6, "max_completion_tokens")));
}

#[test]
fn prompts_take_four_forms() {
    let prompts = |prompt: Value| completion_with(&json!({ "prompt": prompt })).unwrap().prompts;
    let tokens = |ids: &[u32]| Prompt::Tokens(ids.iter().map(|&id| TokenId(id)).collect());
    assert_eq!(prompts(json!("a")), [Prompt::Text("a".into())]);
    assert_eq!(prompts(json!(["a", "b"])), [Prompt::Text("a".into()), Prompt::Text("b".into())]);
    assert_eq!(prompts(json!([1, 2])), [tokens(&[1, 2])]);
    assert_eq!(prompts(json!([[1], [2]])), [tokens(&[1]), tokens(&[2])]);
}

#[test]
fn thinking_is_on_unless_the_template_is_told_otherwise() {
    let thinking =
        |kwargs: Value| chat_with(&json!({"chat_template_kwargs": kwargs})).unwrap().prompt.thinking();
    assert!(thinking(json!({})));
    assert!(thinking(json!({"thinking": true})));
    assert!(!thinking(json!({"thinking": false})));
    assert!(!thinking(json!({"enable_thinking": false})));
}

#[test]
fn a_budget_that_does_not_fit_names_who_set_it() {
    let facts = test_facts();
    assert_eq!(facts.budget(4000, None, "max_tokens").unwrap(), 96);
    assert_eq!(facts.budget(4000, Some(96), "max_tokens").unwrap(), 96);
    let too_much = facts.budget(4000, Some(97), "max_completion_tokens").unwrap_err();
    assert_eq!(too_much.param.as_deref(), Some("max_completion_tokens"));
    assert_eq!(facts.budget(4096, None, "max_tokens").unwrap_err().param.as_deref(), Some("input_tokens"));
    assert_eq!(facts.budget(9000, Some(4), "max_tokens").unwrap_err().param.as_deref(), Some("input_tokens"));
    assert_eq!(facts.budget(4096, Some(0), "max_tokens").unwrap(), 0);
}

#[test]
fn errors_do_not_repeat_values_of_the_request() {
    let secret = "sk-this-is-a-secret-and-must-not-come-back";
    for more in [json!({"temperature": secret}), json!({"messages": secret}), json!({"seed": [secret]})] {
        assert!(!chat_with(&more).unwrap_err().message.contains(secret), "{more}");
    }
}

#[test]
fn what_an_answer_is_held_to_has_many_names() {
    let grammar = |more: Value| chat_with(&more).unwrap().structured.map(|structured| structured.grammar);
    let schema = json!({"type": "object"});
    let same = Some(Grammar::JsonSchema(schema.clone()));
    assert_eq!(grammar(json!({"response_format": {"type": "text"}})), None);
    assert_eq!(grammar(json!({"response_format": {"type": "json_object"}})), Some(Grammar::JsonObject));
    let openai =
        json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}});
    assert_eq!(grammar(json!({ "response_format": openai })), same);
    assert_eq!(grammar(json!({"structured_outputs": {"json": schema, "regex": null}})), same);
    assert_eq!(grammar(json!({"guided_json": schema, "guided_decoding_backend": "xgrammar"})), same);
    assert_eq!(grammar(json!({"json_schema": schema.to_string()})), same);
    let choice = Some(Grammar::Choice(vec!["a".into(), "b".into()]));
    assert_eq!(grammar(json!({"structured_outputs": {"choice": ["a", "b"]}})), choice);
    assert_eq!(grammar(json!({"regex": "a+"})), Some(Grammar::Regex("a+".into())));
    assert_eq!(
        grammar(json!({"guided_grammar": "start: \"a\""})),
        Some(Grammar::Lark("start: \"a\"".into()))
    );
    let completion = completion_with(&json!({"guided_choice": ["a", "b"]})).unwrap().structured;
    assert_eq!(completion.map(|structured| structured.grammar), choice);
}

#[test]
fn forced_calls_have_the_functions_that_may_be_called() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    let tools = |more: Value| {
        let mut request = json!({"tools": [tool("f"), tool("g")]});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        chat_with(&request).unwrap().tools
    };
    let names =
        |tools: &Tools| tools.functions().into_iter().map(|function| function.name).collect::<Vec<_>>();
    let any = tools(json!({"tool_choice": "required"}));
    assert_eq!((names(&any), any.several, any.parse), (vec!["f".into(), "g".into()], true, true));
    let one = tools(json!({"tool_choice": {"type": "function", "function": {"name": "g"}}}));
    assert_eq!((names(&one), one.several, one.parse), (vec!["g".into()], false, true));
    assert!(!tools(json!({"tool_choice": "required", "parallel_tool_calls": false})).several);
    assert_eq!(tools(json!({"tool_choice": "auto"})).forced, None);
}
