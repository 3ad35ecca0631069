//! Tensors that a checkpoint holds and that computing a text token takes no look at: said aloud, so that nobody wonders.

use std::collections::{BTreeMap, BTreeSet};

use crate::checkpoint::Tensor;
use crate::{Config, Files};

/// How the names of vision parts begin, in Kimi's checkpoints and in those of tools.
const VISION: [&str; 4] = ["vision_tower.", "mm_projector.", "multi_modal_projector.", "visual."];

/// One sentence for each kind of unused tensors.
pub(crate) fn notices(
    files: &Files,
    config: &Config,
    tensors: &BTreeMap<String, Tensor>,
    notices: &mut Vec<String>,
) {
    let (mut vision, mut mtp, mut beyond, mut shared) = (0usize, 0usize, 0usize, 0usize);
    let (mut extra, mut sharing) = (BTreeSet::new(), BTreeSet::new());
    let layers = config.num_hidden_layers;
    for name in tensors.keys() {
        let name = name.strip_prefix("language_model.").unwrap_or(name);
        let inner = name.strip_prefix("model.").unwrap_or(name);
        if VISION.iter().any(|start| inner.starts_with(start)) {
            vision += 1;
            continue;
        }
        let layer = inner.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        let Some((layer, rest)) = layer.and_then(|(n, rest)| Some((n.parse::<usize>().ok()?, rest))) else {
            continue;
        };
        if layer >= layers {
            extra.insert(layer);
            let declared = layer < layers.saturating_add(config.num_nextn_predict_layers);
            *(if declared { &mut mtp } else { &mut beyond }) += 1;
        } else if rest.starts_with("self_attn.indexer.")
            && config.indexer.as_ref().is_some_and(|indexer| !indexer.is_full(layer))
        {
            shared += 1;
            sharing.insert(layer);
        }
    }
    let location = files.root();
    if vision > 0 {
        notices.push(format!(
            "{location}: {vision} tensors of the vision part are not used: Lucid reads text only"
        ));
    }
    if mtp > 0 {
        notices.push(format!(
            "{location}: {mtp} tensors of multi-token prediction (from layer {layers} on) are not used: they draft tokens for \
             speculative decoding and have no part in the answers"
        ));
    }
    if beyond > 0 {
        let last = extra.last().copied().unwrap_or(layers);
        notices.push(format!(
            "{location}: {beyond} tensors of layers up to {last} are not used: config.json says {layers} layers"
        ));
    }
    if shared > 0 {
        notices.push(format!(
            "{location}: {shared} tensors of sparse-attention indexers are not used: {} layers share another's choice",
            sharing.len()
        ));
    }
}
