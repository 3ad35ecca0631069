//! Diagnoses a server: `diagnose URL [CHECKPOINT] [terminal|json|html] [quick|standard|thorough]`.
#![allow(clippy::print_stdout)] // it is a program

use std::error::Error;
use std::path::Path;

use lucid_doctor::{Depth, Subject, diagnose, report};

const USAGE: &str = "diagnose URL [CHECKPOINT] [terminal|json|html] [quick|standard|thorough]";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let endpoint = arguments.next().ok_or(USAGE)?;
    let checkpoint = arguments
        .next()
        .filter(|folder| !folder.is_empty())
        .map(|folder| lucid_checkpoint::Files::open(Path::new(&folder)))
        .transpose()?;
    let form = arguments.next();
    let depth = match arguments.next().as_deref() {
        Some("quick") => Depth::Quick,
        None | Some("standard") => Depth::Standard,
        Some("thorough") => Depth::Thorough,
        Some(_) => return Err(USAGE.into()),
    };
    let subject = Subject { endpoint: Some(endpoint), checkpoint, depth, ..Subject::default() };
    let report = diagnose(subject, &mut |_| {});
    match form.as_deref() {
        Some("json") => print!("{}", report::json::render(&report)),
        Some("html") => print!("{}", report::html::render(&report)?),
        _ => print!("{}", report::terminal::render(&report, &report::terminal::Style::plain(100))),
    }
    std::process::exit(report.exit_code(lucid_doctor::Severity::Warning).into())
}
