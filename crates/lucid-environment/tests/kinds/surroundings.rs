//! `env.overlay` and `env.caches`: what lies over the packages, and what was compiled another day.

use std::fs;
use std::time::{Duration, SystemTime};

use crate::patient::SITE;
use crate::{Kind, Scene};

fn vllm() -> Scene {
    let scene = Scene::empty();
    scene.patient.install("vllm", "0.32.0", &[], &[("vllm/__init__.py", ""), ("vllm/a.py", "x = 1\n")]);
    scene
}

fn flashinfer() -> Scene {
    let mut scene = vllm();
    scene.patient.install(
        "flashinfer-python",
        "0.6.4",
        &[],
        &[("flashinfer/data/include/a.cuh", "1"), ("flashinfer/data/csrc/b.cu", "1")],
    );
    scene.variable("HOME", "/home/serve");
    scene
}

/// A mount as `/proc/PID/mountinfo` has it.
fn mount(scene: &mut Scene, point: &str, kind: &str) {
    let line = format!("36 35 98:0 /x {point} ro,noatime shared:1 - {kind} /dev/sda rw\n");
    scene.patient.options.mountinfo = Some(format!("1 0 0:1 / / rw - overlay overlay rw\n{line}"));
}

/// A file that was written some hours ago, or in some hours.
fn aged(scene: &mut Scene, path: &str, hours: i64) {
    let file = scene.patient.write(path, "x");
    let span = Duration::from_secs(hours.unsigned_abs() * 3600);
    let now = SystemTime::now();
    let then = if hours < 0 { now + span } else { now - span };
    fs::File::options().write(true).open(file).unwrap().set_modified(then).unwrap();
}

const OPS: &str = "/home/serve/.cache/flashinfer/0.6.4/90a/cached_ops";

pub(crate) const KINDS: &[Kind] = &[
    Kind {
        id: "env.overlay/mounted-code",
        base: vllm,
        ways: &[
            |s| mount(s, &format!("/{SITE}/vllm/a.py"), "ext4"),
            |s| mount(s, &format!("/{SITE}/vllm/model_executor/models"), "overlay"),
            |s| mount(s, &format!("/{SITE}/vllm"), "nfs4"),
            |s| mount(s, &format!("/{SITE}/vllm/_C.abi3.so"), "xfs"),
        ],
        twins: &[
            |s| mount(s, "/models", "ext4"),
            |s| mount(s, &format!("/{SITE}/vllm/notes.json"), "ext4"),
            |s| mount(s, &format!("/{SITE}/left_pad"), "ext4"),
        ],
    },
    Kind {
        id: "env.overlay/mounted-other",
        base: vllm,
        ways: &[
            |s| mount(s, &format!("/{SITE}"), "ext4"),
            |s| mount(s, &format!("/{SITE}/vllm/notes.json"), "ext4"),
            |s| mount(s, &format!("/{SITE}/my\\040data"), "tmpfs"),
        ],
        twins: &[|s| mount(s, &format!("/{SITE}/vllm/a.py"), "ext4"), |s| mount(s, "/opt/venv", "ext4")],
    },
    Kind {
        id: "env.overlay/other-owner",
        base: || {
            let mut scene = vllm();
            scene.install("six 1", &[]);
            scene
        },
        ways: &[
            |s| s.edit = Some(|e| e.distributions[0].owner = Some(4_000_000_000)),
            |s| {
                s.install("torch 2.13.0", &[]);
                s.edit = Some(|e| {
                    e.distributions
                        .iter_mut()
                        .zip([0, 1000, 1001])
                        .for_each(|(d, owner)| d.owner = Some(owner))
                });
            },
            |s| {
                s.edit = Some(|e| {
                    e.distributions.iter_mut().zip([65_534, 0]).for_each(|(d, owner)| d.owner = Some(owner))
                })
            },
        ],
        twins: &[|_| {}, |s| s.edit = Some(|e| e.distributions.iter_mut().for_each(|d| d.owner = None))],
    },
    Kind {
        id: "env.overlay/foreign-abi",
        base: vllm,
        ways: &[
            |s| s.patient.write(&format!("{SITE}/vllm/_C.cpython-310-x86_64-linux-gnu.so"), "").clear(),
            |s| s.patient.write(&format!("{SITE}/torch/_C.cpython-312-x86_64-linux-gnu.so"), "").clear(),
            |s| {
                s.patient.write(&format!("{SITE}/tokenizers/x/y.cpython-39-aarch64-linux-gnu.so"), "").clear()
            },
            |s| s.patient.write(&format!("{SITE}/regex/_regex.cpython-313t-x86_64-linux-gnu.so"), "").clear(),
        ],
        twins: &[
            |s| s.patient.write(&format!("{SITE}/vllm/_C.cpython-311-x86_64-linux-gnu.so"), "").clear(),
            |s| s.patient.write(&format!("{SITE}/vllm/_C.abi3.so"), "").clear(),
            |s| {
                s.patient.write(&format!("{SITE}/vllm/_C.cpython-310-x86_64-linux-gnu.so"), "");
                s.patient.write(&format!("{SITE}/vllm/_C.cpython-311-x86_64-linux-gnu.so"), "");
            },
        ],
    },
    Kind {
        id: "env.overlay/mixed-interpreters",
        base: vllm,
        ways: &[
            |s| {
                s.patient.write("opt/other/lib/python3.10/site-packages/six.py", "");
                s.variable("PYTHONPATH", "/opt/other/lib/python3.10/site-packages");
            },
            |s| {
                s.patient.write("usr/lib/python3.9/dist-packages/six.py", "");
                s.variable("PYTHONPATH", "/nowhere:/usr/lib/python3.9/dist-packages/");
            },
            |s| s.patient.write("opt/venv/lib/python3.12/site-packages/six.py", "").clear(),
        ],
        twins: &[
            |s| {
                s.patient.write("opt/other/lib/python3.11/site-packages/six.py", "");
                s.variable("PYTHONPATH", "/opt/other/lib/python3.11/site-packages");
            },
            |s| s.variable("PYTHONPATH", "/gone/lib/python3.9/site-packages"),
        ],
    },
    Kind {
        id: "env.overlay/newer-files",
        base: || {
            let mut scene = vllm();
            scene.patient.options.integrity = None;
            scene
        },
        ways: &[
            |s| aged(s, &format!("{SITE}/vllm/a.py"), -30),
            |s| aged(s, &format!("{SITE}/vllm/model_executor/b.py"), -3),
            |s| aged(s, &format!("{SITE}/vllm/c.abi3.so"), -30),
            |s| aged(s, &format!("{SITE}/vllm/csrc/k.cuh"), -2),
        ],
        twins: &[
            |s| aged(s, &format!("{SITE}/vllm/a.py"), 30),
            |s| aged(s, &format!("{SITE}/vllm/notes.txt"), -30),
            |s| aged(s, &format!("{SITE}/vllm/__pycache__/a.cpython-311.pyc"), -30),
        ],
    },
    Kind {
        id: "env.overlay/none",
        base: vllm,
        ways: &[
            |s| s.patient.options.mountinfo = Some(String::new()),
            |s| mount(s, "/models", "ext4"),
            |s| mount(s, "/opt/venv", "overlay"),
        ],
        // Without mountinfo nothing is cleared.
        twins: &[|_| {}, |s| mount(s, &format!("/{SITE}/vllm/a.py"), "ext4")],
    },
    Kind {
        id: "env.caches/left-lock",
        base: flashinfer,
        ways: &[
            |s| {
                aged(s, &format!("{OPS}/tmp/k.lock"), 30);
                aged(s, &format!("{OPS}/k/build.ninja"), 30);
            },
            |s| aged(s, "/home/serve/.cache/torch_extensions/py311_cu130/ext/lock", 30),
            |s| {
                s.variable("TORCH_EXTENSIONS_DIR", "/scratch/ext");
                aged(s, "/scratch/ext/mine/lock", 3);
            },
            |s| {
                s.variable("FLASHINFER_WORKSPACE_BASE", "/scratch");
                aged(s, "/scratch/.cache/flashinfer/0.6.4/90a/cached_ops/tmp/k.lock", 3);
                aged(s, "/scratch/.cache/flashinfer/0.6.4/90a/cached_ops/k/k.o", 3);
            },
        ],
        twins: &[
            |s| {
                aged(s, &format!("{OPS}/tmp/k.lock"), 30);
                aged(s, &format!("{OPS}/k/k.so"), 30);
            },
            |s| {
                aged(s, &format!("{OPS}/tmp/k.lock"), 0);
                aged(s, &format!("{OPS}/k/build.ninja"), 0);
            },
        ],
    },
    Kind {
        id: "env.caches/objects-before-edit",
        base: flashinfer,
        ways: &[
            |s| {
                aged(s, &format!("{OPS}/batch/batch.so"), 5);
                aged(s, &format!("{SITE}/flashinfer/data/include/a.cuh"), -1);
            },
            |s| {
                s.variable("FLASHINFER_WORKSPACE_BASE", "/scratch");
                aged(s, "/scratch/.cache/flashinfer/0.6.4/100a/cached_ops/x/x.so", 50);
                aged(s, &format!("{SITE}/flashinfer/data/csrc/b.cu"), -2);
            },
            |s| {
                s.patient.options.home = Some("/root".into());
                aged(s, "/root/.cache/flashinfer/0.6.4/90a/cached_ops/x/x.so", 5);
                aged(s, &format!("{SITE}/flashinfer/data/cutlass/include/new.h"), -1);
            },
        ],
        twins: &[
            |s| aged(s, &format!("{OPS}/batch/batch.so"), 5),
            |s| {
                aged(s, &format!("{OPS}/batch/batch.so"), -2);
                aged(s, &format!("{SITE}/flashinfer/data/include/a.cuh"), -1);
            },
        ],
    },
    Kind {
        id: "env.caches/objects-before-install",
        base: flashinfer,
        ways: &[
            |s| aged(s, &format!("{OPS}/batch/batch.so"), 5),
            |s| aged(s, "/home/serve/.cache/vllm/torch_compile_cache/abc/rank_0_0/x.py", 5),
            |s| {
                s.install("triton 3.7.1", &[]);
                s.variable("TRITON_CACHE_DIR", "/scratch/triton");
                aged(s, "/scratch/triton/ABC/k.cubin", 48);
            },
            |s| {
                s.variable("VLLM_CACHE_ROOT", "/scratch/vllm");
                aged(s, "/scratch/vllm/deep_gemm/cache/k.cubin", 2);
            },
        ],
        twins: &[
            |s| aged(s, "/home/serve/.cache/vllm/torch_compile_cache/abc/rank_0_0/x.py", 0),
            |s| aged(s, &format!("{OPS}/batch/batch.so"), -1),
        ],
    },
    Kind {
        id: "env.caches/other-versions",
        base: flashinfer,
        ways: &[
            |s| aged(s, "/home/serve/.cache/flashinfer/0.6.3/90a/cached_ops/k/k.so", 50),
            |s| {
                aged(s, "/home/serve/.cache/flashinfer/0.6.4/90a/k.so", 0);
                aged(s, "/home/serve/.cache/flashinfer/0.6.4.post1/90a/k.so", 0);
            },
            |s| aged(s, "/home/serve/.cache/vllm/flashinfer_autotune_cache/0.6.2/x.json", 1),
        ],
        twins: &[|s| aged(s, "/home/serve/.cache/flashinfer/0.6.4/90a/cached_ops/k/k.so", 0)],
    },
    Kind {
        id: "env.caches/stale-autotune",
        base: flashinfer,
        ways: &[
            |s| aged(s, "/home/serve/.cache/vllm/flashinfer_autotune_cache/0.6.4/x.json", 1),
            |s| {
                s.variable("VLLM_CACHE_ROOT", "/c");
                aged(s, "/c/flashinfer_autotune_cache/0.6.4/x.json", 1);
            },
            |s| {
                s.variable("VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR", "/tune");
                aged(s, "/tune/0.6.4/x.json", 1);
            },
            |s| {
                s.variable("XDG_CACHE_HOME", "/xdg");
                aged(s, "/xdg/vllm/flashinfer_autotune_cache/0.6.4/x.json", 1);
            },
        ],
        twins: &[
            |s| aged(s, "/home/serve/.cache/vllm/other_cache/x.json", 1),
            |s| {
                fs::remove_dir_all(s.patient.site().join("flashinfer_python-0.6.4.dist-info")).unwrap();
                s.install("flashinfer-python 0.6.13", &[]);
                aged(s, "/home/serve/.cache/vllm/flashinfer_autotune_cache/0.6.13/x.json", 1);
            },
        ],
    },
    Kind {
        id: "env.caches/shared",
        base: || {
            let mut scene = flashinfer();
            aged(&mut scene, "/home/serve/.cache/flashinfer/0.6.4/90a/k.so", 0);
            aged(&mut scene, "/home/serve/.triton/cache/A/k.cubin", 0);
            scene
        },
        // Files of two users can be made only with the rights of both.
        ways: &[
            |s| s.edit = Some(|e| e.kernel_caches.as_mut().unwrap()[0].owners = vec![0, 1000]),
            |s| s.edit = Some(|e| e.kernel_caches.as_mut().unwrap()[1].owners = vec![1000, 65_534, 1001]),
            |s| {
                s.edit = Some(|e| {
                    e.kernel_caches.iter_mut().flatten().for_each(|cache| cache.owners.push(4_000_000_000))
                })
            },
        ],
        twins: &[|_| {}],
    },
    Kind {
        id: "env.caches/summary",
        base: flashinfer,
        ways: &[
            |s| aged(s, &format!("{OPS}/k/k.so"), 0),
            |s| aged(s, "/home/serve/.triton/cache/A/k.cubin", 0),
            |s| {
                s.variable("TORCHINDUCTOR_CACHE_DIR", "/ind");
                aged(s, "/ind/x/y.py", 0);
            },
            |s| {
                s.variable("USER", "serve");
                aged(s, "/tmp/torchinductor_serve/x/y.py", 0);
            },
        ],
        twins: &[|_| {}],
    },
    Kind {
        id: "env.caches/none",
        base: flashinfer,
        ways: &[
            |_| {},
            |s| s.variable("VLLM_CACHE_ROOT", "/empty"),
            |s| fs::create_dir_all(s.patient.root().join("home/serve/.triton/cache")).unwrap(),
        ],
        twins: &[|s| aged(s, "/home/serve/.triton/cache/A/k.cubin", 0)],
    },
];
