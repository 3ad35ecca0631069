//! Prints what the checks find of an environment:
//!
//! ```text
//! audit PATH [--root DIR] [--quick] [--wheel FILE]… [--hash-cache FILE] [--architecture NAME] [--pid PID] [--evidence]
//! ```
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use std::error::Error;

use lucid_environment::{GatherOptions, checks, gather};
use lucid_findings::{Deployment, LoadFormat};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut options = GatherOptions::new(arguments.next().ok_or("audit PATH …")?);
    options.home = std::env::var_os("HOME").map(Into::into);
    let mut deployment = Deployment { load_format: Some(LoadFormat::Safetensors), ..Deployment::default() };
    let mut integrity = options.integrity.take().unwrap_or_default();
    let (mut quick, mut raw) = (false, false);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--root" => options.root = value()?.into(),
            "--quick" => quick = true,
            "--evidence" => raw = true,
            "--wheel" => integrity.wheels.push(value()?.into()),
            "--hash-cache" => integrity.hash_cache = Some(value()?.into()),
            "--architecture" => deployment.architectures.push(value()?),
            "--pid" => {
                let process = format!("/proc/{}", value()?);
                options.mountinfo = Some(std::fs::read_to_string(format!("{process}/mountinfo"))?);
                options.working_directory = std::fs::read_link(format!("{process}/cwd")).ok();
                for entry in std::fs::read(format!("{process}/environ"))?.split(|&byte| byte == 0) {
                    if let Some((name, value)) = String::from_utf8_lossy(entry).split_once('=') {
                        options.environment.insert(name.to_owned(), value.to_owned());
                    }
                }
            }
            other => return Err(format!("{other}: unknown").into()),
        }
    }
    options.integrity = (!quick).then_some(integrity);
    let evidence =
        gather(&options, &mut |step| eprint!("\r{} {}/{} {}   ", step.text, step.done, step.of, step.unit))?;
    eprintln!();
    if raw {
        println!("{}", serde_json::to_string_pretty(&evidence)?);
        return Ok(());
    }
    println!(
        "{:?} {} {:?} {}",
        evidence.python.kind,
        evidence.python.prefix,
        evidence.python.version,
        evidence.python.installer.name()
    );
    for note in &evidence.notes {
        println!("  note: {note}");
    }
    for (check, outcome) in checks::all(&evidence, &deployment, None) {
        match outcome {
            Ok(examined) => {
                println!("\n{check}: {}", examined.covered);
                for finding in examined.findings {
                    println!(
                        "  [{:?}, active {:?}] {}: {}",
                        finding.severity, finding.active, finding.id, finding.title
                    );
                    println!("      {}", finding.detail);
                    for proof in &finding.evidence {
                        println!("      {}: {}", proof.place, proof.text.replace('\n', "\n        "));
                    }
                    for suggestion in &finding.suggests {
                        println!("      → {} {:+}", suggestion.cause, suggestion.weight);
                    }
                    for command in finding.remedy.iter().flat_map(|remedy| &remedy.commands) {
                        println!("      $ {command}");
                    }
                }
            }
            Err(skip) => println!("\n{check}: skipped: {}", skip.0),
        }
    }
    Ok(())
}
