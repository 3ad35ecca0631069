//! Why an engine could not be made or could not go on.

/// Errors of loading and computing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The checkpoint could not be read, or does not hold what its config implies.
    #[error(transparent)]
    Checkpoint(#[from] lucid_checkpoint::Error),
    /// The model is known, but the engine can't run it.
    #[error("{what} is not supported by the engine yet: {hint}")]
    Unsupported {
        /// The part of the model.
        what: String,
        /// What is supported.
        hint: &'static str,
    },
    /// An option that makes no sense.
    #[error("{option} is {value}: {expected}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A token outside of the vocabulary.
    #[error("token {token} is outside of the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// More tokens than the model has positions for.
    #[error("{tokens} tokens are more than the model's context of {max}")]
    TooLong {
        /// Tokens that were given.
        tokens: usize,
        /// Positions.
        max: usize,
    },
    /// The model computed something that is not a number.
    #[error("the logits at position {position} are not finite: the weights or the arithmetic are broken")]
    NotFinite {
        /// The position.
        position: usize,
    },
    /// No usable GPU, driver or kernel compiler.
    #[error("no CUDA here: {problem}; {hint}")]
    NoGpu {
        /// What is missing or too old.
        problem: String,
        /// What to do.
        hint: &'static str,
    },
    /// The GPU's memory is too small.
    #[error(
        "the GPU has no room for {wanted} more bytes ({free} of {total} are free): use a smaller kv_cache_tokens or \
         max_step_tokens, or end other programs on this GPU (see nvidia-smi)"
    )]
    GpuMemory {
        /// Bytes that were asked for.
        wanted: usize,
        /// Bytes that are free.
        free: usize,
        /// Bytes in all.
        total: usize,
    },
    /// The GPU failed; its memory and all requests on it are lost.
    #[error(
        "the GPU failed while {doing}: {problem}; check nvidia-smi and the kernel's log (dmesg) for Xid errors, and restart"
    )]
    Gpu {
        /// What was being done.
        doing: &'static str,
        /// What the driver says.
        problem: String,
    },
    /// A run can't be made to fit the memory that it may have.
    #[error(
        "memory_limit is {:.2} GB, and this model with these prompts needs {:.2} GB: raise it, or give shorter prompts",
        *limit as f64 / 1e9, *least as f64 / 1e9
    )]
    Memory {
        /// Bytes that are allowed.
        limit: u64,
        /// Bytes that are needed at the least.
        least: u64,
    },
    /// The file that an interrupted run goes on from can't be written or read.
    #[error("{}: {problem}", path.display())]
    State {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Ranks in several processes don't find each other, or one is lost.
    #[error("the model's ranks can't work together: {problem}; {hint}")]
    World {
        /// Who is missing, or what is wrong.
        problem: String,
        /// What to do.
        hint: &'static str,
    },
    /// The operating system refused memory for weights.
    #[error("no memory for a copy of the weights: {0}; stop other programs, or take a smaller model")]
    Copy(std::io::Error),
    /// The operating system refused threads or memory.
    #[error("cannot start the engine's threads: {0}")]
    Threads(std::io::Error),
}
