//! Decoding against values that other code computed (`decode_golden.json`): NVFP4 in ModelOpt's layout, and 16-bit
//! floats as gguf-py decodes them.

#![allow(clippy::unwrap_used)] // A test fails by panicking, also in a function that is not marked as one.

use lucid_checkpoint::{Bytes, Matrix, Packed, bf16_to_f32, f16_to_f32};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("decode_golden.json")).unwrap()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// The vectors print f32 values as f64, exactly.
fn floats(values: &Value) -> Vec<f32> {
    values.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

#[track_caller]
fn assert_same_bits(got: &[f32], want: &[f32]) {
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(got), bits(want), "{got:?}\nis not {want:?}");
}

#[test]
fn nvfp4() {
    let golden = &golden()["nvfp4_modelopt"];
    let matrix = Matrix {
        name: "golden".to_owned(),
        rows: 1,
        cols: 32,
        packed: Packed::Nvfp4 {
            codes: bytes(&golden["weight_hex"]).into(),
            scales: bytes(&golden["weight_scale_e4m3_hex"]).into(),
            global_scale: golden["weight_scale_2"].as_f64().unwrap() as f32,
            input_scale: None,
        },
    };
    let mut row = [f32::NAN; 32];
    matrix.decode_row(0, &mut row);
    assert_same_bits(&row, &floats(&golden["values"]));
    assert_eq!(matrix.byte_len(), 16 + 2 + 4);
}

#[test]
fn sixteen_bit_floats() {
    for (name, decode) in [("F16", f16_to_f32 as fn(u16) -> f32), ("BF16", bf16_to_f32)] {
        let golden = &golden()[name];
        let decoded: Vec<f32> =
            bytes(&golden["hex"]).as_chunks().0.iter().map(|b| decode(u16::from_le_bytes(*b))).collect();
        assert_same_bits(&decoded, &floats(&golden["values"]));
    }
}

/// The same numbers in every unscaled layout, at an odd address, read from the second row.
#[test]
fn every_layout_reads_its_row_at_any_alignment() {
    let values = [1.0f32, -0.5, 448.0, 0.0];
    let rows = |encode: &dyn Fn(f32) -> Vec<u8>| {
        let other = [8.0f32; 4];
        let mut all = vec![0xaa];
        all.extend(other.iter().chain(&values).flat_map(|v| encode(*v)));
        let len = all.len();
        Bytes::from(all).slice(1..len).unwrap()
    };
    let f16 = |v: f32| match v {
        1.0 => 0x3c00u16,
        -0.5 => 0xb800,
        448.0 => 0x5f00,
        8.0 => 0x4800,
        _ => 0,
    };
    let e4m3 = |v: f32| match v {
        1.0 => 0x38u8,
        -0.5 => 0xb0,
        448.0 => 0x7e,
        8.0 => 0x50,
        _ => 0,
    };
    let packed = [
        Packed::F32(rows(&|v| v.to_le_bytes().to_vec())),
        Packed::Bf16(rows(&|v| v.to_le_bytes()[2..].to_vec())),
        Packed::F16(rows(&|v| f16(v).to_le_bytes().to_vec())),
        Packed::F8E4m3(rows(&|v| vec![e4m3(v)])),
    ];
    for packed in packed {
        let matrix = Matrix { name: "m".to_owned(), rows: 2, cols: 4, packed };
        let mut row = [f32::NAN; 4];
        matrix.decode_row(1, &mut row);
        assert_same_bits(&row, &values);
        matrix.decode_row(0, &mut row);
        assert_same_bits(&row, &[8.0; 4]);
    }
}
