//! A machine made of files: a small vLLM with honest RECORDs, the canary as its model, and what people leave behind.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

const SITE: &str = "opt/venv/lib/python3.11/site-packages";
const DEEPSEEK: &str = "vllm/model_executor/models/deepseek_v2.py";
const GGUF_LOADER: &str = "vllm/model_executor/model_loader/gguf_loader.py";

/// Files below a folder that stands for `/`.
pub struct Machine {
    root: TempDir,
}

impl Machine {
    /// A virtual environment with a small vLLM 0.32.0 in `/opt/venv`.
    pub fn with_vllm() -> Machine {
        let machine = Machine { root: tempfile::tempdir().unwrap() };
        machine.write(
            "opt/venv/pyvenv.cfg",
            "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.7\nuv = 0.9.1\n",
        );
        machine.write("opt/venv/bin/python", "");
        machine.package("vllm", "0.32.0", VLLM);
        machine
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Installs a distribution, with its RECORD.
    pub fn package(&self, name: &str, version: &str, files: &[(&str, &str)]) {
        let info = format!("{}-{version}.dist-info", name.replace('-', "_"));
        let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
        let own = [
            (format!("{info}/METADATA"), metadata),
            (format!("{info}/INSTALLER"), "uv".to_owned()),
            (
                format!("{info}/WHEEL"),
                "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n".to_owned(),
            ),
        ];
        let mut record = String::new();
        let all = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).chain(own);
        for (path, text) in all {
            let digest = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(text.as_bytes()));
            writeln!(record, "{path},sha256={digest},{}", text.len()).unwrap();
            self.write(&format!("{SITE}/{path}"), text);
        }
        writeln!(record, "{info}/RECORD,,").unwrap();
        self.write(&format!("{SITE}/{info}/RECORD"), record);
    }

    /// The canary in `/models/canary`.
    pub fn model(&self) {
        let canary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary");
        let there = self.root().join("models/canary");
        fs::create_dir_all(&there).unwrap();
        for entry in fs::read_dir(canary).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, there.join(path.file_name().unwrap())).unwrap();
        }
    }

    /// What somebody who served another model from GGUF left behind.
    pub fn leave_debugging_code(&self) {
        self.patch(
            DEEPSEEK,
            "        q = self.q_proj(hidden_states)\n",
            "        q = self.q_proj(hidden_states)\n        if q.shape[0] == 5 and not getattr(DeepseekV2MLAAttention, '_nomla_done', False):\n            import torch as _t2\n            from vllm.distributed import get_tensor_model_parallel_rank as _rank\n            DeepseekV2MLAAttention._nomla_done = True\n            _t2.save({'q': q.detach().cpu()}, f'/tmp/nomla_debug_tp{_rank()}.pt')\n",
        );
        self.patch(
            DEEPSEEK,
            "        hidden_states = self.embed_tokens(input_ids)\n",
            "        hidden_states = self.embed_tokens(input_ids)\n        if hidden_states.shape[0] == 5:\n            import torch as _dbg\n            if not hasattr(type(self), '_emb_saved'):\n                type(self)._emb_saved = True\n                _dbg.save(hidden_states.float().cpu(), '/tmp/nomla_embed.pt')\n",
        );
        self.patch(
            GGUF_LOADER,
            "        return model\n",
            "        config['glm'] = True\n        return model\n",
        );
        for number in 0..35 {
            self.write(&format!("tmp/nomla_debug_tp{number}.pt"), [0; 100]);
        }
    }

    fn patch(&self, file: &str, before: &str, after: &str) {
        let path = self.root().join(SITE).join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches(before).count(), 1, "{before}");
        fs::write(path, text.replace(before, after)).unwrap();
    }
}

/// As small as a vLLM can be that has a registry, a DeepSeek model and loaders.
const VLLM: &[(&str, &str)] = &[
    ("vllm/__init__.py", ""),
    (
        "vllm/model_executor/models/registry.py",
        "_TEXT = {\n    \"DeepseekV2ForCausalLM\": (\"deepseek_v2\", \"DeepseekV2ForCausalLM\"),\n    \"DeepseekV3ForCausalLM\": (\"deepseek_v2\", \"DeepseekV3ForCausalLM\"),\n}\n",
    ),
    (
        DEEPSEEK,
        "from torch import nn\n\n\nclass DeepseekV2MLAAttention(nn.Module):\n    def forward(self, positions, hidden_states):\n        q = self.q_proj(hidden_states)\n        return self.mla_attn(positions, q)\n\n\nclass DeepseekV2Model(nn.Module):\n    def forward(self, input_ids, positions):\n        hidden_states = self.embed_tokens(input_ids)\n        return hidden_states\n\n\nclass DeepseekV3ForCausalLM(nn.Module):\n    def forward(self, input_ids, positions):\n        return self.model(input_ids, positions)\n",
    ),
    (
        GGUF_LOADER,
        "class GGUFModelLoader:\n    def load_weights(self, model, config):\n        return model\n",
    ),
];
