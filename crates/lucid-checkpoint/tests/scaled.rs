//! Layouts with scales of their own against compressed-tensors and torch (`scaled_golden.json`, made by
//! `scaled_golden.py`), and against a vector of the format's published description.

#![allow(clippy::unwrap_used)] // A test fails by panicking, also in a function that is not marked as one.

mod folder;

use folder::{assert_says, checkpoint, config, folder, open, shard};
use lucid_checkpoint::{Checkpoint, Error, Layout, Matrix, inspect};
use serde_json::{Value, json};

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// Name, type, shape, bytes.
type Tensor = (String, String, Vec<usize>, Vec<u8>);

/// A checkpoint of these tensors whose config declares this block size.
fn with_block(tensors: &[Tensor], block: Option<&Value>) -> Checkpoint {
    let specs: Vec<folder::Spec<'_>> =
        tensors.iter().map(|(n, d, s, b)| (n.as_str(), d.as_str(), s.as_slice(), b.clone())).collect();
    let place = folder(&[("model.safetensors", &shard(&specs))]);
    if let Some(block) = block {
        let mut config = config();
        config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": block});
        std::fs::write(place.path().join("config.json"), config.to_string()).unwrap();
    }
    open(place.path()).unwrap()
}

fn tensors(case: &Value) -> Vec<Tensor> {
    let of = |(name, tensor): (&String, &Value)| {
        let shape = tensor["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap() as usize);
        (
            format!("m.{name}"),
            tensor["dtype"].as_str().unwrap().to_owned(),
            shape.collect(),
            bytes(&tensor["hex"]),
        )
    };
    case["tensors"].as_object().unwrap().iter().map(of).collect()
}

#[test]
fn values_have_the_bits_of_compressed_tensors_and_torch() {
    let golden: Value = serde_json::from_str(include_str!("scaled_golden.json")).unwrap();
    for (name, case) in golden.as_object().unwrap() {
        let size = |field: &str| case[field].as_u64().unwrap() as usize;
        let (rows, cols) = (size("rows"), size("cols"));
        let checkpoint = with_block(&tensors(case), case["block"].is_array().then_some(&case["block"]));
        let matrix = checkpoint.matrix("m", rows, cols).unwrap();
        let layout = match name.split([' ', ',']).next().unwrap() {
            "int4" => Layout::Int4,
            "nvfp4" => Layout::Nvfp4,
            _ => Layout::F8Blocks,
        };
        assert_eq!(matrix.layout(), layout, "{name}");
        for (row, values) in case["values"].as_object().unwrap() {
            let want: Vec<u32> = bytes(values).as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
            let mut got = vec![f32::NAN; cols];
            matrix.decode_row(row.parse().unwrap(), &mut got);
            let got: Vec<u32> = got.iter().map(|v| v.to_bits()).collect();
            assert_eq!(got, want, "{name}, row {row}");
        }
        let inspection = inspect(&checkpoint);
        assert_eq!(inspection.modules.len(), 1, "{name}: every tensor belongs to the matrix");
        let module = &inspection.modules[0];
        assert_eq!(
            (module.layout.as_str(), &module.shape[..]),
            (layout.as_str(), &[rows, cols][..]),
            "{name}"
        );
    }
}

/// The golden of the format's description: q from -8 to 7 and both scales, written out as numbers.
#[test]
fn int4_of_the_description() {
    let golden: Value = serde_json::from_str(include_str!("decode_golden.json")).unwrap();
    let golden = &golden["int4_pack_quantized"];
    let words = golden["weight_packed_i32"].as_array().unwrap();
    let codes = words.iter().flat_map(|w| (w.as_i64().unwrap() as i32).to_le_bytes()).collect();
    let scales = golden["weight_scale"].as_array().unwrap();
    let scales = scales.iter().flat_map(|s| (s.as_f64().unwrap() as f32).to_le_bytes()).collect();
    let tensors =
        [("m.weight_packed", "I32", &[1, 8][..], codes), ("m.weight_scale", "F32", &[1, 2][..], scales)];
    let mut row = [f32::NAN; 64];
    checkpoint(&tensors).matrix("m", 1, 64).unwrap().decode_row(0, &mut row);
    let want: Vec<f32> =
        golden["values"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
    assert_eq!(row[..], want[..]);
}

/// The same packed bytes as ModelOpt's, with the reciprocal for a global scale.
#[test]
fn nvfp4_of_both_dialects_are_the_same_numbers() {
    let golden: Value = serde_json::from_str(include_str!("decode_golden.json")).unwrap();
    let golden = &golden["nvfp4_modelopt"];
    let tensors = [
        ("m.weight_packed", "U8", &[1, 16][..], bytes(&golden["weight_hex"])),
        ("m.weight_scale", "F8_E4M3", &[1, 2][..], bytes(&golden["weight_scale_e4m3_hex"])),
        ("m.weight_global_scale", "F32", &[1][..], 800f32.to_le_bytes().to_vec()),
    ];
    let mut row = [f32::NAN; 32];
    checkpoint(&tensors).matrix("m", 1, 32).unwrap().decode_row(0, &mut row);
    let want: Vec<f32> =
        golden["values"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
    assert_eq!(row[..], want[..]);
}

fn golden_case(name: &str) -> (Vec<Tensor>, usize, usize) {
    let golden: Value = serde_json::from_str(include_str!("scaled_golden.json")).unwrap();
    let (_, case) = golden.as_object().unwrap().iter().find(|(key, _)| key.starts_with(name)).unwrap();
    (tensors(case), case["rows"].as_u64().unwrap() as usize, case["cols"].as_u64().unwrap() as usize)
}

fn changed(name: &str, change: impl Fn(&mut Vec<Tensor>)) -> Result<Matrix, Error> {
    let (mut tensors, rows, cols) = golden_case(name);
    change(&mut tensors);
    with_block(&tensors, None).matrix("m", rows, cols)
}

fn named<'a>(tensors: &'a mut [Tensor], name: &str) -> &'a mut Tensor {
    tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap()
}

#[test]
fn int4_that_contradicts_itself() {
    const CASE: &str = "int4, groups of 32";
    assert!(changed(CASE, |t| t.retain(|t| t.0 != "m.weight_shape")).is_ok(), "the shape may be left out");
    let shape = |rows: i64, cols: i64| {
        changed(CASE, move |t| {
            named(t, "m.weight_shape").3 = [rows, cols].iter().flat_map(|v| v.to_le_bytes()).collect();
        })
    };
    assert_says(shape(3, 95), &["m.weight_shape", "[3, 95]", "[3, 96]", "model.safetensors"]);
    assert_says(shape(-3, 96), &["m.weight_shape", "[-3, 96]"]);
    assert_says(
        changed(CASE, |t| t.retain(|t| t.0 != "m.weight_scale")),
        &["m.weight_packed", "m.weight_scale"],
    );
    assert_says(changed(CASE, |t| named(t, "m.weight_scale").2 = vec![9, 1]), &["m.weight_scale", "[9, 1]"]);
    assert_says(
        changed(CASE, |t| {
            let scale = named(t, "m.weight_scale");
            scale.2 = vec![3, 0];
            scale.3.clear();
        }),
        &["m.weight_scale", "[3, 0]"],
    );
    assert_says(changed(CASE, |t| named(t, "m.weight_packed").2 = vec![12, 3]), &["[12, 3]", "[3, 12]"]);
    assert_says(
        changed(CASE, |t| named(t, "m.weight_scale").1 = "I16".to_owned()),
        &["m.weight_scale", "I16", "BF16"],
    );
    for (part, what) in [("weight_zero_point", "zero points"), ("weight_g_idx", "reordered")] {
        let more = |t: &mut Vec<Tensor>| t.push((format!("m.{part}"), "I32".to_owned(), vec![1], vec![0; 4]));
        assert_says(changed(CASE, more), &["m.weight_packed", what, "supported: BF16"]);
    }
}

#[test]
fn compressed_tensors_nvfp4_that_contradicts_itself() {
    const CASE: &str = "nvfp4";
    assert_says(
        changed(CASE, |t| t.retain(|t| t.0 != "m.weight_global_scale")),
        &["m.weight_packed", "m.weight_global_scale", "orders of magnitude"],
    );
    // The last is finite, but its reciprocal is subnormal.
    for value in [0.0f32, -1.0, f32::NAN, f32::INFINITY, f32::MAX] {
        let set = |t: &mut Vec<Tensor>| named(t, "m.weight_global_scale").3 = value.to_le_bytes().to_vec();
        assert_says(changed(CASE, set), &["m.weight_global_scale", "scale"]);
    }
    assert_says(changed(CASE, |t| named(t, "m.weight_scale").2 = vec![4, 3]), &["m.weight_scale", "[3, 4]"]);
}

#[test]
fn fp8_blocks_that_contradict_their_matrix() {
    const CASE: &str = "fp8, 128x128, edge blocks";
    assert_says(
        changed(CASE, |t| {
            let scale = named(t, "m.weight_scale_inv");
            scale.2 = vec![1, 2];
            scale.3.truncate(8);
        }),
        &["m.weight_scale_inv", "[1, 2]", "[2, 2]", "128×128"],
    );
    assert_says(changed(CASE, |t| named(t, "m.weight").2 = vec![133, 130]), &["m.weight ", "[133, 130]"]);
    assert_says(changed(CASE, |t| named(t, "m.weight_scale_inv").1 = "I32".to_owned()), &["I32", "BF16"]);
}
