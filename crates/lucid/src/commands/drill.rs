//! `lucid drill`: plants known faults one by one, runs the doctor on each, and scores it.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use lucid_doctor::Depth;
use lucid_drill::{CATALOGUE, Case, Place, Score};
use lucid_engine::Device;

use crate::arguments::{DepthArgument, Drill};
use crate::progress::ProgressLine;
use crate::{bundled, style};

/// Runs the chosen cases.
pub fn run(arguments: &Drill) -> Result<ExitCode> {
    if arguments.list {
        for case in CATALOGUE {
            let cause = case.cause.unwrap_or("–");
            anstream::println!("{:<38} {cause:<20} {}", style::name(case.name), style::dim(case.about));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let files = bundled::canary();
    let depth = match arguments.depth {
        DepthArgument::Quick => Depth::Quick,
        DepthArgument::Standard => Depth::Standard,
        DepthArgument::Thorough => Depth::Thorough,
    };
    let place = Place { device: arguments.device, ranks: arguments.tensor_parallel_size, ..Place::default() };
    let mut line = ProgressLine::new();
    let mut outcomes = Vec::new();
    for case in chosen(&arguments.faults)? {
        for seed in arguments.seed..arguments.seed.saturating_add(arguments.runs) {
            let ran = lucid_drill::run_on(place, &files, bundled::NAME, case, seed, depth, &mut |progress| {
                line.show(&progress);
            });
            line.clear();
            match ran {
                Ok((outcome, _)) => outcomes.push(outcome),
                // Not every fault can be planted on a GPU.
                Err(lucid_server::Error::Engine(error @ lucid_engine::Error::Unsupported { .. }))
                    if case.plant.is_some() && place.device != Device::Cpu =>
                {
                    anstream::eprintln!("{} {}: {error}", style::dim("left out:"), case.name);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    let score = Score::of(outcomes);
    if let Some(path) = &arguments.html {
        std::fs::write(path, lucid_drill::html(&score))
            .with_context(|| format!("cannot write the page to {}", path.display()))?;
        anstream::eprintln!("{} {}", style::dim("page:"), path.display());
    }
    if arguments.json {
        anstream::println!("{}", serde_json::to_string_pretty(&score)?);
    } else {
        anstream::print!("{score}");
    }
    Ok(ExitCode::from(u8::from(!score.all_right())))
}

fn chosen(names: &[String]) -> Result<Vec<&'static Case>> {
    if names.is_empty() {
        return Ok(CATALOGUE.iter().collect());
    }
    let mut cases = Vec::new();
    for name in names {
        match lucid_drill::find(name) {
            Some(case) => cases.push(case),
            None => bail!("there is no fault {name:?} to plant: see `lucid drill --list`"),
        }
    }
    Ok(cases)
}
