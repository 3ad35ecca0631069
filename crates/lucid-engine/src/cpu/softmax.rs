//! The softmax of attention, one page of scores after the other (Milakov & Gimelshein 2018, arXiv:1805.02867).

use super::exp::exp;
use super::vectorize::vectorized;
use crate::kv_cache::PAGE_TOKENS;

/// How far the softmax of some queries has come. Buffers grow to the largest block's and stay.
#[derive(Default)]
pub struct Softmax {
    maximum: Vec<f32>,   // [queries]
    sum: Vec<f32>,       // [queries]: of weights against the maximum
    visible: Vec<usize>, // [queries]: entries of this page
    rescale: Vec<f32>,   // [queries]: what sums of earlier pages are multiplied with
}

impl Softmax {
    /// Begins anew, for `queries` queries.
    pub fn begin(&mut self, queries: usize) {
        self.maximum.clear();
        self.maximum.resize(queries, f32::NEG_INFINITY);
        self.sum.clear();
        self.sum.resize(queries, 0.0);
        self.rescale.resize(queries, 1.0);
    }

    /// Turns a page's scores `[queries, PAGE_TOKENS]` into weights against the running maximum, those beyond the first `visible(query)`
    /// into 0, and makes the weighted sums of the pages before, `[queries, cols]`, ones against the same maximum.
    ///
    /// # Panics
    /// When a buffer is too small.
    pub fn page(
        &mut self,
        scores: &mut [f32],
        visible: impl Fn(usize) -> usize,
        accumulated: &mut [f32],
        cols: usize,
    ) {
        self.visible.clear();
        self.visible.extend((0..self.sum.len()).map(visible));
        weigh(scores, &self.visible, &mut self.maximum, &mut self.sum, &mut self.rescale);
        for (sums, &rescale) in accumulated.chunks_exact_mut(cols).zip(&self.rescale) {
            if rescale != 1.0 {
                scale(sums, rescale);
            }
        }
    }

    /// What the weighted sums of a query are multiplied with in the end.
    pub fn inverse(&self, query: usize) -> f32 {
        1.0 / self.sum[query]
    }
}

vectorized! {
    /// The weights of a page, for all queries, and what follows from them.
    ///
    /// Three passes over all queries, not all of it for one query after the other: a row's maximum and sum end in chains of dependent
    /// steps, during which the processor works on other rows if they are near enough.
    fn weigh(scores: &mut [f32], visible: &[usize], maximum: &mut [f32], sum: &mut [f32], rescale: &mut [f32]) {
        let rows = || 0..visible.len();
        for q in rows() {
            rescale[q] = highest(&scores[q * PAGE_TOKENS..][..visible[q]], maximum[q]);
        }
        for q in rows() {
            let (seen, hidden) = scores[q * PAGE_TOKENS..(q + 1) * PAGE_TOKENS].split_at_mut(visible[q]);
            let highest = rescale[q];
            for score in seen {
                *score = exp(*score - highest);
            }
            hidden.fill(0.0);
        }
        for (rescale, maximum) in rescale.iter_mut().zip(maximum.iter_mut()) {
            let highest = *rescale;
            *rescale = exp(*maximum - highest);
            *maximum = highest;
        }
        for q in rows() {
            if visible[q] == 0 {
                // Before the first page that it sees, a query's maximum is -∞, and so is the highest score.
                rescale[q] = 1.0;
                continue;
            }
            sum[q] = sum[q] * rescale[q] + total(&scores[q * PAGE_TOKENS..][..visible[q]]);
        }
    }

    /// `values *= factor`.
    pub fn scale(values: &mut [f32], factor: f32) {
        for value in values {
            *value *= factor;
        }
    }
}

/// The highest of `scores` and `least`, or NaN if one is NaN: comparing would drop it, and it must reach the logits, where it is found.
#[inline(always)]
fn highest(scores: &[f32], least: f32) -> f32 {
    let (mut highest, mut wrong) = ([least; 16], [0u32; 16]);
    let mut look = |scores: &[f32]| {
        for ((highest, wrong), &score) in highest.iter_mut().zip(&mut wrong).zip(scores) {
            *highest = if score > *highest { score } else { *highest };
            *wrong |= u32::from(score.is_nan());
        }
    };
    let (blocks, tail) = scores.as_chunks::<16>();
    blocks.iter().for_each(|block| look(block));
    look(tail);
    if wrong.iter().fold(0, |all, wrong| all | wrong) != 0 {
        return f32::NAN;
    }
    // A maximum has no order: in halves it takes four steps, not sixteen.
    let higher = |a: f32, b: f32| if b > a { b } else { a };
    let h: [f32; 8] = std::array::from_fn(|i| higher(highest[i], highest[i + 8]));
    let h: [f32; 4] = std::array::from_fn(|i| higher(h[i], h[i + 4]));
    higher(higher(h[0], h[2]), higher(h[1], h[3]))
}

/// The sum of `weights`, in sixteen lanes, so that its order is fixed whatever the vector width.
#[inline(always)]
fn total(weights: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let (blocks, tail) = weights.as_chunks::<16>();
    for block in blocks {
        for (lane, &p) in lanes.iter_mut().zip(block) {
            *lane += p;
        }
    }
    for (lane, &p) in lanes.iter_mut().zip(tail) {
        *lane += p;
    }
    lanes.iter().sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three pages of five queries, the first two of which see nothing of the first page, beside exact weights.
    #[test]
    fn pages_give_the_softmax_of_everything_seen() {
        let (pages, queries, cols) = (3, 5, 3);
        let score = |q: usize, j: usize| ((q * 31 + j * 17) % 101) as f32 / 7.0 - 9.0;
        let value = |j: usize, c: usize| ((j * 5 + c) % 13) as f32 - 4.0;
        let seen = |q: usize, page: usize| match (q, page) {
            (0 | 1, 0) => 0,
            (_, 2) => 10 * q,
            _ => PAGE_TOKENS,
        };
        let mut softmax = Softmax::default();
        softmax.begin(queries);
        let mut sums = vec![0f32; queries * cols];
        for page in 0..pages {
            let place = |i: usize| (i / PAGE_TOKENS, page * PAGE_TOKENS + i % PAGE_TOKENS);
            let mut scores: Vec<f32> =
                (0..queries * PAGE_TOKENS).map(|i| score(place(i).0, place(i).1)).collect();
            softmax.page(&mut scores, |q| seen(q, page), &mut sums, cols);
            for (i, weight) in scores.iter().enumerate() {
                let (q, j) = place(i);
                for c in 0..cols {
                    sums[q * cols + c] += weight * value(j, c);
                }
            }
        }
        for q in 0..queries {
            let positions = || (0..pages).flat_map(|p| (0..seen(q, p)).map(move |i| p * PAGE_TOKENS + i));
            let whole: f64 = positions().map(|j| f64::from(score(q, j)).exp()).sum();
            for c in 0..cols {
                let exact: f64 =
                    positions().map(|j| f64::from(score(q, j)).exp() / whole * f64::from(value(j, c))).sum();
                let ours = f64::from(sums[q * cols + c] * softmax.inverse(q));
                assert!((ours - exact).abs() < 1e-5, "query {q}, column {c}: {ours} for {exact}");
            }
        }
    }

    #[test]
    fn a_nan_among_the_seen_scores_reaches_every_weight_and_one_among_the_hidden_none() {
        for place in [0, 5, 16, 40, 63] {
            let mut softmax = Softmax::default();
            softmax.begin(2);
            let mut scores = vec![0.5f32; 2 * PAGE_TOKENS];
            scores[place] = f32::NAN;
            scores[2 * PAGE_TOKENS - 1] = f32::NAN;
            softmax.page(&mut scores, |q| PAGE_TOKENS - q, &mut [0.0; 2], 1);
            assert!(scores[..PAGE_TOKENS].iter().all(|weight| weight.is_nan()), "a NaN at {place}");
            assert!(softmax.inverse(0).is_nan());
            assert!(scores[PAGE_TOKENS..].iter().all(|&weight| weight == 1.0 || weight == 0.0));
            assert_eq!(softmax.inverse(1), 1.0 / 63.0);
        }
    }
}
