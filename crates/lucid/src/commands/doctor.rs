//! `lucid doctor`: what is wrong with a deployment.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lucid_client::ApiKey;
use lucid_doctor::{Depth, Report, Severity, Subject, checks, diagnose, report};

use crate::arguments::{DepthArgument, Doctor, SeverityArgument};
use crate::progress::ProgressLine;
use crate::{model, style};

/// Diagnoses and reports.
pub fn run(arguments: &Doctor) -> Result<ExitCode> {
    if arguments.list {
        for check in checks::list() {
            anstream::println!("{:<34} {}", style::name(check.id), check.covers);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.endpoint.is_none() && arguments.checkpoint.is_none() {
        bail!("there is nothing to examine: give --endpoint URL, and --checkpoint FOLDER if you have it");
    }
    let subject = Subject {
        endpoint: arguments.endpoint.clone(),
        checkpoint: arguments.checkpoint.as_deref().map(|path| model::files(Some(path))).transpose()?,
        model: arguments.model.clone(),
        api_key: ApiKey::from_env(&arguments.api_key_env),
        depth: match arguments.depth {
            DepthArgument::Quick => Depth::Quick,
            DepthArgument::Standard => Depth::Standard,
            DepthArgument::Thorough => Depth::Thorough,
        },
        seed: arguments.seed,
        timeout: Duration::from_secs(arguments.timeout),
        threads: arguments.threads,
    };
    let mut line = ProgressLine::new();
    let report = diagnose(subject, &mut |progress| line.show(&progress));
    line.clear();
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
