//! Reads a site-packages folder and says what it found: `cargo run -p lucid-code-audit --example audit_code -- SITE_PACKAGES`.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folders: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let evidence = lucid_code_audit::gather(Path::new("/"), &folders, &mut |_| {})?;
    println!(
        "{} files, {} parsed, {:.1} MB, {:.2} s; {} facts (+{}), {} patches, {} notes",
        evidence.files,
        evidence.parsed,
        evidence.bytes as f64 / 1e6,
        evidence.seconds,
        evidence.facts.len(),
        evidence.facts_left_out,
        evidence.patches.len(),
        evidence.notes.kept.len()
    );
    println!("counted only: {:?}", evidence.ordinary);
    for fact in &evidence.facts {
        println!(
            "{:5.2} {} {}:{} {} {} [{}] when {:?} {} -> {:?}",
            fact.score,
            fact.effect.name(),
            fact.file,
            fact.line,
            fact.function,
            fact.spelled,
            fact.marks.join(" "),
            fact.when,
            fact.how_often,
            fact.writes
        );
    }
    for patch in &evidence.patches {
        println!(
            "{:?} {}:{} {} {} = {} {:?}",
            patch.kind, patch.file, patch.line, patch.function, patch.target, patch.with, patch.when
        );
    }
    for (file, note) in &evidence.notes.kept {
        println!("note {file}: {note}");
    }
    Ok(())
}
