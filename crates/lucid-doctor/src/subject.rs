//! What is to be diagnosed: whatever the user has.

use std::time::Duration;

use lucid_checkpoint::Files;
use lucid_client::ApiKey;
use serde::{Deserialize, Serialize};

use crate::evidence::{MachineEvidence, Record};

/// How much to spend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Depth {
    /// One attempt a prompt, no long needle.
    Quick,
    /// Two attempts a prompt.
    #[default]
    Standard,
    /// Four attempts a prompt.
    Thorough,
}

impl Depth {
    /// Attempts at each prompt of a rung: the first is greedy, the others are sampled with their own seeds.
    #[must_use]
    pub fn attempts(self) -> u64 {
        match self {
            Depth::Quick => 1,
            Depth::Standard => 2,
            Depth::Thorough => 4,
        }
    }

    /// How long the server may be asked, all checks together. Generous: a healthy one takes seconds to minutes, a bad one takes
    /// as long as it is let.
    #[must_use]
    pub fn patience(self) -> Duration {
        Duration::from_secs(match self {
            Depth::Quick => 30 * 60,
            Depth::Standard => 90 * 60,
            Depth::Thorough => 8 * 3_600,
        })
    }

    /// Prompts that the comparison with the reference may take before it gives up undecided.
    #[must_use]
    pub fn most_compared_prompts(self) -> usize {
        match self {
            Depth::Quick => 12,
            Depth::Standard => 24,
            Depth::Thorough => 48,
        }
    }
}

/// What somebody saw: evidence too, if the weakest. It moves the priors of the causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Symptom {
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

/// What the user has. Checks whose evidence is missing are skipped, and the report says so.
#[derive(Debug)]
pub struct Subject {
    /// Address of an OpenAI-compatible server: `http://host:port`, with or without `/v1`.
    pub endpoint: Option<String>,
    /// The checkpoint that the server should be serving; the reference of the comparison.
    pub checkpoint: Option<Files>,
    /// What a right server says of some texts: in place of a checkpoint for the comparison of distributions, also beside one.
    pub record: Option<Record>,
    /// Planted faults that the reference must not try as hypotheses: what the doctor does with a mistake that it doesn't know. For
    /// drills.
    pub unknown: Vec<String>,
    /// What was gathered on the machine: environment, code, logs, host, the checkpoint's files.
    pub machine: Option<MachineEvidence>,
    /// What already stood in the way, one sentence each: a checkpoint that can't be opened, a machine that can't be reached.
    pub obstacles: Vec<String>,
    /// Which of the server's models to ask; `None` takes the only one.
    pub model: Option<String>,
    /// Sent as a bearer token; never kept.
    pub api_key: Option<ApiKey>,
    /// What somebody saw.
    pub symptom: Option<Symptom>,
    /// How much to spend.
    pub depth: Depth,
    /// Run the test that the first cause names, where the server can be asked for it, and empty the server's prefix cache where it has
    /// a request for that.
    pub deep: bool,
    /// Seeds prompts, secrets and sampling. The same seed asks the same questions.
    pub seed: u64,
    /// Limit for one call.
    pub timeout: Duration,
    /// How long the server may be asked; `None` takes the depth's. A check that has begun is not cut short.
    pub patience: Option<Duration>,
    /// Threads of the reference; `None` takes the machine's cores.
    pub threads: Option<usize>,
}

impl Default for Subject {
    fn default() -> Self {
        Subject {
            endpoint: None,
            checkpoint: None,
            record: None,
            unknown: Vec::new(),
            machine: None,
            obstacles: Vec::new(),
            model: None,
            api_key: None,
            symptom: None,
            depth: Depth::default(),
            deep: false,
            seed: 1,
            timeout: Duration::from_secs(300),
            patience: None,
            threads: None,
        }
    }
}

impl Subject {
    /// How long the server may be asked.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.patience.unwrap_or_else(|| self.depth.patience())
    }
}
