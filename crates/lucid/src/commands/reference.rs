//! `lucid reference`: what a checkpoint itself says of given texts, recorded.

use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use lucid_checkpoint::{Checkpoint, TokenId};
use lucid_doctor::{Passage, Record, Recorded};
use lucid_engine::{Mode, Progress, SemanticsOptions, Streaming, StreamingOptions, TokenLogprobs, resident};

use crate::arguments::Reference;
use crate::passages;
use crate::progress::ProgressLine;
use crate::{model, style};

/// Scores the texts and writes the record.
pub fn run(arguments: &Reference) -> Result<ExitCode> {
    let files = model::files(arguments.model.as_deref())?;
    let passages = passages::read(&arguments.prompts, &files)?;
    let checkpoint = Checkpoint::open(files)?;
    for notice in checkpoint.notices() {
        tracing::warn!("{notice}");
    }
    let state = arguments.state.clone().unwrap_or_else(|| with_suffix(&arguments.output, ".state"));
    let options = StreamingOptions {
        semantics: SemanticsOptions {
            mode: Mode::Reference,
            kv_cache: model::kv_cache(arguments.kv_cache_dtype),
            activations: model::activations(arguments.nvfp4),
            latent_norm_eps: arguments.latent_norm_eps,
            ..SemanticsOptions::default()
        },
        threads: arguments.threads,
        memory_limit: arguments.memory_limit,
        batch_tokens: arguments.max_num_batched_tokens,
        top: arguments.top_logprobs,
        state: Some(state.clone()),
    };
    let mut streaming = Streaming::new(&checkpoint, &options)?;
    let tokens: Vec<Vec<TokenId>> = passages.iter().map(|passage| passage.tokens.clone()).collect();
    anstream::eprintln!("{}", style::dim(streaming.semantics()));
    if state.exists() {
        anstream::eprintln!("going on from {}", state.display());
    }
    let mut line = ProgressLine::new();
    let mut last = None;
    let scored = streaming.score(&tokens, &mut |progress| {
        show(&mut line, progress);
        last = Some(*progress);
        true
    });
    line.clear();
    // The run is never told to stop, so it has results.
    let scored = scored?.unwrap_or_default();
    let (seconds, bytes_read) = last.map_or((0.0, 0), |progress| (progress.seconds, progress.bytes_read));
    let fingerprint = checkpoint.fingerprint()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let semantics = serde_json::to_value(streaming.semantics())?;
    let record = Record {
        seconds,
        bytes_read,
        passages: passages.iter().zip(scored).map(|(passage, scored)| of(passage, scored)).collect(),
        ..Record::new(checkpoint.files().root(), fingerprint, semantics)
    };
    write(&arguments.output, &record)?;
    let count: usize = record.passages.iter().map(|passage| passage.observations.len()).sum();
    let peak = resident()
        .map_or_else(String::new, |(_, peak)| format!(", {} at the most in memory", gigabytes(peak)));
    anstream::eprintln!(
        "{} {count} tokens of {} in {} ({seconds:.1} s, {} read{peak})",
        style::good("recorded"),
        match record.passages.len() {
            1 => "1 text".to_owned(),
            texts => format!("{texts} texts"),
        },
        style::name(arguments.output.display()),
        gigabytes(bytes_read)
    );
    Ok(ExitCode::SUCCESS)
}

fn of(passage: &passages::Passage, scored: Vec<TokenLogprobs>) -> Passage {
    let observation = |(position, entry): (usize, TokenLogprobs)| Recorded {
        position,
        logprob: f64::from(entry.token.logprob),
        rank: entry.token.rank,
        top: entry.top.iter().map(|candidate| (candidate.id, f64::from(candidate.logprob))).collect(),
    };
    Passage {
        name: passage.name.clone(),
        tokens: passage.tokens.clone(),
        prompt: passage.prompt,
        observations: (1..).zip(scored).map(observation).collect(),
    }
}

/// How far it is, and how long it takes: a line that changes on a terminal, else a line a layer.
fn show(line: &mut ProgressLine, progress: &Progress) {
    let (done, of) = (progress.bytes_read, progress.bytes.max(1));
    let rate = done as f64 / progress.seconds.max(1e-9);
    let left = of.saturating_sub(done) as f64 / rate.max(1.0);
    let memory = resident().map_or_else(String::new, |(now, _)| format!(", {} in memory", gigabytes(now)));
    let place = match progress.layer {
        (0, _) => "output matrix".to_owned(),
        (layer, layers) => format!("layer {layer}/{layers}, batch {}/{}", progress.batch.0, progress.batch.1),
    };
    let text = format!(
        "{place}: {} of {}, {}/s, {} left{memory}",
        gigabytes(done),
        gigabytes(of),
        gigabytes(rate as u64),
        duration(left)
    );
    if std::io::stderr().is_terminal() {
        line.say(&text);
    } else {
        anstream::eprintln!("{text}");
    }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5_400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3_600.0),
    }
}

/// Writes the whole file or none.
fn write(path: &Path, record: &Record) -> Result<()> {
    let temporary = with_suffix(path, ".new");
    let all = || -> std::io::Result<()> {
        let mut file = BufWriter::new(std::fs::File::create(&temporary)?);
        serde_json::to_writer(&mut file, record)?;
        writeln!(file)?;
        file.into_inner()?.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    all().with_context(|| format!("cannot write {}", path.display()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
