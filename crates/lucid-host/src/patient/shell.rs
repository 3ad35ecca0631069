//! From a shell line or a container's arguments to the serving command: assignments in front, wrappers around, the engine's entry.

use lucid_findings::{EngineKind, redact};

use super::PatientError;
use super::environment::assignment;

/// Longer command lines are no serving commands.
const LONGEST_LINE: usize = 64 * 1024;
/// `sh -c "bash -c '…'"` this deep is as far as we unwrap.
const DEEPEST: usize = 4;

/// A serving command, apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServingCommand {
    /// The engine that its entry names.
    pub engine: Option<EngineKind>,
    /// Assignments in front of the command.
    pub assignments: Vec<(String, String)>,
    /// From the interpreter or engine on, without assignments and wrappers.
    pub words: Vec<String>,
    /// Where the engine's own arguments begin in `words`.
    pub arguments_at: usize,
}

/// Splits a shell line; of several commands takes the one that serves.
pub(crate) fn split(line: &str) -> Result<ServingCommand, PatientError> {
    if line.len() > LONGEST_LINE {
        return Err(PatientError::TooLong {
            what: "the command line",
            bytes: line.len(),
            limit: LONGEST_LINE,
        });
    }
    let words = shell_words::split(line)
        .map_err(|_| PatientError::Unquoted { line: line.chars().take(200).collect() })?;
    Ok(serving_command(&words, DEEPEST))
}

/// Finds the serving command in words that may hold wrappers (`env`, `numactl`, `sh -c`) and several commands.
pub(crate) fn from_words(words: &[String]) -> ServingCommand {
    serving_command(words, DEEPEST)
}

fn serving_command(words: &[String], deep: usize) -> ServingCommand {
    let mut fallback = None;
    let mut exported = Vec::new();
    // `A=1; vllm …`: shell-words leaves the semicolon at its word.
    let words: Vec<String> = words
        .iter()
        .flat_map(|word| match word.strip_suffix(';') {
            Some(word) => vec![word.to_owned(), ";".to_owned()],
            None => vec![word.clone()],
        })
        .collect();
    for command in words.split(|word| matches!(word.as_str(), "&&" | "||" | ";" | "|" | "&")) {
        if command.first().is_some_and(|first| first == "export") {
            exported.extend(assignments(&command[1..]).0);
            continue;
        }
        let (own, start) = assignments(command);
        let rest = &command[start..];
        // `sh -c LINE`, `bash -lc LINE`: the line is a command of its own.
        if let Some(line) = shell_argument(rest).filter(|_| deep > 0)
            && let Ok(inner) = shell_words::split(line)
        {
            let mut found = serving_command(&inner, deep - 1);
            if found.engine.is_some() {
                found.assignments = [exported.clone(), own, found.assignments].concat();
                return found;
            }
        }
        match engine_entry(rest) {
            Some((engine, first, arguments_at)) => {
                // Wrappers may carry assignments too: `env A=1 numactl … vllm serve`.
                let wrapper = rest[..first].iter().filter_map(|word| assignment(word));
                let wrapped = wrapper.map(|(name, value)| (name.to_owned(), value.to_owned()));
                let assignments = exported.into_iter().chain(own).chain(wrapped).collect();
                return ServingCommand {
                    engine: Some(engine),
                    assignments,
                    words: rest[first..].to_vec(),
                    arguments_at: arguments_at - first,
                };
            }
            None => {
                fallback.get_or_insert(ServingCommand {
                    engine: None,
                    assignments: own,
                    words: rest.to_vec(),
                    arguments_at: 1.min(rest.len()),
                });
            }
        }
    }
    fallback.unwrap_or_default()
}

/// Assignments at the beginning, and where they end.
fn assignments(words: &[String]) -> (Vec<(String, String)>, usize) {
    let found: Vec<_> = words
        .iter()
        .map_while(|word| assignment(word))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let end = found.len();
    (found, end)
}

/// The line of `sh -c LINE`.
fn shell_argument(words: &[String]) -> Option<&str> {
    let shell =
        words.iter().position(|word| matches!(base_name(word), "sh" | "bash" | "dash" | "zsh" | "ash"))?;
    let option = words[shell + 1..].iter().position(|word| word.starts_with('-') && word.ends_with('c'))?;
    words.get(shell + 1 + option + 1).map(String::as_str)
}

/// The engine, where its command begins and where its own arguments begin.
fn engine_entry(words: &[String]) -> Option<(EngineKind, usize, usize)> {
    words.iter().enumerate().find_map(|(at, word)| {
        let next = words.get(at + 1).map(String::as_str);
        // The interpreter in front belongs to the command.
        let from = |at: usize| if at > 0 && is_python(&words[at - 1]) { at - 1 } else { at };
        match base_name(word) {
            "vllm" if next == Some("serve") => Some((EngineKind::Vllm, from(at), at + 2)),
            "sglang" if next == Some("serve") => Some((EngineKind::Sglang, from(at), at + 2)),
            "lucid" if next == Some("serve") => Some((EngineKind::Lucid, at, at + 2)),
            "llama-server" => Some((EngineKind::LlamaCpp, at, at + 1)),
            _ if word == "-m" => module_engine(next?).map(|engine| {
                let interpreter = words[..at].iter().rposition(|word| is_python(word)).unwrap_or(at);
                // `-m vllm.entrypoints.cli.main serve` carries the verb behind the module.
                let verb = usize::from(words.get(at + 2).is_some_and(|word| word == "serve"));
                (engine, interpreter, at + 2 + verb)
            }),
            _ if word.ends_with("vllm/entrypoints/openai/api_server.py") => {
                Some((EngineKind::Vllm, from(at), at + 1))
            }
            _ if word.ends_with("sglang/launch_server.py") => Some((EngineKind::Sglang, from(at), at + 1)),
            _ => None,
        }
    })
}

fn module_engine(module: &str) -> Option<EngineKind> {
    if module.starts_with("vllm.entrypoints") || module == "vllm" {
        Some(EngineKind::Vllm)
    } else if module.starts_with("sglang.launch_server")
        || module.starts_with("sglang.cli")
        || module == "sglang"
    {
        Some(EngineKind::Sglang)
    } else {
        None
    }
}

fn is_python(word: &str) -> bool {
    base_name(word).starts_with("python")
}

pub(crate) fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// The engine and version of a container image: `vllm/vllm-openai:v0.11.0`.
pub(crate) fn image_engine(image: &str) -> (Option<EngineKind>, Option<String>) {
    let name = image.split('@').next().unwrap_or(image);
    let (path, tag) = match name.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (name, None),
    };
    let lower = path.to_ascii_lowercase();
    let engine = if lower.contains("sglang") {
        Some(EngineKind::Sglang)
    } else if lower.contains("vllm") {
        Some(EngineKind::Vllm)
    } else if lower.contains("llama.cpp") || lower.contains("llama-cpp") {
        Some(EngineKind::LlamaCpp)
    } else {
        None
    };
    // Only the engines' own images name the engine's version by their tag.
    let official = ["vllm/vllm-openai", "lmsysorg/sglang"].iter().any(|own| lower.ends_with(own));
    let version = tag.filter(|_| official).map(|tag| tag.trim_start_matches('v')).and_then(|tag| {
        let version = tag.split('-').next().unwrap_or(tag);
        version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
    });
    (engine, version)
}

/// Masks the values of flags that hold secrets, then whatever else looks like one.
pub(crate) fn mask_secrets(words: &[String]) -> Vec<String> {
    let mut masked = Vec::with_capacity(words.len());
    let mut hiding = false;
    for word in words {
        let flag = word.starts_with("--");
        if flag {
            let (name, value) =
                word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            let last = name.rsplit(['-', '_']).next().unwrap_or(name).to_ascii_lowercase();
            let secret =
                matches!(last.as_str(), "key" | "token" | "secret" | "password" | "passwd" | "credentials");
            hiding = secret && value.is_none();
            if secret && value.is_some() {
                masked.push(format!("{name}=[redacted]"));
                continue;
            }
        } else if hiding {
            masked.push("[redacted]".to_owned());
            continue;
        }
        masked.push(redact(word).into_owned());
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_are_taken_off() {
        for (line, engine, first, argument) in [
            ("vllm serve M -tp 8", EngineKind::Vllm, "vllm", "M"),
            (
                "HF_HOME=/x CUDA_VISIBLE_DEVICES=0,1 /opt/venv/bin/vllm serve M",
                EngineKind::Vllm,
                "/opt/venv/bin/vllm",
                "M",
            ),
            ("/usr/bin/python3.12 /opt/venv/bin/vllm serve M", EngineKind::Vllm, "/usr/bin/python3.12", "M"),
            (
                "bash -lc 'cd /srv && export A=1; exec vllm serve M --port 8000'",
                EngineKind::Vllm,
                "vllm",
                "M",
            ),
            (
                "env A=1 numactl --cpunodebind=0 python3 -m sglang.launch_server --model-path M",
                EngineKind::Sglang,
                "python3",
                "--model-path",
            ),
            (
                "python -u -m vllm.entrypoints.openai.api_server --model M",
                EngineKind::Vllm,
                "python",
                "--model",
            ),
            ("uv run --with vllm vllm serve M", EngineKind::Vllm, "vllm", "M"),
            ("tini -- /app/llama-server -m m.gguf", EngineKind::LlamaCpp, "/app/llama-server", "-m"),
            ("sglang serve --model-path M", EngineKind::Sglang, "sglang", "--model-path"),
            ("vllm \\\n  serve \\\n M", EngineKind::Vllm, "vllm", "M"),
        ] {
            let found = split(line).unwrap();
            assert_eq!(found.engine, Some(engine), "{line}");
            assert_eq!(found.words[0], first, "{line}");
            assert_eq!(found.words[found.arguments_at], argument, "{line}");
        }
        let found = split("bash -c 'export A=1; B=2 vllm serve M'").unwrap();
        assert_eq!(found.assignments, [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "2".to_owned())]);
        assert_eq!(split("redis-server --port 1").unwrap().engine, None);
        assert!(split("vllm serve 'M").is_err());
    }

    #[test]
    fn images_name_engine_and_version() {
        assert_eq!(
            image_engine("vllm/vllm-openai:v0.11.0"),
            (Some(EngineKind::Vllm), Some("0.11.0".to_owned()))
        );
        assert_eq!(
            image_engine("registry:5000/lmsysorg/sglang:v0.5.12-cu130@sha256:00"),
            (Some(EngineKind::Sglang), Some("0.5.12".to_owned()))
        );
        assert_eq!(image_engine("vllm/vllm-openai:latest"), (Some(EngineKind::Vllm), None));
        // A tag of somebody's own image says nothing about the engine's version.
        assert_eq!(image_engine("me/my-vllm:2.0"), (Some(EngineKind::Vllm), None));
        assert_eq!(image_engine("registry:5000/redis"), (None, None));
    }

    #[test]
    fn secrets_are_masked() {
        let words = |line: &str| shell_words::split(line).unwrap();
        let masked = mask_secrets(&words(
            "vllm serve M --api-key abc def --hf-token=short --port 1 --ssl-keyfile k.pem",
        ));
        assert_eq!(
            masked.join(" "),
            "vllm serve M --api-key [redacted] [redacted] --hf-token=[redacted] --port 1 --ssl-keyfile k.pem"
        );
        let harmless = words("--max-num-batched-tokens 8192 --tokenizer T --long-prefill-token-threshold 4");
        assert_eq!(mask_secrets(&harmless), harmless);
    }
}
