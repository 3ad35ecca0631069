//! Scores the doctor without the command line: `drill MODEL_FOLDER quick|standard|thorough RUNS FIRST_SEED [CASE…]`; JSON to the
//! standard output. `DRILL_REPORTS` names a folder for the report of every run (JSON and HTML), `DRILL_THREADS` the threads of server and reference,
//! `DRILL_GUISE` the server whose surface is worn; with `DRILL_DEEP` the doctor runs the test that its first cause names.
#![allow(clippy::print_stdout, clippy::print_stderr)] // it is a program

use std::error::Error;
use std::path::Path;

use lucid_checkpoint::Files;
use lucid_doctor::Depth;
use lucid_doctor::report::{html, json};
use lucid_drill::{CATALOGUE, Place, Run, Score, find, run_on};

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "drill MODEL_FOLDER quick|standard|thorough RUNS FIRST_SEED [CASE…]";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, depth, runs, first, names @ ..] = arguments.as_slice() else { return Err(usage.into()) };
    let files = Files::open(Path::new(folder))?;
    let depth = match depth.as_str() {
        "quick" => Depth::Quick,
        "standard" => Depth::Standard,
        "thorough" => Depth::Thorough,
        _ => return Err(usage.into()),
    };
    let (runs, first): (u64, u64) = (runs.parse()?, first.parse()?);
    let cases = match names {
        [] => CATALOGUE.iter().collect(),
        names => names
            .iter()
            .map(|name| find(name).ok_or(format!("no case {name}")))
            .collect::<Result<Vec<_>, _>>()?,
    };
    let threads = std::env::var("DRILL_THREADS").ok().map(|threads| threads.parse()).transpose()?;
    let deep = std::env::var_os("DRILL_DEEP").is_some();
    let guise = std::env::var("DRILL_GUISE").ok().and_then(|name| lucid_server::Guise::from_name(&name));
    let place = Place { threads, ..Place::default() };
    let mut outcomes = Vec::new();
    for case in cases {
        for seed in first..first + runs {
            let (outcome, report) = run_on(
                place,
                &files,
                "canary",
                case,
                Run { seed, depth, forget: false, deep, guise },
                &mut |_| {},
            )?;
            if let Some(folder) = std::env::var_os("DRILL_REPORTS") {
                let path = |kind| Path::new(&folder).join(format!("{}-{seed}.{kind}", case.name));
                std::fs::write(path("json"), json::render(&report))?;
                std::fs::write(path("html"), html::render(&report)?)?;
            }
            let mark = if outcome.is_right() { "right" } else { "WRONG" };
            eprintln!(
                "{mark} {} seed {seed}: {} {:?} {:.1} s",
                case.name,
                outcome.verdict.name(),
                outcome.said.first(),
                outcome.seconds
            );
            if !outcome.is_right() {
                for finding in &report.findings {
                    eprintln!(
                        "    {:?} {} {:?}",
                        finding.severity,
                        finding.id,
                        finding.suggests.iter().map(|s| (&s.cause, s.weight)).collect::<Vec<_>>()
                    );
                }
            }
            outcomes.push(outcome);
        }
    }
    let score = Score::of(outcomes);
    eprintln!("{score}");
    println!("{}", serde_json::to_string_pretty(&score)?);
    Ok(())
}
