//! The feed-forward half of a layer: one SwiGLU block, or a router and its experts.

use lucid_checkpoint::MoE;

mod one_by_one;

use super::activations::{input_scale, round_to_nvfp4};
use super::aligned::Aligned;
use super::exp::silu;
use super::matmul::{Inputs, OutputBuffer, Product, multiply};
use super::router::{Route, of_bits, preferences, route, weigh_with_bias};
use super::threads::Threads;
use super::vectorize::vectorized;
use crate::parallel::rank_of_shared;
use crate::recycled::recycled;
use crate::weights::{Experts as ExpertWeights, Mlp, RouterMistake};

/// Buffers of the feed-forward half; they grow to the largest step and stay.
#[derive(Default)]
pub struct Experts {
    /// Whether activations are rounded for NVFP4 weights.
    w4a4: bool,
    routes: Vec<Vec<Route>>,           // [tokens][experts per token]
    logits: Aligned<f32>,              // [tokens, experts]
    by_expert: Vec<Vec<usize>>,        // [experts that some visit]: the rows that go there
    visits: usize,                     // to them, in all
    places: Vec<Option<usize>>, // [tokens, experts per token]: where an expert's output for a token stands in `down`, if it is here
    shared_places: Vec<Option<usize>>, // [tokens]: the same of the shared expert, if only some visit it
    next: Vec<usize>,           // [experts that some visit]: where an expert's next visit stands
    products: Vec<Product<'static>>, // of a round
    gate: Aligned<f32>,         // [visits, width]
    up: Aligned<f32>,           // [visits, width]
    down: Aligned<f32>,         // [visits, hidden]
    shared_gate: Aligned<f32>,  // [tokens, shared width]
    shared_up: Aligned<f32>,    // [tokens, shared width]
    rounded: Aligned<f32>,      // [visits, hidden]: with w4a4, what the experts read
    shared_rounded: Aligned<f32>, // [tokens, hidden]: the same for a block that all tokens visit
}

impl Experts {
    /// Empty buffers; with `w4a4`, activations are rounded to NVFP4 for NVFP4 weights.
    pub fn new(w4a4: bool) -> Experts {
        Experts { w4a4, ..Experts::default() }
    }

    /// The experts that a row of the last step went to, best first.
    pub fn routes(&self, row: usize) -> &[Route] {
        &self.routes[row]
    }

    /// What the experts of a row of the last step were chosen by; see [`preferences`].
    pub fn preferences(&self, moe: &MoE, weights: &ExpertWeights, row: usize) -> Vec<f32> {
        let logits = &self.logits[row * moe.n_routed_experts..(row + 1) * moe.n_routed_experts];
        preferences(moe, logits, weights.bias.as_deref())
    }

    /// `out = Σ_e w_e · Expert_e(x) + Shared(x)`, over the experts that are here.
    ///
    /// Every visit of a token to an expert is computed by itself and the sum runs in the order of the routes, so a token's
    /// result does not depend on who else goes to its experts.
    pub fn run(
        &mut self,
        threads: &mut Threads,
        moe: &MoE,
        weights: &ExpertWeights,
        tokens: usize,
        x: &[f32],
        out: &mut [f32],
    ) {
        let hidden = weights.router.cols;
        let width = moe.moe_intermediate_size;
        self.choose(threads, moe, weights, tokens, x);
        let visits = self.visits;
        self.gate.resize(visits * width, 0.0);
        self.up.resize(visits * width, 0.0);
        self.down.resize(visits * hidden, 0.0);
        if self.w4a4 {
            self.round_inputs(weights, x);
        }

        let (mut gate, mut up) = (OutputBuffer::new(&mut self.gate), OutputBuffer::new(&mut self.up));
        let mut products = recycled(std::mem::take(&mut self.products));
        let mut first = 0;
        for (mlp, rows) in weights.of_some().zip(&self.by_expert) {
            if rows.is_empty() {
                continue;
            }
            let inputs = if self.w4a4 {
                Inputs::Strided { values: &self.rounded, start: first * hidden, stride: hidden }
            } else {
                Inputs::Gathered { values: x, stride: hidden, rows }
            };
            for (weight, buffer) in [(&mlp.gate, &mut gate), (&mlp.up, &mut up)] {
                products.push(Product {
                    weight,
                    rows: 0..width,
                    inputs,
                    count: rows.len(),
                    // SAFETY: each expert has its own visits.
                    outputs: unsafe { buffer.rows(first * width, width, rows.len(), width) },
                });
            }
            first += rows.len();
        }
        if let Some(shared) = weights.of_all() {
            let x = if self.w4a4 { &self.shared_rounded } else { x };
            let inputs = Inputs::dense(x, hidden);
            products.push(shared_product(&shared.gate, inputs, tokens, &mut self.shared_gate));
            products.push(shared_product(&shared.up, inputs, tokens, &mut self.shared_up));
        }
        multiply(threads, &products);
        self.products = recycled(products);
        activate(&mut self.gate, &self.up);
        activate(&mut self.shared_gate, &self.shared_up);
        if self.w4a4 {
            self.round_activated(weights);
        }

        let mut down = OutputBuffer::new(&mut self.down);
        let mut products = recycled(std::mem::take(&mut self.products));
        let mut first = 0;
        for (mlp, rows) in weights.of_some().zip(&self.by_expert) {
            if rows.is_empty() {
                continue;
            }
            products.push(Product {
                weight: &mlp.down,
                rows: 0..hidden,
                inputs: Inputs::Strided { values: &self.gate, start: first * width, stride: width },
                count: rows.len(),
                // SAFETY: each expert has its own visits.
                outputs: unsafe { down.rows(first * hidden, hidden, rows.len(), hidden) },
            });
            first += rows.len();
        }
        match weights.of_all() {
            Some(shared) => products.push(Product {
                weight: &shared.down,
                rows: 0..hidden,
                inputs: Inputs::dense(&self.shared_gate, shared.gate.rows),
                count: tokens,
                // SAFETY: the only output into `out`.
                outputs: unsafe { OutputBuffer::new(out).rows(0, hidden, tokens, hidden) },
            }),
            None => out.fill(0.0),
        }
        multiply(threads, &products);
        self.products = recycled(products);
        self.combine(tokens, hidden, out);
    }

    /// `out += Σ_e w_e · Expert_e(x)`, in the order of each row's routes, after the shared expert if only some visit it: `out` is 0 then.
    fn combine(&self, tokens: usize, hidden: usize, out: &mut [f32]) {
        let mut places = self.places.as_slice();
        for (row, (routes, out)) in self.routes[..tokens].iter().zip(out.chunks_exact_mut(hidden)).enumerate()
        {
            if let Some(Some(place)) = self.shared_places.get(row) {
                out.copy_from_slice(&self.down[place * hidden..(place + 1) * hidden]);
            }
            let (here, rest) = places.split_at(routes.len());
            for (route, place) in routes.iter().zip(here) {
                // Another rank adds what its experts say.
                let Some(place) = *place else { continue };
                let visit = &self.down[place * hidden..(place + 1) * hidden];
                add_scaled(out, visit, route.weight);
            }
            places = rest;
        }
    }

    /// Fills `rounded` and `shared_rounded`: each expert has its own scale, so each visit has its own copy.
    fn round_inputs(&mut self, weights: &ExpertWeights, x: &[f32]) {
        let hidden = weights.router.cols;
        self.rounded.clear();
        for (mlp, rows) in weights.of_some().zip(&self.by_expert) {
            let first = self.rounded.len();
            for row in rows {
                self.rounded.extend_from_slice(&x[row * hidden..(row + 1) * hidden]);
            }
            round_for(&[&mlp.gate, &mlp.up], &mut self.rounded[first..]);
        }
        if let Some(shared) = weights.of_all() {
            copy_rounded(shared, x, &mut self.shared_rounded);
        }
    }

    /// Rounds what the down projections read.
    fn round_activated(&mut self, weights: &ExpertWeights) {
        let mut first = 0;
        for (mlp, rows) in weights.of_some().zip(&self.by_expert) {
            let len = rows.len() * mlp.down.cols;
            round_for(&[&mlp.down], &mut self.gate[first..first + len]);
            first += len;
        }
        if let Some(shared) = weights.of_all() {
            round_for(&[&shared.down], &mut self.shared_gate);
        }
    }

    /// Fills `routes`, `by_expert` and `places`.
    fn choose(
        &mut self,
        threads: &mut Threads,
        moe: &MoE,
        weights: &ExpertWeights,
        tokens: usize,
        x: &[f32],
    ) {
        let experts = moe.n_routed_experts;
        self.logits.resize(tokens * experts, 0.0);
        // SAFETY: one output, dense.
        let outputs = unsafe { OutputBuffer::new(&mut self.logits).rows(0, experts, tokens, experts) };
        let inputs = Inputs::dense(x, weights.router.cols);
        multiply(
            threads,
            &[Product { weight: &weights.router, rows: 0..experts, inputs, count: tokens, outputs }],
        );
        let here = weights.first..weights.first + weights.routed.len();
        self.by_expert.resize_with(weights.of_some().count(), Vec::new);
        self.by_expert.iter_mut().for_each(Vec::clear);
        self.routes.resize_with(tokens.max(self.routes.len()), Vec::new);
        if let Some(RouterMistake::LogitBits(bits)) = weights.mistake {
            self.logits.iter_mut().for_each(|logit| *logit = of_bits(*logit, bits));
        }
        for row in 0..tokens {
            let logits = &self.logits[row * experts..(row + 1) * experts];
            route(moe, logits, weights.bias.as_deref(), &mut self.routes[row]);
            if let (Some(RouterMistake::BiasInWeights), Some(bias)) = (weights.mistake, &weights.bias) {
                weigh_with_bias(moe, logits, bias, &mut self.routes[row]);
            }
            for route in self.routes[row].iter().filter(|route| here.contains(&route.expert)) {
                self.by_expert[route.expert - here.start].push(row);
            }
            if let Some(rank) = weights.shared_by {
                let chosen = self.routes[row].iter().map(|route| route.expert);
                if rank_of_shared(chosen, experts, rank.count()) == rank.number() {
                    self.by_expert[here.len()].push(row);
                }
            }
        }
        // An expert's visits stand together, experts in order, rows in order.
        self.next.clear();
        let mut first = 0;
        for rows in &self.by_expert {
            self.next.push(first);
            first += rows.len();
        }
        self.visits = first;
        self.shared_places.clear();
        if weights.shared_by.is_some() {
            self.shared_places.resize(tokens, None);
            for (place, &row) in (self.next[here.len()]..).zip(&self.by_expert[here.len()]) {
                self.shared_places[row] = Some(place);
            }
        }
        self.places.clear();
        for routes in &self.routes[..tokens] {
            for route in routes {
                self.places.push(here.contains(&route.expert).then(|| {
                    let next = &mut self.next[route.expert - here.start];
                    *next += 1;
                    *next - 1
                }));
            }
        }
    }
}

/// `out = down · (silu(gate · x) ⊙ (up · x))` for one block.
pub fn swiglu(
    threads: &mut Threads,
    mlp: &Mlp,
    tokens: usize,
    x: &[f32],
    scratch: &mut Experts,
    out: &mut [f32],
) {
    let x = if scratch.w4a4 {
        copy_rounded(mlp, x, &mut scratch.shared_rounded);
        &scratch.shared_rounded
    } else {
        x
    };
    let inputs = Inputs::dense(x, mlp.gate.cols);
    let gate = shared_product(&mlp.gate, inputs, tokens, &mut scratch.shared_gate);
    let up = shared_product(&mlp.up, inputs, tokens, &mut scratch.shared_up);
    multiply(threads, &[gate, up]);
    activate(&mut scratch.shared_gate, &scratch.shared_up);
    if scratch.w4a4 {
        round_for(&[&mlp.down], &mut scratch.shared_gate);
    }
    let hidden = mlp.down.rows;
    let inputs = Inputs::dense(&scratch.shared_gate, mlp.down.cols);
    // SAFETY: one output, dense.
    let outputs = unsafe { OutputBuffer::new(out).rows(0, hidden, tokens, hidden) };
    multiply(threads, &[Product { weight: &mlp.down, rows: 0..hidden, inputs, count: tokens, outputs }]);
}

/// Rounds what these weights read, if they are NVFP4.
fn round_for(weights: &[&lucid_checkpoint::Matrix], values: &mut [f32]) {
    if let Some(scale) = input_scale(weights) {
        round_to_nvfp4(values, scale);
    }
}

/// `out = x`, rounded for gate and up of a block.
fn copy_rounded(mlp: &Mlp, x: &[f32], out: &mut Aligned<f32>) {
    out.clear();
    out.extend_from_slice(x);
    round_for(&[&mlp.gate, &mlp.up], out);
}

fn shared_product<'a>(
    weight: &'a lucid_checkpoint::Matrix,
    inputs: Inputs<'a>,
    tokens: usize,
    out: &'a mut Aligned<f32>,
) -> Product<'a> {
    out.resize(tokens * weight.rows, 0.0);
    // SAFETY: one output, dense, in a buffer that stays borrowed until the product is computed.
    let outputs = unsafe { OutputBuffer::new(out).rows(0, weight.rows, tokens, weight.rows) };
    Product { weight, rows: 0..weight.rows, inputs, count: tokens, outputs }
}

vectorized! {
    /// `gate = silu(gate) ⊙ up`.
    fn activate(gate: &mut [f32], up: &[f32]) {
        for (gate, &up) in gate.iter_mut().zip(up) {
            *gate = silu(*gate) * up;
        }
    }

    /// `sum += weight · x`.
    fn add_scaled(sum: &mut [f32], x: &[f32], weight: f32) {
        for (sum, &x) in sum.iter_mut().zip(x) {
            *sum += weight * x;
        }
    }
}
