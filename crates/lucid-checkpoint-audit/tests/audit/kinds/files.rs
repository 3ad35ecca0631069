//! `checkpoint.extents`, `checkpoint.index`, `checkpoint.digest`.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use lucid_checkpoint_audit::{ExtentKind, ExtentProblem, Options, gather};
use lucid_findings::Deployment;
use serde_json::json;

use super::{Kind, evidence, headers, whole};
use crate::digest::{flip_a_bit, manifest, sha256sum};
use crate::patient::{Audit, INDEX, Patient, SHARDS, Shard, models};

const GGUF: &str = "canary-q4_k_m.gguf";
const TENSOR: &str = "model.layers.0.self_attn.o_proj.weight";

fn gguf(edit: impl FnOnce(&Patient)) -> Audit {
    let patient = Patient::of(&models().join("canary-gguf"));
    edit(&patient);
    patient.audit_with(&Options::default())
}

/// Moves a GGUF tensor towards the beginning.
fn shift(patient: &Patient, name: &str, by: u64) {
    let mut bytes = patient.read(GGUF);
    let (_, kind) = crate::gguf::tensor(&bytes, name);
    let at = kind + 4;
    let offset = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    bytes[at..at + 8].copy_from_slice(&(offset - by).to_le_bytes());
    patient.write(GGUF, bytes);
}

/// A GGUF file without tensors that says which part it is: magic, version 3, counts, then `split.no` and `split.count` as
/// 16-bit numbers (GGUF specification).
fn part(number: u16, count: u16) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(2u64.to_le_bytes());
    for (key, value) in [("split.no", number), ("split.count", count)] {
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(2u32.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes
}

/// A folder with these files, looked at through `place`.
fn folder(files: &[(&str, &[u8])], place: &str) -> Audit {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let found = gather(Path::new("/"), &folder.path().join(place), &Options::default(), &mut |_| {}).unwrap();
    Audit::of(&found, &Deployment::default())
}

fn entry(edit: impl FnOnce(&mut serde_json::Value)) -> Audit {
    headers(|p| p.edit_shard(SHARDS[0], |shard| edit(&mut shard.header[TENSOR])))
}

fn moved(by: i64) -> Audit {
    headers(|p| {
        p.edit_shard(SHARDS[0], |shard| {
            let range = shard.range(TENSOR);
            let place = |at: usize| (at as i64 + by) as u64;
            shard.header[TENSOR]["data_offsets"] = json!([place(range.start), place(range.end)]);
        });
    })
}

fn said(text: &'static str, kind: ExtentKind) -> Audit {
    evidence(|e| {
        let text = text.to_owned();
        let problem = ExtentProblem { kind, tensor: None, at: None, bytes: None, text };
        e.shards.kept[0].problems.push(64, problem);
    })
}

/// Describes a tensor again in the header's text: a map can't hold a name twice.
fn twice(name: &'static str, copies: usize) -> Audit {
    headers(|p| {
        let bytes = p.read(SHARDS[0]);
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let shard = Shard::parse(&bytes);
        let again = format!(",{}:{}", json!(name), shard.header[name]).repeat(copies);
        let mut header = bytes[8..8 + length].to_vec();
        let end = header.iter().rposition(|byte| *byte == b'}').unwrap();
        header.splice(end..end, again.into_bytes());
        let mut whole = (header.len() as u64).to_le_bytes().to_vec();
        whole.extend(header);
        whole.extend(&bytes[8 + length..]);
        p.write(SHARDS[0], whole);
    })
}

/// Punches a hole over a tensor's pages, or writes the zeros; the file system of a test may keep no holes, and then nothing
/// can be held against it.
fn hole(tensor: &'static str, punch: bool) -> Audit {
    headers(|p| {
        let name = p.shard_of(tensor);
        let mut bytes = p.read(name);
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let range = Shard::parse(&bytes).range(tensor);
        let start = (header + range.start).next_multiple_of(4096);
        let end = (start + 8192).min(header + range.end).max(start + 4096);
        bytes[start..end].fill(0);
        if !punch {
            return p.write(name, bytes);
        }
        p.write(name, b"");
        let file = fs::File::options().write(true).open(p.path(name)).unwrap();
        file.write_all_at(&bytes[..start], 0).unwrap();
        file.write_all_at(&bytes[end..], end as u64).unwrap();
        file.sync_all().unwrap();
    })
}

fn index(edit: impl FnOnce(&mut serde_json::Value)) -> Audit {
    headers(|p| p.edit_json(INDEX, edit))
}

fn listed(name: &'static str, shard: usize) -> Audit {
    index(|json| json["weight_map"][name] = json!(SHARDS[shard]))
}

/// The second shard's tensors leave the index; so many stay.
fn unlisted(keep: usize) -> Audit {
    index(|json| {
        let mut kept = 0;
        json["weight_map"].as_object_mut().unwrap().retain(|_, shard| {
            if shard == SHARDS[1] {
                *shard = json!(SHARDS[0]);
                kept += 1;
                return kept <= keep;
            }
            true
        });
    })
}

/// A tensor of the second shard in the first as well.
fn copied(nth: usize) -> Audit {
    headers(|p| {
        let mut other = Shard::parse(&p.read(SHARDS[1]));
        let name = other.header.keys().filter(|name| *name != "__metadata__").nth(nth).unwrap().clone();
        let (mut entry, bytes) = (other.header[&name].clone(), other.tensor(&name).to_vec());
        p.edit_shard(SHARDS[0], |shard| {
            let begin = shard.data.len();
            shard.data.extend_from_slice(&bytes);
            entry["data_offsets"] = json!([begin, begin + bytes.len()]);
            shard.header.insert(name, entry);
        });
    })
}

fn another_index(name: &'static str) -> Audit {
    headers(|p| {
        let text = p.read(INDEX);
        p.write(name, text);
    })
}

fn compared(form: &'static str, edit: impl FnOnce(&Patient)) -> Audit {
    let place = tempfile::tempdir().unwrap();
    let manifest = Some(manifest(form, place.path()));
    let patient = Patient::canary();
    edit(&patient);
    patient.audit_with(&Options { digests: true, manifest, ..Options::default() })
}

/// A manifest of one of the files, in the spelling of a tool.
fn partly(line: fn(&str, &str) -> String) -> Audit {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("sums");
    let digest = sha256sum(&Patient::canary().path(SHARDS[0]));
    fs::write(&path, line(&digest, SHARDS[0])).unwrap();
    Patient::canary().audit_with(&Options { digests: true, manifest: Some(path), ..Options::default() })
}

pub(super) const KINDS: &[Kind] = &[
    (
        "extents/duplicate-name",
        &[|| twice("lm_head.weight", 1), || twice(TENSOR, 2), || twice(TENSOR, 5)],
        &[|| headers(|_| {})],
    ),
    (
        "extents/empty",
        &[
            || headers(|p| p.write(SHARDS[0], b"")),
            || headers(|p| p.write(SHARDS[1], b"")),
            || gguf(|p| p.write(GGUF, b"")),
        ],
        &[|| headers(|p| p.write("notes.txt", b"")), || headers(|p| p.write(SHARDS[0], b"\0"))],
    ),
    (
        "extents/gap",
        &[
            || moved(-512),
            || {
                headers(|p| {
                    p.edit_shard(SHARDS[1], |shard| {
                        let first = shard.header.keys().find(|name| *name != "__metadata__").unwrap().clone();
                        shard.header.remove(&first);
                    })
                })
            },
            || headers(|p| p.edit_shard(SHARDS[0], |shard| drop(shard.header.remove(TENSOR)))),
        ],
        &[|| headers(|p| p.edit_shard(SHARDS[0], |shard| shard.retain(|name| name != TENSOR)))],
    ),
    (
        "extents/header",
        &[
            || headers(|p| p.write(SHARDS[0], &p.read(SHARDS[0])[..20_000])),
            || headers(|p| p.write(SHARDS[0], [&5u64.to_le_bytes()[..], b"null!"].concat())),
            || headers(|p| p.write(SHARDS[1], [&u64::MAX.to_le_bytes()[..], b"{}"].concat())),
            || gguf(|p| p.write(GGUF, b"GGML\x01\0\0\0\0\0\0\0\0\0\0\0")),
        ],
        &[|| headers(|_| {}), || gguf(|_| {})],
    ),
    (
        "extents/hole",
        &[
            || hole("lm_head.weight", true),
            || hole("model.layers.0.self_attn.kv_b_proj.weight", true),
            || hole("model.layers.1.self_attn.o_proj.weight", true),
        ],
        // Zeros that were written are no hole.
        &[|| hole("lm_head.weight", false)],
    ),
    (
        "extents/incomplete-download",
        &[
            || headers(|p| unfinished(p, "incomplete")),
            || headers(|p| unfinished(p, "aria2")),
            || headers(|p| unfinished(p, "crdownload")),
            || gguf(|p| p.write("other.gguf.part", b"x")),
        ],
        &[
            // The file itself is there: a left-over.
            || headers(|p| p.write(&format!("{}.part", SHARDS[0]), b"x")),
            || headers(|p| p.write("notes.txt.part", b"x")),
        ],
    ),
    (
        "extents/lfs-pointer",
        &[
            || headers(|p| p.write(SHARDS[0], pointer("https://git-lfs.github.com/spec/v1"))),
            || {
                headers(|p| {
                    p.write(SHARDS[1], format!("\u{feff}{}", pointer("https://hawser.github.com/spec/v1")))
                })
            },
            || gguf(|p| p.write(GGUF, pointer("https://git-lfs.github.com/spec/v1").replace('\n', "\r\n"))),
        ],
        &[|| headers(|p| p.write("notes.txt", pointer("https://git-lfs.github.com/spec/v1")))],
    ),
    (
        "extents/long",
        &[
            || headers(|p| p.write(SHARDS[1], [p.read(SHARDS[1]), vec![7]].concat())),
            || headers(|p| p.write(SHARDS[0], [p.read(SHARDS[0]), vec![0; 5_000_000]].concat())),
            || gguf(|p| p.write(GGUF, [p.read(GGUF), vec![1; 4096]].concat())),
        ],
        // GGUF pads its end.
        &[|| gguf(|p| p.write(GGUF, [p.read(GGUF), vec![0; 8]].concat())), || headers(|_| {})],
    ),
    (
        "extents/misaligned",
        &[
            || gguf(|p| shift(p, "blk.1.attn_output.weight", 1)),
            || gguf(|p| shift(p, "blk.2.attn_output.weight", 8)),
            || gguf(|p| shift(p, "blk.3.attn_output.weight", 31)),
        ],
        &[|| gguf(|p| shift(p, "blk.1.attn_output.weight", 32)), || moved(-1)],
    ),
    (
        "extents/missing-shard",
        &[
            || headers(|p| p.remove(SHARDS[0])),
            || {
                headers(|p| {
                    p.remove(SHARDS[1]);
                    p.remove(INDEX);
                })
            },
            || folder(&[("m-00001-of-00003.gguf", &part(0, 3)), ("m-00003-of-00003.gguf", &part(2, 3))], ""),
        ],
        &[|| headers(|p| p.remove(INDEX)), || headers(|p| p.remove("tiktoken.model"))],
    ),
    (
        "extents/not-a-file",
        &[
            || headers(|p| fs::create_dir(p.path("model-00003-of-00002.safetensors")).unwrap()),
            || headers(|p| symlink("loop.safetensors", p.path("loop.safetensors")).unwrap()),
            || headers(|p| symlink("/nowhere/at/all", p.path("gone.safetensors")).unwrap()),
            || headers(|p| symlink("/dev/null", p.path("null.safetensors")).unwrap()),
        ],
        &[|| headers(|p| symlink("/nowhere", p.path("gone.txt")).unwrap())],
    ),
    (
        "extents/overlap",
        &[|| moved(-512), || moved(-100_000), || gguf(|p| shift(p, "blk.2.attn_output.weight", 320))],
        &[|| headers(|_| {}), || gguf(|_| {})],
    ),
    (
        "extents/short",
        &[
            || headers(|p| p.write(SHARDS[0], &p.read(SHARDS[0])[..3_000_000])),
            || headers(|p| p.write(SHARDS[1], &p.read(SHARDS[1])[..p.read(SHARDS[1]).len() - 1])),
            || gguf(|p| p.write(GGUF, &p.read(GGUF)[..3_000_000])),
        ],
        &[|| headers(|_| {}), || gguf(|_| {})],
    ),
    (
        "extents/split",
        &[
            || folder(&[("m-00001-of-00002.gguf", &part(1, 2))], ""),
            || folder(&[("m-00001-of-00002.gguf", &part(0, 3))], ""),
            || folder(&[("whole.gguf", &part(0, 2))], ""),
        ],
        &[
            || folder(&[("m-00001-of-00002.gguf", &part(0, 2)), ("m-00002-of-00002.gguf", &part(1, 2))], ""),
            || folder(&[("mmproj-whole.gguf", &part(3, 2))], ""),
        ],
    ),
    (
        "extents/split-not-first",
        &[
            || folder(&[("m-00002-of-00002.gguf", &part(1, 2))], "m-00002-of-00002.gguf"),
            || folder(&[("M-Q4-3-of-3.gguf", &part(2, 3))], "M-Q4-3-of-3.gguf"),
            || {
                folder(
                    &[("a-00001-of-00010.gguf", &part(0, 10)), ("a-00009-of-00010.gguf", &part(8, 10))],
                    "a-00009-of-00010.gguf",
                )
            },
        ],
        &[
            || folder(&[("m-00001-of-00001.gguf", &part(0, 1))], "m-00001-of-00001.gguf"),
            || folder(&[("m-00002-of-00002.gguf", &part(1, 2))], ""),
        ],
    ),
    (
        "extents/two-sets",
        &[
            || headers(|p| p.write("model-00001-of-00003.safetensors", p.read(SHARDS[0]))),
            || headers(|p| p.write("old-00001-of-00004.safetensors", p.read(SHARDS[0]))),
            || headers(|p| p.write("model-1-of-1.safetensors", p.read(SHARDS[1]))),
        ],
        &[|| headers(|p| p.write("consolidated.safetensors", p.read(SHARDS[0])))],
    ),
    (
        // What a disk or a server says can't be made with files.
        "extents/unreadable",
        &[
            || said("Permission denied (os error 13)", ExtentKind::Unreadable),
            || said("Input/output error (os error 5)", ExtentKind::Unreadable),
            || said("the file shrank while it was read", ExtentKind::Unreadable),
        ],
        &[|| said("bytes after the last tensor", ExtentKind::Long)],
    ),
    (
        "extents/web-page",
        &[
            || {
                headers(|p| {
                    p.write(SHARDS[0], "<!DOCTYPE html><html><body>429 Too Many Requests</body></html>")
                })
            },
            || {
                headers(|p| {
                    p.write(
                        SHARDS[1],
                        "\u{feff}\r\n {\"error\":\"Invalid credentials in Authorization header\"}",
                    )
                })
            },
            || headers(|p| p.write(SHARDS[1], "Access to model nvidia/Kimi-K2.5-NVFP4 is restricted")),
            || gguf(|p| p.write(GGUF, "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>")),
        ],
        &[|| headers(|p| p.write("notes.txt", "<html>")), || headers(|_| {})],
    ),
    (
        "extents/whole",
        &[|| headers(|_| {}), || gguf(|_| {}), || headers(|p| p.remove(INDEX))],
        &[|| headers(|p| p.write(SHARDS[0], b"")), || headers(|p| p.remove(SHARDS[1]))],
    ),
    (
        "extents/wrong-size",
        &[
            || entry(|e| e["shape"] = json!([256, 1025])),
            || entry(|e| e["dtype"] = json!("F32")),
            || entry(|e| e["data_offsets"] = json!([100, 90])),
            || entry(|e| e["shape"] = json!([1u64 << 40, 1u64 << 40])),
        ],
        &[|| entry(|e| e["dtype"] = json!("F16")), || headers(|_| {})],
    ),
    (
        "index/agrees",
        &[
            || headers(|_| {}),
            || index(|json| drop(json.as_object_mut().unwrap().remove("metadata"))),
            || index(|json| json["more"] = json!("x")),
        ],
        &[|| listed("x", 0), || headers(|p| p.remove(INDEX))],
    ),
    ("index/duplicate-tensor", &[|| copied(0), || copied(7), || copied(100)], &[|| headers(|_| {})]),
    (
        "index/malformed",
        &[
            || headers(|p| p.write(INDEX, "")),
            || headers(|p| p.write(INDEX, "{\"metadata\": {}}")),
            || headers(|p| p.write(INDEX, pointer("https://git-lfs.github.com/spec/v1"))),
            || index(|json| json["weight_map"] = json!([SHARDS[0]])),
        ],
        &[|| headers(|p| p.remove(INDEX)), || headers(|_| {})],
    ),
    (
        "index/moved",
        &[
            || listed("model.layers.3.self_attn.o_proj.weight", other(3)),
            || listed("model.layers.0.self_attn.o_proj.weight", other(0)),
            || {
                index(|json| {
                    for (_, shard) in json["weight_map"].as_object_mut().unwrap().iter_mut().take(9) {
                        *shard = json!(if shard == SHARDS[0] { SHARDS[1] } else { SHARDS[0] });
                    }
                })
            },
        ],
        &[|| headers(|_| {}), || listed("x", 0)],
    ),
    (
        "index/none",
        &[
            || headers(|p| p.remove(INDEX)),
            || headers(|p| fs::rename(p.path(INDEX), p.path("index.json")).unwrap()),
            || headers(|p| fs::rename(p.path(INDEX), p.path("consolidated.safetensors.index.json")).unwrap()),
        ],
        &[|| headers(|_| {}), || gguf(|_| {})],
    ),
    (
        "index/second",
        &[
            || another_index("old.safetensors.index.json"),
            || another_index("consolidated.safetensors.index.json"),
            || another_index("model.fp8.safetensors.index.json"),
        ],
        &[|| another_index("index.txt")],
    ),
    (
        "index/stale",
        &[
            || listed("model.layers.3.mlp.experts.31.gate_proj.weight_scale_inv", 1),
            || listed("model.layers.9.input_layernorm.weight", 0),
            || listed("x", 1),
        ],
        // What belongs to a shard that is missing is that shard's fault.
        &[|| headers(|p| p.remove(SHARDS[0])), || headers(|_| {})],
    ),
    (
        "index/total-size",
        &[
            || index(|json| json["metadata"]["total_size"] = json!(1)),
            || index(|json| json["metadata"]["total_size"] = json!(1_099_511_627_776u64)),
            || index(|json| json["metadata"] = json!({"total_size": 2, "total_parameters": 1})),
        ],
        &[|| headers(|_| {}), || index(|json| json["metadata"] = json!({}))],
    ),
    (
        "index/unlisted-copy",
        &[
            || headers(|p| p.write("consolidated.safetensors", p.read(SHARDS[0]))),
            || headers(|p| p.write("original.safetensors", p.read(SHARDS[1]))),
            || headers(|p| p.write("model.safetensors", p.read(SHARDS[0]))),
        ],
        &[|| headers(|_| {}), || unlisted(0)],
    ),
    (
        "index/unlisted-shard",
        &[|| unlisted(0), || unlisted(5), || unlisted(10_000)],
        &[|| headers(|p| p.write("consolidated.safetensors", p.read(SHARDS[0]))), || headers(|_| {})],
    ),
    (
        "index/unlisted-tensor",
        &[
            || without("weight_scale"),
            || without("input_scale"),
            || index(|json| drop(json["weight_map"].as_object_mut().unwrap().remove("lm_head.weight"))),
        ],
        &[|| headers(|_| {}), || listed("x", 0)],
    ),
    (
        "digest/absent",
        &[
            || compared("sha256sum", |p| p.remove(SHARDS[0])),
            || compared("api", |p| p.remove(SHARDS[1])),
            || compared("lfs", |p| p.remove(SHARDS[0])),
        ],
        &[|| compared("sha256sum", |_| {}), || compared("sha256sum", |p| p.remove("tiktoken.model"))],
    ),
    (
        "digest/matches",
        &[|| compared("sha256sum", |_| {}), || compared("api", |_| {}), || compared("lfs", |_| {})],
        &[
            || compared("sha256sum", |p| flip_a_bit(p, SHARDS[0])),
            || partly(|digest, name| format!("{digest}  {name}\n")),
        ],
    ),
    (
        "digest/matches-partly",
        &[
            || partly(|digest, name| format!("{digest}  {name}\n")),
            || partly(|digest, name| format!("{} *./{name}\r\n", digest.to_uppercase())),
            || partly(|digest, name| format!("# by hand\nSHA256 ({name}) = {digest}\n")),
        ],
        &[|| compared("sha256sum", |_| {}), || partly(|_, name| format!("{}  {name}\n", "0".repeat(64)))],
    ),
    (
        "digest/mismatch",
        &[
            || compared("sha256sum", |p| flip_a_bit(p, SHARDS[0])),
            || compared("api", |p| p.write(SHARDS[1], &p.read(SHARDS[1])[..1_000_000])),
            || compared("lfs", |p| p.write(SHARDS[1], [p.read(SHARDS[1]), vec![0]].concat())),
            || partly(|_, name| format!("{}  {name}\n", "ab".repeat(32))),
        ],
        &[
            || compared("api", |_| {}),
            || whole(|p| flip_a_bit(p, SHARDS[0])),
            || compared("sha256sum", |p| p.write("notes.txt", b"x")),
        ],
    ),
];

fn unfinished(patient: &Patient, ending: &str) {
    patient.remove(SHARDS[0]);
    patient.write(&format!("{}.{ending}", SHARDS[0]), b"x");
}

fn pointer(version: &str) -> String {
    format!("version {version}\noid sha256:{}\nsize 12930144\n", "ab".repeat(32))
}

/// The shard that does not hold a layer's `o_proj`.
fn other(layer: u32) -> usize {
    let holder = Patient::canary().shard_of(&format!("model.layers.{layer}.self_attn.o_proj.weight"));
    usize::from(holder == SHARDS[0])
}

fn without(ending: &'static str) -> Audit {
    index(|json| json["weight_map"].as_object_mut().unwrap().retain(|name, _| !name.ends_with(ending)))
}
