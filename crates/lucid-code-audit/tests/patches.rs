//! Changes to other modules: found in every spelling, classified, and not condemned.
#![allow(clippy::unwrap_used)]

mod patient;

use std::path::Path;

use lucid_code_audit::PatchKind;
use lucid_findings::Severity;
use patient::{Patient, accusations, told};

/// Spelling, kind and target.
const SPELLINGS: &[(&str, PatchKind, &str)] = &[
    (
        "import vllm.model_executor.models.deepseek_v2 as d\nd.DeepseekV2MoE.forward = mine\n",
        PatchKind::Attribute,
        "vllm.model_executor.models.deepseek_v2.DeepseekV2MoE.forward",
    ),
    (
        "from vllm.v1.sample import sampler\nsetattr(sampler.Sampler, 'for' + 'ward', mine)\n",
        PatchKind::Attribute,
        "vllm.v1.sample.sampler.Sampler.forward",
    ),
    (
        "from vllm.v1.sample.sampler import Sampler as S\ndef install():\n    S.forward = mine\n",
        PatchKind::Attribute,
        "vllm.v1.sample.sampler.Sampler.forward",
    ),
    ("import vllm\nvars(vllm)['LLM'] = Mine\n", PatchKind::Attribute, "vllm.LLM"),
    (
        "import importlib\nm = importlib.import_module('vllm.envs')\nm.__dict__.update(X=1)\n",
        PatchKind::Attribute,
        "vllm.envs.*",
    ),
    (
        "import wrapt\nwrapt.wrap_function_wrapper('vllm.v1.engine.core', 'EngineCore.step', w)\n",
        PatchKind::Attribute,
        "vllm.v1.engine.core.EngineCore.step",
    ),
    ("import sys\nsys.modules['vllm.platforms'] = fake\n", PatchKind::Module, "vllm.platforms"),
    ("from sys import modules as _m\n_m['vllm.platforms'] = fake\n", PatchKind::Module, "vllm.platforms"),
    ("import sys\nsys.modules.setdefault('vllm._C', fake)\n", PatchKind::Module, "vllm._C"),
    ("import sys\nsys.meta_path.insert(0, Finder())\n", PatchKind::ImportHook, "sys.meta_path"),
    ("import sys as s\ns.path_hooks.append(hook)\n", PatchKind::ImportHook, "sys.path_hooks"),
    ("import builtins\nbuiltins.__import__ = mine\n", PatchKind::ImportHook, "builtins.__import__"),
    (
        "import types\ndef install(layer):\n    layer.forward = types.MethodType(mine, layer)\n",
        PatchKind::Method,
        "layer.forward",
    ),
    (
        "from types import MethodType as MT\ndef install(layer):\n    layer.mlp.forward = MT(mine, layer.mlp)\n",
        PatchKind::Method,
        "layer.mlp.forward",
    ),
    ("import types as t\nx.step = t.MethodType(f, x)\n", PatchKind::Method, "x.step"),
    (
        "from vllm import ModelRegistry\ndef register():\n    ModelRegistry.register_model('MyModel', 'mine:MyModel')\n",
        PatchKind::Registration,
        "MyModel",
    ),
    (
        "import pathlib, vllm.v1.worker.gpu_worker as g\np = pathlib.Path(g.__file__)\np.write_text(p.read_text().replace('a', 'b'))\n",
        PatchKind::SourceRewrite,
        "vllm.v1.worker.gpu_worker",
    ),
    (
        "import importlib.util\nspec = importlib.util.find_spec('vllm.v1.worker.gpu_worker')\nwith open(spec.origin, 'w') as f:\n    f.write(new)\n",
        PatchKind::SourceRewrite,
        "vllm.v1.worker.gpu_worker",
    ),
    (
        "import inspect, vllm.envs as e\npath = inspect.getsourcefile(e)\nopen(path, 'w').write(text)\n",
        PatchKind::SourceRewrite,
        "vllm.envs",
    ),
];

#[test]
fn every_spelling_is_seen() {
    for (text, kind, target) in SPELLINGS {
        let patient = Patient::small();
        // The rewriting of sources is looked for in the engines' packages, and in files that patch.
        patient.write("my_plugin/patches.py", text);
        let evidence = patient.gather();
        let found: Vec<_> =
            evidence.patches.iter().filter(|patch| patch.file == "my_plugin/patches.py").collect();
        assert!(
            found.iter().any(|patch| patch.kind == *kind && patch.target == *target),
            "{text}: {found:#?}"
        );
    }
}

#[test]
fn what_is_no_patch() {
    for text in [
        "import torch\ntorch.backends.cudnn.benchmark = True\n",
        "import torch\ntorch._dynamo.config.cache_size_limit = limit\n",
        "import logging\nlogger = logging.getLogger()\nlogger.name = make()\n",
        "from my_plugin import other\nother.value = compute()\n",
        "import sys\nsys.modules[__name__] = Lazy()\n",
        "import torch\nif False:\n    torch.nn.Linear.forward = f\n",
        "class A:\n    pass\nA.forward = f\n",
    ] {
        let patient = Patient::small();
        patient.write("my_plugin/patches.py", text);
        let evidence = patient.gather();
        assert!(evidence.patches.is_empty(), "{text}: {:#?}", evidence.patches);
    }
}

#[test]
fn a_wrapper_and_an_addition_are_told_from_a_replacement() {
    let patient = Patient::small();
    patient.write(
        "my_plugin/patches.py",
        "import vllm.v1.sample.sampler as s\noriginal = s.Sampler.forward\ns.Sampler.forward = wrap(original)\nif not hasattr(s, 'extra'):\n    s.extra = make()\n",
    );
    let evidence = patient.gather();
    assert!(evidence.patches[0].keeps_original && !evidence.patches[0].adds_absent);
    assert!(evidence.patches[1].adds_absent && !evidence.patches[1].keeps_original);
}

#[test]
fn another_package_s_patch_is_described_and_not_condemned() {
    let patient = Patient::small();
    patient.write("my_plugin/patches.py", SPELLINGS[0].0);
    let examined = patient.monkeypatch(&|_, _| None);
    assert!(accusations(&examined).is_empty());
    let finding = examined.findings.iter().find(|finding| finding.id == "env.monkeypatch/patch").unwrap();
    assert!(
        finding.detail.contains(
            "replaces vllm.model_executor.models.deepseek_v2.DeepseekV2MoE.forward by `mine` at import"
        ),
        "{}",
        finding.detail
    );
    assert_eq!((finding.active, finding.suggested_cause()), (Some(true), Some("modified-package-files")));
}

#[test]
fn a_changed_file_that_patches_an_engine_is_worth_a_warning() {
    let patient = Patient::small();
    patient.write("my_plugin/patches.py", SPELLINGS[1].0);
    let examined = patient.monkeypatch(&|path: &Path, _: &str| Some(path.starts_with("my_plugin")));
    let finding =
        examined.findings.iter().find(|finding| finding.id == "env.monkeypatch/modified-patch").unwrap();
    assert_eq!(finding.severity, Severity::Warning, "{}", told(finding));
    assert!(finding.remedy.is_some());
}

#[test]
fn every_finding_of_these_is_in_the_table() {
    for (text, ..) in SPELLINGS {
        let patient = Patient::small();
        patient.write("my_plugin/patches.py", text);
        for examined in [patient.monkeypatch(&|_, _| None), patient.monkeypatch(&|_, _| Some(true))] {
            for finding in &examined.findings {
                assert!(
                    lucid_code_audit::FINDINGS.iter().any(|(known, _)| *known == finding.id),
                    "{}",
                    finding.id
                );
            }
        }
    }
}
