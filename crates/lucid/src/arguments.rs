//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use lucid_engine::Device;
use lucid_server::Guise;

/// Serves DeepSeek-V3-family models (Kimi-K2, DeepSeek-V3, GLM-5), and proves that what is being served is the model.
///
/// Exit codes: 0 healthy or done, 1 findings, 2 could not decide or could not run.
#[derive(Parser)]
#[command(name = "lucid", version, propagate_version = true, arg_required_else_help = true)]
pub struct Arguments {
    /// Say more on standard error: -v for requests, -vv for everything
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// What to do
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Subcommand)]
pub enum Verb {
    /// Serve a model over an OpenAI-compatible API
    Serve(Serve),
    /// Talk to a model in the terminal
    Chat(Chat),
    /// Find out what is wrong with a deployment
    Doctor(Box<Doctor>),
    /// Gather a machine's evidence into one redacted file that `doctor --evidence` reads anywhere, later
    Collect(Box<Collect>),
    /// Follow a service while it starts and runs: phases, silences, incidents, memory
    Watch(Watch),
    /// Plant known faults, run the doctor on each, and score it
    Drill(Drill),
    /// Show what is in a checkpoint
    Inspect(Inspect),
    /// Record what a checkpoint itself says of given texts, also one that is larger than memory
    Reference(Reference),
    /// See it all in a minute: serve, ask, diagnose, plant a fault, find it
    Demo(Demo),
}

/// How the engine computes.
#[derive(Args, Clone)]
pub struct EngineArguments {
    /// Longest sequence, prompt and answer together [default: what the model has]
    #[arg(long, value_name = "TOKENS")]
    pub max_model_len: Option<usize>,
    /// Tokens that the KV cache holds, over all requests
    #[arg(long, value_name = "TOKENS", default_value_t = 65_536)]
    pub kv_cache_tokens: usize,
    /// Requests that decode together
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_num_seqs: usize,
    /// Tokens that one step computes at the most; prompts are cut into chunks [default: 2048]
    #[arg(long, value_name = "TOKENS")]
    pub max_num_batched_tokens: Option<usize>,
    /// Where to compute: cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Cpu)]
    pub device: Device,
    /// GPUs that share the model: from the device's number on, or one a process that torchrun, mpirun or srun started (on cpu: groups of threads)
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tensor_parallel_size: usize,
    /// Give each of several ranks whole routed experts instead of a part of every expert's width: for large batches
    #[arg(long)]
    pub enable_expert_parallel: bool,
    /// Where weights come from; dummy: random ones of the config's shapes, for benchmarks
    #[arg(long, value_enum, default_value_t = LoadFormatArgument::Auto)]
    pub load_format: LoadFormatArgument,
    /// Threads that compute on the processor [default: one a core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Compute every prompt from its first token; answers are the same, to the bit
    #[arg(long)]
    pub no_enable_prefix_caching: bool,
    /// Arithmetic: serving (bf16 KV cache; on a GPU also bf16 activations) or reference (f32 everywhere)
    #[arg(long, value_enum, default_value_t = ModeArgument::Serving)]
    pub mode: ModeArgument,
    /// KV cache: f32, bf16, or fp8_e4m3 with the checkpoint's k_scale (1 without one); auto is fp8_e4m3 where the checkpoint declares an FP8
    /// cache, else bf16, and in reference mode f32
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = KvCacheArgument::Auto)]
    pub kv_cache_dtype: KvCacheArgument,
    /// What NVFP4 weights are multiplied with: w4a16, or w4a4 (activations in NVFP4 too, as Blackwell's kernels compute)
    #[arg(long, value_enum, default_value_t = Nvfp4Argument::W4a16)]
    pub nvfp4: Nvfp4Argument,
    /// Epsilon of the latent norms [default: rms_norm_eps, as vLLM; transformers uses 1e-6]
    #[arg(long, value_name = "EPS")]
    pub latent_norm_eps: Option<f64>,
}

/// `--load-format`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoadFormatArgument {
    /// The checkpoint.
    Auto,
    /// Random weights.
    Dummy,
}

/// `--mode`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeArgument {
    /// bf16 KV cache; on a GPU also bf16 activations.
    Serving,
    /// f32 everywhere.
    Reference,
}

/// `--kv-cache-dtype`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvCacheArgument {
    /// As the checkpoint declares it; where it doesn't, and in reference mode, as the mode has it.
    Auto,
    /// As computed.
    F32,
    /// Half of that.
    #[value(alias = "bfloat16")]
    Bf16,
    /// A quarter, with a scale a layer.
    #[value(name = "fp8_e4m3", alias = "fp8")]
    Fp8E4m3,
}

/// `--nvfp4`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Nvfp4Argument {
    /// Activations are not quantized.
    W4a16,
    /// They are.
    W4a4,
}

/// `lucid serve`
#[derive(Args)]
pub struct Serve {
    /// Checkpoint folder (config.json and *.safetensors) or .gguf file [default: the bundled canary]
    pub model: Option<PathBuf>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Name of the model in requests [default: the folder's name]
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// How to compute
    #[command(flatten)]
    pub engine: EngineArguments,
    /// Let requests ask which experts their tokens went to (`return_routed_experts`)
    #[arg(long)]
    pub enable_return_routed_experts: bool,
    /// Let anybody empty the prefix cache (POST /reset_prefix_cache), as vLLM does with `VLLM_SERVER_DEV_MODE=1`
    #[arg(long)]
    pub server_dev_mode: bool,
    /// Make a known mistake on purpose (see `lucid drill --list`)
    #[arg(long, value_name = "FAULT", requires = "i_know_this_breaks_the_model")]
    pub plant: Option<String>,
    /// Draw the fault's place and strength from a seed
    #[arg(long, value_name = "SEED", requires = "plant")]
    pub plant_seed: Option<u64>,
    /// Needed for --plant
    #[arg(long)]
    pub i_know_this_breaks_the_model: bool,
}

/// `lucid chat`
#[derive(Args)]
pub struct Chat {
    /// Checkpoint folder, .gguf file, or http(s):// address of a server [default: the bundled canary]
    pub model: Option<String>,
    /// Which of the server's models to ask
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Answer without reasoning first
    #[arg(long)]
    pub no_thinking: bool,
    /// Sampling temperature [default: the model's]
    #[arg(long)]
    pub temperature: Option<f64>,
    /// Longest answer in tokens [default: what the context holds]
    #[arg(long, value_name = "TOKENS")]
    pub max_tokens: Option<u32>,
    /// Environment variable that holds the API key
    #[arg(long, value_name = "VARIABLE", default_value = "OPENAI_API_KEY")]
    pub api_key_env: String,
}

/// What is to be examined on a machine. Nothing of it is imported, run or changed.
#[derive(Args, Clone, Default)]
pub struct MachineArguments {
    /// Python environment of the engine: a venv, a prefix, or a site-packages folder
    #[arg(long, value_name = "FOLDER", help_heading = "On the machine")]
    pub env: Option<PathBuf>,
    /// Running engine: command, environment, ranks, packages and limits are read from /proc
    #[arg(long, value_name = "PID", help_heading = "On the machine")]
    pub pid: Option<u32>,
    /// Running docker or podman container
    #[arg(long, value_name = "NAME", help_heading = "On the machine")]
    pub container: Option<String>,
    /// Kubernetes pod: POD, NAMESPACE/POD or NAMESPACE/POD/CONTAINER
    #[arg(long, value_name = "POD", help_heading = "On the machine")]
    pub pod: Option<String>,
    /// systemd unit: its settings, its state and its journal
    #[arg(long, value_name = "NAME", help_heading = "On the machine")]
    pub unit: Option<String>,
    /// Compose file, Kubernetes manifest or unit file that starts the engine
    #[arg(long, value_name = "FILE", help_heading = "On the machine")]
    pub service_file: Option<PathBuf>,
    /// The serving command, if nothing else says it
    #[arg(long, value_name = "COMMAND", help_heading = "On the machine")]
    pub command: Option<String>,
    /// Log file, `-` for standard input; may be given several times, one for each rank
    #[arg(long, value_name = "FILE", help_heading = "On the machine")]
    pub log: Vec<PathBuf>,
    /// Where the machine's `/` is: an unpacked image, a mounted disk [default: /]
    #[arg(long, value_name = "FOLDER", help_heading = "On the machine")]
    pub root: Option<PathBuf>,
    /// Home folder of the engine's user, for its caches [default: as its environment says]
    #[arg(long, value_name = "FOLDER", help_heading = "On the machine")]
    pub home: Option<PathBuf>,
    /// Wheel as it was published, to show what a modified file looked like; may be given several times
    #[arg(long, value_name = "FILE", help_heading = "On the machine")]
    pub wheel: Vec<PathBuf>,
    /// Fetch the originals of modified files from the package index that pip and uv are set up with: only those, checked by hash
    #[arg(long, help_heading = "On the machine")]
    pub fetch_originals: bool,
    /// Digests of the checkpoint's files, as sha256sum writes them or as the hub's API lists them
    #[arg(long, value_name = "FILE", help_heading = "On the machine")]
    pub manifest: Option<PathBuf>,
    /// Where to keep hashes and statistics, so that the next run reads only what has changed
    #[arg(long, value_name = "FOLDER", help_heading = "On the machine")]
    pub cache: Option<PathBuf>,
    /// The machine: `local` for this one's GPUs, memory and limits, or user@name over your ssh
    #[arg(long, value_name = "HOST", help_heading = "On the machine")]
    pub host: Option<String>,
}

/// `lucid collect`
#[derive(Args)]
pub struct Collect {
    /// What to gather
    #[command(flatten)]
    pub machine: MachineArguments,
    /// Checkpoint folder or .gguf file: headers and statistics are gathered, not the weights
    #[arg(long, value_name = "FOLDER", help_heading = "On the machine")]
    pub checkpoint: Option<PathBuf>,
    /// Where to write the archive; `-` for standard output
    #[arg(short, long, value_name = "FILE", default_value = "lucid-evidence.zip")]
    pub output: PathBuf,
}

/// `lucid watch`
#[derive(Args)]
pub struct Watch {
    /// Log file, also while it is rotated; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["unit", "container"])]
    pub log: Option<PathBuf>,
    /// systemd unit: its journal
    #[arg(long, value_name = "NAME", conflicts_with = "container")]
    pub unit: Option<String>,
    /// docker or podman container: its log
    #[arg(long, value_name = "NAME")]
    pub container: Option<String>,
    /// Running engine: its memory, its workers' and the GPUs' are measured, too
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Stop when it serves (exit code 1 if it ends before), or when it ends
    #[arg(long, value_enum)]
    pub until: Option<Until>,
    /// Stop after this long; not ready by then is exit code 2 where that was waited for
    #[arg(long = "for", value_name = "SECONDS")]
    pub seconds: Option<u64>,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// `--until`
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Until {
    /// It answers requests.
    Ready,
    /// It has ended.
    End,
}

/// `lucid doctor`
#[derive(Args)]
pub struct Doctor {
    /// Address of an OpenAI-compatible server: http://host:port
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// The checkpoint that the server should be serving; `canary` is the bundled one
    #[arg(long, value_name = "FOLDER")]
    pub checkpoint: Option<PathBuf>,
    /// What a right server says: a record that `lucid reference` or `--record` wrote, in place of a checkpoint
    #[arg(long, value_name = "FILE", requires = "endpoint", conflicts_with = "against")]
    pub reference: Option<PathBuf>,
    /// Compare with another server that is trusted, on the same texts
    #[arg(long, value_name = "URL", requires = "endpoint")]
    pub against: Option<String>,
    /// Diagnose nothing: the endpoint is trusted, record what it says for `--reference`
    #[arg(long, value_name = "FILE", requires = "endpoint", conflicts_with_all = ["reference", "against"])]
    pub record: Option<PathBuf>,
    /// What to examine on the machine
    #[command(flatten)]
    pub machine: MachineArguments,
    /// Checkpoint on the machine that --host, --container or --pod names
    #[arg(long, value_name = "FOLDER", help_heading = "On the machine")]
    pub checkpoint_there: Option<PathBuf>,
    /// Archive that `lucid collect` wrote
    #[arg(long, value_name = "FILE", help_heading = "On the machine")]
    pub evidence: Option<PathBuf>,
    /// What you saw; it moves the priors of the causes
    #[arg(long, value_enum)]
    pub symptom: Option<SymptomArgument>,
    /// Which of the server's models to ask [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Environment variable that holds the API key
    #[arg(long, value_name = "VARIABLE", default_value = "OPENAI_API_KEY")]
    pub api_key_env: String,
    /// How much to spend
    #[arg(long, value_enum, default_value_t = DepthArgument::Standard)]
    pub depth: DepthArgument,
    /// Also run the test that the first cause names, if it isn't sure, and empty the server's prefix cache for it
    #[arg(long, requires = "endpoint")]
    pub deep: bool,
    /// Seeds prompts, secrets and sampling
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Limit for one call, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,
    /// Threads of the reference [default: one a core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Exit with 1 for findings of this severity or worse
    #[arg(long, value_enum, default_value_t = SeverityArgument::Error)]
    pub fail_on: SeverityArgument,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Also write the report as one self-contained HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// List the checks and end
    #[arg(long)]
    pub list: bool,
}

/// `--depth`
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DepthArgument {
    /// One attempt a prompt.
    Quick,
    /// Two attempts a prompt.
    Standard,
    /// Four attempts a prompt.
    Thorough,
}

/// `--symptom`
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SymptomArgument {
    /// Answers make no sense.
    Incoherent,
    /// Answers get worse over a long answer, a long prompt or over hours.
    Drift,
    /// The same words again and again.
    Repetition,
    /// Answers are empty or cut.
    EmptyAnswers,
    /// Tool calls fail.
    Tools,
    /// The process ends.
    Crash,
    /// It doesn't come up.
    Startup,
    /// It takes long to come up.
    SlowStart,
    /// It is slow.
    Slow,
    /// It stops answering.
    Hang,
}

/// `--fail-on`
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SeverityArgument {
    /// Every finding.
    Info,
    /// Warnings and errors.
    Warning,
    /// Errors.
    Error,
}

/// `lucid drill`
#[derive(Args)]
pub struct Drill {
    /// Only these cases; `healthy*` are the runs without a fault [default: all]
    #[arg(value_name = "CASE")]
    pub faults: Vec<String>,
    /// List the faults and the cause that the doctor should say, and end
    #[arg(long)]
    pub list: bool,
    /// Runs of each fault, with different seeds
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub runs: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How much each examination may cost
    #[arg(long, value_enum, default_value_t = DepthArgument::Standard)]
    pub depth: DepthArgument,
    /// Where the patient computes: cpu, cuda or cuda:N; faults that can't be planted there are left out, and said
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Cpu)]
    pub device: Device,
    /// GPUs that share the patient's model (on cpu: groups of threads)
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tensor_parallel_size: usize,
    /// Threads of the patient and of the reference; the bits are the same [default: one a core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Only faults that the doctor knows, each unknown to it: what does it say of mistakes that nobody has thought of?
    #[arg(long)]
    pub forget: bool,
    /// Let the doctor run the test that its first cause names, as `lucid doctor --deep` does
    #[arg(long)]
    pub deep: bool,
    /// Reduce what the patient tells to what another server tells: vllm, sglang or llama-cpp
    #[arg(long, value_name = "SERVER", value_parser = guise)]
    pub guise: Option<Guise>,
    /// Add every outcome to this file as it comes, one JSON object a line; what it holds already is not run again
    #[arg(long, value_name = "FILE")]
    pub outcomes: Option<PathBuf>,
    /// Run nothing: score the outcomes of these files, the causes ranked as they are today
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["faults", "outcomes"])]
    pub score: Vec<PathBuf>,
    /// Learn weights from the outcomes of --score; written if they do better on the seed and the faults that they don't know
    #[arg(long, value_name = "FILE", requires = "score")]
    pub learn: Option<PathBuf>,
    /// Write a page with the confusion matrix
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// `lucid inspect`
#[derive(Args)]
pub struct Inspect {
    /// Checkpoint folder or .gguf file [default: the bundled canary]
    pub model: Option<PathBuf>,
    /// One row for every tensor, not one for every kind
    #[arg(long)]
    pub tensors: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// `lucid reference`
#[derive(Args)]
pub struct Reference {
    /// Checkpoint folder or .gguf file [default: the bundled canary]
    pub model: Option<PathBuf>,
    /// What to score: a JSON object a line with `messages`, `text` or `tokens`, and perhaps an `answer` (see docs/reference.md)
    #[arg(long, value_name = "FILE")]
    pub prompts: PathBuf,
    /// Where to write the record
    #[arg(short, long, value_name = "FILE", default_value = "lucid-reference.json")]
    pub output: PathBuf,
    /// Memory that the process may have
    #[arg(long, value_name = "SIZE", default_value = "4GB", value_parser = size)]
    pub memory_limit: u64,
    /// Tokens that go through a layer together, at the most [default: what the memory allows]
    #[arg(long, value_name = "TOKENS")]
    pub max_num_batched_tokens: Option<usize>,
    /// Where an interrupted run is continued from [default: the output's name and .state]
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Likeliest tokens to record at each position
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top_logprobs: usize,
    /// Threads that compute [default: one a core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// KV cache: f32, bf16 or fp8_e4m3; auto is f32
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = KvCacheArgument::Auto)]
    pub kv_cache_dtype: KvCacheArgument,
    /// What NVFP4 weights are multiplied with: w4a16, or w4a4
    #[arg(long, value_enum, default_value_t = Nvfp4Argument::W4a16)]
    pub nvfp4: Nvfp4Argument,
    /// Epsilon of the latent norms [default: rms_norm_eps, as vLLM; transformers uses 1e-6]
    #[arg(long, value_name = "EPS")]
    pub latent_norm_eps: Option<f64>,
}

/// Bytes: a number with B, kB, MB, GB, TB, or their binary kin.
fn size(text: &str) -> Result<u64, String> {
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1u64 << 40),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let parsed = units.iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        let bytes = number * *factor as f64;
        (bytes.is_finite() && (0.0..1e18).contains(&bytes)).then_some(bytes as u64)
    });
    parsed.ok_or_else(|| format!("{text:?} is no size: write for example 4GB or 3500MiB"))
}

/// `lucid demo`
#[derive(Args)]
pub struct Demo {
    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "lucid-demo.html")]
    pub html: PathBuf,
    /// The fault to plant
    #[arg(long, value_name = "FAULT", default_value = "rope-half-split")]
    pub plant: String,
}

/// A server's surface by its name.
fn guise(name: &str) -> Result<Guise, String> {
    Guise::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Guise::ALL.into_iter().map(Guise::name).collect();
        format!("it must be one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("4GB"), Ok(4_000_000_000));
        assert_eq!(size("1.5 GiB"), Ok(3 << 29));
        assert_eq!(size("512MiB"), Ok(512 << 20));
        for wrong in ["", "4", "GB", "-1GB", "infGB", "NaNMB", "4 apples", "1e30GB"] {
            assert!(size(wrong).unwrap_err().contains("4GB"), "{wrong}");
        }
    }

    #[test]
    fn a_fault_needs_the_acknowledgement() {
        assert!(Arguments::try_parse_from(["lucid", "serve", "--plant", "rope-half-split"]).is_err());
        let acknowledged = ["lucid", "serve", "--plant", "x", "--i-know-this-breaks-the-model"];
        assert!(Arguments::try_parse_from(acknowledged).is_ok());
    }
}
