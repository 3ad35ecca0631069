//! A serving command line taken apart: flags under their canonical names, and positional arguments.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Other spellings of a flag and the one name that checks ask for; flags that stand alone; flags that take a list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spellings {
    aliases: BTreeMap<String, String>,
    alone: Vec<String>,
    alone_prefixes: Vec<String>,
    with_value: Vec<String>,
    lists: Vec<String>,
}

static SPELLINGS: LazyLock<Spellings> = LazyLock::new(|| {
    toml::from_str(include_str!("../../knowledge/spellings.toml"))
        .unwrap_or_else(|error| panic!("knowledge/spellings.toml: {error}"))
});

/// One flag as it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flag {
    /// Canonical name without dashes, `_` as `-`, aliases resolved: `tensor-parallel-size`, `attention-config.backend`.
    pub name: String,
    /// As it was typed: `-tp`.
    pub spelled: String,
    /// Its values; none for a switch.
    pub values: Vec<String>,
}

/// The flags of a serving command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flags {
    /// In the order of the command line.
    pub flags: Vec<Flag>,
    /// Arguments that belong to no flag: the model of `vllm serve MODEL`.
    pub positional: Vec<String>,
}

impl Flags {
    /// Takes the arguments after the engine's entry apart.
    #[must_use]
    pub fn parse(arguments: &[String]) -> Flags {
        let mut parsed = Flags::default();
        let mut at = 0;
        while let Some(argument) = arguments.get(at) {
            at += 1;
            if argument == "--" {
                parsed.positional.extend(arguments[at..].iter().cloned());
                break;
            }
            if !is_flag(argument) {
                parsed.positional.push(argument.clone());
                continue;
            }
            let (spelled, given) = match argument.split_once('=') {
                Some((spelled, value)) => (spelled, Some(value.to_owned())),
                None => (argument.as_str(), None),
            };
            // vLLM takes the level of optimization glued to the letter: `-O3`.
            let (spelled, given) = match spelled.strip_prefix("-O") {
                Some(level) if !level.is_empty() && given.is_none() => ("-O", Some(level.to_owned())),
                _ => (spelled, given),
            };
            let name = canonical(spelled);
            let mut values = Vec::from_iter(given);
            if values.is_empty() && !stands_alone(&name) {
                let most = if SPELLINGS.lists.contains(&name) { usize::MAX } else { 1 };
                while let Some(value) =
                    arguments.get(at).filter(|value| values.len() < most && !is_flag(value))
                {
                    values.push(value.clone());
                    at += 1;
                }
            }
            parsed.flags.push(Flag { name, spelled: spelled.to_owned(), values });
        }
        parsed
    }

    /// The last use of a flag: engines let the last one win.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Flag> {
        self.flags.iter().rev().find(|flag| flag.name == name)
    }

    /// The value of a flag.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.get(name)?.values.first().map(String::as_str)
    }

    /// The value of a flag as a number; `64k` and `64K` as vLLM and SGLang read them (decimal and binary).
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        read_number(self.value(name)?)
    }

    /// Whether a switch is on: given, and not taken back by `--no-NAME` or `=false` later.
    #[must_use]
    pub fn is_on(&self, name: &str) -> bool {
        self.switch(name) == Some(true)
    }

    /// What was said about a switch, if anything.
    #[must_use]
    pub fn switch(&self, name: &str) -> Option<bool> {
        self.flags.iter().rev().find_map(|flag| {
            if flag.name == name {
                let off = flag.values.first().is_some_and(|value| {
                    matches!(value.to_ascii_lowercase().as_str(), "false" | "0" | "off" | "no")
                });
                Some(!off)
            } else {
                (flag.name.strip_prefix("no-") == Some(name)).then_some(false)
            }
        })
    }

    /// A member of a flag that takes JSON: from `--NAME '{"key": …}'` or `--NAME.key VALUE`.
    #[must_use]
    pub fn member(&self, name: &str, key: &str) -> Option<String> {
        let dotted = format!("{name}.{key}");
        let plain = |text: &str| text.replace('-', "_");
        if let Some(flag) = self.flags.iter().rev().find(|flag| plain(&flag.name) == plain(&dotted)) {
            return flag.values.first().cloned();
        }
        let json: Value = serde_json::from_str(self.value(name)?).ok()?;
        match json.get(key)? {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            other => Some(other.to_string()),
        }
    }
}

/// `64k` is 64,000 and `64K` is 65,536 to both engines; plain numbers are themselves.
fn read_number(text: &str) -> Option<u64> {
    let (digits, factor) = match text.char_indices().last()? {
        (at, 'k') => (&text[..at], 1e3),
        (at, 'm') => (&text[..at], 1e6),
        (at, 'g') => (&text[..at], 1e9),
        (at, 'K') => (&text[..at], 1024.0),
        (at, 'M') => (&text[..at], 1024.0 * 1024.0),
        (at, 'G') => (&text[..at], 1024.0 * 1024.0 * 1024.0),
        _ => return text.parse().ok(),
    };
    let number: f64 = digits.parse().ok().filter(|number| (0.0..1e15).contains(number))?;
    Some((number * factor) as u64)
}

/// The canonical name of a spelled flag.
pub(crate) fn canonical(spelled: &str) -> String {
    let bare = spelled.trim_start_matches('-');
    // Members behind the first dot keep their underscores: they are keys of JSON.
    let (head, tail) = bare.split_once('.').map_or((bare, None), |(head, tail)| (head, Some(tail)));
    let head = if spelled.starts_with("--") { head.replace('_', "-") } else { head.to_owned() };
    let key = if spelled.starts_with("--") { format!("--{head}") } else { format!("-{head}") };
    let head = SPELLINGS.aliases.get(&key).cloned().unwrap_or(head);
    tail.map_or(head.clone(), |tail| format!("{head}.{tail}"))
}

/// A dash and a letter begin a flag; `-1` and `-` are values.
fn is_flag(argument: &str) -> bool {
    argument
        .strip_prefix('-')
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '-'))
}

fn stands_alone(name: &str) -> bool {
    let with_value = SPELLINGS.with_value.iter().any(|other| other == name);
    !with_value
        && (SPELLINGS.alone.iter().any(|other| other == name)
            || SPELLINGS.alone_prefixes.iter().any(|prefix| name.starts_with(prefix.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(line: &str) -> Flags {
        Flags::parse(&shell_words::split(line).unwrap())
    }

    #[test]
    fn the_model_is_no_switch_s_value() {
        for line in [
            "--enforce-eager moonshotai/Kimi-K2.5 -tp 8",
            "moonshotai/Kimi-K2.5 --tensor_parallel_size=8 --enforce-eager",
            "-tp=8 --no-enable-prefix-caching --trust-remote-code moonshotai/Kimi-K2.5",
            "--tp-size 8 --disable-log-stats moonshotai/Kimi-K2.5 --served-model-name a b c",
        ] {
            let parsed = flags(line);
            assert_eq!(parsed.positional, ["moonshotai/Kimi-K2.5"], "{line}");
            assert_eq!(parsed.number("tensor-parallel-size"), Some(8), "{line}");
        }
    }

    #[test]
    fn members_come_from_json_or_dots() {
        for line in [
            r#"--speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'"#,
            "--speculative_config.method mtp --speculative-config.num_speculative_tokens 3",
            "-sc.method=mtp -sc.num_speculative_tokens=3",
        ] {
            let parsed = flags(line);
            assert_eq!(parsed.member("speculative-config", "method").as_deref(), Some("mtp"), "{line}");
            assert_eq!(parsed.member("speculative-config", "num_speculative_tokens").as_deref(), Some("3"));
        }
        assert_eq!(flags("-O3").value("optimization-level"), Some("3"));
    }

    #[test]
    fn the_last_word_counts() {
        let parsed = flags("--max-model-len 64K --max-model-len 32k --enable-x --no-enable-x --seed -1");
        assert_eq!(parsed.number("max-model-len"), Some(32_000));
        assert_eq!(parsed.switch("enable-x"), Some(false));
        assert_eq!(parsed.value("seed"), Some("-1"));
        assert_eq!(flags("--max-model-len 64K").number("max-model-len"), Some(65_536));
    }
}
