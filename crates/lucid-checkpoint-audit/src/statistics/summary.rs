//! From the statistics of single tensors to what the evidence keeps.

use std::collections::BTreeMap;

use super::notable::{self, Notables};
use super::scales::{Measured, Module, Storage, modules};
use super::{KvScales, LayerStatistics, Moments, NotableKind as Kind, ScalarStatistics, Statistics};
use crate::header::TensorEntry;
use crate::names;

/// The most rows of [`Statistics::layers`].
const MAX_LAYERS: usize = 20_000;

/// Layers that far away are neighbours.
const NEIGHBOURS: u32 = 4;

/// How many times off is notable.
const OUTLIER: f64 = 10.0;

/// A tensor that was read, with the name of its shard.
pub(crate) struct Read<'a> {
    pub(crate) entry: &'a TensorEntry,
    pub(crate) shard: &'a str,
    pub(crate) moments: &'a Moments,
}

/// Puts the statistics of all tensors together. `static_input_scales`: the config promises an `input_scale` for each module.
pub(crate) fn summarize(tensors: &[Read<'_>], static_input_scales: bool) -> Statistics {
    let measured: Vec<Measured<'_>> =
        tensors.iter().map(|t| Measured { entry: t.entry, shard: t.shard, moments: t.moments }).collect();
    let mut notables = Notables::default();
    for tensor in &measured {
        notable::tensor(tensor, &mut notables);
    }
    let modules = modules(&measured);
    for (path, module) in &modules {
        notable::module(path, module, &mut notables);
    }
    let mut statistics = Statistics { tensors: measured.len() as u64, ..Statistics::default() };
    statistics.gate_up_pairs = gate_up(&modules, &mut notables);
    if static_input_scales {
        input_missing(&modules, &mut notables);
    }
    layers(&modules, &mut statistics, &mut notables);
    statistics.scalars = scalars(&measured);
    statistics.kv_scales = kv_scales(&measured);
    statistics.notable = notables.finish();
    statistics
}

/// ModelOpt gives gate and up one scale; engines that fuse the two rely on it.
fn gate_up(modules: &BTreeMap<&str, Module<'_>>, notables: &mut Notables) -> u64 {
    let mut pairs = 0;
    for (path, gate) in modules {
        let Some(parent) = path.strip_suffix(".gate_proj") else { continue };
        let Some(up) = modules.get(format!("{parent}.up_proj").as_str()) else { continue };
        for (part, kind) in [
            ("weight_scale_2", Kind::GateUpWeight),
            ("weight_global_scale", Kind::GateUpWeight),
            ("input_scale", Kind::GateUpInput),
            ("input_global_scale", Kind::GateUpInput),
        ] {
            let (Some(g), Some(u)) = (gate.scalar(part), up.scalar(part)) else { continue };
            pairs += 1;
            if (g - u).abs() > 1e-6 * g.abs().max(u.abs()) {
                let shard = gate.parts.get(part).map_or("", |tensor| tensor.shard);
                let ratio = (g / u).abs().max((u / g).abs());
                let text = format!("{part}: gate_proj {g:e}, up_proj {u:e}, a factor of {ratio:.3}");
                notables.add(kind, parent, shard, ratio, text);
            }
        }
    }
    pairs
}

/// Modules without an activation scale beside modules of the same pattern that have one.
fn input_missing(modules: &BTreeMap<&str, Module<'_>>, notables: &mut Notables) {
    let mut with: BTreeMap<String, u64> = BTreeMap::new();
    let mut without: BTreeMap<String, Vec<(&str, &str)>> = BTreeMap::new();
    for (path, module) in modules {
        let part = match module.storage() {
            Storage::Nvfp4 { divides: false } => "input_scale",
            Storage::Nvfp4 { divides: true } => "input_global_scale",
            _ => continue,
        };
        let pattern = names::pattern(path).pattern;
        if module.parts.contains_key(part) {
            *with.entry(pattern).or_default() += 1;
        } else {
            without
                .entry(pattern)
                .or_default()
                .push((path, module.weight().map_or("", |weight| weight.shard)));
        }
    }
    for (pattern, lacking) in without {
        let Some(have) = with.get(&pattern) else { continue };
        for (path, shard) in lacking {
            let text = format!("no activation scale, {have} modules of this kind have one");
            notables.add(Kind::InputMissing, path, shard, 0.0, text);
        }
    }
}

/// Root mean squares by pattern and layer, and those far off.
fn layers(modules: &BTreeMap<&str, Module<'_>>, statistics: &mut Statistics, notables: &mut Notables) {
    let mut groups: Groups<'_> = BTreeMap::new();
    for (path, module) in modules {
        let Some(rms) = module.rms() else { continue };
        let mut name = names::pattern(path);
        let shard = module.weight().map_or("", |weight| weight.shard);
        // GGUF mixes block types among layers, and each has scales of its own size.
        if let Some(weight) = module.weight().filter(|_| name.pattern.starts_with("blk.")) {
            name.pattern = format!("{} {}", name.pattern, weight.entry.dtype);
        }
        groups.entry((name.pattern, name.layer)).or_default().push((rms, path, shard));
    }
    for ((pattern, layer), members) in &groups {
        let mut sorted: Vec<f64> = members.iter().map(|(rms, ..)| *rms).collect();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        let mean_square = sorted.iter().map(|x| x * x).sum::<f64>() / sorted.len().max(1) as f64;
        statistics.layers.push(
            MAX_LAYERS,
            LayerStatistics {
                pattern: pattern.clone(),
                layer: *layer,
                modules: members.len() as u64,
                rms: mean_square.sqrt().min(f64::MAX),
                least: sorted.first().copied().unwrap_or_default(),
                greatest: sorted.last().copied().unwrap_or_default(),
            },
        );
        // Of few experts, none is usual.
        if members.len() >= 8 && median > 0.0 {
            for (rms, path, shard) in members {
                let ratio = rms / median;
                if *rms > 0.0 && !(1.0 / OUTLIER..=OUTLIER).contains(&ratio) {
                    let text = format!(
                        "root mean square {rms:.3e}, {ratio:.3} times that of the layer's median expert"
                    );
                    notables.add(Kind::ExpertOutlier, path, shard, ratio, text);
                }
            }
        }
    }
    layer_outliers(&groups, notables);
}

/// Pattern and layer to root mean square, path and shard of each module.
type Groups<'a> = BTreeMap<(String, Option<u32>), Vec<(f64, &'a str, &'a str)>>;

/// A layer that is ten times off *every* near layer: neighbours drift, they don't jump and come back.
fn layer_outliers(groups: &Groups<'_>, notables: &mut Notables) {
    let median = |members: &[(f64, &str, &str)]| {
        let mut sorted: Vec<f64> = members.iter().map(|(rms, ..)| *rms).collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    };
    let mut patterns: BTreeMap<&str, Vec<(u32, f64, &str, &str)>> = BTreeMap::new();
    for ((pattern, layer), members) in groups {
        // Biases, and norms that scale a latent, may differ as they like.
        let matrix = pattern.ends_with("_proj")
            || pattern.ends_with("_mqa")
            || pattern.ends_with(".gate")
            || pattern.starts_with("blk.");
        if let (Some(layer), true, Some((_, path, shard))) = (layer, matrix, members.first()) {
            patterns.entry(pattern).or_default().push((*layer, median(members), path, shard));
        }
    }
    for layers in patterns.values().filter(|layers| layers.len() >= 4) {
        for &(layer, rms, path, shard) in layers {
            let near = layers.iter().filter(|(other, value, ..)| {
                *other != layer && other.abs_diff(layer) <= NEIGHBOURS && *value > 0.0
            });
            let ratios: Vec<f64> = near.map(|(_, value, ..)| rms / value).collect();
            if ratios.len() < 3 || rms <= 0.0 {
                continue;
            }
            let high = ratios.iter().copied().fold(f64::MAX, f64::min);
            let low = ratios.iter().copied().fold(0.0, f64::max);
            if high > OUTLIER || low < 1.0 / OUTLIER {
                let ratio = if high > OUTLIER { high } else { low };
                let text = format!(
                    "root mean square {rms:.3e} in layer {layer}, {ratio:.3} times the nearest of {} \
                        near layers",
                    ratios.len()
                );
                notables.add(Kind::LayerOutlier, path, shard, ratio, text);
            }
        }
    }
}

fn scalars(tensors: &[Measured<'_>]) -> Vec<ScalarStatistics> {
    let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for tensor in tensors {
        let Some((_, part)) = tensor.entry.name.rsplit_once('.') else { continue };
        if matches!(part, "weight_scale_2" | "weight_global_scale" | "input_scale" | "input_global_scale")
            && let Some(value) = tensor.moments.scalar
        {
            values.entry(part).or_default().push(value);
        }
    }
    let statistics = values.into_iter().map(|(name, mut values)| {
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or_default();
        ScalarStatistics {
            name: name.to_owned(),
            count: values.len() as u64,
            least: at(0),
            median: at(values.len() / 2),
            greatest: at(values.len().saturating_sub(1)),
        }
    });
    statistics.collect()
}

fn kv_scales(tensors: &[Measured<'_>]) -> KvScales {
    let is_kv =
        |name: &str| name.ends_with(".k_scale") || name.ends_with(".v_scale") || name.ends_with(".kv_scale");
    let values: Vec<f64> =
        tensors.iter().filter(|t| is_kv(&t.entry.name)).filter_map(|t| t.moments.scalar).collect();
    KvScales {
        count: values.len() as u64,
        ones: values.iter().filter(|value| **value == 1.0).count() as u64,
        least: values.iter().copied().reduce(f64::min).unwrap_or_default(),
        greatest: values.iter().copied().reduce(f64::max).unwrap_or_default(),
    }
}
