//! Published models, to recognise a pruned copy of one.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::evidence::ModelSizes;

/// A published model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Published {
    pub(crate) name: String,
    hidden: u64,
    layers: u32,
    vocab: u64,
    heads: u64,
    moe_intermediate: u64,
    pub(crate) experts: u32,
    pub(crate) experts_per_token: u32,
}

#[derive(Deserialize)]
struct File {
    model: Vec<Published>,
}

static MODELS: LazyLock<Vec<Published>> = LazyLock::new(|| {
    // A test reads the file; a binary in which it can't be read knows no models.
    toml::from_str::<File>(include_str!("../knowledge/models.toml"))
        .map_or_else(|_| Vec::new(), |file| file.model)
});

/// The model that has these sizes, experts aside.
pub(crate) fn like(sizes: &ModelSizes) -> Option<&'static Published> {
    MODELS.iter().find(|model| {
        (model.hidden, model.layers, model.vocab, model.heads, model.moe_intermediate)
            == (sizes.hidden, sizes.layers, sizes.vocab, sizes.heads, sizes.moe_intermediate)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_knowledge_file_is_read_and_no_two_models_look_alike() {
        let file: File = toml::from_str(include_str!("../knowledge/models.toml")).unwrap();
        assert!(file.model.len() >= 3);
        for (i, a) in file.model.iter().enumerate() {
            for b in &file.model[..i] {
                assert_ne!((a.hidden, a.layers, a.vocab, a.heads), (b.hidden, b.layers, b.vocab, b.heads));
            }
        }
    }
}
