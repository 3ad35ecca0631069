//! Tensor names: their prefix, and what is left when layer and expert numbers are taken out.

/// A name with `*` for its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// `model.layers.*.mlp.experts.*.gate_proj.weight`.
    pub(crate) pattern: String,
    pub(crate) layer: Option<u32>,
    pub(crate) expert: Option<u32>,
    /// What multimodal checkpoints put before it: `model.`, `language_model.model.`, `language_model.`; empty for others.
    pub(crate) prefix: &'static str,
}

/// Splits a name. Prefixes of multimodal checkpoints are taken off, so that patterns are those of text models.
pub(crate) fn pattern(name: &str) -> Name {
    let (prefix, rest) = match name.strip_prefix("language_model.") {
        Some(rest) if rest.starts_with("model.") => ("language_model.model.", rest.to_owned()),
        // Early exports put `language_model.` in place of `model.`.
        Some(rest) if ["layers.", "embed_tokens.", "norm."].iter().any(|known| rest.starts_with(known)) => {
            ("language_model.", format!("model.{rest}"))
        }
        Some(rest) => ("language_model.model.", rest.to_owned()),
        None if name.starts_with("model.") => ("model.", name.to_owned()),
        None => ("", name.to_owned()),
    };
    let (mut layer, mut expert) = (None, None);
    let mut before = "";
    let mut pattern = String::with_capacity(rest.len());
    for (i, part) in rest.split('.').enumerate() {
        if i > 0 {
            pattern.push('.');
        }
        match (before, part.parse::<u32>()) {
            ("layers" | "blk", Ok(number)) if layer.is_none() => {
                layer = Some(number);
                pattern.push('*');
            }
            ("experts", Ok(number)) if expert.is_none() => {
                expert = Some(number);
                pattern.push('*');
            }
            // The vision tower's blocks, projector layers: one pattern, no layer of the language model.
            (_, Ok(_)) => pattern.push('#'),
            (_, Err(_)) => pattern.push_str(part),
        }
        before = part;
    }
    Name { pattern, layer, expert, prefix }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_prefixes_are_taken_out() {
        for (name, expected, layer, expert, prefix) in [
            (
                "model.layers.12.mlp.experts.383.up_proj.weight",
                "model.layers.*.mlp.experts.*.up_proj.weight",
                Some(12),
                Some(383),
                "model.",
            ),
            (
                "language_model.model.layers.0.input_layernorm.weight",
                "model.layers.*.input_layernorm.weight",
                Some(0),
                None,
                "language_model.model.",
            ),
            (
                "language_model.layers.7.mlp.gate.weight",
                "model.layers.*.mlp.gate.weight",
                Some(7),
                None,
                "language_model.",
            ),
            ("language_model.lm_head.weight", "lm_head.weight", None, None, "language_model.model."),
            (
                "vision_tower.encoder.blocks.3.wo.weight",
                "vision_tower.encoder.blocks.#.wo.weight",
                None,
                None,
                "",
            ),
            ("blk.4.ffn_down_exps.weight", "blk.*.ffn_down_exps.weight", Some(4), None, ""),
            ("", "", None, None, ""),
        ] {
            let got = pattern(name);
            assert_eq!(
                (got.pattern.as_str(), got.layer, got.expert, got.prefix),
                (expected, layer, expert, prefix)
            );
        }
    }
}
