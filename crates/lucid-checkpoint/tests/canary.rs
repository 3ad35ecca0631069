//! The bundled model, read whole.

#![allow(clippy::unwrap_used)] // A test fails by panicking, also in a function that is not marked as one.

mod folder;

use folder::{canary, open};
use lucid_checkpoint::{Checkpoint, Dtype, Files, Layout, Packed, Tensor, TokenId, inspect};
use serde_json::Value;

fn checkpoint() -> Checkpoint {
    open(&canary()).unwrap()
}

#[test]
fn opens_without_a_notice() {
    let canary = checkpoint();
    assert_eq!(canary.notices(), [] as [&str; 0]);
    assert_eq!(canary.tensors().count(), 1245);
    assert!(canary.tensors().map(|t| &t.name).is_sorted());
    let config = canary.config();
    assert_eq!((config.num_hidden_layers, config.hidden_size, config.num_attention_heads), (4, 256, 8));
    assert_eq!((0..4).map(|i| config.is_moe_layer(i)).collect::<Vec<_>>(), [false, true, true, true]);
    let yarn = config.rope_scaling.unwrap();
    assert_eq!((yarn.factor, yarn.original_max_position_embeddings), (4.0, 1024));
    let quantization = config.quantization.as_ref().unwrap();
    assert_eq!((quantization.algorithm.as_deref(), quantization.group_size), (Some("NVFP4"), Some(16)));
    assert_eq!(config.eos_token_ids, [TokenId(3842)]);
    let generation = canary.generation();
    assert_eq!(generation.eos_token_ids, [TokenId(3842)]);
    assert_eq!((generation.temperature, generation.top_p, generation.top_k), (Some(1.0), Some(0.95), None));
}

/// `canary_rows.json` holds four rows that a separate script (Python, from the format's definition) decoded.
#[test]
fn rows_decode_to_the_bits_of_another_implementation() {
    let golden: Value = serde_json::from_str(include_str!("canary_rows.json")).unwrap();
    let canary = checkpoint();
    for golden in golden.as_array().unwrap() {
        let number = |name: &str| golden[name].as_u64().unwrap() as usize;
        let module = golden["module"].as_str().unwrap();
        let matrix = canary.matrix(module, number("rows"), number("cols")).unwrap();
        assert_eq!(matrix.layout(), Layout::Nvfp4);
        let mut row = vec![f32::NAN; matrix.cols];
        matrix.decode_row(number("row"), &mut row);
        let hex: String = row.iter().flat_map(|v| v.to_le_bytes()).map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, golden["f32_hex"].as_str().unwrap(), "{module}");
    }
}

/// The canary's makers chose global scales that are powers of two, so that a bf16 twin exists.
#[test]
fn every_quantized_weight_is_exactly_a_bf16_value() {
    let canary = checkpoint();
    let mut matrices = 0;
    for scale in canary.tensors().filter(|t| t.name.ends_with(".weight_scale_2")) {
        let module = scale.name.strip_suffix(".weight_scale_2").unwrap();
        let codes = canary.tensor(&format!("{module}.weight")).unwrap();
        let matrix = canary.matrix(module, codes.shape[0], codes.shape[1] * 2).unwrap();
        let Packed::Nvfp4 { global_scale, input_scale, .. } = &matrix.packed else { panic!("{module}") };
        assert_eq!(global_scale.to_bits() & 0x007f_ffff, 0, "{module}: {global_scale} is no power of two");
        assert!(input_scale.is_some_and(|s| s > 0.0), "{module}");
        let mut row = vec![f32::NAN; matrix.cols];
        for r in 0..matrix.rows {
            matrix.decode_row(r, &mut row);
            assert!(row.iter().all(|v| v.is_finite() && v.to_bits() & 0xffff == 0), "{module}, row {r}");
        }
        matrices += 1;
    }
    assert_eq!(matrices, 300, "3 dense, and 3 layers of 32 + 1 experts of 3");
}

#[test]
fn vectors_and_plain_matrices() {
    let canary = checkpoint();
    assert_eq!(canary.vector("model.layers.1.mlp.gate.e_score_correction_bias", 32).unwrap().len(), 32);
    let norm = canary.vector("model.norm.weight", 256).unwrap();
    assert!(norm.iter().all(|v| v.is_finite()));
    let head = canary.matrix("lm_head", 4096, 256).unwrap();
    assert_eq!((head.layout(), head.byte_len()), (Layout::Bf16, 2 * 4096 * 256));
    assert_eq!(canary.tensor("lm_head.weight").unwrap().dtype, Dtype::Bf16);
}

#[test]
fn the_same_files_in_the_binary_read_the_same() {
    static CONFIG: &[u8] = include_bytes!("../../../models/canary/config.json");
    static FIRST: &[u8] = include_bytes!("../../../models/canary/model-00001-of-00002.safetensors");
    static SECOND: &[u8] = include_bytes!("../../../models/canary/model-00002-of-00002.safetensors");
    static FILES: [(&str, &[u8]); 3] =
        [("a.safetensors", FIRST), ("config.json", CONFIG), ("b.safetensors", SECOND)];
    let bundled = Checkpoint::open(Files::Bundled { name: "canary", files: &FILES }).unwrap();
    let folder = checkpoint();
    let values = |t: &Tensor| (t.name.clone(), t.dtype.clone(), t.shape.clone(), t.bytes.to_vec());
    assert!(bundled.tensors().map(values).eq(folder.tensors().map(values)));
    assert_eq!(bundled.files().location("config.json"), "bundled canary/config.json");
    assert_eq!(bundled.files().names().unwrap(), ["a.safetensors", "b.safetensors", "config.json"]);
}

#[test]
fn inspection_accounts_for_every_byte() {
    let canary = checkpoint();
    let inspection = inspect(&canary);
    // 24,369,888 is the index file's total_size.
    assert_eq!((inspection.bytes, inspection.parameters), (24_369_888, 19_461_216));
    assert_eq!(inspection.modules.iter().map(|m| m.bytes).sum::<u64>(), inspection.bytes);
    assert_eq!(inspection.modules.iter().map(|m| m.parameters).sum::<u64>(), inspection.parameters);
    let layouts: Vec<(&str, u64)> = inspection.totals.iter().map(|t| (t.layout.as_str(), t.count)).collect();
    assert_eq!(layouts, [("BF16", 42), ("NVFP4", 300), ("F32", 3)]);
    let experts = "model.layers.{1..3}.mlp.experts.*.gate_proj";
    let experts = inspection.modules.iter().find(|m| m.pattern == experts).unwrap();
    assert_eq!(
        (experts.layout.as_str(), experts.count, experts.shape.as_slice()),
        ("NVFP4", 96, &[128, 256][..])
    );

    let text = inspection.to_string();
    for part in
        ["19.5 M parameters", "24.4 MB", "DeepseekV3ForCausalLM", "model.layers.{1..3}.mlp.experts.*.up_proj"]
    {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert!(!text.contains("experts.17.up_proj.weight_scale_2"));
    assert!(inspection.render(true).contains("model.layers.3.mlp.experts.17.up_proj.weight_scale_2"));
    let json = serde_json::to_value(&inspection).unwrap();
    assert_eq!(json["tensors"].as_array().unwrap().len(), 1245);
    assert_eq!(json["config"]["moe"]["scoring_func"], "sigmoid");
}
