//! The list of reported cases says what is there: a fixture for each, or the reason why there can be none.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// What the list calls the fixtures of a crate.
const CRATES: &[(&str, &str)] = &[
    ("lucid-logs", "log"),
    ("lucid-host", "flags and host"),
    ("lucid-environment", "packages"),
    ("lucid-code-audit", "code"),
    ("lucid-checkpoint-audit", "checkpoint"),
];

#[test]
fn the_list_of_cases_is_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut fixtures: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, word) in CRATES {
        for entry in fs::read_dir(root.join(format!("crates/{name}/tests/cases"))).unwrap() {
            let file = entry.unwrap().file_name().to_string_lossy().into_owned();
            let case = file.get(..4).filter(|case| !case.ends_with("000")).unwrap_or("");
            if !case.is_empty() {
                fixtures.entry(case.to_owned()).or_default().push(word);
            }
        }
    }
    // Memory over time is no log line: `tests/watch.rs` has it.
    fixtures.entry("C146".to_owned()).or_default().push("watch");
    let list = fs::read_to_string(root.join("docs/cases.md")).unwrap();
    let mut listed = 0;
    let mut with_fixture = 0;
    for line in list.lines().filter(|line| line.starts_with("| C")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let (case, told) = (cells[0], *cells.last().unwrap());
        listed += 1;
        match fixtures.remove(case) {
            Some(mut words) => {
                words.sort_unstable();
                words.dedup();
                assert_eq!(told, words.join(", "), "{case}");
                with_fixture += 1;
            }
            None => assert!(told.starts_with("none: ") && told.len() > 30, "{case}: {told}"),
        }
    }
    assert!(fixtures.is_empty(), "not listed: {fixtures:?}");
    assert!(
        list.contains(&format!("{with_fixture} of {listed} have a fixture.")),
        "{with_fixture} of {listed}"
    );
}
