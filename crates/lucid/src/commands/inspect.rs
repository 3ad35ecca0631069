//! `lucid inspect`: what is in a checkpoint.

use std::process::ExitCode;

use anyhow::Result;
use lucid_checkpoint::{Checkpoint, inspect};

use crate::arguments::Inspect;
use crate::model;

/// Prints the config, layouts, tensors and totals.
pub fn run(arguments: &Inspect) -> Result<ExitCode> {
    let checkpoint = Checkpoint::open(model::files(arguments.model.as_deref())?)?;
    let inspection = inspect(&checkpoint);
    if arguments.json {
        anstream::println!("{}", serde_json::to_string_pretty(&inspection)?);
    } else {
        anstream::print!("{}", inspection.render(arguments.tensors));
    }
    Ok(ExitCode::SUCCESS)
}
