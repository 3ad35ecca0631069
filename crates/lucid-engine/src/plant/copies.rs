//! Matrices of a layer that hold what another layer's hold: a loader used the buffer behind them again (SGLang #29998, #37369).

use lucid_checkpoint::{Config, Matrix, Packed};

use super::Dose;
use crate::weights::{FeedForward, KeysAndValues, Layer, Query, Weights};

/// A projection that layers have in the same shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Projection {
    /// `q_a_proj`, or `q_proj` where queries have no latent.
    Query,
    /// `q_b_proj`.
    QueryUp,
    /// `kv_a_proj_with_mqa`.
    Latent,
    /// `kv_b_proj`.
    KeysAndValues,
    /// `o_proj`.
    Output,
    /// The router's `gate`.
    Router,
    /// `gate_proj` of all routed experts, or of a dense MLP.
    Gate,
    /// `up_proj` of the same.
    Up,
    /// `down_proj` of the same.
    Down,
}

impl Projection {
    /// All of them: attention's first, which loaders put together from parts.
    pub const ALL: [Projection; 9] = [
        Projection::Query,
        Projection::Latent,
        Projection::QueryUp,
        Projection::KeysAndValues,
        Projection::Output,
        Projection::Gate,
        Projection::Up,
        Projection::Down,
        Projection::Router,
    ];

    /// Its name in checkpoints.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Projection::Query => "q_a_proj",
            Projection::QueryUp => "q_b_proj",
            Projection::Latent => "kv_a_proj_with_mqa",
            Projection::KeysAndValues => "kv_b_proj",
            Projection::Output => "o_proj",
            Projection::Router => "gate",
            Projection::Gate => "gate_proj",
            Projection::Up => "up_proj",
            Projection::Down => "down_proj",
        }
    }

    /// Whether it says nothing of a token that is alone: queries only weigh tokens against each other.
    #[must_use]
    pub fn is_between_tokens(self) -> bool {
        matches!(self, Projection::Query | Projection::QueryUp)
    }
}

/// The layer whose matrix comes into `layer` where nothing else is said: the next one, or the one before the last.
fn neighbour(layer: usize, layers: usize) -> usize {
    if layer + 1 < layers { layer + 1 } else { layer.saturating_sub(1) }
}

/// The first rows of a layer's projection become those of another layer's; of experts, the first experts. False if one of the two
/// layers has no such projection of that shape.
pub(super) fn overwrite(dose: &Dose, config: &Config, weights: &mut Weights) -> bool {
    let layers = weights.layers.len();
    let source = |layer: usize| dose.copied.unwrap_or((Projection::Query, neighbour(layer, layers)));
    // Before anything is overwritten.
    let copied: Vec<(usize, Projection, Vec<Matrix>)> = dose
        .layers
        .clone()
        .filter(|layer| source(*layer).1 != *layer)
        .filter_map(|layer| {
            let (projection, from) = source(layer);
            let from = matrices(weights.layers.get_mut(from)?, projection);
            Some((layer, projection, from.into_iter().map(|matrix| (*matrix).clone()).collect()))
        })
        .collect();
    let mut changed = false;
    for (layer, projection, others) in copied {
        let Some(layer) = weights.layers.get_mut(layer) else { continue };
        changed |= replace(layer, projection, &others, dose.strength);
        if projection == Projection::KeysAndValues {
            let (nope, value) = (config.qk_nope_head_dim, config.v_head_dim);
            let attention = &mut layer.attention;
            let kv_b = attention.keys_values.to_joined();
            attention.keys_values = KeysAndValues::joined(kv_b, config.num_attention_heads, nope, value);
        }
    }
    changed
}

/// The layer's matrices of that kind, expert by expert.
fn matrices(layer: &mut Layer, projection: Projection) -> Vec<&mut Matrix> {
    let attention = &mut layer.attention;
    match (projection, &mut attention.query, &mut layer.feed_forward) {
        (Projection::Query, Query::Latent { q_a, .. }, _) => vec![q_a],
        (Projection::Query, Query::Direct(q), _) => vec![q],
        (Projection::QueryUp, Query::Latent { q_b, .. }, _) => vec![q_b],
        (Projection::Latent, ..) => vec![&mut attention.kv_a],
        (Projection::KeysAndValues, ..) => vec![attention.keys_values.join()],
        (Projection::Output, ..) => vec![&mut attention.o],
        (Projection::Router, _, FeedForward::Experts(experts)) => vec![&mut experts.router],
        (Projection::Gate, _, FeedForward::Dense(mlp)) => vec![&mut mlp.gate],
        (Projection::Up, _, FeedForward::Dense(mlp)) => vec![&mut mlp.up],
        (Projection::Down, _, FeedForward::Dense(mlp)) => vec![&mut mlp.down],
        (_, _, FeedForward::Experts(experts)) => {
            let of = experts.routed.iter_mut().filter_map(|mlp| match projection {
                Projection::Gate => Some(&mut mlp.gate),
                Projection::Up => Some(&mut mlp.up),
                Projection::Down => Some(&mut mlp.down),
                _ => None,
            });
            of.collect()
        }
        _ => Vec::new(),
    }
}

/// Writes a share of `others` over the layer's own.
fn replace(layer: &mut Layer, projection: Projection, others: &[Matrix], share: f64) -> bool {
    let mut own = matrices(layer, projection);
    let shape = |matrix: &Matrix| (matrix.rows, matrix.cols);
    if own.is_empty() || own.len() != others.len() {
        return false;
    }
    if own.iter().zip(others).any(|(own, other)| shape(own) != shape(other)) {
        return false;
    }
    if let ([own], [other]) = (own.as_mut_slice(), others) {
        let rows = (own.rows as f64 * share) as usize;
        if rows == own.rows {
            own.packed = other.packed.clone();
        } else {
            let overwritten = rows * own.cols * 4;
            let (mut bytes, other) = (decoded(own), decoded(other));
            bytes[..overwritten].copy_from_slice(&other[..overwritten]);
            own.packed = Packed::F32(bytes.into());
        }
        return rows > 0;
    }
    let experts = (own.len() as f64 * share) as usize;
    for (own, other) in own.iter_mut().zip(others).take(experts) {
        own.packed = other.packed.clone();
    }
    experts > 0
}

/// `[rows, cols]` as f32, little-endian, which is exact.
fn decoded(matrix: &Matrix) -> Vec<u8> {
    let mut row = vec![0f32; matrix.cols];
    let mut bytes = Vec::with_capacity(matrix.rows * matrix.cols * 4);
    for i in 0..matrix.rows {
        matrix.decode_row(i, &mut row);
        bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
    }
    bytes
}
