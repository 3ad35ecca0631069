//! What is known about lines: `knowledge/signatures.toml`, `knowledge/lines.toml`, `knowledge/echoes.toml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use lucid_findings::Severity;
use regex::bytes::Regex;
use serde::Deserialize;

use crate::machine::Edge;
use crate::timeline::PhaseKind;
use crate::traceback::Role;

/// A line with a known meaning.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// Its name; findings are called `logs.signatures/ID`.
    pub id: String,
    /// Engines that print it: `vllm`, `sglang`, `llama.cpp`, or who else (`kernel`, `nccl`, `systemd`).
    pub engines: Vec<String>,
    /// At least one of these stands in every line that the pattern matches: what the line is searched for first.
    pub literals: Vec<String>,
    /// The line.
    pub pattern: String,
    /// What it means.
    pub meaning: String,
    /// How bad it is, unless `when` says otherwise.
    pub severity: Severity,
    /// Whether it usually follows from another fault: then an earlier fault of the same run silences it.
    #[serde(default)]
    pub echo: bool,
    /// Whether it lies on the path that the served model takes; left out: unknown.
    #[serde(default)]
    pub active: Option<bool>,
    /// Causes that it speaks for (above 0) or against, in natural log-odds.
    #[serde(default)]
    pub suggests: BTreeMap<String, f64>,
    /// What to do.
    #[serde(default)]
    pub remedy: String,
    /// Commands for it.
    #[serde(default)]
    pub commands: Vec<String>,
    /// What it means in certain phases; the first that fits counts.
    #[serde(default)]
    pub when: Vec<Meaning>,
    /// Where it was seen or is printed.
    pub source: String,
    /// Lines that it matches, as an engine prints them.
    pub examples: Vec<String>,
}

/// What a signature means in certain phases.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meaning {
    /// The phases; `unknown` where the log doesn't tell. Empty: any.
    #[serde(default)]
    pub phases: Vec<String>,
    /// Only if it came at least so often in that phase.
    #[serde(default)]
    pub at_least: u64,
    /// What it means then.
    pub meaning: String,
    /// How bad it is then.
    pub severity: Severity,
    /// Causes.
    #[serde(default)]
    pub suggests: BTreeMap<String, f64>,
    /// What to do, if it differs.
    #[serde(default)]
    pub remedy: Option<String>,
    /// Commands for it, if they differ.
    #[serde(default)]
    pub commands: Option<Vec<String>>,
}

/// A line that any healthy start has, and what it tells.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KnownLine {
    pub id: String,
    pub literals: Vec<String>,
    /// Groups named `fact_…` are facts, `sample_…` numbers of a series, `seconds` and `gib` those of a measure, `running`
    /// the requests that run.
    pub pattern: String,
    /// The phase that it belongs to.
    #[serde(default)]
    pub enters: Option<PhaseKind>,
    #[serde(default)]
    pub edge: Edge,
    /// The engine that prints it, if only one does.
    #[serde(default)]
    pub engine: Option<String>,
    /// The name of what it measured.
    #[serde(default)]
    pub measure: Option<String>,
    /// Read only by the tests.
    #[allow(dead_code)]
    pub examples: Vec<String>,
}

/// An exception that is not the reason itself.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EchoEntry {
    pattern: String,
    role: Role,
    /// Read only by the tests.
    #[allow(dead_code)]
    example: String,
}

#[derive(Deserialize)]
struct SignatureFile {
    signature: Vec<Signature>,
}

#[derive(Deserialize)]
struct LineFile {
    line: Vec<KnownLine>,
}

#[derive(Deserialize)]
struct EchoFile {
    echo: Vec<EchoEntry>,
}

/// All of it, compiled.
pub(crate) struct Knowledge {
    pub signatures: Vec<(Signature, Regex)>,
    pub lines: Vec<(KnownLine, Regex)>,
    echoes: Vec<(Regex, Role)>,
}

static KNOWLEDGE: LazyLock<Knowledge> = LazyLock::new(|| {
    let signatures: SignatureFile =
        read(include_str!("../knowledge/signatures.toml"), "knowledge/signatures.toml");
    let lines: LineFile = read(include_str!("../knowledge/lines.toml"), "knowledge/lines.toml");
    let echoes: EchoFile = read(include_str!("../knowledge/echoes.toml"), "knowledge/echoes.toml");
    Knowledge {
        signatures: signatures.signature.into_iter().map(|s| (compile(&s.pattern), s)).map(swap).collect(),
        lines: lines.line.into_iter().map(|line| (compile(&line.pattern), line)).map(swap).collect(),
        echoes: echoes.echo.into_iter().map(|echo| (compile(&echo.pattern), echo.role)).collect(),
    }
});

fn swap<A, B>((a, b): (A, B)) -> (B, A) {
    (b, a)
}

/// The knowledge lies in the binary: a mistake in it is caught by the tests, never by a user.
fn read<T: for<'de> Deserialize<'de>>(text: &str, name: &str) -> T {
    toml::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn compile(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"))
}

/// All of it.
pub(crate) fn knowledge() -> &'static Knowledge {
    &KNOWLEDGE
}

/// Every signature.
pub fn signatures() -> impl Iterator<Item = &'static Signature> {
    knowledge().signatures.iter().map(|(signature, _)| signature)
}

impl Knowledge {
    /// The signature of a name.
    pub fn signature(&self, id: &str) -> Option<&Signature> {
        self.signatures.iter().map(|(signature, _)| signature).find(|signature| signature.id == id)
    }

    /// Signatures that match a text, without the search for literals.
    pub fn matching<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a Signature> {
        self.signatures
            .iter()
            .filter(|(_, regex)| regex.is_match(text.as_bytes()))
            .map(|(signature, _)| signature)
    }

    /// What an exception's text is to its run.
    pub fn role(&self, exception: &str) -> Role {
        self.echoes
            .iter()
            .find(|(regex, _)| regex.is_match(exception.as_bytes()))
            .map_or(Role::Original, |(_, role)| *role)
    }
}

impl Signature {
    /// What it means when it came `count` times in a phase.
    #[must_use]
    pub fn meaning_in(&self, phase: Option<PhaseKind>, count: u64) -> Option<&Meaning> {
        let phase = phase.map_or_else(|| "unknown".to_owned(), |phase| phase.to_string());
        self.when
            .iter()
            .find(|when| (when.phases.is_empty() || when.phases.contains(&phase)) && count >= when.at_least)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const CAUSES: &str = "leftover-debug-code modified-package-files package-version-skew checkpoint-corrupt \
        checkpoint-scales wrong-checkpoint quantization-loader kv-cache-scales prefix-cache attention-kernel \
        size-threshold moe-routing tp-sharding rope-scaling chat-template tokenizer-decode reasoning-budget \
        reasoning-parser tool-parser sampling-defaults speculative-decoding cuda-graph collectives nan-logits \
        gpu-hardware memory-leak out-of-memory startup-killed slow-start-benign expected-nondeterminism stale-cache \
        wrong-flags";

    #[test]
    fn every_signature_is_whole() {
        let causes: BTreeSet<&str> = CAUSES.split_whitespace().collect();
        let phases: Vec<String> = (0..)
            .map_while(|index| {
                use PhaseKind::*;
                [Start, Load, Compile, Capture, WarmUp, Serve, Crash, Shutdown]
                    .get(index)
                    .map(ToString::to_string)
            })
            .chain(["unknown".to_owned()])
            .collect();
        let mut ids = BTreeSet::new();
        for (signature, regex) in &knowledge().signatures {
            let id = &signature.id;
            assert!(ids.insert(id.clone()), "{id} stands twice");
            assert!(!signature.examples.is_empty() && !signature.literals.is_empty(), "{id}");
            for example in &signature.examples {
                let parsed = crate::line::parse(example.as_bytes());
                assert!(regex.is_match(parsed.message), "{id} doesn't match its example {example:?}");
                assert!(
                    signature.literals.iter().any(|literal| example.contains(literal.as_str())),
                    "{id}: no literal in {example:?}"
                );
            }
            let whens = signature.when.iter().map(|when| (when.severity, &when.suggests));
            for (severity, suggests) in whens.chain([(signature.severity, &signature.suggests)]) {
                for (cause, weight) in suggests {
                    assert!(causes.contains(cause.as_str()), "{id}: unknown cause {cause}");
                    assert!(*weight != 0.0 && weight.abs() <= 8.0, "{id}: {cause} {weight}");
                    // What accuses strongly must be visible.
                    let accuses =
                        *weight >= 3.0 && cause != "slow-start-benign" && cause != "expected-nondeterminism";
                    assert!(!accuses || severity > Severity::Info, "{id}: {cause} {weight} from an info");
                }
            }
            if signature.severity > Severity::Info {
                assert!(!signature.remedy.is_empty(), "{id}: no remedy");
                assert!(!signature.commands.is_empty(), "{id}: no commands");
            }
            for when in &signature.when {
                assert!(when.phases.iter().all(|phase| phases.contains(phase)), "{id}: {:?}", when.phases);
            }
        }
        assert!(ids.len() >= 150, "{} signatures", ids.len());
    }

    /// The prefilter must not hide a line: with every literal at hand, the examples of all entries are found by scanning.
    #[test]
    fn every_known_line_is_whole() {
        let mut ids = BTreeSet::new();
        for (line, regex) in &knowledge().lines {
            assert!(ids.insert(line.id.clone()), "{} stands twice", line.id);
            assert!(!line.examples.is_empty(), "{}", line.id);
            for example in &line.examples {
                let parsed = crate::line::parse(example.as_bytes());
                assert!(regex.is_match(parsed.message), "{} doesn't match {example:?}", line.id);
                assert!(
                    line.literals.iter().any(|literal| example.contains(literal.as_str())),
                    "{}",
                    line.id
                );
            }
        }
    }

    #[test]
    fn echoes_are_told_from_reasons() {
        let file: EchoFile = read(include_str!("../knowledge/echoes.toml"), "echoes");
        for echo in file.echo {
            assert_eq!(knowledge().role(&echo.example), echo.role, "{}", echo.example);
        }
        for reason in [
            "RuntimeError: flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4).",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.22 GiB",
            "ImportError: libnvrtc.so.12: cannot open shared object file: No such file or directory",
        ] {
            assert_eq!(knowledge().role(reason), Role::Original, "{reason}");
        }
    }
}
