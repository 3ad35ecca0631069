//! Prints the time line and the findings of logs: `cargo run --example read -- FILE…`
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};

use lucid_logs::{Options, Source, checks::CHECKS, deployment_from, gather, spoken};

fn main() {
    let sources: Vec<Source> =
        std::env::args_os().skip(1).map(|path| Source::File(PathBuf::from(path))).collect();
    let began = std::time::Instant::now();
    let evidence = gather(Path::new("/"), &sources, &Options::default(), &mut |_| {});
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{} lines, {:.1} MB in {seconds:.2} s ({:.0} MB/s)",
        evidence.lines(),
        evidence.bytes() as f64 / 1e6,
        evidence.bytes() as f64 / 1e6 / seconds
    );
    for source in &evidence.sources {
        let error = source.error.as_deref().unwrap_or("");
        println!("  {} [{}] {} lines {error}", source.name, source.format, source.lines);
    }
    for phase in &evidence.timeline.phases {
        let start = phase.start.map_or_else(|| "-".to_owned(), |start| start.to_string());
        let took = phase.seconds().map_or_else(String::new, spoken);
        println!(
            "  run {} {start}  {:<8} {took}  ({} lines)",
            phase.run,
            phase.kind.to_string(),
            phase.lines
        );
    }
    for run in &evidence.timeline.runs {
        println!("  run {} ended: {:?}", run.number, run.end);
    }
    let deployment = deployment_from(&evidence);
    println!("{deployment:?}");
    for (id, check) in CHECKS {
        match check(&evidence, &deployment) {
            Ok(examined) => {
                println!("{id}: {}", examined.covered);
                for finding in examined.findings {
                    println!("  {:?} {}: {}", finding.severity, finding.id, finding.title);
                    for suggestion in &finding.suggests {
                        println!("      {} {:+}", suggestion.cause, suggestion.weight);
                    }
                }
            }
            Err(skip) => println!("{id}: skipped, {}", skip.0),
        }
    }
    for note in &evidence.notes {
        println!("note: {note}");
    }
}
