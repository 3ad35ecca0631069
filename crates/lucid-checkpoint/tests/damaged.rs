//! Bad input: each gets an error that names the file, the tensor or the field.

#![allow(clippy::unwrap_used)] // A test fails by panicking, also in a function that is not marked as one.

mod folder;

use folder::{assert_says, checkpoint, config, file, folder, open, shard};
use lucid_checkpoint::{Config, Error, Files, Generation};
use serde_json::{Value, json};

const NONE: &[(&str, &str, &[usize], Vec<u8>)] = &[];

fn one_shard(bytes: &[u8]) -> Result<lucid_checkpoint::Checkpoint, Error> {
    open(folder(&[("model.safetensors", bytes)]).path())
}

fn with_header(header: Value, data: usize) -> Result<lucid_checkpoint::Checkpoint, Error> {
    one_shard(&file(&header.to_string(), &vec![0; data]))
}

#[test]
fn folders() {
    let place = tempfile::tempdir().unwrap();
    let missing = place.path().join("nothing-here");
    assert_says(Files::open(&missing), &["nothing-here", "cannot read"]);
    assert_says(open(place.path()), &["config.json is missing"]);
    std::fs::write(place.path().join("config.json"), config().to_string()).unwrap();
    assert_says(Files::open(&place.path().join("config.json")), &["config.json is not a model"]);
    assert_says(open(place.path()), &["*.safetensors is missing"]);
    let files = Files::open(place.path()).unwrap();
    assert_says(files.find("../config.json"), &["../config.json", "not a plain file name"]);
    assert!(files.find("tokenizer.json").unwrap().is_none());
}

#[cfg(unix)]
#[test]
fn things_that_are_not_files() {
    let place = folder(&[]);
    std::os::unix::fs::symlink("gone", place.path().join("model.safetensors")).unwrap();
    assert_says(open(place.path()), &["cannot read", "model.safetensors"]);
    std::fs::remove_file(place.path().join("model.safetensors")).unwrap();
    // A socket has a name but no contents; opening a pipe would block for ever.
    let _socket = std::os::unix::net::UnixListener::bind(place.path().join("model.safetensors")).unwrap();
    assert_says(open(place.path()), &["model.safetensors", "not a regular file"]);
}

#[cfg(unix)]
#[test]
fn an_unreadable_folder() {
    use std::os::unix::fs::PermissionsExt;
    let place = folder(&[]);
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o000)).unwrap();
    let listed = std::fs::read_dir(place.path()).is_ok();
    let result = Files::open(place.path());
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    // The administrator may list any folder, so nothing can be shown there.
    if !listed {
        assert_says(result, &["cannot read", place.path().to_str().unwrap()]);
    }
}

#[test]
fn truncated_shards_say_how_much_is_missing() {
    let whole = shard(&[("a", "F32", &[2], vec![0; 8]), ("b", "F32", &[4], vec![0; 16])]);
    assert_says(
        one_shard(&whole[..whole.len() - 20]),
        &["model.safetensors is truncated", "20 bytes are missing", "a is cut"],
    );
    assert_says(one_shard(&whole[..whole.len() - 1]), &["1 bytes are missing", "b is cut"]);
    assert_says(one_shard(&whole[..20]), &["truncated", "the header is cut"]);
    assert_says(one_shard(&whole[..3]), &["truncated", "5 bytes are missing"]);
    assert_says(one_shard(&[]), &["truncated", "8 bytes are missing"]);
}

#[test]
fn lying_headers() {
    let tensor = |shape: Value, begin: u64, end: u64| json!({"a": {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}});
    assert_says(
        with_header(tensor(json!([2]), 0, 12), 12),
        &["model.safetensors", "tensor a at byte 0 of the data", "8 bytes", "12"],
    );
    assert_says(with_header(tensor(json!([2]), 8, 0), 8), &["tensor a", "ends before"]);
    assert_says(with_header(tensor(json!([2]), 1 << 40, (1 << 40) + 8), 8), &["truncated", "a is cut"]);
    let last = u64::MAX;
    assert_says(
        with_header(tensor(json!([2]), last - 8, last), 8),
        &["damaged", "tensor a", &last.to_string()],
    );
    let huge = json!([1u64 << 33, 1u64 << 33]);
    assert_says(with_header(tensor(huge, 0, 8), 8), &["tensor a", "no file can hold"]);
    assert_says(with_header(tensor(json!([-2]), 0, 8), 8), &["model.safetensors", "damaged"]);
    let overlap = json!({
        "a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
        "b": {"dtype": "U8", "shape": [8], "data_offsets": [4, 12]},
    });
    assert_says(with_header(overlap, 12), &["tensors a and b overlap"]);
    let twice = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    assert_says(one_shard(&file(twice, &[0; 2])), &["tensor a is described twice, at bytes 0 and 1"]);
}

#[test]
fn headers_that_are_no_headers() {
    assert_says(one_shard(&file("{", b"")), &["model.safetensors", "not the expected JSON"]);
    assert_says(one_shard(&file("[]", b"")), &["model.safetensors", "not the expected JSON"]);
    assert_says(one_shard(&file(&"[".repeat(100_000), b"")), &["model.safetensors"]);
    assert_says(
        one_shard(b"PK\x03\x04 this is a zip file"),
        &["model.safetensors", "not a safetensors file"],
    );
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n";
    assert_says(one_shard(pointer), &["model.safetensors", "git lfs pull"]);
    // Just above the limit, in a file that could hold it.
    assert_says(one_shard(&100_000_001u64.to_le_bytes()), &["100000001", "not a safetensors file"]);
}

#[test]
fn a_name_in_two_shards() {
    let (a, b) = (shard(&[("x", "U8", &[1], vec![1])]), shard(&[("x", "U8", &[1], vec![2])]));
    let place = folder(&[("a.safetensors", &a), ("b.safetensors", &b)]);
    assert_says(open(place.path()), &["tensor x", "a.safetensors", "b.safetensors"]);
}

#[test]
fn odd_but_harmless_files_open_with_a_notice() {
    let one = shard(&[("x", "U8", &[1], vec![1])]);
    let notices = |index: &str| {
        let place = folder(&[("m.safetensors", &one), ("model.safetensors.index.json", index.as_bytes())]);
        open(place.path()).unwrap().notices().join("\n")
    };
    assert_eq!(notices(r#"{"weight_map": {"x": "m.safetensors"}}"#), "");
    assert!(notices(r#"{"weight_map": {}}"#).contains("1 tensors are in a shard but not listed there, as x"));
    assert!(notices(r#"{"weight_map": {"x": "n.safetensors"}}"#).contains("another shard"));
    assert!(notices(r#"{"weight_map": {"x": "m.safetensors", "y": 3}}"#).contains("in no shard, as y"));
    assert!(notices("{}").contains("no weight_map"));
    assert!(notices("oops").contains("not valid JSON"));
    let gap = json!({"a": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}});
    assert!(with_header(gap, 9).unwrap().notices().join("").contains("5 bytes belong to no tensor"));
}

#[test]
fn an_unknown_dtype_is_an_error_only_for_whoever_wants_the_values() {
    let tensors = [("v", "F4_NEW", &[4][..], vec![0; 2]), ("m.weight", "F4_NEW", &[2, 4], vec![0; 4])];
    let checkpoint = checkpoint(&tensors);
    assert_eq!(checkpoint.tensor("v").unwrap().dtype.as_str(), "F4_NEW");
    assert_says(checkpoint.vector("v", 4), &["tensor v", "F4_NEW"]);
    assert_says(checkpoint.matrix("m", 2, 4), &["m.weight", "F4_NEW", "supported"]);
}

#[test]
fn missing_tensors_and_wrong_shapes() {
    let tensors = [("language_model.model.norm.weight", "F32", &[2][..], vec![0; 8])];
    let checkpoint = checkpoint(&tensors);
    assert_eq!(checkpoint.vector("model.norm.weight", 2).unwrap(), [0.0, 0.0]);
    assert_says(
        checkpoint.vector("model.norm.weight", 3),
        &["model.norm.weight", "[2]", "[3]", "model.safetensors"],
    );
    assert_says(
        checkpoint.matrix("model.layers.0.mlp.up_proj", 2, 2),
        &["model.layers.0.mlp.up_proj.weight", "language_model.layers.0.mlp.up_proj.weight"],
    );
    let empty = folder::checkpoint(NONE);
    assert_says(empty.tensor("lm_head.weight"), &["lm_head.weight", "none of the shards"]);
}

#[test]
fn early_exports_leave_out_the_inner_model() {
    let tensors = [("language_model.layers.3.mlp.up_proj.weight", "F32", &[1, 2][..], vec![0; 8])];
    let matrix = checkpoint(&tensors).matrix("model.layers.3.mlp.up_proj", 1, 2).unwrap();
    assert_eq!(matrix.name, "language_model.layers.3.mlp.up_proj.weight");
}

/// A right NVFP4 matrix of 2 rows and 32 columns, after `change`.
fn nvfp4(
    change: impl Fn(&mut Vec<(String, String, Vec<usize>, Vec<u8>)>),
) -> Result<lucid_checkpoint::Matrix, Error> {
    let tensor = |name: &str, dtype: &str, shape: &[usize], bytes: Vec<u8>| {
        (format!("m.{name}"), dtype.to_owned(), shape.to_vec(), bytes)
    };
    let mut tensors = vec![
        tensor("weight", "U8", &[2, 16], vec![0x21; 32]),
        tensor("weight_scale", "F8_E4M3", &[2, 2], vec![0x38; 4]),
        tensor("weight_scale_2", "F32", &[], 0.5f32.to_le_bytes().to_vec()),
    ];
    change(&mut tensors);
    let specs: Vec<folder::Spec<'_>> =
        tensors.iter().map(|(n, d, s, b)| (n.as_str(), d.as_str(), s.as_slice(), b.clone())).collect();
    checkpoint(&specs).matrix("m", 2, 32)
}

#[test]
fn nvfp4_that_contradicts_itself() {
    let matrix = nvfp4(|_| ()).unwrap();
    let mut row = [f32::NAN; 32];
    matrix.decode_row(1, &mut row);
    assert_eq!(row[..4], [0.25, 0.5, 0.25, 0.5], "the low nibble comes first");
    assert!(nvfp4(|t| t[2].2 = vec![1]).is_ok(), "a scalar may have shape [1]");

    assert_says(nvfp4(|t| t.truncate(2)), &["m.weight", "m.weight_scale_2"]);
    assert_says(nvfp4(|t| drop(t.remove(1))), &["m.weight", "U8 without weight_scale"]);
    let scale = |value: f32| nvfp4(move |t| t[2].3 = value.to_le_bytes().to_vec());
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert_says(scale(value), &["m.weight_scale_2", &value.to_string(), "model.safetensors"]);
    }
    assert_says(nvfp4(|t| t[1].2 = vec![4, 1]), &["m.weight_scale ", "[4, 1]", "[2, 2]"]);
    assert_says(nvfp4(|t| t[1].1 = "U8".to_owned()), &["m.weight_scale", "F8_E4M3", "U8"]);
    assert_says(nvfp4(|t| t[2].1 = "I32".to_owned()), &["m.weight_scale_2", "one F32 value", "I32"]);
    assert_says(nvfp4(|t| t[0].2 = vec![1, 32]), &["m.weight ", "[1, 32]", "[2, 16]"]);
    let odd =
        [("m.weight", "U8", &[2, 12][..], vec![0; 24]), ("m.weight_scale", "F8_E4M3", &[2, 1], vec![0; 2])];
    assert_says(checkpoint(&odd).matrix("m", 2, 24), &["m.weight", "multiple of 16", "24"]);
}

#[test]
fn layouts_that_are_not_decoded_are_never_decoded_wrongly() {
    let f32s = |n: usize| vec![0u8; n * 4];
    let cases: [(&[folder::Spec<'_>], &str); 6] = [
        (
            &[("m.weight", "F8_E4M3", &[2, 32], vec![0; 64]), ("m.weight_scale", "F32", &[], f32s(1))],
            "FP8 with scales",
        ),
        (
            &[("m.weight", "BF16", &[2, 32], vec![0; 128]), ("m.weight_scale", "BF16", &[2], vec![0; 4])],
            "a scaled type",
        ),
        (
            &[
                ("m.weight_packed", "U8", &[2, 16], vec![0; 32]),
                ("m.weight_scale", "U8", &[2, 1], vec![0; 2]),
            ],
            "4-bit floats other than NVFP4",
        ),
        (&[("m.weight_packed", "I8", &[2, 32], vec![0; 64])], "compressed-tensors (I8"),
        (&[("m.qweight", "I32", &[4, 2], f32s(8))], "GPTQ or AWQ"),
        (&[("m.weight", "I8", &[2, 32], vec![0; 64])], "I8"),
    ];
    for (tensors, layout) in cases {
        let result = checkpoint(tensors).matrix("m", 2, 32);
        assert!(matches!(result, Err(Error::UnsupportedLayout { .. })), "{layout}: {result:?}");
        assert_says(result, &[tensors[0].0, layout, "supported: BF16"]);
    }
}

#[test]
fn inspection_shows_what_cannot_be_decoded() {
    let tensors = [
        ("model.layers.0.a.weight", "F8_E4M3", &[2, 32][..], vec![0; 64]),
        ("model.layers.0.a.weight_scale", "F32", &[1, 1], vec![0; 4]),
        ("model.layers.1.a.weight", "F8_E4M3", &[2, 32], vec![0; 64]),
        ("model.layers.1.a.weight_scale", "F32", &[1, 1], vec![0; 4]),
        ("x", "NEW", &[usize::MAX, usize::MAX], vec![0; 4]),
    ];
    let inspection = lucid_checkpoint::inspect(&checkpoint(&tensors));
    let group = &inspection.modules[0];
    assert_eq!((group.pattern.as_str(), group.count), ("model.layers.{0..1}.a", 2));
    assert_eq!((group.layout.as_str(), group.bytes), ("unsupported: FP8 with scales", 136));
    assert!(inspection.notices[0].contains("model.layers.0.a.weight"), "{:?}", inspection.notices);
    assert!(inspection.notices[0].contains("1 more like it"), "{:?}", inspection.notices);
}

fn changed(path: &str, value: Value) -> Result<Config, Error> {
    let mut config = config();
    *config.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
    Config::from_json("config.json", config.to_string().as_bytes())
}

#[test]
fn config_fields() {
    assert_says(Config::from_json("config.json", b"{"), &["config.json", "JSON"]);
    assert_says(Config::from_json("config.json", b"[1]"), &["config.json", "object"]);
    for (field, bad) in [
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(-8)),
        ("num_attention_heads", json!("8")),
        ("num_attention_heads", json!(8.5)),
        ("num_attention_heads", Value::Null),
        ("num_attention_heads", json!(1u64 << 28)),
        ("hidden_size", json!(u64::MAX)),
        ("num_hidden_layers", json!(1_000_000)),
        ("qk_rope_head_dim", json!(63)),
        ("rms_norm_eps", json!(0)),
        ("rope_theta", json!(-1)),
        ("rope_interleave", json!(1)),
        ("num_experts_per_tok", json!(33)),
        ("n_group", json!(5)),
        ("topk_group", json!(2)),
        ("n_shared_experts", json!(1 << 27)),
        ("scoring_func", json!("relu")),
        ("topk_method", json!("greedy")),
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("eos_token_id", json!(4096)),
        ("eos_token_id", json!([1, "x"])),
        ("bos_token_id", json!(-1)),
        ("architectures", json!(["LlamaForCausalLM"])),
        ("architectures", json!([])),
        ("architectures", json!("DeepseekV3ForCausalLM")),
        ("torch_dtype", Value::Null),
        ("quantization_config", json!("nvfp4")),
    ] {
        let named = if field == "torch_dtype" { "dtype" } else { field };
        assert_says(changed(&format!("/{field}"), bad), &["config.json", named]);
    }
    for (field, bad) in [
        ("factor", json!(0.5)),
        ("factor", Value::Null),
        ("original_max_position_embeddings", json!(0)),
        ("rope_type", json!("longrope")),
        ("beta_fast", json!("32")),
    ] {
        let field_path = format!("rope_scaling.{field}");
        assert_says(changed(&format!("/rope_scaling/{field}"), bad), &["config.json", &field_path]);
    }
}

#[test]
fn config_spellings() {
    let base = changed("/use_cache", json!(true)).unwrap();
    // transformers 5: theta and scaling together.
    let mut new = config();
    let mut rope = new["rope_scaling"].take();
    rope["rope_theta"] = new["rope_theta"].take();
    new["rope_parameters"] = rope;
    new["dtype"] = new["torch_dtype"].take();
    let parse = |config: &Value| Config::from_json("config.json", config.to_string().as_bytes());
    assert_eq!(parse(&new).unwrap(), base);
    new["rope_theta"] = json!(10_000);
    assert_says(parse(&new), &["rope_theta", "10000", "50000"]);

    assert_eq!(changed("/eos_token_id", json!([3842])).unwrap(), base);
    assert_eq!(changed("/num_attention_heads", json!(8.0)).unwrap(), base);
    assert_eq!(changed("/rope_scaling", Value::Null).unwrap().rope_scaling, None);
    let dense = changed("/n_routed_experts", Value::Null).unwrap();
    assert!(dense.moe.is_none() && (0..4).all(|i| !dense.is_moe_layer(i)));
}

#[test]
fn generation_fields() {
    let parse =
        |json: Value| Generation::from_json("generation_config.json", json.to_string().as_bytes(), 4096);
    for (field, bad) in [
        ("temperature", json!(-0.1)),
        ("temperature", json!("hot")),
        ("top_p", json!(1.5)),
        ("top_k", json!(-1)),
        ("eos_token_id", json!([4096])),
        ("do_sample", json!("yes")),
    ] {
        assert_says(parse(json!({field: bad})), &["generation_config.json", field]);
    }
    assert_eq!(parse(json!({"temperature": null})).unwrap(), Generation::default());
}
