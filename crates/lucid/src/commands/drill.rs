//! `lucid drill`: plants known faults one by one, runs the doctor on each, and scores it.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lucid_doctor::Depth;
use lucid_drill::{CATALOGUE, Case, Ledger, Outcome, Place, Run, RunError, Score};
use lucid_engine::Device;
use lucid_server::Plant;

use crate::arguments::{DepthArgument, Drill};
use crate::progress::ProgressLine;
use crate::{bundled, style};

/// Runs the chosen cases, or scores what was run.
pub fn run(arguments: &Drill) -> Result<ExitCode> {
    if arguments.list {
        for case in CATALOGUE {
            let cause = case.cause.unwrap_or("–");
            anstream::println!("{:<38} {cause:<20} {}", style::name(case.name), style::dim(case.about));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (outcomes, said) =
        if arguments.score.is_empty() { (examine(arguments)?, true) } else { (collected(arguments)?, false) };
    if let Some(path) = &arguments.learn {
        return learn(&outcomes, path);
    }
    let score = Score::of(outcomes);
    if let Some(path) = &arguments.html {
        std::fs::write(path, lucid_drill::html(&score))
            .with_context(|| format!("cannot write the page to {}", path.display()))?;
        anstream::eprintln!("{} {}", style::dim("page:"), path.display());
    }
    if arguments.json {
        anstream::println!("{}", serde_json::to_string_pretty(&score)?);
    } else if said {
        anstream::print!("\n{}", score.summary());
    } else {
        anstream::print!("{score}");
    }
    Ok(ExitCode::from(u8::from(!score.all_right())))
}

/// `--learn`
fn learn(outcomes: &[Outcome], path: &Path) -> Result<ExitCode> {
    let Some(lesson) = lucid_drill::learn(outcomes) else {
        bail!("nothing can be learned: known faults of two seeds are needed, one of them for the test");
    };
    anstream::print!("{lesson}");
    if !lesson.helps() {
        anstream::println!(
            "The chosen weights stay: what was learned does no better on what it doesn't know."
        );
        return Ok(ExitCode::from(1));
    }
    std::fs::write(path, lesson.to_toml())
        .with_context(|| format!("cannot write the weights to {}", path.display()))?;
    anstream::println!(
        "{} weights in {}; they are used once they stand in lucid-doctor/knowledge/learned.toml",
        lesson.weights.len(),
        path.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Outcomes of earlier drills, with the causes as they would be ranked today.
fn collected(arguments: &Drill) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for path in &arguments.score {
        let read = Ledger::read(path).with_context(|| format!("cannot score {}", path.display()))?;
        outcomes.extend(read.into_iter().map(Outcome::ranked_again));
    }
    Ok(outcomes)
}

/// Runs what has not been run yet, and says every outcome as it comes.
fn examine(arguments: &Drill) -> Result<Vec<Outcome>> {
    let files = bundled::canary();
    let depth = match arguments.depth {
        DepthArgument::Quick => Depth::Quick,
        DepthArgument::Standard => Depth::Standard,
        DepthArgument::Thorough => Depth::Thorough,
    };
    let place =
        Place { device: arguments.device, ranks: arguments.tensor_parallel_size, threads: arguments.threads };
    let cases = chosen(&arguments.faults)?;
    let mut ledger = match &arguments.outcomes {
        Some(path) => {
            Some(Ledger::open(path).with_context(|| format!("cannot keep outcomes in {}", path.display()))?)
        }
        None => None,
    };
    let seeds = arguments.seed..arguments.seed.saturating_add(arguments.runs);
    let runs = seeds.map(|seed| Run {
        seed,
        depth,
        forget: arguments.forget,
        deep: arguments.deep,
        guise: arguments.guise,
    });
    // What the doctor can't forget has no place in a drill of the unknown.
    let cases = cases.into_iter().filter(|case| !arguments.forget || is_of_the_model(case));
    let wanted: Vec<(&Case, Run)> = cases.flat_map(|case| runs.clone().map(move |run| (case, run))).collect();
    let (mut outcomes, mut left) = (Vec::new(), Vec::new());
    for (case, run) in &wanted {
        match ledger.as_ref().and_then(|ledger| ledger.find(case, *run)) {
            Some(outcome) => outcomes.push(outcome.clone()),
            None => left.push((*case, *run)),
        }
    }
    if !outcomes.is_empty() {
        let known = format!("{} of {} runs are in the file already", outcomes.len(), wanted.len());
        anstream::eprintln!("{}", style::dim(known));
    }
    let mut line = ProgressLine::new();
    let clock = Instant::now();
    say(arguments, &lucid_drill::heading());
    for (number, (case, run)) in left.iter().enumerate() {
        let place_in_row =
            format!("{}/{}{} {}", number + 1, left.len(), remaining(clock, number, left.len()), case.name);
        let ran = lucid_drill::run_on(place, &files, bundled::NAME, case, *run, &mut |progress| {
            line.show_of(&place_in_row, &progress);
        });
        line.clear();
        match ran {
            Ok((outcome, _)) => {
                if let Some(ledger) = &mut ledger {
                    ledger.add(&outcome).context("cannot keep the outcome")?;
                }
                let left = match std::io::stderr().is_terminal() {
                    true => String::new(),
                    false => {
                        format!("  {}/{}{}", number + 1, left.len(), remaining(clock, number + 1, left.len()))
                    }
                };
                say(arguments, &format!("{}{left}", lucid_drill::line(&outcome)));
                outcomes.push(outcome);
            }
            // Not every fault can be planted on a GPU.
            Err(RunError::Server(lucid_server::Error::Engine(
                error @ lucid_engine::Error::Unsupported { .. },
            ))) if case.plant.is_some() && place.device != Device::Cpu => {
                anstream::eprintln!("{} {}: {error}", style::dim("left out:"), case.name);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(outcomes)
}

/// Whether the reference tries the case's fault as a hypothesis.
fn is_of_the_model(case: &Case) -> bool {
    matches!(case.plant, Some(Plant::Engine(plant)) if plant.is_of_the_model())
}

/// Standard output is the result's; where that is JSON, people read the other.
fn say(arguments: &Drill, text: &str) {
    if arguments.json {
        anstream::eprintln!("{text}");
    } else {
        anstream::println!("{text}");
    }
}

/// How long the runs that are left take, if they are like the others.
fn remaining(since: Instant, done: usize, of: usize) -> String {
    if done == 0 || done >= of {
        return String::new();
    }
    let left = since.elapsed().as_secs_f64() / done as f64 * (of - done) as f64;
    format!(", {} left", humantime::format_duration(Duration::from_secs(left.ceil() as u64)))
}

fn chosen(names: &[String]) -> Result<Vec<&'static Case>> {
    if names.is_empty() {
        return Ok(CATALOGUE.iter().collect());
    }
    let mut cases: Vec<&Case> = Vec::new();
    for name in names {
        let is = |case: &&Case| match name.strip_suffix('*') {
            Some(start) => case.name.starts_with(start),
            None => case.name == name,
        };
        let of_name: Vec<&Case> = CATALOGUE.iter().filter(is).collect();
        if of_name.is_empty() {
            bail!("there is no case {name:?}: see `lucid drill --list`");
        }
        cases.extend(of_name);
    }
    Ok(cases)
}
