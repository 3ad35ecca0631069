"""Tries a running Lucid server (with the canary) through the official client: python openai_client.py http://127.0.0.1:8000/v1

Needs `pip install openai`. Ends with "all good", or with the assertion that failed.
"""

import json
import sys
import typing

import openai
import pydantic

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
MODEL = client.models.list().data[0].id
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
PERSON = [{"role": "user", "content": "Return a JSON object with name Emma and age 31."}]
ANSWER = "The capital of France is Paris."
REASONING = "The user asks for the capital of France. The capital of France is Paris. I should answer in one sentence."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def whole():
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    message = answer.choices[0].message
    assert message.content == ANSWER, message
    assert message.reasoning == message.reasoning_content == REASONING, message
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens_details.reasoning_tokens == 23, answer.usage


def streamed():
    text = reasoning = ""
    finish = usage = None
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning", None) or ""
            finish = choice.finish_reason or finish
    assert (text, reasoning, finish) == (ANSWER, REASONING, "stop"), (text, reasoning, finish)
    assert usage.total_tokens == 52, usage


def stream_helper():
    """The client's own accumulator checks the order of events."""
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == ANSWER, final


def stream_closed_early():
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
    next(iter(stream))
    stream.close()


def logprobs():
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_completion_tokens=5, logprobs=True, top_logprobs=3
    )
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 5
    for entry in entries:
        assert len(entry.top_logprobs) == 3 and entry.logprob == entry.top_logprobs[0].logprob
        assert bytes(entry.bytes).decode() == entry.token
    assert answer.choices[0].finish_reason == "length" and answer.choices[0].message.content is None


def tools():
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, temperature=0)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls", choice
    call = choice.message.tool_calls[0]
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Oslo"}, call
    # The client's own dump of the answer goes back as history.
    messages += [choice.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "7 degrees, rain"}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, temperature=0)
    assert answer.choices[0].message.content, answer
    return answer.choices[0].message.content


def tools_streamed():
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS, temperature=0) as stream:
        for _ in stream:
            pass
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls", choice
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Oslo"}, choice


class Person(pydantic.BaseModel):
    name: str
    age: int
    language: typing.Literal["French", "German"]


def parsed():
    """The client makes the schema, and its own model of it judges the answer."""
    answer = client.chat.completions.parse(
        model=MODEL, messages=PERSON, temperature=0, max_tokens=500, response_format=Person
    )
    assert isinstance(answer.choices[0].message.parsed, Person), answer
    return answer.choices[0].message.content


def forced():
    for choice in "required", {"type": "function", "function": {"name": "get_weather"}}:
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice=choice, temperature=0, max_tokens=500
        )
        for call in answer.choices[0].message.tool_calls:
            assert call.function.name == "get_weather" and type(json.loads(call.function.arguments)["city"]) is str, call


def extensions():
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=0,
        extra_body={"chat_template_kwargs": {"thinking": False}, "return_token_ids": True, "top_k": 5, "prompt_logprobs": 0},
    )
    assert answer.choices[0].message.content == ANSWER and answer.choices[0].message.reasoning is None
    assert len(answer.prompt_token_ids) == len(answer.prompt_logprobs) == answer.usage.prompt_tokens
    assert len(answer.choices[0].token_ids) == answer.usage.completion_tokens


def completions():
    answer = client.completions.create(
        model=MODEL, prompt=["The capital of France is", "The capital of Peru is"], temperature=0, max_tokens=1, logprobs=2
    )
    assert [choice.text for choice in answer.choices][0] == " Paris", answer
    assert answer.choices[0].logprobs.tokens == [" Paris"]
    text = ""
    for chunk in client.completions.create(model=MODEL, prompt="The capital of France is", temperature=0, stream=True):
        text += chunk.choices[0].text
    assert text.startswith(" Paris"), text


def refused(kind, param, **request):
    try:
        client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, **request})
    except kind as error:
        assert error.param == param, (error.param, param)
        assert error.body["message"], error.body
    else:
        raise AssertionError(f"{request} was not refused")


def errors():
    refused(openai.NotFoundError, "model", model="nope")
    refused(openai.BadRequestError, "temperature", temperature=-1)
    refused(openai.BadRequestError, "messages", messages=[])
    refused(openai.BadRequestError, "max_tokens", max_tokens=10**9)
    refused(openai.BadRequestError, "response_format.type", response_format={"type": "poem"})
    refused(openai.BadRequestError, "tool_choice", tool_choice="required")
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    refused(openai.BadRequestError, "messages[0].content[0].type", messages=[{"role": "user", "content": image}])


for check in (
    whole, streamed, stream_helper, stream_closed_early, logprobs, tools, tools_streamed, parsed, forced, extensions, completions, errors
):
    print(f"{check.__name__}: {check() or 'ok'}")
print("all good with openai", openai.__version__)
