"""Writes cases.json: templates, their variables, and what Jinja2 makes of them.

    pip install jinja2==3.1.6 && python3 make_cases.py

The environment is set up as transformers sets it up for chat templates (`utils/chat_template_utils.py`): an immutable sandbox,
trim_blocks, lstrip_blocks, loop controls, and a `tojson` that is `json.dumps` with ensure_ascii=False.
"""

import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """`{% generation %}`: the block's text, as far as rendering goes."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


env = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
)
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception

tricky = {
    "z": "last first",
    "quotes": "it's \"quoted\" & <b>bold</b>",
    "unicode": "Zürich 你好 🎉 \u2028 \x7f \x00 \x1b",
    "escapes": "a\\b\n\t\r\b\f/",
    "numbers": [0, -1, 1.0, 1.5, 1e-5, 1e16, 123456789012345678, 0.1, -0.0],
    "nothing": None,
    "flags": [True, False],
    "empty": {"list": [], "object": {}, "text": ""},
    "nested": {"b": {"d": [1, {"c": []}]}, "a": [[], [[]]]},
}
tool = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Finds <documents> & \"quotes\" for the user's query — schnell",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "was gesucht wird 🔍"},
                "limits": {"type": "array", "items": {"type": "integer", "minimum": 1}, "default": [1, 2]},
                "filter": {"type": "object", "properties": {"since": {"enum": ["day", "year", None]}}},
            },
            "required": ["query"],
        },
    },
}
call = {"id": "functions.search:0", "type": "function", "function": {"name": "search"}}
talk = [
    {"role": "system", "content": "Be terse.\n"},
    {"role": "user", "content": "  Hi <|im_end|> {{ 7 * 7 }} {% raw %}"},
    {"role": "assistant", "content": None, "reasoning_content": "hm\n",
     "tool_calls": [call | {"function": {"name": "search", "arguments": {"query": "l'été <3", "limits": [1, 2.0]}}}]},
    {"role": "tool", "tool_call_id": "functions.search:0", "content": "r\u00e9sultat"},
    {"role": "assistant", "content": "Done.", "reasoning": "ok"},
    {"role": "user", "content": ""},
]
canary = (pathlib.Path(__file__).parents[5] / "models/canary/chat_template.jinja").read_text()

V = {"x": tricky, "messages": talk, "tools": [tool], "add_generation_prompt": True}
cases = {
    # tojson
    "tojson": ("{{ x | tojson }}", V),
    "tojson_compact": ("{{ x | tojson(separators=(',', ':')) }}", V),
    "tojson_list_separators": ("{{ x | tojson(separators=[';', '=']) }}", V),
    "tojson_ascii": ("{{ x | tojson(ensure_ascii=True) }}", V),
    "tojson_positional": ("{{ x | tojson(True, 1) }}", V),
    "tojson_indent": ("{{ x | tojson(indent=2) }}", V),
    "tojson_indent_0": ("{{ x | tojson(indent=0) }}", V),
    "tojson_indent_text": ("{{ x | tojson(indent='\t') }}", V),
    "tojson_indent_none": ("{{ x | tojson(indent=none) }}", V),
    "tojson_indent_compact": ("{{ x | tojson(indent=4, separators=(',', ':')) }}", V),
    "tojson_sorted": ("{{ x | tojson(sort_keys=True, separators=(',', ':')) }}", V),
    "tojson_scalars": ("{{ 'a\"b' | tojson }} {{ 1 | tojson }} {{ 2.50 | tojson }} {{ true | tojson }} {{ none | tojson }}", V),
    "tojson_tuple_and_dict": ("{{ (1, 'a') | tojson }} {{ {'b': 1, 'a': {1: 2, none: 3, true: 4}} | tojson }}", V),
    "tojson_tool_lines": ("{% for t in tools %}\n{{ t | tojson }}\n{% endfor %}\n{{ tools | tojson(indent=4) }}", V),
    "tojson_arguments": ("{% for m in messages if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}", V),
    # whitespace
    "trim_blocks": ("a\n{% if true %}\nb\n{% endif %}\nc\n", V),
    "lstrip_blocks": ("a\n    {% if true %}\n  b\n    {%+ endif %}\n  {# note #}\nc\n\n", V),
    "whitespace_control": ("a \n {%- if true -%} \n b \n {%- endif %} c {{- ' d ' -}} e", V),
    "variables_keep_newlines": ("{{ 1 }}\n{{ 2 }}\n\n", V),
    "generation": ("{% for m in messages %}\n{% generation %}\n{{ m.role }}\n{% endgeneration %}\n{% endfor %}\n|", V),
    "generation_controls": ("a {%- generation -%} b {%- endgeneration -%} c", V),
    # Python's words for values
    "printed_values": ("{{ true }} {{ false }} {{ none }} {{ 1.0 }} {{ 1e20 }} {{ 3 / 2 }} {{ 4 / 2 }} {{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 8 }}", V),
    "printed_containers": ("{{ [1, 'a', true, none] }} {{ {'a': [1.5, \"it's\"]} }} {{ ('x',) }}", V),
    "printed_undefined": ("[{{ nothing_here }}] [{{ x.nothing_here }}] [{{ nothing_here or 'default' }}]", V),
    "undefined_tests": ("{{ y is defined }} {{ x is defined }} {{ x.q is undefined }} {{ y is none }} {{ (y | default('d')) }} {{ ('' | default('d', true)) }} {% for q in y %}never{% endfor %}{% if not y %}falsy{% endif %}", V),
    "type_tests": ("{{ 'a' is string }} {{ 1 is number }} {{ [] is sequence }} {{ {} is mapping }} {{ 'a' is iterable }} {{ [] is iterable }} {{ true is boolean }} {{ 1 is integer }} {{ 1.0 is float }} {{ none is none }} {{ x is mapping }} {{ 'a' is sequence }} {{ false is false }} {{ 0 is false }} {{ 2 in [1, 2] }} {{ 'b' in 'abc' }} {{ 'z' in x }}", V),
    # methods of Python's types
    "string_methods": ("{{ ' a b '.strip() }}|{{ 'a,b,c'.split(',') }}|{{ 'a b  c'.split() }}|{{ 'a.b.c'.split('.', 1) }}|{{ 'Ab'.upper() }}|{{ 'Ab'.lower() }}|{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith(('x', 'c')) }}|{{ 'xxaxx'.strip('x') }}|{{ 'aab'.replace('a', 'c', 1) }}|{{ 'a-b'.rsplit('-')[-1] }}|{{ ' a\n'.rstrip() }}|{{ '\na'.lstrip('\n') }}|{{ 'a'.join(['1', '2']) }}|{{ 'hello'.find('l') }}|{{ 'hello'.count('l') }}|{{ 'a b'.title() }}|{{ 'abc'.capitalize() }}|{{ 'a\nb'.splitlines() }}|{{ '1'.isdigit() }}", V),
    "splitting_from_the_right": ("{{ 'a.b.c'.rsplit('.', 1) }} {{ 'a.b.c'.rsplit('.') }} {{ ' a  b c '.rsplit() }} {{ ' a  b c '.rsplit(none, 1) }} {{ ''.rsplit() }} {{ ''.rsplit('.') }} {{ 'a.b'.rsplit('.', -1) }} {{ 'a.b'.rsplit('.', 0) }} {{ 'a b'.rsplit(none, 5) }}", V),
    "prefixes": ("{{ 'functions.f'.removeprefix('functions.') }} {{ 'f'.removeprefix('functions.') }} {{ 'a.py'.removesuffix('.py') }}", V),
    "sequences": ("{{ [1] is sequence }} {{ 'a' is sequence }} {{ {} is sequence }} {{ 1 is sequence }} {{ none is sequence }} {{ {} is iterable }} {{ 1 is iterable }} {{ none is iterable }} {{ y is iterable }} {{ true is iterable }} {{ (1, 2) is iterable }} {{ range(3) is iterable }} {{ 1 is float }} {{ true is integer }} {{ 'a' is mapping }}", V),
    "floats": ("{{ 1e20 }} {{ 1e-7 }} {{ 0.1 + 0.2 }} {{ -0.0 }} {{ 1e15 }} {{ x.numbers[4] }}", V),
    "partition": ("{% set a, b, c = 'k=v=w'.partition('=') %}{{ a }}{{ b }}{{ c }} {% set a, b, c = 'k=v=w'.rpartition('=') %}{{ a }}{{ b }}{{ c }} {% set a, b, c = 'kv'.partition('=') %}[{{ a }}{{ b }}{{ c }}] {% set a, b, c = 'kv'.rpartition('=') %}{{ a }}{{ b }}[{{ c }}]", V),
    "dict_methods": ("{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}={{ v }};{% endfor %}{{ x.empty.get('nope') }} {{ x.empty.get('nope', 'd') }} {{ {'b': 1}.keys() | list }} {{ {'b': 1}.values() | list }} {{ x | length }} {{ {'b': 1, 'a': 2} | dictsort }}", V),
    "removes_think": ("{{ 'a</think>b</think>c'.split('</think>')[-1] }} {{ '<think>x</think>y'.split('</think>')[0].split('<think>')[-1].rstrip('\n').lstrip('\n') }}", V),
    # control flow
    "namespace": ("{% set ns = namespace(n=0, last='') %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{{ ns.n }} {{ ns.last }}", V),
    "loops": ("{% for m in messages %}{% if loop.first %}F{% endif %}{% if loop.last %}L{% endif %}{{ loop.index }}/{{ loop.length }}{% if m.role == 'tool' %}{% continue %}{% endif %}{% if loop.index > 4 %}{% break %}{% endif %},{% else %}empty{% endfor %}", V),
    "loop_neighbours": ("{% for m in messages %}{{ loop.previtem.role if loop.previtem else '-' }}>{{ m.role }}>{{ loop.nextitem.role if loop.nextitem is defined else '-' }} {% endfor %}", V),
    "slices": ("{{ messages[1:][0].role }} {{ messages[::-1][0].role }} {{ messages[-1]['role'] }} {{ 'abcdef'[1:-1] }} {{ messages[:-1] | length }} {{ (messages | first).role }} {{ (messages | last).role }}", V),
    "selecting": ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | map(attribute='role') | join(',') }} {{ messages | rejectattr('content') | list | length }} {{ [3, 1, 2] | sort }} {{ [1, 2] | sum }} {{ 'a' ~ 1 ~ none }} {{ ['b', 'a'] | join('+') | upper | trim }}", V),
    "macro": ("{% macro say(role, text='-') %}<{{ role }}>{{ text }}{% endmacro %}{{ say('user') }}{{ say('tool', text='x') }}", V),
    "inline_if_and_unpacking": ("{{ 'a' if x else 'b' }}{{ 'a' if y }}{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}{% set a, b = 1, 2 %}{{ a }}{{ b }}", V),
    "filters": ("{{ ' x ' | trim }}|{{ 'a<b' | e }}|{{ 'Abc' | lower }}|{{ [1, 2, 2] | unique | list }}|{{ 'abc' | replace('b', 'x') }}|{{ 3.7 | int }}|{{ '5' | int + 1 }}|{{ 3.14159 | round(2) }}|{{ 'a b' | length }}|{{ 'abc' | list }}|{{ {'a': 1} | items | list }}|{{ 5 | string + 'x' }}|{{ 'hi' | indent(2, true) }}", V),
    "text_or_parts": ("{%- macro show(c) -%}{%- if c is string -%}{{- c }}{%- elif c is iterable and c is not mapping -%}{%- for p in c -%}{{- p.text }}{%- endfor -%}{%- else -%}{{- c }}{%- endif -%}{%- endmacro -%}[{{ show('a') }}][{{ show([{'text': 'b'}, {'text': 'c'}]) }}][{{ show(none) }}][{{ show({'text': 'd'}) }}][{{ show(none).strip() | length }}]", V),
    "set_block": ("{% set block %}a{{ 1 }}\n{% endset %}[{{ block }}]", V),
    "recursion_of_text": ("{{ messages[1].content }}", V),
    # the canary's own template
    "canary": (canary, V),
    "canary_thinking_off": (canary, V | {"thinking": False}),
    "canary_no_tools": (canary, {"messages": talk, "tools": None, "add_generation_prompt": False}),
    "canary_empty_tools": (canary, {"messages": talk[:2], "tools": [], "add_generation_prompt": True}),
}
out = [
    {"name": name, "template": template, "variables": variables, "expected": env.from_string(template).render(**variables)}
    for name, (template, variables) in cases.items()
]
path = pathlib.Path(__file__).with_name("cases.json")
path.write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")
