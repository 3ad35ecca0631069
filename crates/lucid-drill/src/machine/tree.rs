//! The files of a patient's machine: a small vLLM with honest RECORDs, and the canary as its model.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use lucid_checkpoint::Files;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// Where packages lie, from the machine's `/`.
pub(super) const SITE: &str = "opt/venv/lib/python3.11/site-packages";
/// The model's code, in site-packages.
pub(super) const DEEPSEEK: &str = "vllm/model_executor/models/deepseek_v2.py";
/// The sampler's.
pub(super) const SAMPLER: &str = "vllm/v1/sample/sampler.py";
/// Where the model lies. The canary speaks Kimi's template, and a folder's name is all that tells its family.
pub(super) const MODEL: &str = "models/Kimi-K2.6";
/// How long ago everything was installed.
const INSTALLED: Duration = Duration::from_secs(20 * 24 * 3_600);

/// A folder that stands for `/`.
#[derive(Debug)]
pub(super) struct Tree {
    root: TempDir,
}

impl Tree {
    /// A virtual environment in `/opt/venv` and the canary in `/models/Kimi-K2.6`, installed some weeks ago.
    pub(super) fn new(model: &Files) -> io::Result<Tree> {
        let tree = Tree { root: TempDir::new()? };
        let settings =
            "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.7\nuv = 0.9.1\n";
        tree.write("opt/venv/pyvenv.cfg", settings)?;
        tree.write("opt/venv/bin/python", "")?;
        tree.package("vllm", "0.32.0", VLLM)?;
        for name in model.names().map_err(io::Error::other)? {
            if let Some(bytes) = model.find(&name).map_err(io::Error::other)? {
                tree.write(&format!("{MODEL}/{name}"), &bytes[..])?;
            }
        }
        Ok(tree)
    }

    pub(super) fn root(&self) -> &Path {
        self.root.path()
    }

    /// Writes a file today.
    pub(super) fn write(&self, path: &str, text: impl AsRef<[u8]>) -> io::Result<()> {
        let path = self.root().join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, text)
    }

    pub(super) fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.root().join(path))
    }

    /// Sets when a file was written, so long ago.
    pub(super) fn age(&self, path: &str, ago: Duration) -> io::Result<()> {
        let time = SystemTime::now().checked_sub(ago).ok_or_else(|| io::Error::other("before all time"))?;
        File::open(self.root().join(path))?.set_modified(time)
    }

    /// Installs a distribution with its RECORD.
    pub(super) fn package(&self, name: &str, version: &str, files: &[(&str, &str)]) -> io::Result<()> {
        let info = format!("{}-{version}.dist-info", name.replace('-', "_"));
        let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
        let wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
        let own = [("METADATA", metadata.as_str()), ("INSTALLER", "uv"), ("WHEEL", wheel)];
        let own = own.map(|(file, text)| (format!("{info}/{file}"), text));
        let mut record = String::new();
        for (path, text) in files.iter().map(|(path, text)| ((*path).to_owned(), *text)).chain(own) {
            let digest = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(text.as_bytes()));
            record.push_str(&format!("{path},sha256={digest},{}\n", text.len()));
            self.installed(&format!("{SITE}/{path}"), text)?;
        }
        record.push_str(&format!("{info}/RECORD,,\n"));
        self.installed(&format!("{SITE}/{info}/RECORD"), &record)
    }

    fn installed(&self, path: &str, text: &str) -> io::Result<()> {
        self.write(path, text)?;
        self.age(path, INSTALLED)
    }

    /// Replaces a text that stands once in a file of site-packages, as an editor does: today.
    pub(super) fn edit(&self, file: &str, before: &str, after: &str) -> io::Result<()> {
        let path = format!("{SITE}/{file}");
        let text = String::from_utf8(self.read(&path)?).map_err(io::Error::other)?;
        if text.matches(before).count() != 1 {
            return Err(io::Error::other(format!("{before:?} doesn't stand once in {file}")));
        }
        self.write(&path, text.replace(before, after))
    }
}

/// As small as a vLLM can be that has a registry, a DeepSeek model, a loader and a sampler.
const VLLM: &[(&str, &str)] = &[
    ("vllm/__init__.py", "__version__ = \"0.32.0\"\n"),
    (
        "vllm/model_executor/models/registry.py",
        "_TEXT = {\n    \"DeepseekV2ForCausalLM\": (\"deepseek_v2\", \"DeepseekV2ForCausalLM\"),\n    \"DeepseekV3ForCausalLM\": (\"deepseek_v2\", \"DeepseekV3ForCausalLM\"),\n}\n",
    ),
    (
        DEEPSEEK,
        "from torch import nn\n\n\nclass DeepseekV2MLAAttention(nn.Module):\n    def forward(self, positions, hidden_states):\n        q = self.q_proj(hidden_states)\n        return self.mla_attn(positions, q) * self.scaling\n\n\nclass DeepseekV2MoE(nn.Module):\n    def forward(self, hidden_states):\n        router_logits = self.gate(hidden_states)\n        routed = self.experts(hidden_states, router_logits)\n        return routed * self.routed_scaling_factor\n\n\nclass DeepseekV2DecoderLayer(nn.Module):\n    def __init__(self, config):\n        super().__init__()\n        self.self_attn = DeepseekV2MLAAttention(config)\n        self.mlp = DeepseekV2MoE(config)\n\n    def forward(self, positions, hidden_states):\n        hidden_states = self.self_attn(positions, hidden_states)\n        return self.mlp(hidden_states)\n\n\nclass DeepseekV2Model(nn.Module):\n    def __init__(self, config):\n        super().__init__()\n        self.layers = [DeepseekV2DecoderLayer(config) for _ in range(config.num_hidden_layers)]\n\n    def forward(self, input_ids, positions):\n        hidden_states = self.embed_tokens(input_ids)\n        for layer in self.layers:\n            hidden_states = layer(positions, hidden_states)\n        return hidden_states\n\n\nclass DeepseekV3ForCausalLM(nn.Module):\n    def __init__(self, config):\n        super().__init__()\n        self.model = DeepseekV2Model(config)\n\n    def forward(self, input_ids, positions):\n        return self.model(input_ids, positions)\n",
    ),
    (
        "vllm/model_executor/model_loader/default_loader.py",
        "class DefaultModelLoader:\n    def load_weights(self, model, config):\n        return model\n",
    ),
    (
        SAMPLER,
        "from torch import nn\n\n\nclass Sampler(nn.Module):\n    def forward(self, logits, metadata):\n        logits = logits.float()\n        return self.sample(logits, metadata)\n",
    ),
];
