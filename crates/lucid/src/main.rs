//! Lucid serves DeepSeek-V3-family models, and proves that what is being served is the model.

mod arguments;
mod bundled;
mod carrier;
mod commands;
mod logging;
mod machine;
mod model;
mod passages;
mod progress;
mod style;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Verb};

/// It could not be decided or could not be run.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    logging::start(arguments.verbose);
    let ended = match arguments.verb {
        Verb::Serve(arguments) => commands::serve::run(&arguments),
        Verb::Chat(arguments) => commands::chat::run(&arguments),
        Verb::Doctor(arguments) => commands::doctor::run(&arguments),
        Verb::Collect(arguments) => commands::collect::run(&arguments),
        Verb::Watch(arguments) => commands::watch::run(&arguments),
        Verb::Drill(arguments) => commands::drill::run(&arguments),
        Verb::Inspect(arguments) => commands::inspect::run(&arguments),
        Verb::Reference(arguments) => commands::reference::run(&arguments),
        Verb::Demo(arguments) => commands::demo::run(&arguments),
    };
    match ended {
        Ok(code) => code,
        Err(error) => {
            // Library errors tell their whole story in one text; contexts were added by us, outermost first.
            anstream::eprintln!("{}: {error:#}", style::error("error"));
            ExitCode::from(FAILED)
        }
    }
}
