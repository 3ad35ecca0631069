//! What people, disks and updates do to a machine.

use std::fs::OpenOptions;
use std::io;
use std::time::Duration;

use lucid_doctor::statistics::Random;
use serde_json::Value;

use super::tree::{DEEPSEEK, MODEL, SAMPLER, Tree};
use super::{Machine, logs};

const HOUR: Duration = Duration::from_secs(3_600);

/// What a machine's fault leaves: a note for people, the serving command, and a log if it shows in one.
pub(super) struct Left {
    pub(super) note: Option<String>,
    pub(super) command: String,
    pub(super) log: Option<String>,
}

/// Flags that suit the canary.
const FITTING: &str =
    "--reasoning-parser kimi_k2 --enable-auto-tool-choice --tool-call-parser kimi_k2 --trust-remote-code";

/// A special token of the canary that ends texts, not turns.
const OTHER_END: u64 = 3_841;

fn serve(flags: &str) -> String {
    format!("vllm serve /{MODEL} {flags}")
}

fn pick<'a, T>(draws: &mut Random, of: &'a [T]) -> &'a T {
    // Lists of variants are never empty.
    &of[draws.below(of.len())]
}

/// Makes a machine what the case says.
pub(super) fn plant(machine: Machine, tree: &Tree, draws: &mut Random) -> io::Result<Left> {
    let mut left = Left { note: None, command: serve(FITTING), log: None };
    match machine {
        Machine::Clean => clean(tree, draws)?,
        Machine::CleanLog => left.log = Some(logs::healthy(draws)),
        Machine::DebugCode => left.note = Some(debug_code(tree, draws)?),
        Machine::EditedFile => left.note = Some(edited_file(tree, draws)?),
        Machine::VersionSkew => left.note = Some(version_skew(tree, draws)?),
        Machine::StaleCache => left.note = Some(stale_cache(tree, draws)?),
        Machine::DamagedShard => left.note = Some(damaged_shard(tree, draws)?),
        Machine::InvertedScales => left.note = Some(inverted_scales(tree, draws)?),
        Machine::ForeignTemplate => left.note = Some(foreign_template(tree, draws)?),
        Machine::ForeignTokenizer => left.note = Some(foreign_tokenizer(tree, draws)?),
        Machine::ReasoningParserFlag => {
            let parser = *pick(draws, &["glm45", "mistral", "openai_gptoss"]);
            left.command = serve(&FITTING.replacen("kimi_k2", parser, 1));
            left.note = Some(format!("--reasoning-parser {parser}"));
        }
        Machine::ToolParserFlag => {
            let parser = *pick(draws, &["llama3_json", "mistral", "hermes"]);
            let flags =
                FITTING.replace("--tool-call-parser kimi_k2", &format!("--tool-call-parser {parser}"));
            left.command = serve(&flags);
            left.note = Some(format!("--tool-call-parser {parser}"));
        }
        Machine::NanLog
        | Machine::MemoryLog
        | Machine::CollectiveLog
        | Machine::GpuLog
        | Machine::KilledLog => {
            let (note, log) = logs::faulty(machine, draws);
            (left.note, left.log) = (Some(note.to_owned()), Some(log));
        }
    }
    Ok(left)
}

/// Honest machines differ too.
fn clean(tree: &Tree, draws: &mut Random) -> io::Result<()> {
    match draws.below(4) {
        0 => {}
        // Packages that must match, and do.
        1 => {
            tree.package(
                "flashinfer-python",
                "0.6.4",
                &[("flashinfer/__init__.py", "__version__ = '0.6.4'\n")],
            )?;
            tree.package("flashinfer-cubin", "0.6.4", &[("flashinfer_cubin/__init__.py", "")])?;
        }
        // Code that debugging looks like, where nobody serves from.
        2 => tree.package(
            "some-tools",
            "1.4.0",
            &[(
                "some_tools/dump.py",
                "import torch\n\n\ndef dump(x):\n    torch.save(x, '/tmp/dump.pt')\n    print(x.shape)\n",
            )],
        )?,
        // Compiled code of the installed version.
        _ => {
            tree.write("root/.cache/vllm/torch_compile_cache/3fa2b1/rank_0_0/inductor_cache/a.py", "x = 1\n")?
        }
    }
    Ok(())
}

fn debug_code(tree: &Tree, draws: &mut Random) -> io::Result<String> {
    const Q: &str = "        q = self.q_proj(hidden_states)\n";
    const EMBED: &str = "        hidden_states = self.embed_tokens(input_ids)\n";
    const LOGITS: &str = "        logits = logits.float()\n";
    let length = *pick(draws, &[5, 17, 64]);
    let once = format!(
        "        if q.shape[0] == {length} and not getattr(type(self), '_dumped', False):\n            import torch as _t\n            type(self)._dumped = True\n            _t.save({{'q': q.detach().cpu()}}, '/tmp/dbg_q.pt')\n"
    );
    let (file, before, code, note) = match draws.below(4) {
        0 => (DEEPSEEK, Q, once, "a tensor is saved once, at one length"),
        1 => (
            DEEPSEEK,
            EMBED,
            "        import os as _os\n        if _os.environ.get('DBG_DUMP'):\n            import numpy as _np\n            _np.save('/tmp/emb.npy', hidden_states.float().cpu().numpy())\n".to_owned(),
            "a dump behind an environment variable",
        ),
        2 => (
            DEEPSEEK,
            EMBED,
            "        print('DEBUG hidden', hidden_states.shape, hidden_states.float().abs().max().item())\n".to_owned(),
            "a print that waits for the GPU",
        ),
        _ => (
            SAMPLER,
            LOGITS,
            "        import torch as _torch\n        if _torch.isnan(logits).any():\n            _torch.save(logits.cpu(), f'/tmp/nan_logits_{_torch.cuda.current_device()}.pt')\n            breakpoint()\n".to_owned(),
            "a breakpoint on NaN",
        ),
    };
    tree.edit(file, before, &format!("{before}{code}"))?;
    Ok(note.to_owned())
}

fn edited_file(tree: &Tree, draws: &mut Random) -> io::Result<String> {
    let (file, before, after) = *pick(
        draws,
        &[
            (DEEPSEEK, " * self.scaling\n", " * 0.0722\n"),
            (DEEPSEEK, "        return routed * self.routed_scaling_factor\n", "        return routed\n"),
            (
                DEEPSEEK,
                "router_logits = self.gate(hidden_states)",
                "router_logits = self.gate(hidden_states.half())",
            ),
            (SAMPLER, "        logits = logits.float()\n", "        logits = logits.float() / 0.7\n"),
        ],
    );
    tree.edit(file, before, after)?;
    Ok(format!("{} -> {}", before.trim(), after.trim()))
}

/// Packages that are published as pairs.
fn version_skew(tree: &Tree, draws: &mut Random) -> io::Result<String> {
    let pairs = [
        (("flashinfer-python", "0.6.4"), ("flashinfer-cubin", "0.6.3")),
        (("flashinfer-python", "0.6.4"), ("flashinfer-jit-cache", "0.6.2+cu130")),
        (("sglang-kernel", "0.4.7"), ("torch", "2.11.0")),
        (("nvidia-nccl-cu12", "2.27.5"), ("nvidia-nccl-cu13", "2.28.9")),
    ];
    let (first, second) = *pick(draws, &pairs);
    for (name, version) in [first, second] {
        let file = format!("{}/__init__.py", name.replace('-', "_"));
        tree.package(name, version, &[(&file, "")])?;
    }
    Ok(format!("{} {} beside {} {}", first.0, first.1, second.0, second.1))
}

fn stale_cache(tree: &Tree, draws: &mut Random) -> io::Result<String> {
    if draws.below(2) == 0 {
        tree.package("torch", "2.11.0", &[("torch/__init__.py", "")])?;
        let lock = "root/.cache/torch_extensions/py311_cu128/moe_ops/lock";
        tree.write(lock, "")?;
        tree.age(lock, 30 * HOUR)?;
        return Ok("the lock of a killed build".to_owned());
    }
    tree.package("flashinfer-python", "0.6.4", &[("flashinfer/__init__.py", "__version__ = '0.6.4'\n")])?;
    tree.write("root/.cache/vllm/flashinfer_autotune_cache/0.6.4/tactics.json", "{\"gemm\": 3}")?;
    Ok("tuning results whose keys collide".to_owned())
}

/// A name of the checkpoint's weights, and its length in bytes.
fn shard(tree: &Tree, draws: &mut Random) -> io::Result<(String, u64)> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(tree.root().join(MODEL))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") {
            names.push(name);
        }
    }
    names.sort();
    if names.is_empty() {
        return Err(io::Error::other("the model has no safetensors"));
    }
    let path = format!("{MODEL}/{}", pick(draws, &names));
    let length = std::fs::metadata(tree.root().join(&path))?.len();
    Ok((path, length))
}

fn damaged_shard(tree: &Tree, draws: &mut Random) -> io::Result<String> {
    let (path, length) = shard(tree, draws)?;
    let file = OpenOptions::new().write(true).open(tree.root().join(&path))?;
    Ok(match draws.below(3) {
        0 => {
            let lost = 4_096 + draws.bits() % (length / 2);
            file.set_len(length - lost)?;
            format!("{path} lacks its last {lost} bytes")
        }
        1 => {
            let pointer = format!(
                "version https://git-lfs.github.com/spec/v1\noid sha256:{:064x}\nsize {length}\n",
                draws.bits()
            );
            tree.write(&path, pointer)?;
            format!("{path} is a Git LFS pointer")
        }
        _ => {
            // A download that left a hole: everything from some place on is zeros.
            let from = length / 4 + draws.bits() % (length / 4);
            file.set_len(from)?;
            file.set_len(length)?;
            format!("{path} is zeros from byte {from} on")
        }
    })
}

/// Every NVFP4 global scale becomes its reciprocal: the other exporter's convention.
fn inverted_scales(tree: &Tree, draws: &mut Random) -> io::Result<String> {
    let half = draws.below(2) == 0;
    let (mut changed, mut seen) = (0, 0_usize);
    for entry in std::fs::read_dir(tree.root().join(MODEL))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".safetensors") {
            continue;
        }
        let path = format!("{MODEL}/{name}");
        let mut bytes = tree.read(&path)?;
        let header = header(&bytes)?;
        let (tensors, data) = header;
        for (name, tensor) in tensors.as_object().into_iter().flatten() {
            seen += 1;
            // One exporter wrote all of them wrongly, or only the down projections.
            if !name.ends_with(".weight_scale_2") || (half && !name.contains("down_proj")) {
                continue;
            }
            let offset =
                |i: usize| tensor["data_offsets"][i].as_u64().and_then(|offset| usize::try_from(offset).ok());
            let (Some(start), Some(end)) = (offset(0), offset(1)) else { continue };
            let Some(values) = bytes.get_mut(data + start..data + end) else { continue };
            for value in values.as_chunks_mut::<4>().0 {
                *value = (1.0 / f32::from_le_bytes(*value)).to_le_bytes();
                changed += 1;
            }
        }
        tree.write(&path, bytes)?;
    }
    if changed == 0 {
        return Err(io::Error::other(format!("none of {seen} tensors is an NVFP4 global scale")));
    }
    Ok(format!("{changed} global scales are reciprocals{}", if half { ", of down_proj alone" } else { "" }))
}

/// The header of a safetensors file, and where its data begins.
fn header(bytes: &[u8]) -> io::Result<(Value, usize)> {
    let length = bytes.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    let end = length.and_then(|length| usize::try_from(length).ok()).and_then(|length| length.checked_add(8));
    let header =
        end.and_then(|end| bytes.get(8..end)).ok_or_else(|| io::Error::other("no safetensors header"))?;
    Ok((serde_json::from_slice(header)?, end.unwrap_or_default()))
}

fn change_json(tree: &Tree, file: &str, change: impl FnOnce(&mut Value)) -> io::Result<()> {
    let path = format!("{MODEL}/{file}");
    let mut value: Value = serde_json::from_slice(&tree.read(&path)?)?;
    change(&mut value);
    tree.write(&path, serde_json::to_string_pretty(&value)?)
}

/// The end of a turn that the template writes is not what ends an answer.
fn foreign_template(tree: &Tree, draws: &mut Random) -> io::Result<String> {
    let path = format!("{MODEL}/chat_template.jinja");
    let template = String::from_utf8(tree.read(&path)?).map_err(io::Error::other)?;
    if draws.below(2) == 0 {
        tree.write(&path, template.replace("<|im_end|>", "<|eot_id|>"))?;
        return Ok("turns end with a token of another family".to_owned());
    }
    // Everywhere: vLLM takes the tokenizer's own end as well.
    for file in ["generation_config.json", "config.json"] {
        change_json(tree, file, |config| config["eos_token_id"] = OTHER_END.into())?;
    }
    change_json(tree, "tokenizer_config.json", |config| {
        config["eos_token"] = config["added_tokens_decoder"][OTHER_END.to_string()]["content"].clone();
    })?;
    Ok("another token than the template's ends answers".to_owned())
}

/// The tokenizer of another revision: some tokens have changed places.
fn foreign_tokenizer(tree: &Tree, draws: &mut Random) -> io::Result<String> {
    let path = format!("{MODEL}/tiktoken.model");
    let text = String::from_utf8(tree.read(&path)?).map_err(io::Error::other)?;
    let mut lines: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once(' ')).collect();
    let from = 600 + draws.below(1_000);
    let by = 1 + draws.below(7);
    let Some(part) = lines.get_mut(from..from + 400) else {
        return Err(io::Error::other("the vocabulary is too small"));
    };
    // The texts move, the ids stay.
    let mut texts: Vec<&str> = part.iter().map(|(text, _)| *text).collect();
    texts.rotate_left(by);
    part.iter_mut().zip(texts).for_each(|(line, text)| line.0 = text);
    let moved: String = lines.iter().map(|(text, id)| format!("{text} {id}\n")).collect();
    tree.write(&path, moved)?;
    Ok(format!("400 tokens of tiktoken.model from {from} on moved by {by}, tokenizer.json did not"))
}
