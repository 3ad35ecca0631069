//! What can be wrong with a checkpoint. Each text names the file, the field or tensor, the value, and what to do.

/// Why a checkpoint, or a part of it, could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to open, list or map something.
    #[error("cannot read {location}: {cause}")]
    Io {
        /// The file or folder.
        location: String,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// The model's path is neither a folder nor a GGUF file.
    #[error(
        "{location} is not a model: give the folder that holds config.json and the *.safetensors files, or a .gguf file"
    )]
    NotAFolder {
        /// What was given.
        location: String,
    },
    /// A folder holds several GGUF models.
    #[error("{location} holds {count} .gguf files of several models: give the path of one of them")]
    SeveralModels {
        /// The folder.
        location: String,
        /// How many files.
        count: usize,
    },
    /// A file was asked for by something that is not a plain file name.
    #[error("{name:?} is not a plain file name")]
    FileName {
        /// What was asked for.
        name: String,
    },
    /// A file that every checkpoint has is absent.
    #[error("{location} is missing: {hint}")]
    MissingFile {
        /// Where it was looked for.
        location: String,
        /// What to do.
        hint: &'static str,
    },
    /// A JSON file does not parse.
    #[error("{location} is not valid JSON: {cause}")]
    Json {
        /// The file.
        location: String,
        /// Where and why the parser stopped.
        cause: serde_json::Error,
    },
    /// A field of a JSON file is missing, has the wrong type, or makes no sense.
    #[error("{location}: {field}: {problem}")]
    Field {
        /// The file.
        location: String,
        /// The field, with the objects around it: `text_config.rope_scaling.factor`.
        field: String,
        /// The value and what was expected.
        problem: String,
    },
    /// A safetensors header contradicts itself or its file.
    #[error("{location}: damaged safetensors header: {problem}")]
    Header {
        /// The shard.
        location: String,
        /// What is wrong, with the tensor's name where there is one.
        problem: String,
    },
    /// A GGUF file contradicts itself or the format.
    #[error("{location}: damaged GGUF header at byte {offset}: {problem}")]
    Gguf {
        /// The file.
        location: String,
        /// Where the reader stood.
        offset: usize,
        /// What is wrong.
        problem: String,
    },
    /// A shard is shorter than its header says.
    #[error(
        "{location} is truncated: its header describes {described} bytes, the file has {found}, so {} bytes are missing \
         ({tensor} is cut); download the file again", described.saturating_sub(*found)
    )]
    Truncated {
        /// The shard.
        location: String,
        /// File length in bytes that the header calls for.
        described: u64,
        /// File length in bytes.
        found: u64,
        /// The first thing in the file that is not whole.
        tensor: String,
    },
    /// One tensor name stands in two shards, so its value is ambiguous.
    #[error(
        "tensor {name} is in two shards, {first} and {second}: remove the file that does not belong to this checkpoint"
    )]
    DuplicateTensor {
        /// The tensor.
        name: String,
        /// One shard.
        first: String,
        /// The other shard.
        second: String,
    },
    /// A tensor that was asked for is in no shard.
    #[error("tensor {name} is in none of the shards of {location} (looked for {tried})")]
    MissingTensor {
        /// The tensor's canonical name.
        name: String,
        /// The checkpoint.
        location: String,
        /// All spellings that were tried.
        tried: String,
    },
    /// A tensor's shape is not the one that `config.json` implies.
    #[error(
        "{shard}: tensor {tensor} has shape {found:?}, expected {expected:?}: the file does not fit config.json"
    )]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shard.
        shard: String,
        /// The stored shape.
        found: Vec<usize>,
        /// The shape that was asked for.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a way that Lucid does not decode (yet).
    #[error("{shard}: tensor {tensor} is stored as {layout}, which is not supported; supported: {supported}")]
    UnsupportedLayout {
        /// The tensor.
        tensor: String,
        /// Its shard.
        shard: String,
        /// How it is stored.
        layout: String,
        /// What can be read in its place.
        supported: &'static str,
    },
    /// The tensors of one quantized matrix contradict each other.
    #[error("{shard}: tensor {tensor}: {problem}")]
    Quantized {
        /// The tensor at fault.
        tensor: String,
        /// Its shard.
        shard: String,
        /// What is wrong.
        problem: String,
    },
}
