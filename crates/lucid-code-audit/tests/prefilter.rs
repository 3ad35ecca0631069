//! What the prefilter must let through, in every spelling; that it changes no finding is held by every patient (`patient/mod.rs`).
#![allow(clippy::unwrap_used)]

mod patient;

use patient::Patient;

const FILE: &str = "my_plugin/patches.py";

/// Files that replace `vllm.LLM`, or `vllm.LLM.generate`, written so that a look at the text could miss it.
const PATCHES: &[(&str, &str)] = &[
    ("plain", "import vllm\nvllm.LLM = Mine\n"),
    ("no spaces", "import vllm\nvllm.LLM=Mine\n"),
    ("spaces around the dot", "import vllm\nvllm . LLM  =  Mine\n"),
    ("continued line", "import vllm\nvllm.\\\n  LLM \\\n  = Mine\n"),
    ("continued line of Windows", "import vllm\r\nvllm.LLM \\\r\n  = Mine\r\n"),
    ("lines of an old Macintosh", "import vllm\r# a note\rvllm.LLM = Mine\r"),
    ("annotated", "import vllm\nvllm.LLM: type = Mine\n"),
    ("annotated with a string", "import vllm\nvllm.LLM: 'type' = Mine\n"),
    ("tuple", "import vllm\nvllm.LLM, other = Mine, 1\n"),
    ("list", "import vllm\n[other, vllm.LLM] = [1, Mine]\n"),
    ("in brackets over lines", "import vllm\n(other,  # first (\n  vllm.LLM) = (1, Mine)\n"),
    ("chained", "import vllm\nkept = vllm.LLM = Mine\n"),
    ("chained, last", "import vllm\nvllm.LLM = kept = Mine\n"),
    ("behind a semicolon", "import vllm; vllm.LLM = Mine\n"),
    ("behind a colon", "import vllm\nif True: vllm.LLM = Mine\n"),
    ("of an element", "import vllm\nall = [vllm]\nall[0].LLM = Mine\n"),
    ("behind an element", "import vllm\nnames['a'], vllm.LLM = 1, Mine\n"),
    (
        "of what self keeps",
        "import vllm\nclass A:\n    def __init__(self):\n        self.engine = vllm\n        self.engine.LLM = Mine\n",
    ),
    ("another's self", "import vllm as notself\nnotself.LLM = Mine\n"),
    ("behind a docstring", "'''a (bracket'''\nimport vllm\nvllm.LLM = Mine\n"),
    (
        "behind brackets in strings",
        "import vllm\nx = '(' + \"[{\" + r'\\(' + b'('.decode()\nvllm.LLM = Mine\n",
    ),
    ("behind a comment", "import vllm\n# (((\nvllm.LLM = Mine\n"),
    (
        "behind nested quotes",
        "import vllm\nd = {'(': 1}\nx = f'{d['(']}'\nvllm.LLM = Mine\ny = f'{d[')']}'\n",
    ),
    ("behind nested quotes and escapes", "import vllm\nx = f'}} {1:{d['(']}}'\nvllm.LLM = Mine\ny = ')'\n"),
    ("setattr", "import vllm\nsetattr(vllm, 'LLM', Mine)\n"),
    ("setattr under a name", "import vllm\nput = setattr\nput(vllm, 'L' + 'LM', Mine)\n"),
    ("setattr of builtins", "import builtins as b, vllm\nb.setattr(vllm, 'LLM', Mine)\n"),
    ("hidden setattr", "import builtins, vllm\ngetattr(builtins, 'seta' + 'ttr')(vllm, 'LLM', Mine)\n"),
    ("hidden module", "engine = __import__('v' + 'llm')\nengine.LLM = Mine\n"),
    ("full-width letters", "import vllm\nｓｅｔａｔｔｒ(vllm, 'LLM', Mine)\n"),
    ("dictionary", "import vllm\nvllm.__dict__['LLM'] = Mine\n"),
    ("wide letters and an attribute", "import vllm\nname = 'é'\nvllm.LLM = Mine\n"),
];

#[test]
fn every_spelling_comes_through() {
    for (name, text) in PATCHES {
        let patient = Patient::small();
        patient.write(FILE, text);
        let evidence = patient.gather();
        let found = evidence.patches.iter().any(|patch| patch.file == FILE && patch.target == "vllm.LLM");
        assert!(found, "{name}: {:#?}", evidence.patches);
    }
}

/// As CPython stores it: the words of a file that declares another encoding.
#[test]
fn other_encodings_are_parsed() {
    let patient = Patient::small();
    patient.write_bytes(FILE, b"# coding: latin-1\nimport vllm\nvllm.LLM = '\xe9', Mine\n");
    assert_eq!(patient.gather().patches.len(), 1);
}

/// What needs no parsing: otherwise the filter would be no filter.
#[test]
fn ordinary_files_are_ruled_out() {
    let ordinary = [
        "\"\"\"A module of its own.\n\nx.y = 3\n\"\"\"\nimport numpy as np\n\n\nclass A:\n    width: int = 3\n\n    def __init__(self, x, y=np.inf):\n        self.x = x\n        self.y, z = y, x == 2\n        self.x += z\n\n    def f(self):\n        d = {}\n        d['a'] = np.zeros(3, dtype=np.float32)\n        return f\"{d['a']} = {self.x!r}\"\n",
        "def naïve(α):\n    # 猫 → x\n    return [n for n in range(3) if n != α]\n",
        "",
    ];
    for text in ordinary {
        let patient = Patient::small();
        let before = patient.gather();
        patient.write(FILE, text);
        let evidence = patient.gather();
        assert_eq!((evidence.ruled_out, evidence.parsed), (1, before.parsed), "{text}");
    }
}

/// Tests patch for themselves, and no check says a word about them; an engine's own tests are parsed all the same.
#[test]
fn tests_are_ruled_out_by_their_path() {
    let patient = Patient::small();
    for file in ["my_plugin/tests/conftest.py", "other/test_it.py", "vllm/tests/conftest.py"] {
        patient.write(file, "import vllm\nvllm.LLM = Mine\n");
    }
    assert_eq!(patient.gather().ruled_out, 2);
}
