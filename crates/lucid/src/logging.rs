//! What is said on standard error while things run.

use std::io::IsTerminal;

use tracing_subscriber::filter::LevelFilter;

/// Warnings by default, `-v` adds requests and phases, `-vv` everything.
pub fn start(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(verbose > 1)
        .init();
}
