//! `lucid collect`: a machine's evidence in one file.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use lucid_doctor::archive;

use crate::arguments::Collect;
use crate::progress::ProgressLine;
use crate::{machine, style};

/// Gathers and writes.
pub fn run(arguments: &Collect) -> Result<ExitCode> {
    let mut line = ProgressLine::new();
    let evidence = match machine::carrier(&arguments.machine)? {
        Some(carrier) => {
            machine::fetch(&carrier, &arguments.machine, arguments.checkpoint.as_deref(), &mut line)?
        }
        None => {
            let gathered =
                machine::gather(&arguments.machine, arguments.checkpoint.as_deref(), true, &mut line)?;
            gathered.context("there is nothing to gather: give --pid, --env, --log, --checkpoint or --host; `lucid collect --help` lists it all")?
        }
    };
    line.clear();
    let bytes = archive::pack(&evidence)?;
    if arguments.output == Path::new("-") {
        std::io::stdout().write_all(&bytes).context("cannot write the archive to standard output")?;
        return Ok(ExitCode::SUCCESS);
    }
    std::fs::write(&arguments.output, &bytes)
        .with_context(|| format!("cannot write the archive to {}", arguments.output.display()))?;
    for note in evidence.failures.iter().chain(&evidence.notes) {
        anstream::eprintln!("{} {note}", style::dim("note:"));
    }
    anstream::println!(
        "{} {}",
        style::name(arguments.output.display()),
        style::dim(format!(
            "{} kB: {}. Secrets and addresses are left out; read it before you send it. Then: lucid doctor --evidence {}",
            bytes.len().div_ceil(1000),
            evidence.summary(),
            arguments.output.display()
        ))
    );
    Ok(ExitCode::SUCCESS)
}
