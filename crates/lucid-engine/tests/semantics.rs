//! W4A4 and fp8 KV caches against what a transcription of the definitions computed (goldens/semantics.py), and what is refused.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // The lints spare test functions, not what they share.

mod goldens;

use std::io::Write;
use std::path::Path;

use goldens::{LATENT_NORM_EPS, Prompt, canary, models, prompts};
use lucid_checkpoint::{Checkpoint, Files};
use lucid_engine::{
    Activations, Device, Engine, EngineOptions, KvCacheDtype, KvScales, LoadFormat, Mode, Scorer,
    SemanticsOptions,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Reference arithmetic but for one thing.
fn options(activations: Activations, kv_cache: Option<KvCacheDtype>) -> SemanticsOptions {
    SemanticsOptions {
        mode: Mode::Reference,
        latent_norm_eps: Some(LATENT_NORM_EPS),
        activations,
        kv_cache,
        ..SemanticsOptions::default()
    }
}

fn golden() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/semantics.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The canary in a folder of its own; `change` sees every tensor, `more` are added as single F32.
fn changed(change: impl Fn(&str, &mut [u8]), more: &[(String, f32)]) -> (TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(models().join("canary")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let data = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
            let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
            for (name, tensor) in
                header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__")
            {
                let [begin, end]: [usize; 2] =
                    serde_json::from_value(tensor["data_offsets"].clone()).unwrap();
                change(name, &mut bytes[data + begin..data + end]);
            }
        }
        std::fs::write(folder.path().join(path.file_name().unwrap()), bytes).unwrap();
    }
    if !more.is_empty() {
        let entry = |i: usize| json!({"dtype": "F32", "shape": [], "data_offsets": [4 * i, 4 * i + 4]});
        let header: serde_json::Map<String, Value> =
            more.iter().enumerate().map(|(i, (name, _))| (name.clone(), entry(i))).collect();
        let header = serde_json::to_vec(&header).unwrap();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        more.iter().for_each(|(_, value)| bytes.extend(value.to_le_bytes()));
        std::fs::write(folder.path().join("more.safetensors"), bytes).unwrap();
    }
    let checkpoint = open(folder.path());
    (folder, checkpoint)
}

fn open(folder: &Path) -> Checkpoint {
    Checkpoint::open(Files::open(folder).unwrap()).unwrap()
}

/// The log-probability of each next token.
fn next_logprobs(scorer: &mut Scorer, prompt: &Prompt) -> Vec<f32> {
    let mut next = Vec::new();
    let visit = |position: usize, logprobs: &[f32]| {
        if let Some(token) = prompt.tokens.get(position + 1) {
            next.push(logprobs[token.row()]);
        }
    };
    scorer.score(&prompt.tokens, visit).unwrap();
    next
}

/// How far the engine is from the transcription, and from its own W4A16 with an f32 cache: mean absolute differences of the next
/// token's log-probability over all prompts, and the largest one.
fn distances(
    device: Device,
    checkpoint: &Checkpoint,
    semantics: &SemanticsOptions,
    mode: &str,
) -> (f64, f64, f32) {
    let golden = golden();
    let mut scorer = Scorer::on(device, checkpoint, semantics, None).unwrap();
    let plain = SemanticsOptions { kv_cache: None, ..options(Activations::W4A16, None) };
    let mut plain = Scorer::on(device, checkpoint, &plain, None).unwrap();
    let (mut from_golden, mut from_plain, mut worst, mut count) = (0.0, 0.0, 0f32, 0);
    for prompt in prompts() {
        let Some(expected) = golden["prompts"].get(&prompt.name) else { continue };
        let expected: Vec<f32> = serde_json::from_value(expected[mode].clone()).unwrap();
        let (ours, unquantized) = (next_logprobs(&mut scorer, &prompt), next_logprobs(&mut plain, &prompt));
        assert_eq!(ours.len(), expected.len());
        for ((ours, expected), plain) in ours.iter().zip(&expected).zip(&unquantized) {
            let difference = (ours - expected).abs();
            (from_golden, from_plain) =
                (from_golden + f64::from(difference), from_plain + f64::from((ours - plain).abs()));
            worst = worst.max(difference);
            count += 1;
        }
    }
    let (from_golden, from_plain) = (from_golden / f64::from(count), from_plain / f64::from(count));
    println!(
        "{device}, {mode}: {from_golden:.1e} from the golden, {from_plain:.1e} from plain, at the most {worst:.1e}"
    );
    (from_golden, from_plain, worst)
}

/// Rounding is a step: an f32 sum that differs in its last bit may fall on the other side. So a few values differ by a code, and
/// all that follow feel it: the differences are far below those that rounding itself makes, but not as small as f32's.
fn assert_near(checkpoint: &Checkpoint, semantics: &SemanticsOptions, mode: &str) {
    let (from_golden, from_plain, _) = distances(Device::Cpu, checkpoint, semantics, mode);
    assert!(
        from_golden < from_plain / 50.0,
        "{mode}: {from_golden} from the definition, {from_plain} from plain"
    );
}

#[test]
fn w4a4_is_what_its_definition_gives() {
    assert_near(&canary(), &options(Activations::W4A4, None), "w4a4");
    // The canary's own scales of down_proj are too small for its activations; with larger ones nothing saturates.
    let (_folder, checkpoint) = changed(
        |name, bytes| {
            if name.ends_with("down_proj.input_scale") {
                let scale = f32::from_le_bytes(*bytes.first_chunk().unwrap()) * 128.0;
                bytes.copy_from_slice(&scale.to_le_bytes());
            }
        },
        &[],
    );
    assert_near(&checkpoint, &options(Activations::W4A4, None), "w4a4_down_scales_128");
}

#[test]
fn an_fp8_cache_is_what_its_definition_gives() {
    let fp8 = options(Activations::W4A16, Some(KvCacheDtype::Fp8E4m3));
    assert_near(&canary(), &fp8, "fp8_cache");
    let (_folder, checkpoint) = with_cache_scales();
    assert_near(&checkpoint, &fp8, "fp8_cache_scaled");
    // An engine that lost the scales computes as if there were none.
    let lost = SemanticsOptions { kv_scales: KvScales::Lost, ..fp8 };
    assert_near(&checkpoint, &lost, "fp8_cache");
    let scales =
        |semantics| Scorer::new(&checkpoint, semantics, None).unwrap().semantics().kv_scales.clone().unwrap();
    assert_eq!(scales(&fp8), "k_scale of the checkpoint");
    assert_eq!(scales(&lost), "scale 1, k_scale is lost");
    assert!(Scorer::new(&canary(), &lost, None).is_err(), "there is nothing to lose");
}

/// ModelOpt's names. Keys and values are one entry, and `k_scale` is its scale.
fn with_cache_scales() -> (TempDir, Checkpoint) {
    let scales: Vec<f32> = serde_json::from_value(golden()["kv_scales"].clone()).unwrap();
    let name = |layer: usize, part: &str| format!("model.layers.{layer}.self_attn.{part}");
    let more: Vec<(String, f32)> = scales
        .iter()
        .enumerate()
        .flat_map(|(layer, scale)| {
            [(name(layer, "k_proj.k_scale"), *scale), (name(layer, "v_proj.v_scale"), 77.0)]
        })
        .collect();
    changed(|_, _| {}, &more)
}

/// The same on a GPU. In serving mode activations are bf16 too, which moves answers by itself, and now and then a value to the neighbouring code: measured
/// as what bf16 alone makes and a fifth of what the cache's rounding makes.
#[test]
fn an_fp8_cache_on_a_gpu_is_what_its_definition_gives() {
    let reference = options(Activations::W4A16, Some(KvCacheDtype::Fp8E4m3));
    let serving = SemanticsOptions { mode: Mode::Serving, ..reference.clone() };
    let gpu = Device::Cuda(0);
    if let Err(error) = Scorer::on(gpu, &canary(), &reference, None) {
        assert!(std::env::var_os("LUCID_REQUIRE_CUDA").is_none(), "{error}");
        // Not through `println!`, which the test harness swallows.
        let _ = writeln!(std::io::stderr(), "skipped: no CUDA device ({error})");
        return;
    }
    let (_folder, scaled) = with_cache_scales();
    for (checkpoint, name) in [(canary(), "fp8_cache"), (scaled, "fp8_cache_scaled")] {
        let (from_golden, cached, _) = distances(gpu, &checkpoint, &reference, name);
        assert!(from_golden < cached / 50.0, "{name}: {from_golden}, where the cache makes {cached}");
        let usual = SemanticsOptions { kv_cache: None, ..serving.clone() };
        let (_, rounding, _) = distances(gpu, &checkpoint, &usual, name);
        let (from_golden, _, _) = distances(gpu, &checkpoint, &serving, name);
        let bound = rounding + cached / 4.0;
        assert!(from_golden < bound, "{name}: {from_golden}, where {bound} is the bound");
    }
}

#[test]
fn the_semantics_say_what_is_computed() {
    let engine = |semantics: SemanticsOptions| {
        Engine::start(&canary(), &EngineOptions { semantics, ..EngineOptions::default() })
            .unwrap()
            .semantics()
            .clone()
    };
    let both = engine(SemanticsOptions {
        activations: Activations::W4A4,
        kv_cache: Some(KvCacheDtype::Fp8E4m3),
        ..SemanticsOptions::default()
    });
    let text = both.to_string();
    assert!(
        text.contains("W4A4") && text.contains("KV cache fp8_e4m3 (the checkpoint has no k_scale: scale 1)"),
        "{text}"
    );
    let json = serde_json::to_value(&both).unwrap();
    assert_eq!((json["kv_cache"].as_str(), json["mode"].as_str()), (Some("fp8_e4m3"), Some("serving")));
    let usual = engine(SemanticsOptions::default());
    assert_eq!(usual.kv_cache, KvCacheDtype::Bf16);
    assert_eq!(serde_json::to_value(&usual).unwrap().get("kv_scales"), None);
}

fn refusal(checkpoint: &Checkpoint, options: &EngineOptions) -> String {
    match Engine::start(checkpoint, options) {
        Ok(_) => panic!("it started"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_cannot_be_computed_is_refused_by_name() {
    let w4a4 = EngineOptions { semantics: options(Activations::W4A4, None), ..EngineOptions::default() };
    let fp8 = options(Activations::W4A16, Some(KvCacheDtype::Fp8E4m3));
    let fp8 = EngineOptions { semantics: fp8, ..EngineOptions::default() };
    let expert = "model.layers.2.mlp.experts.7.up_proj";
    let zero = |name: &str, bytes: &mut [u8]| {
        if name == format!("{expert}.input_scale") {
            bytes.fill(0);
        }
    };
    let text = refusal(&changed(zero, &[]).1, &w4a4);
    assert!(text.contains(expert) && text.contains("input_scale is 0") && text.contains("W4A16"), "{text}");
    // Invented weights have no calibration, a GGUF file of other types nothing to calibrate.
    let text = refusal(&canary(), &EngineOptions { load_format: LoadFormat::Dummy, ..w4a4.clone() });
    assert!(text.contains("no input_scale"), "{text}");
    let gguf = models().join("canary-gguf");
    let text = refusal(&Checkpoint::open(Files::open(&gguf).unwrap()).unwrap(), &w4a4);
    assert!(text.contains("without NVFP4 weights"), "{text}");
    let scale = "model.layers.1.self_attn.k_proj.k_scale".to_owned();
    for (value, said) in [(0.0, "= 0"), (-1.0, "= -1"), (f32::NAN, "= NaN")] {
        let text = refusal(&changed(|_, _| {}, &[(scale.clone(), value)]).1, &fp8);
        assert!(text.contains("k_scale") && text.contains(said), "{text}");
    }
    // Said before a GPU is looked for.
    let f32s = options(Activations::W4A16, Some(KvCacheDtype::F32));
    let f32s = SemanticsOptions { mode: Mode::Serving, ..f32s };
    for options in [w4a4, EngineOptions { semantics: f32s, ..EngineOptions::default() }] {
        let text = refusal(&canary(), &EngineOptions { device: Device::Cuda(0), ..options });
        assert!(text.contains("on a GPU") && text.contains("CPU"), "{text}");
    }
}
