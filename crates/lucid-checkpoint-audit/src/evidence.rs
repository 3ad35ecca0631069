//! What was seen of a checkpoint, bounded in size: the checks need nothing else, and no weights.

use serde::{Deserialize, Serialize};

use crate::statistics::Statistics;
use crate::tokenizer::TokenizerFacts;

/// A list that keeps its first entries and counts all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Capped<T> {
    /// The first entries.
    pub kept: Vec<T>,
    /// How many there were; more than are kept when the list was cut.
    pub total: u64,
}

impl<T> Default for Capped<T> {
    fn default() -> Self {
        Capped { kept: Vec::new(), total: 0 }
    }
}

impl<T> Capped<T> {
    /// Adds an entry; only counted when `cap` are there already.
    pub fn push(&mut self, cap: usize, entry: T) {
        self.total = self.total.saturating_add(1);
        if self.kept.len() < cap {
            self.kept.push(entry);
        }
    }

    /// Whether there was none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }
}

/// The container of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Container {
    /// A folder with `*.safetensors`.
    Safetensors,
    /// One `.gguf` file or the parts of one.
    Gguf,
    /// Neither was found.
    #[default]
    None,
}

/// Everything that was gathered of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointEvidence {
    /// What was pointed at.
    pub location: String,
    /// How the weights are stored.
    pub container: Container,
    /// The files of the folder that belong to a checkpoint; at most 4,096.
    pub files: Capped<FileFacts>,
    /// The files that should hold weights; at most 4,096.
    pub shards: Capped<ShardFacts>,
    /// Shards that the others' names (`-00002-of-00005`) or the index promise and that are not there; at most 64.
    pub missing_shards: Capped<String>,
    /// How many shards the sets in the folder say they have: more than one entry when two sets lie side by side.
    pub shard_sets: Vec<u32>,
    /// Of a GGUF model, the part that was pointed at, when it is not the first.
    pub pointed_at_part: Option<String>,
    /// The index files beside the shards; at most 8.
    pub indexes: Vec<IndexFacts>,
    /// Tensors that two shards hold; at most 64.
    pub duplicates: Capped<Duplicate>,
    /// All tensors, those put together that differ only in layer or expert number; at most 20,000 groups.
    pub groups: Capped<TensorGroup>,
    /// How language tensors are prefixed, with how many of each: `model.`, `language_model.model.`, `language_model.`.
    pub prefixes: Vec<(String, u64)>,
    /// The sizes that config.json (or GGUF's metadata) gives the model.
    pub sizes: Option<ModelSizes>,
    /// Why there are no [`sizes`](Self::sizes).
    pub sizes_problem: Option<String>,
    /// What the files declare about quantization.
    pub quantization: Option<QuantizationFacts>,
    /// What the bytes of the weights say; `None` when they were not read.
    pub statistics: Option<Statistics>,
    /// Digests, found and expected; `None` when none were computed.
    pub digests: Option<DigestFacts>,
    /// Tokenizer, template and special ids.
    pub tokenizer: Option<TokenizerFacts>,
    /// What could not be read, or was odd, one sentence each; at most 200.
    pub notes: Capped<String>,
    /// How long gathering took.
    pub seconds: f64,
}

/// The most notes that are kept.
pub(crate) const MAX_NOTES: usize = 200;

impl CheckpointEvidence {
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(MAX_NOTES, shortened(&note.into(), 500));
    }
}

/// A text of at most `most` characters, with a mark where it was cut.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// A file of the folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Its name in the folder; bytes that are no UTF-8 replaced.
    pub name: String,
    /// Its length, through links.
    pub bytes: u64,
    /// What it is.
    pub kind: FileKind,
}

/// What a name in the folder stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// An ordinary file.
    File,
    /// A download that has not ended: `.incomplete`, `.part`, `.aria2`, `.crdownload`.
    Incomplete,
    /// A folder where a file is expected.
    Folder,
    /// A link whose target is missing, leads out of the root, or runs in a circle.
    BrokenLink,
    /// A pipe, a socket, a device.
    Other,
}

/// A file that should hold weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardFacts {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Bytes before the data.
    pub header_bytes: u64,
    /// The length that the header describes.
    pub described_bytes: u64,
    /// Tensors that it describes.
    pub tensors: u64,
    /// Bytes in holes of the file system.
    pub hole_bytes: u64,
    /// What is wrong with it; at most 64.
    pub problems: Capped<ExtentProblem>,
}

/// What is wrong with a shard's extents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExtentProblem {
    /// Which kind.
    pub kind: ExtentKind,
    /// The tensor that it hits, if one.
    pub tensor: Option<String>,
    /// Where, in bytes from the beginning of the file.
    pub at: Option<u64>,
    /// How many bytes it concerns.
    pub bytes: Option<u64>,
    /// The problem in words.
    pub text: String,
}

/// Kinds of [`ExtentProblem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExtentKind {
    /// No byte in it.
    Empty,
    /// A folder, a broken link, a pipe.
    NotAFile,
    /// The operating system refused to read it.
    Unreadable,
    /// A Git LFS pointer in place of the weights.
    LfsPointer,
    /// A web page or an error message in place of the weights.
    WebPage,
    /// The header is no header of this format.
    Header,
    /// The file ends before the last tensor does.
    Short,
    /// Bytes after the last tensor.
    Long,
    /// Bytes between two tensors that belong to none.
    Gap,
    /// Two tensors share bytes.
    Overlap,
    /// Shape, type and offsets of a tensor contradict each other.
    WrongSize,
    /// A name is there twice.
    DuplicateName,
    /// A GGUF tensor begins off the alignment.
    Misaligned,
    /// A part of a split GGUF model with another number or count than its name says.
    Split,
    /// A hole of the file system inside a tensor: it reads as zeros.
    Hole,
}

/// A tensor that two shards hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Duplicate {
    /// Its name.
    pub tensor: String,
    /// One of the shards.
    pub first: String,
    /// The other.
    pub second: String,
    /// Whether the index lists both files.
    pub both_listed: bool,
}

/// An index file against the shards' headers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IndexFacts {
    /// Its name.
    pub name: String,
    /// Why it can't be read as an index.
    pub problem: Option<String>,
    /// Entries of its weight map.
    pub entries: u64,
    /// Tensors that it lists and no shard holds; at most 64.
    pub absent: Capped<String>,
    /// Of those, how many should be in a shard that is there.
    pub absent_from_present_shards: u64,
    /// Tensors of listed shards that it does not list; at most 64.
    pub unlisted: Capped<String>,
    /// Shards that are there and that it does not name; at most 64.
    pub unlisted_shards: Capped<String>,
    /// Tensors in another shard than it says; at most 64.
    pub moved: Capped<String>,
    /// `metadata.total_size`.
    pub total_size: Option<u64>,
    /// The bytes of all tensors.
    pub tensor_bytes: u64,
}

/// Tensors that differ only in layer and expert number, of one type and shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorGroup {
    /// The name with `*` for layer and expert, without `language_model.`: `model.layers.*.mlp.experts.*.gate_proj.weight`.
    pub pattern: String,
    /// The element type as the file spells it.
    pub dtype: String,
    /// Dimensions, slowest first.
    pub shape: Vec<u64>,
    /// Which there are.
    pub members: Vec<Members>,
}

/// The members of a group in one layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// The layer, if the name has one.
    pub layer: Option<u32>,
    /// Runs of expert numbers, both ends included; empty when the name has none.
    pub experts: Vec<(u32, u32)>,
}

/// The sizes of the model, of `lucid_checkpoint::Config`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelSizes {
    /// `architectures[0]`.
    pub architecture: String,
    /// `vocab_size`.
    pub vocab: u64,
    /// `hidden_size`.
    pub hidden: u64,
    /// `num_hidden_layers`.
    pub layers: u32,
    /// Which layers are mixtures of experts, as runs with both ends.
    pub moe_layers: Vec<(u32, u32)>,
    /// `num_nextn_predict_layers`.
    pub nextn: u32,
    /// `intermediate_size`.
    pub intermediate: u64,
    /// `moe_intermediate_size`.
    pub moe_intermediate: u64,
    /// `n_routed_experts`.
    pub experts: u32,
    /// `n_shared_experts`.
    pub shared_experts: u64,
    /// `num_experts_per_tok`.
    pub experts_per_token: u32,
    /// `num_attention_heads`.
    pub heads: u64,
    /// `q_lora_rank`; 0 for none.
    pub q_lora: u64,
    /// `kv_lora_rank`.
    pub kv_lora: u64,
    /// `qk_nope_head_dim`.
    pub nope: u64,
    /// `qk_rope_head_dim`.
    pub rope: u64,
    /// `v_head_dim`.
    pub value: u64,
    /// `index_n_heads` and `index_head_dim` of sparse attention.
    pub indexer: Option<(u64, u64)>,
    /// Layers that run their own indexer, as runs; empty for all.
    pub indexer_layers: Vec<(u32, u32)>,
    /// The head is the embedding.
    pub tied: bool,
}

/// What the files declare about quantization.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QuantizationFacts {
    /// `modelopt`, `compressed-tensors`, `fp8`.
    pub method: Option<String>,
    /// `NVFP4`, `pack-quantized`, `e4m3`.
    pub algorithm: Option<String>,
    /// How the KV cache is meant to be stored: `FP8`.
    pub kv_cache: Option<String>,
    /// Patterns of modules that are not quantized; at most 4,096.
    pub ignore: Capped<String>,
    /// The files that say so.
    pub sources: Vec<String>,
    /// Whether activations have static scales (`input_activations.dynamic: false`).
    pub static_input_scales: Option<bool>,
    /// Whether two files contradict each other, and how.
    pub contradiction: Option<String>,
}

/// Digests, found and expected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DigestFacts {
    /// A file each; at most 4,096.
    pub files: Capped<FileDigest>,
    /// Files that the manifest names and that are not there; at most 64.
    pub absent: Capped<String>,
    /// Where the expected digests come from, as words.
    pub sources: Vec<String>,
    /// Bytes that were hashed.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
}

/// The digest of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of its bytes, hexadecimal; `None` when it was not hashed.
    pub sha256: Option<String>,
    /// What it should be, if anything says so.
    pub expected: Option<String>,
    /// The length that it should have, if anything says so.
    pub expected_bytes: Option<u64>,
    /// What says so: `manifest.txt`, `Hugging Face cache blob`.
    pub source: Option<String>,
    /// Whether the file holds weights.
    pub weights: bool,
}
