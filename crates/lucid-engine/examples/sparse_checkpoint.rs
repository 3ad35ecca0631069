//! Writes an apparent Kimi-K2.5 NVFP4 checkpoint of real names and shapes into a folder, as sparse files:
//!
//! ```text
//! cargo run -p lucid-engine --example sparse_checkpoint -- FOLDER [LAYERS]
//! ```
//!
//! To try what streams checkpoints larger than memory.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // A tool for measurements.

#[path = "../tests/sparse_checkpoint/mod.rs"]
mod sparse_checkpoint;

use std::path::PathBuf;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(folder) = arguments.next().map(PathBuf::from) else {
        println!("sparse_checkpoint FOLDER [LAYERS]: a folder to write to is missing");
        std::process::exit(2);
    };
    let mut config: serde_json::Value =
        serde_json::from_str(include_str!("../tests/sparse_checkpoint/kimi-k2.5-nvfp4.json")).unwrap();
    if let Some(layers) = arguments.next() {
        config["text_config"]["num_hidden_layers"] = layers.parse::<usize>().unwrap().into();
    }
    std::fs::create_dir_all(&folder).unwrap();
    let bytes = sparse_checkpoint::write(&folder, &config, "language_model.");
    println!("{:.1} GB in {}", bytes as f64 / 1e9, folder.display());
}
