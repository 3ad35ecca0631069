//! Looks at a checkpoint: `audit FOLDER [--no-bytes] [--digests] [--manifest FILE] [--state FILE] [--json]`.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};

use lucid_checkpoint_audit::{CheckpointEvidence, Options, gather};
use lucid_findings::{Deployment, Examined, Severity, Skip, Step};

type Check = fn(&CheckpointEvidence, &Deployment) -> Result<Examined, Skip>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = Options { statistics: true, ..Options::default() };
    let (mut place, mut json) = (None, false);
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--no-bytes") => options.statistics = false,
            Some("--digests") => options.digests = true,
            Some("--all-digests") => options.all_digests = true,
            Some("--manifest") => {
                options.digests = true;
                options.manifest = arguments.next().map(PathBuf::from);
            }
            Some("--state") => options.state = arguments.next().map(PathBuf::from),
            Some("--json") => json = true,
            _ => place = Some(PathBuf::from(argument)),
        }
    }
    let place =
        place.ok_or("audit FOLDER [--no-bytes] [--digests] [--manifest FILE] [--state FILE] [--json]")?;
    let mut progress = |step: Step| eprint!("\r{}   ", step.text);
    let evidence = gather(Path::new("/"), &place, &options, &mut progress)?;
    eprintln!();
    if json {
        println!("{}", serde_json::to_string_pretty(&evidence)?);
        return Ok(());
    }
    let checks: [(&str, Check); 6] = [
        ("checkpoint.extents", lucid_checkpoint_audit::extents),
        ("checkpoint.index", lucid_checkpoint_audit::index),
        ("checkpoint.architecture", lucid_checkpoint_audit::architecture),
        ("checkpoint.scales", lucid_checkpoint_audit::scales),
        ("checkpoint.digest", lucid_checkpoint_audit::digest),
        ("checkpoint.tokenizer", lucid_checkpoint_audit::tokenizer),
    ];
    for (name, check) in checks {
        match check(&evidence, &Deployment::default()) {
            Err(Skip(why)) => println!("{name}: skipped: {why}"),
            Ok(Examined { findings, covered }) => {
                println!("{name}: {covered}");
                for finding in findings {
                    let mark = match finding.severity {
                        Severity::Info => " ",
                        Severity::Warning => "!",
                        Severity::Error => "✗",
                    };
                    println!("  {mark} {}: {}", finding.id, finding.title);
                    if finding.severity > Severity::Info {
                        for proof in &finding.evidence {
                            println!("      {}: {}", proof.place, proof.text);
                        }
                        for command in finding.remedy.iter().flat_map(|remedy| &remedy.commands) {
                            println!("      $ {command}");
                        }
                    }
                }
            }
        }
    }
    for note in &evidence.notes.kept {
        println!("note: {note}");
    }
    println!("{:.2} s", evidence.seconds);
    Ok(())
}
