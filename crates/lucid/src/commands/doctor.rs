//! `lucid doctor`: what is wrong with a deployment.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use lucid_checkpoint::Files;
use lucid_client::ApiKey;
use lucid_doctor::{
    Depth, MachineEvidence, Record, Report, Severity, Subject, Symptom, archive, checks, diagnose, report,
};

use crate::arguments::{DepthArgument, Doctor, SeverityArgument, SymptomArgument};
use crate::progress::ProgressLine;
use crate::{machine, model, style};

/// Diagnoses and reports.
pub fn run(arguments: &Doctor) -> Result<ExitCode> {
    if arguments.list {
        for check in checks::list() {
            anstream::println!("{:<34} {}", style::name(check.id), check.covers);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut line = ProgressLine::new();
    if let Some(path) = &arguments.record {
        return take_record(arguments, path, &mut line);
    }
    let clock = Instant::now();
    let record = recorded(arguments, &mut line)?;
    let machine = examine_machine(arguments, &mut line)?;
    if arguments.endpoint.is_none() && machine.is_none() && arguments.checkpoint.is_none() {
        bail!(
            "there is nothing to examine: give what you have, for example --endpoint URL, --checkpoint FOLDER, --env VENV, --log FILE, --pid PID; `lucid doctor --help` lists it all"
        );
    }
    let mut obstacles = Vec::new();
    // A checkpoint that can't be opened still has files that can be examined.
    let checkpoint = match checkpoint_here(arguments).map(|path| model::files(Some(&path))) {
        Some(Ok(files)) => Some(files),
        Some(Err(error)) if machine.as_ref().is_some_and(|machine| machine.checkpoint.is_some()) => {
            if arguments.endpoint.is_some() {
                obstacles.push(format!("nothing to compare the server with: {error:#}"));
            }
            None
        }
        Some(Err(error)) => return Err(error),
        None => None,
    };
    let subject = Subject {
        checkpoint,
        record,
        machine,
        obstacles,
        symptom: arguments.symptom.map(symptom),
        ..asking(arguments)
    };
    let notes = subject.machine.as_ref().map(|machine| machine.notes.clone()).unwrap_or_default();
    let mut report = diagnose(subject, &mut |progress| line.show(&progress));
    // Gathering is part of the examination.
    report.seconds = clock.elapsed().as_secs_f64();
    line.clear();
    for note in notes {
        anstream::eprintln!("{} {note}", style::dim("note:"));
    }
    if arguments.json {
        anstream::println!("{}", report::json::render(&report));
    } else {
        print_report(&report);
    }
    if let Some(path) = &arguments.html {
        write_html(&report, path)?;
        anstream::eprintln!("{} {}", style::dim("report:"), path.display());
    }
    let fail_on = match arguments.fail_on {
        SeverityArgument::Info => Severity::Info,
        SeverityArgument::Warning => Severity::Warning,
        SeverityArgument::Error => Severity::Error,
    };
    Ok(ExitCode::from(report.exit_code(fail_on)))
}

/// Whom to ask, and how.
fn asking(arguments: &Doctor) -> Subject {
    Subject {
        endpoint: arguments.endpoint.clone(),
        model: arguments.model.clone(),
        api_key: ApiKey::from_env(&arguments.api_key_env),
        depth: match arguments.depth {
            DepthArgument::Quick => Depth::Quick,
            DepthArgument::Standard => Depth::Standard,
            DepthArgument::Thorough => Depth::Thorough,
        },
        deep: arguments.deep,
        seed: arguments.seed,
        timeout: Duration::from_secs(arguments.timeout),
        threads: arguments.threads,
        ..Subject::default()
    }
}

/// What a right server says, from a file or from another server.
fn recorded(arguments: &Doctor, line: &mut ProgressLine) -> Result<Option<Record>> {
    if let Some(path) = &arguments.reference {
        return Ok(Some(Record::open(path)?));
    }
    let Some(url) = &arguments.against else { return Ok(None) };
    // The other server may serve the model under another name.
    let subject = Subject {
        endpoint: Some(url.clone()),
        model: None,
        checkpoint: tokenizer(arguments)?,
        ..asking(arguments)
    };
    ask_trusted(&subject, line).map(Some)
}

fn ask_trusted(subject: &Subject, line: &mut ProgressLine) -> Result<Record> {
    let record = lucid_doctor::record(subject, &mut |done, of| {
        line.say(&format!("asking the trusted server {done}/{of}"));
    });
    line.clear();
    record.map_err(|reason| {
        anyhow!("cannot record {}: {reason}", subject.endpoint.as_deref().unwrap_or("the server"))
    })
}

/// The checkpoint whose template and tokenizer name the tokens, if there is one.
fn tokenizer(arguments: &Doctor) -> Result<Option<Files>> {
    checkpoint_here(arguments).map(|path| model::files(Some(&path))).transpose()
}

/// `--record`
fn take_record(arguments: &Doctor, path: &Path, line: &mut ProgressLine) -> Result<ExitCode> {
    let subject = Subject { checkpoint: tokenizer(arguments)?, ..asking(arguments) };
    let record = ask_trusted(&subject, line)?;
    let text = serde_json::to_string(&record)?;
    std::fs::write(path, text).with_context(|| format!("cannot write the record to {}", path.display()))?;
    let tokens: usize = record.passages.iter().map(|passage| passage.observations.len()).sum();
    anstream::eprintln!(
        "{} {tokens} tokens of {} texts in {} ({:.1} s, {})",
        style::good("recorded"),
        record.passages.len(),
        style::name(path.display()),
        record.seconds,
        record.checkpoint
    );
    Ok(ExitCode::SUCCESS)
}

/// The machine's evidence: read here, fetched from there, or from an archive; `None` if nothing was pointed at.
fn examine_machine(arguments: &Doctor, line: &mut ProgressLine) -> Result<Option<MachineEvidence>> {
    if let Some(path) = &arguments.evidence {
        return Ok(Some(archive::read(path)?));
    }
    let carrier = machine::carrier(&arguments.machine)?;
    if let Some(carrier) = carrier {
        let there = arguments.checkpoint_there.as_deref();
        return machine::fetch(&carrier, &arguments.machine, there, line).map(Some);
    }
    if arguments.checkpoint_there.is_some() {
        bail!("--checkpoint-there goes with --host, --container or --pod; here it is --checkpoint");
    }
    // The bundled canary has no files to examine.
    let exists = checkpoint_here(arguments).is_some_and(|path| path.exists());
    let checkpoint = arguments.checkpoint.as_deref().filter(|_| exists);
    let weights = arguments.depth != DepthArgument::Quick;
    machine::gather(&arguments.machine, checkpoint, weights, line)
}

/// Where the checkpoint lies on this machine: below `--root`, if that is given.
fn checkpoint_here(arguments: &Doctor) -> Option<PathBuf> {
    let path = arguments.checkpoint.as_deref()?;
    Some(match &arguments.machine.root {
        Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
        None => path.to_owned(),
    })
}

fn symptom(argument: SymptomArgument) -> Symptom {
    match argument {
        SymptomArgument::Incoherent => Symptom::Incoherent,
        SymptomArgument::Drift => Symptom::Drift,
        SymptomArgument::Repetition => Symptom::Repetition,
        SymptomArgument::EmptyAnswers => Symptom::EmptyAnswers,
        SymptomArgument::Tools => Symptom::Tools,
        SymptomArgument::Crash => Symptom::Crash,
        SymptomArgument::Startup => Symptom::Startup,
        SymptomArgument::SlowStart => Symptom::SlowStart,
        SymptomArgument::Slow => Symptom::Slow,
        SymptomArgument::Hang => Symptom::Hang,
    }
}

/// Prints the report for people.
pub fn print_report(report: &Report) {
    let terminal = std::io::stdout().is_terminal();
    let width = terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0));
    anstream::print!(
        "{}",
        report::terminal::render(report, &report::terminal::Style::detect(terminal, width))
    );
}

/// Writes the page.
pub fn write_html(report: &Report, path: &std::path::Path) -> Result<()> {
    let page = report::html::render(report)?;
    std::fs::write(path, page).with_context(|| format!("cannot write the report to {}", path.display()))
}
