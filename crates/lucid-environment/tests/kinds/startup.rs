//! `env.monkeypatch`, its start-up part: what runs before the engine.

use std::path::PathBuf;

use crate::patient::SITE;
use crate::{Kind, Scene};

fn vllm() -> Scene {
    let mut scene = Scene::empty();
    scene.patient.install("vllm", "0.32.0", &[], &[("vllm/__init__.py", ""), ("vllm/a.py", "x = 1\n")]);
    scene.command("python -m vllm.entrypoints.openai.api_server --model /m");
    scene
}

fn write(scene: &mut Scene, path: &str, text: &str) {
    scene.patient.write(path, text);
}

fn pth(scene: &mut Scene, name: &str, text: &str) {
    write(scene, &format!("{SITE}/{name}"), text);
}

fn plugin(scene: &mut Scene, distribution: &str, entry_points: &str) {
    scene.install(&format!("{distribution} 1"), &[]);
    let folder = distribution.replace('-', "_");
    write(scene, &format!("{SITE}/{folder}-1.dist-info/entry_points.txt"), entry_points);
}

pub(crate) const KINDS: &[Kind] = &[
    Kind {
        id: "env.monkeypatch/pth-code",
        base: vllm,
        ways: &[
            |s| pth(s, "zz_patch.pth", "import patch_vllm\n"),
            |s| pth(s, "a.pth", "# why\n\nimport\tos, patcher; patcher.apply()\n"),
            |s| pth(s, "Patch.pth", "\u{feff}import sys; exec(open('/tmp/p.py').read())\r\n"),
            |s| {
                pth(
                    s,
                    "distutils-precedence.pth",
                    "import os; __import__('_distutils_hack').add_shim()\nimport mine\n",
                )
            },
        ],
        twins: &[
            |s| pth(s, "x.pth", "# import os\nimportlib_folder\n"),
            |s| {
                pth(
                    s,
                    "distutils-precedence.pth",
                    "import os; var = 'X'; __import__('_distutils_hack').add_shim();\n",
                )
            },
            |s| s.patient.install("tracer", "1", &[], &[("tracer.pth", "import tracer_start\n")]),
            |s| pth(s, "x.pth.bak", "import patch_vllm\n"),
        ],
    },
    Kind {
        id: "env.monkeypatch/known-pth",
        base: vllm,
        ways: &[
            |s| {
                pth(
                    s,
                    "distutils-precedence.pth",
                    "import os; var = 'X'; __import__('_distutils_hack').add_shim();\n",
                )
            },
            |s| pth(s, "_virtualenv.pth", "import _virtualenv\n"),
            |s| s.patient.install("tracer", "1", &[], &[("tracer.pth", "import tracer_start\n")]),
            |s| {
                pth(
                    s,
                    "__editable__.tool-1.pth",
                    "import __editable___tool_1_finder; __editable___tool_1_finder.install()\n",
                )
            },
        ],
        twins: &[|s| pth(s, "mine.pth", "import mine\n"), |s| pth(s, "folder.pth", "/opt/src\n")],
    },
    Kind {
        id: "env.monkeypatch/pth-folder",
        base: vllm,
        ways: &[
            |s| pth(s, "src.pth", "/opt/src\n"),
            |s| pth(s, "rel.pth", "../../../extra\r\n# end\r\n"),
            |s| pth(s, "both.pth", "import _virtualenv\n/opt/a\n/opt/b\n"),
        ],
        twins: &[|s| pth(s, "x.pth", "# /opt/src\n\n"), |s| pth(s, "x.pth", "import _virtualenv\n")],
    },
    Kind {
        id: "env.monkeypatch/customize",
        base: vllm,
        ways: &[
            |s| pth(s, "sitecustomize.py", "import vllm_patch\n"),
            |s| pth(s, "usercustomize/__init__.py", "import vllm_patch\n"),
            |s| write(s, "usr/lib/python3.11/sitecustomize.py", "import vllm_patch\n"),
            |s| {
                write(s, "work/usercustomize.py", "import vllm_patch\n");
                s.variable("PYTHONPATH", "/nowhere:/work");
            },
        ],
        twins: &[
            |s| pth(s, "sitecustomise.py", "import vllm_patch\n"),
            |s| write(s, "work/sitecustomize.py", "import vllm_patch\n"),
        ],
    },
    Kind {
        id: "env.monkeypatch/shadowing",
        base: vllm,
        ways: &[
            |s| {
                write(s, "src/vllm/__init__.py", "");
                s.variable("PYTHONPATH", "/src");
            },
            |s| {
                write(s, "src/vllm.py", "");
                s.patient.options.working_directory = Some(PathBuf::from("/src"));
            },
            |s| {
                write(s, "work/lib/vllm/__init__.py", "");
                s.patient.options.working_directory = Some(PathBuf::from("/work"));
                s.variable("PYTHONPATH", "lib:");
            },
            |s| {
                write(s, "src/vllm.cpython-311-x86_64-linux-gnu.so", "");
                s.variable("PYTHONPATH", "/src/");
            },
        ],
        twins: &[
            // A folder without __init__.py is a portion of a namespace, which an installed package wins over.
            |s| {
                write(s, "src/vllm/notes.txt", "");
                s.variable("PYTHONPATH", "/src");
            },
            |s| {
                write(s, "src/vllm_tools/__init__.py", "");
                s.variable("PYTHONPATH", "/src");
            },
        ],
    },
    Kind {
        id: "env.monkeypatch/earlier-folder",
        base: vllm,
        ways: &[
            |s| {
                write(s, "src/mine.py", "");
                s.variable("PYTHONPATH", "/src");
            },
            |s| s.variable("PYTHONPATH", "/not/there"),
            |s| {
                write(s, "work/lib/mine.py", "");
                s.patient.options.working_directory = Some(PathBuf::from("/work"));
                s.variable("PYTHONPATH", ":lib");
            },
        ],
        twins: &[
            |s| s.variable("PYTHONPATH", ""),
            |s| s.variable("PYTHONPATH", &format!("/{SITE}")),
            |s| s.patient.options.working_directory = Some(PathBuf::from("/srv")),
        ],
    },
    Kind {
        id: "env.monkeypatch/plugins",
        base: vllm,
        ways: &[
            |s| plugin(s, "my-plugin", "[vllm.general_plugins]\nmine = my_plugin:register\n"),
            |s| {
                plugin(
                    s,
                    "other",
                    "[console_scripts]\nx = y:z\n\n[ vllm.platform_plugins ]\n mine=other.platform:plugin [extra]\n",
                )
            },
            |s| plugin(s, "sg-plugin", "[sglang.srt.plugins]\nmine = sg:load\n"),
        ],
        twins: &[
            |s| plugin(s, "tool", "[console_scripts]\nvllm-tool = tool:main\n"),
            |s| {
                write(
                    s,
                    &format!("{SITE}/vllm-0.32.0.dist-info/entry_points.txt"),
                    "[vllm.general_plugins]\nlora = vllm.plugins:lora\n",
                )
            },
        ],
    },
    Kind {
        id: "env.monkeypatch/preload",
        base: vllm,
        ways: &[
            |s| s.variable("LD_PRELOAD", "/opt/hook.so"),
            |s| s.variable("LD_PRELOAD", "/usr/lib/libtcmalloc.so.4 /opt/hook.so"),
            |s| write(s, "etc/ld.so.preload", "# all\n/opt/other.so # why\n"),
        ],
        twins: &[|s| s.variable("LD_PRELOAD", ""), |s| write(s, "etc/ld.so.preload", "# /opt/other.so\n\n")],
    },
    Kind {
        id: "env.monkeypatch/none",
        base: vllm,
        ways: &[
            |_| {},
            |s| pth(s, "_virtualenv.pth", "import _virtualenv\n"),
            |s| s.patient.options.working_directory = Some(PathBuf::from("/srv")),
        ],
        twins: &[
            |s| pth(s, "mine.pth", "import mine\n"),
            |s| s.variable("LD_PRELOAD", "/opt/hook.so"),
            |s| plugin(s, "my-plugin", "[vllm.general_plugins]\nmine = my_plugin:register\n"),
        ],
    },
];
