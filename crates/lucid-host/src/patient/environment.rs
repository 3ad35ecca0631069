//! Which environment variables of a serving process matter, and which may never be kept.

use std::collections::BTreeMap;

use lucid_findings::redact;

/// Longer values (a pasted JSON, a generated path list) are cut, with a mark.
const LONGEST_VALUE: usize = 2_048;
/// More variables than this are no environment but an attack or a mistake.
const MOST_VARIABLES: usize = 400;

/// Prefixes of variables that decide how an engine computes, loads or communicates.
const PREFIXES: [&str; 31] = [
    "VLLM_",
    "SGLANG_",
    "SGL_",
    "CUDA_",
    "NCCL_",
    "NVIDIA_",
    "NVSHMEM_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "FLASHINFER_",
    "FLASH_ATTENTION_",
    "DG_",
    "DEEP_GEMM_",
    "DEEPEP_",
    "GGML_",
    "LLAMA_",
    "LMCACHE_",
    "MOONCAKE_",
    "RAY_",
    "GLOO_",
    "UCX_",
    "OMP_",
    "MKL_",
    "HF_",
    "TRANSFORMERS_",
    "SAFETENSORS_",
    "TOKENIZERS_",
    "PYTHON",
    "RUNAI_STREAMER_",
    "KINETO_",
];

/// Single variables that matter.
const NAMES: [&str; 12] = [
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "HOME",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "NO_PROXY",
    "LOCAL_RANK",
    "WORLD_SIZE",
];

/// The variables that matter, without secrets. Names that hold one (`*TOKEN*`, `*KEY*`, …) are dropped whatever their value.
pub(crate) fn relevant<'a>(
    variables: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> (BTreeMap<String, String>, Vec<String>) {
    let mut kept = BTreeMap::new();
    let mut notes = Vec::new();
    for (name, value) in variables {
        if !matters(name) || names_a_secret(name) {
            continue;
        }
        if kept.len() == MOST_VARIABLES {
            notes.push(format!("only the first {MOST_VARIABLES} environment variables were kept"));
            break;
        }
        let mut value = redact(value).into_owned();
        if value.len() > LONGEST_VALUE {
            let end = (0..=LONGEST_VALUE).rev().find(|&end| value.is_char_boundary(end)).unwrap_or(0);
            value.truncate(end);
            value.push('…');
            notes.push(format!("the value of {name} was cut at {LONGEST_VALUE} bytes"));
        }
        kept.insert(name.to_owned(), value);
    }
    (kept, notes)
}

fn matters(name: &str) -> bool {
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// `HF_TOKEN`, `VLLM_API_KEY`; not `TOKENIZERS_PARALLELISM`.
pub(crate) fn names_a_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    !name.starts_with("TOKENIZERS_")
        && ["TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTHORIZATION"]
            .iter()
            .any(|word| name.contains(word))
}

/// `NAME=value` apart.
pub(crate) fn assignment(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let first = name.chars().next()?;
    let valid = (first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    valid.then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_noise_are_dropped() {
        let long = "x".repeat(5_000);
        let (kept, notes) = relevant([
            ("HF_TOKEN", "hf_abcdefghijklmnopqrst1"),
            ("VLLM_API_KEY", "short"),
            ("NCCL_AUTH_SECRET", "abc"),
            ("SGLANG_ADMIN_PASSWORD", "abc"),
            ("TOKENIZERS_PARALLELISM", "false"),
            ("VLLM_USE_V1", "1"),
            ("HISTFILE", "/root/.history"),
            ("LD_PRELOAD", "/opt/libx.so"),
            ("HF_ENDPOINT", "https://bob:hunter2@mirror"),
            ("NCCL_DEBUG", &long),
        ]);
        assert_eq!(
            kept.keys().map(String::as_str).collect::<Vec<_>>(),
            ["HF_ENDPOINT", "LD_PRELOAD", "NCCL_DEBUG", "TOKENIZERS_PARALLELISM", "VLLM_USE_V1"]
        );
        assert!(!kept["HF_ENDPOINT"].contains("hunter2"));
        assert!(kept["NCCL_DEBUG"].len() < 3_000 && notes[0].contains("NCCL_DEBUG"));
    }
}
