//! Every real config parses to the values that its checkpoint was published with.

#![allow(clippy::unwrap_used)] // A test fails by panicking, also in a function that is not marked as one.

use std::path::{Path, PathBuf};

use lucid_checkpoint::{Config, Error, Files, IndexerLayer, ScoringFunc, TokenId, Yarn};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs")
}

fn parse(name: &str) -> Result<Config, Error> {
    let file = format!("{name}_config.json");
    Config::from_json(&file, &std::fs::read(folder().join(&file)).unwrap())
}

/// With `hf_quant_config.json` beside it, as in a checkpoint folder.
fn read(name: &str) -> (Config, Vec<String>) {
    let place = tempfile::tempdir().unwrap();
    for (from, to) in [("config", "config"), ("hf_quant_config", "hf_quant_config")] {
        let from = folder().join(format!("{name}_{from}.json"));
        if from.exists() {
            std::fs::copy(from, place.path().join(format!("{to}.json"))).unwrap();
        }
    }
    let mut notices = Vec::new();
    let config = Config::read(&Files::open(place.path()).unwrap(), &mut notices).unwrap();
    (config, notices)
}

fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId).collect()
}

fn yarn(factor: f64, beta_fast: f64) -> Option<Yarn> {
    Some(Yarn {
        factor,
        original_max_position_embeddings: 4096,
        beta_fast,
        beta_slow: 1.0,
        mscale: Some(1.0),
        mscale_all_dim: Some(1.0),
    })
}

/// What all of the family share.
fn check_family(c: &Config) {
    assert_eq!((c.kv_lora_rank, c.qk_rope_head_dim), (512, 64));
    assert_eq!(c.moe_layer_freq, 1);
    assert!(c.rope_interleave && !c.tie_word_embeddings);
    assert_eq!(c.dtype, "bfloat16");
    let moe = c.moe.as_ref().unwrap();
    assert_eq!((moe.moe_intermediate_size, moe.n_shared_experts, moe.num_experts_per_tok), (2048, 1, 8));
    assert_eq!((moe.scoring_func, moe.norm_topk_prob), (ScoringFunc::Sigmoid, true));
    for layer in 0..c.num_hidden_layers {
        assert_eq!(c.is_moe_layer(layer), layer >= c.first_k_dense_replace);
    }
}

fn check_kimi(c: &Config) {
    check_family(c);
    assert_eq!((c.vocab_size, c.hidden_size, c.num_hidden_layers), (163_840, 7168, 61));
    assert_eq!((c.first_k_dense_replace, c.intermediate_size, c.num_attention_heads), (1, 18_432, 64));
    assert_eq!((c.q_lora_rank, c.qk_nope_head_dim, c.v_head_dim), (Some(1536), 128, 128));
    assert_eq!((c.rope_theta, c.num_nextn_predict_layers), (50_000.0, 0));
    assert_eq!(c.bos_token_id, Some(TokenId(163_584)));
    let moe = c.moe.as_ref().unwrap();
    assert_eq!((moe.n_routed_experts, moe.n_group, moe.topk_group), (384, 1, 1));
    assert_eq!(moe.routed_scaling_factor, 2.827);
    assert!(c.indexer.is_none());
}

fn check_deepseek(c: &Config) {
    check_family(c);
    assert_eq!((c.vocab_size, c.hidden_size, c.num_hidden_layers), (129_280, 7168, 61));
    assert_eq!((c.first_k_dense_replace, c.intermediate_size, c.num_attention_heads), (3, 18_432, 128));
    assert_eq!((c.q_lora_rank, c.qk_nope_head_dim, c.v_head_dim), (Some(1536), 128, 128));
    assert_eq!((c.rms_norm_eps, c.rope_theta), (1e-6, 10_000.0));
    assert_eq!((c.rope_scaling, c.max_position_embeddings), (yarn(40.0, 32.0), 163_840));
    assert_eq!((c.num_nextn_predict_layers, c.bos_token_id), (1, Some(TokenId(0))));
    assert_eq!(c.eos_token_ids, tokens(&[1]));
    let moe = c.moe.as_ref().unwrap();
    assert_eq!((moe.n_routed_experts, moe.n_group, moe.topk_group), (256, 8, 4));
    assert_eq!(moe.routed_scaling_factor, 2.5);
}

fn check_glm(c: &Config) {
    check_family(c);
    assert_eq!(c.architecture, "GlmMoeDsaForCausalLM");
    assert_eq!((c.vocab_size, c.hidden_size, c.num_hidden_layers), (154_880, 6144, 78));
    assert_eq!((c.first_k_dense_replace, c.intermediate_size, c.num_attention_heads), (3, 12_288, 64));
    assert_eq!((c.q_lora_rank, c.qk_nope_head_dim, c.v_head_dim), (Some(2048), 192, 256));
    assert_eq!((c.rms_norm_eps, c.rope_scaling, c.num_nextn_predict_layers), (1e-5, None, 1));
    assert_eq!(c.eos_token_ids, tokens(&[154_820, 154_827, 154_829]));
    let moe = c.moe.as_ref().unwrap();
    assert_eq!((moe.n_routed_experts, moe.n_group, moe.topk_group), (256, 1, 1));
    assert_eq!(moe.routed_scaling_factor, 2.5);
    let indexer = c.indexer.as_ref().unwrap();
    assert_eq!((indexer.index_n_heads, indexer.index_head_dim, indexer.index_topk), (32, 128, 2048));
    assert!(indexer.rope_interleave);
}

#[test]
fn kimi_k2() {
    let c = parse("moonshotai--Kimi-K2-Instruct").unwrap();
    check_kimi(&c);
    assert_eq!((c.architecture.as_str(), c.model_type.as_str()), ("DeepseekV3ForCausalLM", "kimi_k2"));
    assert_eq!((c.rms_norm_eps, c.max_position_embeddings), (1e-6, 131_072));
    assert_eq!(c.rope_scaling, yarn(32.0, 1.0));
    assert_eq!(c.eos_token_ids, tokens(&[163_585]));
    let q = c.quantization.unwrap();
    assert_eq!((q.method.as_str(), q.block_size), ("fp8", Some([128, 128])));
}

#[test]
fn kimi_k25_and_later_hide_the_text_model_inside() {
    for (name, eos) in [
        ("moonshotai--Kimi-K2.5", 163_585),
        ("nvidia--Kimi-K2.5-NVFP4", 163_585),
        ("nvidia--Kimi-K2.6-NVFP4", 163_586),
        ("nvidia--Kimi-K2.7-Code-NVFP4", 163_586),
        ("kimi-vendor-verifier", 163_586),
    ] {
        let c = parse(name).unwrap();
        check_kimi(&c);
        assert_eq!(c.architecture, "KimiK25ForConditionalGeneration", "{name}");
        assert_eq!((c.rms_norm_eps, c.max_position_embeddings), (1e-5, 262_144), "{name}");
        assert_eq!(c.rope_scaling, yarn(64.0, 32.0), "{name}");
        assert_eq!(c.eos_token_ids, tokens(&[eos]), "{name}");
    }
}

#[test]
fn kimi_k25_quantization_is_found_in_either_place() {
    let original = parse("moonshotai--Kimi-K2.5").unwrap().quantization.unwrap();
    assert_eq!(original.method, "compressed-tensors");
    assert_eq!(original.algorithm.as_deref(), Some("pack-quantized"));
    assert_eq!(original.group_size, Some(32));
    assert_eq!(original.ignore.len(), 4);
    assert_eq!(original.kv_cache_algorithm, None);

    let nvidia = parse("nvidia--Kimi-K2.5-NVFP4").unwrap().quantization.unwrap();
    assert_eq!((nvidia.method.as_str(), nvidia.algorithm.as_deref()), ("modelopt", Some("NVFP4")));
    assert_eq!(nvidia.group_size, Some(16), "it is inside config_groups there");
    assert_eq!(nvidia.kv_cache_algorithm.as_deref(), Some("FP8"));
    assert_eq!(nvidia.producer_version.as_deref(), Some("0.41.0"));
    assert_eq!(nvidia.ignore.len(), 64);
}

#[test]
fn deepseek() {
    for name in ["deepseek-ai--DeepSeek-V3", "deepseek-ai--DeepSeek-R1", "nvidia--DeepSeek-V3.1-NVFP4"] {
        let c = parse(name).unwrap();
        check_deepseek(&c);
        assert_eq!(c.architecture, "DeepseekV3ForCausalLM", "{name}");
        assert!(c.indexer.is_none(), "{name}");
    }
    for name in ["deepseek-ai--DeepSeek-V3.2", "nvidia--DeepSeek-V3.2-NVFP4"] {
        let c = parse(name).unwrap();
        check_deepseek(&c);
        assert_eq!(c.architecture, "DeepseekV32ForCausalLM", "{name}");
        let indexer = c.indexer.unwrap();
        assert_eq!((indexer.index_n_heads, indexer.index_head_dim, indexer.index_topk), (64, 128, 2048));
        assert!(!indexer.rope_interleave, "{name} does not say so, unlike GLM");
        assert_eq!(indexer.layers, None);
    }
}

#[test]
fn glm_5() {
    for name in ["zai-org--GLM-5", "zai-org--GLM-5.1", "zai-org--GLM-5-FP8", "zai-org--GLM-5.1-FP8"] {
        let c = parse(name).unwrap();
        check_glm(&c);
        assert_eq!((c.rope_theta, c.max_position_embeddings), (1e6, 202_752), "{name}");
        assert_eq!(c.bos_token_id, None, "{name}");
    }
    for name in ["zai-org--GLM-5.2", "zai-org--GLM-5.2-FP8"] {
        let c = parse(name).unwrap();
        check_glm(&c);
        assert_eq!((c.rope_theta, c.max_position_embeddings), (8e6, 1_048_576), "{name}");
        let layers = c.indexer.unwrap().layers.unwrap();
        let full: Vec<usize> = (0..78).filter(|&i| layers[i] == IndexerLayer::Full).collect();
        let expected: Vec<usize> = [0, 1].into_iter().chain((2..78).step_by(4)).collect();
        assert_eq!(full, expected, "{name}");
    }
    for name in ["nvidia--GLM-5-NVFP4", "nvidia--GLM-5.1-NVFP4", "nvidia--GLM-5.2-NVFP4"] {
        check_glm(&parse(name).unwrap());
    }
    let fp8 = parse("zai-org--GLM-5-FP8").unwrap().quantization.unwrap();
    assert!(fp8.ignore.iter().any(|name| name == "lm_head"), "modules_to_not_convert is read");
}

#[test]
fn hf_quant_config_declares_what_config_json_leaves_out() {
    for (name, patterns) in [("nvidia--DeepSeek-V3.1-NVFP4", 246), ("nvidia--GLM-5-NVFP4", 471)] {
        assert!(parse(name).unwrap().quantization.is_none(), "{name}: config.json says nothing");
        let (config, notices) = read(name);
        let q = config.quantization.unwrap();
        assert_eq!(
            (q.method.as_str(), q.algorithm.as_deref(), q.group_size),
            ("modelopt", Some("NVFP4"), Some(16))
        );
        assert_eq!(q.kv_cache_algorithm.as_deref(), Some("FP8"));
        assert_eq!(q.ignore.len(), patterns, "{name}");
        assert_eq!(notices, Vec::<String>::new());
    }
    let (config, notices) = read("nvidia--Kimi-K2.6-NVFP4");
    assert_eq!(config.quantization.unwrap().group_size, Some(16));
    assert_eq!(notices, Vec::<String>::new(), "both files say NVFP4");
}

#[test]
fn an_architecture_of_another_family_is_named() {
    let error = parse("moonshotai--Kimi-K3").unwrap_err().to_string();
    for part in
        ["moonshotai--Kimi-K3_config.json", "architectures", "KimiK3ForConditionalGeneration", "GlmMoeDsa"]
    {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn every_file_in_the_folder_is_tested_above() {
    let source = include_str!("configs.rs");
    for entry in std::fs::read_dir(folder()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        if let Some(name) = file.strip_suffix("_config.json") {
            let name = name.strip_suffix("_hf_quant").unwrap_or(name);
            assert!(source.contains(&format!("\"{name}\"")), "{name} has no test");
        }
    }
}
