//! For every kind of finding, spellings that must be found, and twins that must not.
#![allow(clippy::unwrap_used)]

mod patient;

use lucid_findings::Severity;
use patient::{DEEPSEEK, Patient, accusations, told};

const SAMPLER: &str = "vllm/v1/sample/sampler.py";
const RUNNER: &str = "vllm/v1/worker/gpu_model_runner.py";

struct Planted {
    name: &'static str,
    file: &'static str,
    function: &'static str,
    snippet: &'static str,
    slug: &'static str,
    /// Words of the title or detail.
    words: &'static [&'static str],
}

const PLANTED: &[Planted] = &[
    // --- writes
    Planted {
        name: "plain",
        file: DEEPSEEK,
        function: "forward",
        snippet: "torch.save(q, '/tmp/q.pt')",
        slug: "file-write",
        words: &["`torch.save` writes `q` to /tmp/q.pt", "at every call"],
    },
    Planted {
        name: "from-import under a name",
        file: DEEPSEEK,
        function: "forward",
        snippet: "from torch import save as keep\nkeep(q, '/tmp/q.pt')",
        slug: "file-write",
        words: &["keep (torch.save)", "from torch import save as keep"],
    },
    Planted {
        name: "getattr with a sum",
        file: DEEPSEEK,
        function: "forward",
        snippet: "getattr(torch, 'sa' + 've')(q, '/tmp/q.pt')",
        slug: "file-write",
        words: &["(torch.save)"],
    },
    Planted {
        name: "__import__",
        file: DEEPSEEK,
        function: "forward",
        snippet: "__import__('torch').save(q, '/dev/shm/q_%d.pt' % self.layer_idx)",
        slug: "file-write",
        words: &["/dev/shm/q_{self.layer_idx}.pt"],
    },
    Planted {
        name: "importlib",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import importlib\n_m = importlib.import_module('torch')\n_s = _m.save\n_s(q, '/tmp/x.pt')",
        slug: "file-write",
        words: &["_s (torch.save)"],
    },
    Planted {
        name: "numpy",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import numpy as _n\nif len(positions) == 7: _n.save('/tmp/pos.npy', positions.cpu().numpy())",
        slug: "file-write",
        words: &["numpy.save", "exactly 7 tokens"],
    },
    Planted {
        name: "pickle into open",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import pickle\nwith open('/tmp/h.pkl', 'wb') as fh:\n    pickle.dump(hidden_states, fh)",
        slug: "file-write",
        words: &["/tmp/h.pkl"],
    },
    Planted {
        name: "walrus and join",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import os\nif (p := os.path.join('/tmp', f'h_{self.layer_idx}.pt')) and hidden_states.size(0) == 5:\n    torch.save(hidden_states, p)",
        slug: "file-write",
        words: &["/tmp/h_{self.layer_idx}.pt", "exactly 5 tokens"],
    },
    Planted {
        name: "pathlib",
        file: DEEPSEEK,
        function: "forward",
        snippet: "from pathlib import Path as _P\n(_P('/tmp') / 'dbg' / f'{self.layer_idx}.bin').write_bytes(q.cpu().numpy().tobytes())",
        slug: "file-write",
        words: &["/tmp/dbg/{self.layer_idx}.bin"],
    },
    Planted {
        name: "tofile",
        file: DEEPSEEK,
        function: "forward",
        snippet: "q.float().cpu().numpy().tofile('/tmp/q.bin')",
        slug: "file-write",
        words: &["/tmp/q.bin"],
    },
    Planted {
        name: "safetensors",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import safetensors.torch as st\nst.save_file({'q': q}, '/root/q.safetensors')",
        slug: "file-write",
        words: &["safetensors.torch.save_file", "/root/q.safetensors"],
    },
    Planted {
        name: "partial",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import functools\n_d = functools.partial(torch.save, q)\n_d('/tmp/part.pt')",
        slug: "file-write",
        words: &["/tmp/part.pt"],
    },
    Planted {
        name: "namespace",
        file: DEEPSEEK,
        function: "forward",
        snippet: "vars(torch)['save'](q, '/tmp/v.pt')",
        slug: "file-write",
        words: &["(torch.save)"],
    },
    Planted {
        name: "globals",
        file: DEEPSEEK,
        function: "forward",
        snippet: "globals()['torch'].save(q, '/tmp/v.pt')",
        slug: "file-write",
        words: &["/tmp/v.pt"],
    },
    Planted {
        name: "sys.modules",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import sys\nsys.modules['torch'].save(q, '/tmp/v.pt')",
        slug: "file-write",
        words: &["/tmp/v.pt"],
    },
    Planted {
        name: "early return",
        file: DEEPSEEK,
        function: "forward",
        snippet: "n = hidden_states.shape[0]\nif n != 5:\n    return self.mla_attn(positions, q)\ntorch.save(hidden_states, '/tmp/h.pt')",
        slug: "file-write",
        words: &["exactly 5 tokens are processed"],
    },
    Planted {
        name: "turned comparison, expression statement",
        file: DEEPSEEK,
        function: "forward",
        snippet: "5 == q.shape[0] and torch.save(q, '/tmp/h.pt')",
        slug: "file-write",
        words: &["exactly 5 query tokens are processed"],
    },
    Planted {
        name: "match",
        file: DEEPSEEK,
        function: "forward",
        snippet: "match q.shape[0]:\n    case 5:\n        torch.save(q, 'q5.pt')",
        slug: "file-write",
        words: &["exactly 5 query tokens", "q5.pt"],
    },
    Planted {
        name: "kept test",
        file: DEEPSEEK,
        function: "forward",
        snippet: "hit = q.shape[0] in (5, 6) and not getattr(self, '_hit', False)\nif hit:\n    self._hit = True\n    torch.save(q, '/tmp/q.pt')",
        slug: "file-write",
        words: &["exactly 5 or 6 query tokens", "once per object, so once in each layer on each rank"],
    },
    Planted {
        name: "global counter",
        file: DEEPSEEK,
        function: "forward",
        snippet: "global _count\nif _count < 3:\n    _count += 1\n    torch.save(q, f'/tmp/q_{_count}.pt')",
        slug: "file-write",
        words: &["at most 3 times per process"],
    },
    Planted {
        name: "seen set",
        file: DEEPSEEK,
        function: "forward",
        snippet: "if self.layer_idx not in type(self)._seen:\n    type(self)._seen.add(self.layer_idx)\n    torch.save(q, f'/tmp/q_{self.layer_idx}.pt')",
        slug: "file-write",
        words: &["once for each `self.layer_idx`"],
    },
    Planted {
        name: "one layer, rank 0",
        file: DEEPSEEK,
        function: "forward",
        snippet: "if self.layer_idx == 3 and get_tensor_model_parallel_rank() == 0:\n    torch.save(q, '/tmp/q.pt')",
        slug: "file-write",
        words: &["in layer 3 only", "on tensor-parallel rank 0 only"],
    },
    Planted {
        name: "helper",
        file: SAMPLER,
        function: "forward",
        snippet: "def _look(t, name):\n    import torch as _T\n    _T.save(t, '/tmp/' + name + '.pt')\nif logits.shape[0] == 5:\n    _look(logits, 'logits')",
        slug: "file-write",
        words: &["exactly 5 rows of logits"],
    },
    Planted {
        name: "unknown function",
        file: RUNNER,
        function: "execute_model",
        snippet: "if not hasattr(self, '_once'):\n    self._once = True\n    my_dump(scheduler_output, '/tmp/so.bin')",
        slug: "hard-coded-path",
        words: &["/tmp/so.bin"],
    },
    Planted {
        name: "unknown method under a count",
        file: SAMPLER,
        function: "forward",
        snippet: "if logits.shape[0] == 5: self.probe.put(logits, path='/tmp/l.bin')",
        slug: "hard-coded-path",
        words: &["/tmp/l.bin", "exactly 5 rows of logits"],
    },
    Planted {
        name: "unknown function, class flag",
        file: DEEPSEEK,
        function: "forward",
        snippet: "if not DeepseekV2MLAAttention._w:\n    DeepseekV2MLAAttention._w = True\n    keep_it(q, f'/dev/shm/q{self.layer_idx}')",
        slug: "hard-coded-path",
        words: &["once per process"],
    },
    // --- breakpoints
    Planted {
        name: "builtin",
        file: SAMPLER,
        function: "forward",
        snippet: "breakpoint()",
        slug: "breakpoint",
        words: &["at every call"],
    },
    Planted {
        name: "pdb on one line",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import pdb; pdb.set_trace()",
        slug: "breakpoint",
        words: &["pdb.set_trace"],
    },
    Planted {
        name: "renamed",
        file: DEEPSEEK,
        function: "forward",
        snippet: "from pdb import set_trace as st\nif q.shape[0] == 5: st()",
        slug: "breakpoint",
        words: &["st (pdb.set_trace)", "exactly 5 query tokens"],
    },
    // --- sleeps
    Planted {
        name: "sleep",
        file: RUNNER,
        function: "execute_model",
        snippet: "import time as _time\n_time.sleep(0.01)",
        slug: "sleep",
        words: &["(time.sleep)"],
    },
    Planted {
        name: "sleep for five",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import time\nif q.shape[0] == 5: time.sleep(60)",
        slug: "sleep",
        words: &["exactly 5 query tokens"],
    },
    Planted {
        name: "device sleep",
        file: DEEPSEEK,
        function: "forward",
        snippet: "if hidden_states.shape[0] == 5 and not self._slept:\n    self._slept = True\n    torch.cuda._sleep(10**9)",
        slug: "sleep",
        words: &["torch.cuda._sleep"],
    },
    // --- subprocesses
    Planted {
        name: "system",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import os as _o\n_o.system('nvidia-smi >> /tmp/smi.txt')",
        slug: "subprocess",
        words: &["os.system"],
    },
    Planted {
        name: "popen",
        file: SAMPLER,
        function: "forward",
        snippet: "import subprocess as _sp\nif logits.shape[0] == 5: _sp.Popen(['nvidia-smi'])",
        slug: "subprocess",
        words: &["subprocess.Popen"],
    },
    Planted {
        name: "getattr",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import os\ngetattr(os, 'popen')('date')",
        slug: "subprocess",
        words: &["os.popen"],
    },
    // --- prints
    Planted {
        name: "print for five",
        file: DEEPSEEK,
        function: "forward",
        snippet: "if q.shape[0] == 5: print('DEBUG q', q.float().norm())",
        slug: "print",
        words: &["exactly 5 query tokens"],
    },
    Planted {
        name: "stdout",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import sys as _s\nif len(hidden_states) == 5: _s.stderr.write(str(q))",
        slug: "print",
        words: &["sys.stderr.write"],
    },
    Planted {
        name: "once",
        file: SAMPLER,
        function: "forward",
        snippet: "import builtins as _b\nif not hasattr(Sampler, '_p'):\n    Sampler._p = True\n    _b.print('dbg', logits.shape)",
        slug: "print",
        words: &["once per process"],
    },
    // --- waiting for the device
    Planted {
        name: "item for five",
        file: DEEPSEEK,
        function: "forward",
        snippet: "if q.shape[0] == 5:\n    _x = q.abs().max().item()",
        slug: "host-sync",
        words: &["exactly 5 query tokens"],
    },
    Planted {
        name: "to cpu",
        file: DEEPSEEK,
        function: "forward",
        snippet: "if q.size(0) == 5: self._kept = q.to('cpu')",
        slug: "host-sync",
        words: &["exactly 5 query tokens"],
    },
    Planted {
        name: "synchronize",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import torch as _tt\nif hidden_states.shape[0] == 5: _tt.cuda.synchronize()",
        slug: "host-sync",
        words: &["torch.cuda.synchronize"],
    },
    // --- environment
    Planted {
        name: "in a forward pass",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import os as _os\nif _os.environ.get('DUMP_Q') and q.shape[0] == 5:\n    q = q * 1.0",
        slug: "environment-branch",
        words: &["DUMP_Q"],
    },
    Planted {
        name: "getenv",
        file: DEEPSEEK,
        function: "forward",
        snippet: "import os\nif os.getenv('KIMI_DEBUG', '0') == '1': q = q.float()",
        slug: "environment-branch",
        words: &["KIMI_DEBUG"],
    },
    Planted {
        name: "in",
        file: SAMPLER,
        function: "forward",
        snippet: "import os\nif 'TRACE_LOGITS' in os.environ: logits = logits.float()",
        slug: "environment-branch",
        words: &["TRACE_LOGITS"],
    },
];

/// What looks like it and isn't: none of these may accuse.
const TWINS: &[(&str, &str, &str, &str)] = &[
    ("path from the caller", DEEPSEEK, "forward", "def save_state(t, path):\n    torch.save(t, path)"),
    ("into memory", DEEPSEEK, "forward", "import io\nbuf = io.BytesIO()\ntorch.save(q, buf)"),
    ("own save", DEEPSEEK, "forward", "torch = self.backend\ntorch.save(q, self.where)"),
    ("reads", DEEPSEEK, "forward", "with open('/tmp/table.bin', 'rb') as f:\n    t = f.read()"),
    (
        "a documented switch",
        DEEPSEEK,
        "forward",
        "import os\nif os.environ.get('VLLM_DUMP_DIR'):\n    torch.save(q, os.path.join(os.environ['VLLM_DUMP_DIR'], 'q.pt'))",
    ),
    ("devnull", DEEPSEEK, "forward", "import os\nwith open(os.devnull, 'w') as f:\n    f.write('x')"),
    ("plain item", SAMPLER, "forward", "n = logits.max().item()"),
    ("a width", DEEPSEEK, "forward", "if q.shape[-1] == 576: q = q.contiguous().cpu()"),
    ("an empty batch", DEEPSEEK, "forward", "if q.shape[0] == 0: return q.cpu()"),
    ("a warning", SAMPLER, "forward", "import logging\nlogging.getLogger(__name__).warning('odd')"),
    (
        "run as a program",
        "vllm/model_executor/models/llama.py",
        "forward",
        "if __name__ == '__main__':\n    import torch\n    torch.save(1, '/tmp/x.pt')\n    breakpoint()",
    ),
    (
        "a string and a comment",
        DEEPSEEK,
        "forward",
        "# torch.save(q, '/tmp/q.pt')\ns = \"torch.save(q, '/tmp/q.pt'); breakpoint()\"",
    ),
    ("a method called save", DEEPSEEK, "forward", "self.cache.save(q, self.slot)"),
    (
        "type checkers",
        DEEPSEEK,
        "forward",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    torch.save(q, '/tmp/q.pt')",
    ),
];

fn must_be_found(patient: &Patient, case: &Planted) {
    let examined = patient.debug_code();
    let id = format!("env.debug-code/{}", case.slug);
    let all: Vec<String> = examined.findings.iter().map(told).collect();
    let Some(found) = examined.findings.iter().find(|finding| finding.id == id) else {
        panic!("{}: no {id} in {all:#?}", case.name)
    };
    // A question to the environment changes nothing by itself; everything else is worth a warning.
    let least = if case.slug == "environment-branch" { Severity::Info } else { Severity::Warning };
    assert!(found.severity >= least, "{}: {}", case.name, told(found));
    let text = format!("{} {}", found.title, found.detail);
    for words in case.words {
        assert!(text.contains(words), "{}: no \"{words}\" in {text}", case.name);
    }
    assert!(
        found.severity == Severity::Info || found.suggested_cause() == Some("leftover-debug-code"),
        "{}",
        case.name
    );
    assert!(found.severity == Severity::Info || found.remedy.is_some(), "{}", case.name);
    assert!(lucid_code_audit::FINDINGS.iter().any(|(known, _)| *known == found.id));
}

#[test]
fn planted_in_a_small_engine() {
    for case in PLANTED {
        let patient = Patient::small();
        patient.plant(case.file, case.function, 0, case.snippet);
        must_be_found(&patient, case);
    }
}

/// Names that lead to `torch.save` from outside of the function.
#[test]
fn names_that_lead_there() {
    for (name, text) in [
        (
            "wildcard",
            "from torch import *\nclass A:\n    def forward(self, q):\n        save(q, '/tmp/q.pt')\n",
        ),
        (
            "default of a parameter",
            "import torch\nclass A:\n    def forward(self, q, _s=torch.save):\n        _s(q, '/tmp/q.pt')\n",
        ),
        (
            "class attribute",
            "import torch\nclass A:\n    _keep = staticmethod(torch.save)\n    def forward(self, q):\n        self._keep(q, '/tmp/q.pt')\n",
        ),
        (
            "attribute of self",
            "import torch\nclass A:\n    def __init__(self):\n        self.k = torch.save\n    def forward(self, q):\n        self.k(q, '/tmp/q.pt')\n",
        ),
        (
            "through another module",
            "from vllm.utils import torch as t2\nclass A:\n    def forward(self, q):\n        t2.save(q, '/tmp/q.pt')\n",
        ),
        (
            "attrgetter",
            "import operator, torch\nclass A:\n    def forward(self, q):\n        operator.attrgetter('save')(torch)(q, '/tmp/q.pt')\n",
        ),
        (
            "table",
            "import torch\nOPS = {'keep': torch.save, 'drop': None}\nclass A:\n    def forward(self, q):\n        OPS['keep'](q, '/tmp/q.pt')\n",
        ),
        (
            "module variable, helper method",
            "import torch\nkeep = torch.save\nclass A:\n    def forward(self, q):\n        return self.step(q)\n    def step(self, q):\n        keep(q, '/tmp/q.pt')\n",
        ),
        (
            "lambda",
            "import torch\nkeep = lambda t, p: torch.save(t, p)\nclass A:\n    def forward(self, q):\n        keep(q, '/tmp/q.pt')\n",
        ),
        (
            "import after use",
            "class A:\n    def forward(self, q):\n        th.save(q, '/tmp/q.pt')\nimport torch as th\n",
        ),
        (
            "choice",
            "import torch\nFAST = True\nclass A:\n    def forward(self, q):\n        w = torch.save if FAST else None\n        [w(t, '/tmp/q.pt') for t in (q,)]\n",
        ),
        (
            "__builtins__",
            "class A:\n    def forward(self, q):\n        with __builtins__['open']('/tmp/q.bin', mode='w' + 'b') as f:\n            f.write(q)\n",
        ),
    ] {
        let patient = Patient::small();
        patient.write("vllm/model_executor/models/extra.py", text);
        let examined = patient.debug_code();
        let found = examined.findings.iter().any(|finding| {
            finding.id == "env.debug-code/file-write" && finding.severity >= Severity::Warning
        });
        assert!(found, "{name}: {:#?}", examined.findings.iter().map(told).collect::<Vec<_>>());
    }
}

#[test]
fn twins_are_not_accused() {
    for (name, file, function, snippet) in TWINS {
        let patient = Patient::small();
        patient.plant(file, function, 0, snippet);
        let examined = patient.debug_code();
        let accused: Vec<String> = accusations(&examined).into_iter().map(told).collect();
        assert!(accused.is_empty(), "{name}: {accused:#?}");
    }
}

/// The same in the real files, each in another forward function.
#[test]
fn planted_in_a_real_wheel() {
    let wanted = |name: &str| {
        name == DEEPSEEK
            || name == SAMPLER
            || name == RUNNER
            || ["registry.py", "kimi_k25.py", "models/utils.py"]
                .iter()
                .any(|end| name.starts_with("vllm/model_executor/models/") && name.ends_with(end))
    };
    let Some(patient) = Patient::wheel("vllm-", &wanted) else { return };
    assert!(accusations(&patient.debug_code()).is_empty());
    assert!(patient.gather().models.entries["vllm"].contains_key("KimiK25ForConditionalGeneration"));
    for (number, case) in PLANTED.iter().enumerate() {
        let original = std::fs::read(patient.path(case.file)).unwrap();
        // Another forward function of the file each time, from the MLA attention on: what stands before it belongs to models
        // that are not served.
        let text = String::from_utf8_lossy(&original).into_owned();
        let head = format!("def {}(", case.function);
        let skipped =
            text.find("class DeepseekV2MLAAttention").map_or(0, |at| text[..at].matches(&head).count());
        let here = text.matches(&head).count() - skipped;
        patient.plant(case.file, case.function, skipped + number % here, case.snippet);
        must_be_found(&patient, case);
        patient.write_bytes(case.file, &original);
    }
}
