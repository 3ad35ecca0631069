//! A checkpoint: the config and every tensor of every shard.

use std::collections::BTreeMap;

use crate::{
    Bytes, Config, Dtype, Error, Files, Generation, Matrix, float16, gguf, layout, safetensors, unused,
};

/// A tensor as the files hold it.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The name in the file; of a GGUF tensor, the name that safetensors checkpoints give it.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, slowest first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The file that holds it.
    pub shard: String,
    /// The values, little-endian, row-major, not always aligned.
    pub bytes: Bytes,
}

/// A model's files, opened: config parsed, every shard's header read and checked, no weight read yet.
#[derive(Debug)]
pub struct Checkpoint {
    files: Files,
    config: Config,
    generation: Generation,
    tensors: BTreeMap<String, Tensor>,
    notices: Vec<String>,
}

impl Checkpoint {
    /// Reads the config and the header of every `*.safetensors` file, or the header of a GGUF model.
    ///
    /// `model.safetensors.index.json` is only a hint (quantization tools leave it outdated): where it differs from the
    /// headers, [`notices`](Self::notices) says so.
    ///
    /// # Errors
    /// When a file is missing, unreadable, truncated or contradicts itself, when the architecture is not supported,
    /// or when two shards hold a tensor of the same name.
    pub fn open(files: Files) -> Result<Checkpoint, Error> {
        if files.is_gguf() {
            let gguf::Model { config, generation, tensors, mut notices } = gguf::open(&files)?;
            unused::notices(&files, &config, &tensors, &mut notices);
            return Ok(Checkpoint { files, config, generation, tensors, notices });
        }
        let mut notices = Vec::new();
        let config = Config::read(&files, &mut notices)?;
        let generation = Generation::read(&files, config.vocab_size)?;
        let names = files.names()?;
        let mut tensors: BTreeMap<String, Tensor> = BTreeMap::new();
        let mut shards = 0;
        for shard in names.iter().filter(|name| name.ends_with(".safetensors")) {
            shards += 1;
            let location = files.location(shard);
            let Some(bytes) = files.find(shard)? else {
                return Err(Error::MissingFile { location, hint: "it was there a moment ago" });
            };
            let read = safetensors::read(&location, &bytes)?;
            if read.unused > 0 {
                notices.push(format!("{location}: {} bytes belong to no tensor", read.unused));
            }
            for safetensors::Entry { name, dtype, shape, bytes } in read.entries {
                let tensor = Tensor { name: name.clone(), dtype, shape, shard: shard.clone(), bytes };
                if let Some(first) = tensors.insert(name, tensor) {
                    return Err(Error::DuplicateTensor {
                        name: first.name,
                        first: files.location(&first.shard),
                        second: location,
                    });
                }
            }
        }
        if shards == 0 {
            return Err(Error::MissingFile {
                location: files.location("*.safetensors"),
                hint: "a checkpoint folder holds its weights in safetensors files",
            });
        }
        crate::index::compare(&files, &tensors, &mut notices)?;
        unused::notices(&files, &config, &tensors, &mut notices);
        Ok(Checkpoint { files, config, generation, tensors, notices })
    }

    /// Reads the config alone: for benchmarks of a model whose weights are not there. Every look at a tensor fails.
    ///
    /// # Errors
    /// When the config is missing or unreadable, the architecture is not supported, or the files are a GGUF model.
    pub fn without_weights(files: Files) -> Result<Checkpoint, Error> {
        let mut notices = Vec::new();
        let config = Config::read(&files, &mut notices)?;
        let generation = Generation::read(&files, config.vocab_size)?;
        Ok(Checkpoint { files, config, generation, tensors: BTreeMap::new(), notices })
    }

    /// Where the files are.
    #[must_use]
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// `config.json`.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// `generation_config.json`; empty when there is none.
    #[must_use]
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// What is odd about the files but does no harm: one sentence each.
    #[must_use]
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.values()
    }

    /// The tensor of that name: `model.layers.0.…`, `lm_head.weight`. Multimodal checkpoints put `language_model.`
    /// before it (some early exports in place of `model.`); those spellings are found too.
    ///
    /// # Errors
    /// When no shard holds it.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, Error> {
        self.find(name).ok_or_else(|| self.missing(name))
    }

    pub(crate) fn missing(&self, name: &str) -> Error {
        Error::MissingTensor {
            name: name.to_owned(),
            location: self.files.root(),
            tried: spellings(name).collect::<Vec<_>>().join(", "),
        }
    }

    /// Like [`tensor`](Self::tensor), for a tensor that need not be there.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        spellings(name).find_map(|spelling| self.tensors.get(&spelling))
    }

    /// The values of a one-dimensional tensor of `len` elements: BF16, F16 or F32.
    ///
    /// # Errors
    /// When the tensor is missing, has another shape, or another type.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, Error> {
        let tensor = self.tensor(name)?;
        let shard = || self.files.location(&tensor.shard);
        if tensor.shape != [len] {
            return Err(Error::Shape {
                tensor: tensor.name.clone(),
                shard: shard(),
                found: tensor.shape.clone(),
                expected: vec![len],
            });
        }
        let bytes = tensor.bytes.read()?;
        let halves = |decode: fn(u16) -> f32| {
            bytes.as_chunks().0.iter().map(|b| decode(u16::from_le_bytes(*b))).collect()
        };
        match tensor.dtype {
            Dtype::F32 => Ok(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
            Dtype::F16 => Ok(halves(float16::f16_to_f32)),
            Dtype::Bf16 => Ok(halves(float16::bf16_to_f32)),
            _ => Err(Error::UnsupportedLayout {
                tensor: tensor.name.clone(),
                shard: shard(),
                layout: format!("a vector of type {}", tensor.dtype),
                supported: "BF16, F16 and F32 vectors",
            }),
        }
    }

    /// A single F32, stored with shape `[]` or `[1]`; `None` when there is no such tensor.
    ///
    /// # Errors
    /// When the tensor is there, but is no single F32.
    pub fn scalar(&self, name: &str) -> Result<Option<f32>, Error> {
        let Some(tensor) = self.find(name) else { return Ok(None) };
        self.scalar_of(tensor).map(Some)
    }

    /// The value of a single F32.
    pub(crate) fn scalar_of(&self, tensor: &Tensor) -> Result<f32, Error> {
        if let (Dtype::F32, [] | [1]) = (&tensor.dtype, tensor.shape.as_slice())
            && let Some(value) = tensor.bytes.read()?.first_chunk::<4>()
        {
            return Ok(f32::from_le_bytes(*value));
        }
        Err(Error::Quantized {
            tensor: tensor.name.clone(),
            shard: self.files.location(&tensor.shard),
            problem: format!("expected one F32 value, found {} of shape {:?}", tensor.dtype, tensor.shape),
        })
    }

    /// The weight matrix `[rows, cols]` of a module: the path without `.weight`, as `model.layers.0.mlp.gate_proj`.
    /// The tensors that are there decide the layout, not what the config says about it.
    ///
    /// # Errors
    /// When the matrix is missing, has another shape, is stored in a layout that Lucid does not decode, or when the
    /// tensors of a quantized matrix contradict each other.
    pub fn matrix(&self, module: &str, rows: usize, cols: usize) -> Result<Matrix, Error> {
        layout::matrix(self, module, rows, cols)
    }

    /// A GGUF file's `attn_k_b` `[heads kv_lora_rank, qk_nope_head_dim]` and `attn_v_b` `[heads v_head_dim, kv_lora_rank]` of the attention
    /// at a path (`model.layers.0.self_attn`), if it holds `kv_b_proj` in these halves and at least one is quantized. Otherwise
    /// [`Checkpoint::matrix`] gives `kv_b_proj`, joined without loss.
    ///
    /// # Errors
    /// As [`Checkpoint::matrix`].
    pub fn quantized_keys_and_values(&self, attention: &str) -> Result<Option<[Matrix; 2]>, Error> {
        let halves = layout::keys_and_values(self, attention)?;
        Ok(halves
            .filter(|halves| halves.iter().any(|half| matches!(half.packed, crate::Packed::Gguf { .. }))))
    }

    /// The tensor of exactly that name.
    pub(crate) fn exact(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }
}

/// A canonical name, and how multimodal checkpoints spell it.
pub(crate) fn spellings(name: &str) -> impl Iterator<Item = String> {
    [
        Some(name.to_owned()),
        Some(format!("language_model.{name}")),
        name.strip_prefix("model.").map(|rest| format!("language_model.{rest}")),
    ]
    .into_iter()
    .flatten()
}
