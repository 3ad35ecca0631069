//! Every kind of finding of this crate, in `kinds/*.toml`: three scenes or more that make it, told in different spellings, and
//! twins that don't.
#![allow(clippy::unwrap_used)]

#[path = "kinds/scene.rs"]
mod scene;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use scene::Scene;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    kind: Vec<Kind>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    id: String,
    /// What all scenes of the kind share.
    #[serde(default)]
    base: toml::Table,
    planted: Vec<Told>,
    twins: Vec<Told>,
}

/// A scene, or its patient alone.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Told {
    Patient(String),
    Scene(toml::Table),
}

impl Told {
    /// The scene with what is told on top of `base`.
    fn scene(&self, base: &toml::Table) -> Scene {
        let mut scene = serde_json::to_value(base).unwrap();
        let told = match self {
            Told::Patient(text) => serde_json::json!({ "patient": text }),
            Told::Scene(table) => serde_json::to_value(table).unwrap(),
        };
        scene::merge(&mut scene, &told);
        serde_json::from_value(scene).unwrap_or_else(|error| panic!("{error}: {told}"))
    }

    fn text(&self) -> String {
        match self {
            Told::Patient(text) => text.clone(),
            Told::Scene(table) => serde_json::to_string(table).unwrap(),
        }
    }
}

fn kinds() -> Vec<Kind> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kinds");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let tables = files.iter().filter(|file| file.extension().is_some_and(|end| end == "toml"));
    tables
        .flat_map(|file| {
            let text = fs::read_to_string(file).unwrap();
            toml::from_str::<Table>(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display())).kind
        })
        .collect()
}

#[test]
fn three_spellings_are_found_and_the_twins_are_not() {
    let mut wrong = Vec::new();
    for kind in kinds() {
        let all =
            kind.planted.iter().map(|told| (told, true)).chain(kind.twins.iter().map(|told| (told, false)));
        for (told, planted) in all {
            let found = told.scene(&kind.base).findings();
            if found.iter().any(|finding| finding.id == kind.id) != planted {
                let ids: Vec<_> = found.iter().map(|finding| finding.id.as_str()).collect();
                let what = if planted { "planted, not found" } else { "twin, found" };
                wrong.push(format!("{} {what}: {}\n    {}", kind.id, told.text(), ids.join(", ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} scenes:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn no_kind_is_left_out() {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for kind in kinds() {
        let texts: Vec<String> = kind.planted.iter().map(Told::text).collect();
        let mut different = texts.clone();
        different.sort();
        different.dedup();
        assert!(different.len() == texts.len() && texts.len() >= 3, "{}: three different spellings", kind.id);
        assert!(!kind.twins.is_empty(), "{}: no twin", kind.id);
        *seen.entry(kind.id).or_default() += 1;
    }
    for (id, _) in lucid_host::FINDINGS {
        assert_eq!(seen.remove(*id), Some(1), "{id} must stand once in tests/kinds");
    }
    assert!(seen.is_empty(), "not in FINDINGS: {seen:?}");
}

#[test]
fn scenes_are_merged_member_by_member() {
    let mut base = serde_json::json!({ "a": { "b": 1, "c": 2 }, "d": [1] });
    scene::merge(&mut base, &serde_json::json!({ "a": { "b": 3 }, "d": [2, 3], "e": null }));
    assert_eq!(base, serde_json::json!({ "a": { "b": 3, "c": 2 }, "d": [2, 3], "e": Value::Null }));
}
