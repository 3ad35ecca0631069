//! An inspection as aligned text.

use std::fmt::{self, Display, Write};

use super::Inspection;
use crate::Config;

impl Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl Inspection {
    /// The text for a terminal. With `every_tensor`, a table of all tensors follows.
    #[must_use]
    pub fn render(&self, every_tensor: bool) -> String {
        let mut out = String::new();
        // Writing to a string can't fail.
        let _ = self.write(&mut out, every_tensor);
        out
    }

    fn write(&self, out: &mut String, every_tensor: bool) -> fmt::Result {
        let shards: std::collections::BTreeSet<&str> =
            self.tensors.iter().map(|t| t.shard.as_str()).collect();
        writeln!(out, "{}", self.location)?;
        writeln!(
            out,
            "{} parameters, {} in {} tensors and {} files\n",
            count(self.parameters),
            size(self.bytes),
            self.tensors.len(),
            shards.len()
        )?;
        let rows = config_rows(&self.config, &self.generation);
        table(
            out,
            &rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect::<Vec<_>>(),
            "ll",
        )?;

        out.push('\n');
        let mut rows = vec![strings(["modules", "layout", "shape", "count", "parameters", "size"])];
        rows.extend(self.modules.iter().map(|m| {
            vec![
                m.pattern.clone(),
                m.layout.clone(),
                shape(&m.shape),
                m.count.to_string(),
                count(m.parameters),
                size(m.bytes),
            ]
        }));
        table(out, &rows, "lllrrr")?;

        out.push('\n');
        let mut rows = vec![strings(["layout", "count", "parameters", "size", "bits each"])];
        rows.extend(self.totals.iter().map(|t| {
            let bits = t.bytes as f64 * 8.0 / t.parameters.max(1) as f64;
            vec![
                t.layout.clone(),
                t.count.to_string(),
                count(t.parameters),
                size(t.bytes),
                format!("{bits:.2}"),
            ]
        }));
        table(out, &rows, "lrrrr")?;

        if !self.notices.is_empty() {
            writeln!(out, "\nnotices")?;
            for notice in &self.notices {
                writeln!(out, "  {}", printable(notice))?;
            }
        }
        if every_tensor {
            out.push('\n');
            let mut rows = vec![strings(["tensor", "dtype", "shape", "bytes", "file"])];
            rows.extend(self.tensors.iter().map(|t| {
                let bytes = t.bytes.to_string();
                vec![t.name.clone(), t.dtype.to_string(), shape(&t.shape), bytes, t.shard.clone()]
            }));
            table(out, &rows, "lllrl")?;
        }
        Ok(())
    }
}

fn config_rows(config: &Config, generation: &crate::Generation) -> Vec<(&'static str, String)> {
    let c = config;
    let moe_layers = (0..c.num_hidden_layers).filter(|&i| c.is_moe_layer(i)).count();
    let mut rows = vec![
        ("architecture", format!("{} ({})", c.architecture, c.model_type)),
        (
            "layers",
            format!("{} ({} dense, {moe_layers} MoE)", c.num_hidden_layers, c.num_hidden_layers - moe_layers),
        ),
        ("hidden, vocabulary", format!("{}, {}", c.hidden_size, c.vocab_size)),
        (
            "attention",
            format!(
                "{} heads; query rank {}, latent {}; per head {} + {} rotated, value {}",
                c.num_attention_heads,
                c.q_lora_rank.map_or("none".to_owned(), |rank| rank.to_string()),
                c.kv_lora_rank,
                c.qk_nope_head_dim,
                c.qk_rope_head_dim,
                c.v_head_dim
            ),
        ),
        ("dense MLP", format!("width {}", c.intermediate_size)),
    ];
    if let Some(moe) = &c.moe {
        let groups = match moe.n_group {
            1 => String::new(),
            n => format!(" from {} of {n} groups", moe.topk_group),
        };
        let text = format!(
            "{} of {} routed{groups} + {} shared, width {}, {:?} scores, scaled by {}",
            moe.num_experts_per_tok,
            moe.n_routed_experts,
            moe.n_shared_experts,
            moe.moe_intermediate_size,
            moe.scoring_func,
            moe.routed_scaling_factor
        );
        rows.push(("experts", text.replace("Sigmoid", "sigmoid").replace("Softmax", "softmax")));
    }
    if let Some(i) = &c.indexer {
        let full = (0..c.num_hidden_layers).filter(|&layer| i.is_full(layer)).count();
        let sharing = match c.num_hidden_layers - full {
            0 => String::new(),
            shared => format!("; {full} layers choose, {shared} share"),
        };
        let text =
            format!("{} heads of {}, {} tokens{sharing}", i.index_n_heads, i.index_head_dim, i.index_topk);
        rows.push(("sparse attention", text));
    }
    let positions = match &c.rope_scaling {
        None => format!("RoPE, base {}", c.rope_theta),
        Some(y) => format!(
            "YaRN ×{} from {} tokens, base {}, betas {} and {}",
            y.factor, y.original_max_position_embeddings, c.rope_theta, y.beta_fast, y.beta_slow
        ),
    };
    rows.push(("positions", format!("{positions}; at most {} tokens", c.max_position_embeddings)));
    if c.num_nextn_predict_layers > 0 {
        rows.push(("multi-token prediction", format!("{} layers", c.num_nextn_predict_layers)));
    }
    rows.push(("norm epsilon", format!("{:e}", c.rms_norm_eps)));
    rows.push(("trained in", c.dtype.clone()));
    rows.push(("quantization", quantization(c)));
    let mut ends: Vec<String> = Vec::new();
    for id in c.eos_token_ids.iter().chain(&generation.eos_token_ids).map(ToString::to_string) {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    rows.push(("end tokens", if ends.is_empty() { "none".to_owned() } else { ends.join(", ") }));
    rows
}

fn quantization(config: &Config) -> String {
    let Some(q) = &config.quantization else { return "none declared".to_owned() };
    let mut text = q.method.clone();
    if let Some(version) = &q.producer_version {
        text += &format!(" {version}");
    }
    if let Some(algorithm) = &q.algorithm {
        text += &format!(", {algorithm}");
    }
    if let Some(group) = q.group_size {
        text += &format!(", groups of {group}");
    }
    if let Some([rows, cols]) = q.block_size {
        text += &format!(", blocks of {rows}×{cols}");
    }
    if let Some(kv) = &q.kv_cache_algorithm {
        text += &format!(", KV cache {kv}");
    }
    text
}

fn strings<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

/// Columns two spaces apart; `align` has `l` or `r` for each.
fn table(out: &mut String, rows: &[Vec<String>], align: &str) -> fmt::Result {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    let width = |i: usize| {
        rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..align.len()).map(width).collect();
    for row in &rows {
        let mut line = String::from(" ");
        for ((cell, &width), align) in row.iter().zip(&widths).zip(align.chars()) {
            match align {
                'r' => write!(line, " {cell:>width$} ")?,
                _ => write!(line, " {cell:<width$} ")?,
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Names come from the file: an escape sequence in one must not reach the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn shape(shape: &[usize]) -> String {
    match shape {
        [] => "scalar".to_owned(),
        _ => shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" × "),
    }
}

/// `19.5 M`
fn count(n: u64) -> String {
    scaled(n, ["", " K", " M", " B", " T"])
}

/// Decimal units, as disks and downloads are counted.
fn size(bytes: u64) -> String {
    scaled(bytes, [" B", " kB", " MB", " GB", " TB"])
}

fn scaled(n: u64, units: [&str; 5]) -> String {
    let mut value = n as f64;
    let mut unit = 0;
    // 999.95 would print as 1000.0.
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{n}{}", units[0]) } else { format!("{value:.1}{}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_change_their_unit_where_they_would_get_a_fourth_digit() {
        let texts: Vec<String> = [0, 999, 1000, 999_949, 999_950, 1_040_000_000_000].map(count).to_vec();
        assert_eq!(texts, ["0", "999", "1.0 K", "999.9 K", "1.0 M", "1.0 T"]);
        assert_eq!(size(540_000_000_000), "540.0 GB");
        assert_eq!(size(u64::MAX), "18446744.1 TB");
    }

    #[test]
    fn an_escape_sequence_in_a_name_does_not_reach_the_terminal() {
        let mut out = String::new();
        table(&mut out, &[vec!["a\u{1b}[2Jb".to_owned()]], "l").unwrap();
        assert_eq!(out, "  a\u{fffd}[2Jb\n");
    }
}
