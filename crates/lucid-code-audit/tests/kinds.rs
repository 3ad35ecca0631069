//! Every kind of finding that no snippet in a function makes (those are in `planted.rs`): three spellings, and a twin without it.
#![allow(clippy::unwrap_used)]

mod patient;

use std::path::Path;

use lucid_code_audit::{FINDINGS, debug_code, monkeypatch};
use patient::{DEEPSEEK, Patient, kimi};

/// A file's name and text; a name with `/` in front lies outside of site-packages.
type File = (&'static str, &'static str);

struct Kind {
    id: &'static str,
    /// Whether the planted files differ from what was published.
    modified: bool,
    planted: [&'static [File]; 3],
    twin: &'static [File],
}

const PLUGIN: &str = "my_plugin/patches.py";

const KINDS: &[Kind] = &[
    Kind {
        id: "env.monkeypatch/patch",
        modified: false,
        planted: [
            &[(PLUGIN, "import vllm\nvllm.LLM = Mine\n")],
            &[(
                PLUGIN,
                "import importlib\nsetattr(importlib.import_module('vllm.envs'), 'VLLM_' + 'X', make())\n",
            )],
            &[(PLUGIN, "def install():\n    import sys\n    sys.modules['vllm.platforms'] = fake\n")],
        ],
        // What is its own it may change.
        twin: &[(PLUGIN, "import my_plugin\nmy_plugin.LLM = Mine\n")],
    },
    Kind {
        id: "env.monkeypatch/modified-patch",
        modified: true,
        planted: [
            &[(PLUGIN, "import vllm.v1.sample.sampler as s\ns.Sampler.forward = mine\n")],
            &[(PLUGIN, "import vllm\nvars(vllm)['LLM'] = Mine\n")],
            &[(
                PLUGIN,
                "import types\ndef install(layer):\n    layer.forward = types.MethodType(mine, layer)\n",
            )],
        ],
        twin: &[(PLUGIN, "from vllm.v1.sample.sampler import Sampler\nclass Mine(Sampler):\n    pass\n")],
    },
    Kind {
        id: "env.monkeypatch/twice",
        modified: true,
        planted: [
            &[
                (PLUGIN, "import vllm\nvllm.LLM = Mine\n"),
                ("other/patches.py", "import vllm as v\nv.LLM = Mine\n"),
            ],
            &[
                (PLUGIN, "from vllm.v1.sample import sampler\nsetattr(sampler, 'Sampler', Mine)\n"),
                ("other/patches.py", "import vllm.v1.sample.sampler as s\ns.Sampler = Mine\n"),
            ],
            &[
                (PLUGIN, "import sys\nsys.modules['vllm._C'] = fake\n"),
                ("other/patches.py", "from sys import modules as m\nm['vllm._C'] = fake\n"),
            ],
        ],
        twin: &[
            (PLUGIN, "import vllm\nvllm.LLM = Mine\n"),
            ("other/patches.py", "import vllm\nvllm.SamplingParams = Mine\n"),
        ],
    },
    Kind {
        id: "env.monkeypatch/import-hook",
        modified: false,
        planted: [
            &[(PLUGIN, "import sys\nsys.meta_path.insert(0, Finder())\n")],
            &[(PLUGIN, "from sys import path_hooks as hooks\nhooks.append(hook)\n")],
            &[(PLUGIN, "import builtins as b\nb.__import__ = mine\n")],
        ],
        twin: &[(PLUGIN, "import sys\nfor finder in sys.meta_path:\n    print(finder)\n")],
    },
    Kind {
        id: "env.monkeypatch/registration",
        modified: false,
        planted: [
            &[(
                PLUGIN,
                "from vllm import ModelRegistry\nModelRegistry.register_model('Mine', 'mine:Mine')\n",
            )],
            &[(
                PLUGIN,
                "import vllm\ndef register():\n    vllm.ModelRegistry.register_model('Mine', Mine)\n",
            )],
            &[(
                PLUGIN,
                "from vllm.model_executor.models import ModelRegistry as R\nput = R.register_model\nput('Mine', Mine)\n",
            )],
        ],
        twin: &[(PLUGIN, "from vllm import ModelRegistry\nprint(ModelRegistry.get_supported_archs())\n")],
    },
    Kind {
        id: "env.monkeypatch/source-rewrite",
        modified: true,
        planted: [
            &[(
                PLUGIN,
                "import pathlib, vllm.envs as e\np = pathlib.Path(e.__file__)\np.write_text(p.read_text().replace('a', 'b'))\n",
            )],
            &[(
                PLUGIN,
                "import inspect, vllm.envs\nopen(inspect.getsourcefile(vllm.envs), 'w').write(new)\n",
            )],
            &[(
                PLUGIN,
                "from importlib.util import find_spec\nwith open(find_spec('vllm.envs').origin, mode='w') as f:\n    f.write(new)\n",
            )],
        ],
        twin: &[(PLUGIN, "import vllm.envs\ntext = open(vllm.envs.__file__).read()\n")],
    },
    Kind {
        id: "env.debug-code/syntax-error",
        modified: true,
        planted: [
            &[(DEEPSEEK, "class A:\n    def forward(self, x)\n        return x\n")],
            &[(DEEPSEEK, "<<<<<<< HEAD\nx = 1\n=======\nx = 2\n>>>>>>> theirs\n")],
            &[(
                "vllm/v1/sample/sampler.py",
                "class Sampler:\n    def forward(self, logits):\n        return (logits\n",
            )],
        ],
        twin: &[(DEEPSEEK, "class A:\n    def forward(self, x):\n        return x\n")],
    },
    Kind {
        id: "env.debug-code/dump-files",
        modified: false,
        planted: [
            &[("/tmp/q_0.pt", "x"), ("/tmp/q_1.pt", "x"), ("/tmp/q_2.pt", "x"), ("/tmp/q_3.pt", "x")],
            &[
                ("/dev/shm/h_0.npy", "x"),
                ("/dev/shm/h_1.npy", "x"),
                ("/dev/shm/h_2.npy", "x"),
                ("/dev/shm/h_3.npy", "x"),
            ],
            &[
                ("/dev/shm/x_0.pkl", "x"),
                ("/dev/shm/x_1.pkl", "x"),
                ("/dev/shm/x_2.pkl", "x"),
                ("/dev/shm/x_3.pkl", "x"),
            ],
        ],
        twin: &[("/tmp/notes.txt", "x"), ("/tmp/a.log", "x"), ("/tmp/b.log", "x"), ("/tmp/c.log", "x")],
    },
];

fn found(files: &[File], modified: bool) -> Vec<String> {
    let patient = Patient::small();
    for (name, text) in files {
        if name.starts_with('/') {
            patient.write_outside(name, text.as_bytes());
        } else {
            patient.write(name, text);
        }
    }
    let evidence = patient.gather();
    let differs = |path: &Path, _: &str| {
        let planted = files.iter().any(|(name, _)| Path::new(name) == path);
        Some(modified && planted)
    };
    let checks = [debug_code(&evidence, &kimi(), &differs), monkeypatch(&evidence, &kimi(), &differs)];
    checks.into_iter().flat_map(|examined| examined.unwrap().findings).map(|finding| finding.id).collect()
}

#[test]
fn three_spellings_are_found_and_the_twin_is_not() {
    for Kind { id, modified, planted, twin } in KINDS {
        for files in planted {
            let ids = found(files, *modified);
            assert!(ids.iter().any(|found| found == id), "{id}: {files:?}: {ids:?}");
        }
        let ids = found(twin, *modified);
        assert!(!ids.iter().any(|found| found == id), "{id}: {twin:?}: {ids:?}");
    }
}

#[test]
fn no_kind_is_left_out() {
    // Snippets in functions: `planted.rs` holds three or more spellings of each.
    let snippets = [
        "file-write",
        "hard-coded-path",
        "breakpoint",
        "sleep",
        "subprocess",
        "print",
        "host-sync",
        "environment-branch",
    ];
    for (id, _) in FINDINGS {
        let slug = id.rsplit('/').next().unwrap();
        // That nothing was found is what the clean wheels say.
        let held = slug == "none" || snippets.contains(&slug) || KINDS.iter().any(|kind| kind.id == *id);
        assert!(held, "{id}");
    }
}
