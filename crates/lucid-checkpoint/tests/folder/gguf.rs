//! A GGUF file, right or wrong on purpose.

/// Header, key-value pairs and tensors of a file.
#[derive(Clone)]
pub(crate) struct Writer {
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    pub(crate) values: Vec<(String, u32, Vec<u8>)>,
    /// Name, dimensions (fastest first), type, bytes.
    pub(crate) tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer { version: 3, alignment: 32, values: Vec::new(), tensors: Vec::new() }
    }

    pub(crate) fn string(&mut self, key: &str, value: &str) {
        self.values.push((key.to_owned(), 8, text(value)));
    }

    pub(crate) fn u32(&mut self, key: &str, value: u32) {
        self.values.push((key.to_owned(), 4, value.to_le_bytes().to_vec()));
    }

    pub(crate) fn f32(&mut self, key: &str, value: f32) {
        self.values.push((key.to_owned(), 6, value.to_le_bytes().to_vec()));
    }

    pub(crate) fn strings(&mut self, key: &str, values: &[&str]) {
        let mut bytes = [&8u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes()].concat();
        bytes.extend(values.iter().flat_map(|value| text(value)));
        self.values.push((key.to_owned(), 9, bytes));
    }

    pub(crate) fn tensor(&mut self, name: &str, dims: &[u64], kind: u32, bytes: Vec<u8>) {
        self.tensors.push((name.to_owned(), dims.to_vec(), kind, bytes));
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.values.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.values {
            file.extend(text(key));
            file.extend(kind.to_le_bytes());
            file.extend(value);
        }
        let mut data: Vec<u8> = Vec::new();
        for (name, dims, kind, bytes) in &self.tensors {
            file.extend(text(name));
            file.extend((dims.len() as u32).to_le_bytes());
            file.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend((data.len() as u64).to_le_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(self.alignment), 0);
        }
        file.resize(file.len().next_multiple_of(self.alignment), 0);
        file.extend(data);
        file
    }

    /// The smallest metadata of a model: 2 layers, the second with 2 experts.
    pub(crate) fn model() -> Writer {
        let mut w = Writer::new();
        w.string("general.architecture", "deepseek2");
        for (key, value) in [
            ("block_count", 2),
            ("context_length", 64),
            ("embedding_length", 64),
            ("feed_forward_length", 96),
            ("attention.head_count", 2),
            ("attention.q_lora_rank", 32),
            ("attention.kv_lora_rank", 32),
            ("attention.key_length_mla", 48),
            ("attention.value_length_mla", 32),
            ("rope.dimension_count", 16),
            ("leading_dense_block_count", 1),
            ("vocab_size", 10),
            ("expert_count", 2),
            ("expert_used_count", 1),
            ("expert_shared_count", 1),
            ("expert_feed_forward_length", 32),
            ("expert_gating_func", 2),
        ] {
            w.u32(&format!("deepseek2.{key}"), value);
        }
        w.f32("deepseek2.rope.freq_base", 10000.0);
        w.f32("deepseek2.attention.layer_norm_rms_epsilon", 1e-6);
        w.f32("deepseek2.expert_weights_scale", 2.5);
        w
    }
}
