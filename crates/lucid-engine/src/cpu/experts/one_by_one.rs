//! The experts of a layer one after the other, as they come from the disk. The same bits as all at once: every visit of a row to an
//! expert is computed by itself, and the sum runs in the order of the row's routes.

use lucid_checkpoint::MoE;

use super::{Experts, activate, round_for, swiglu};
use crate::cpu::matmul::{Inputs, OutputBuffer, Product, multiply};
use crate::cpu::threads::Threads;
use crate::weights::{Experts as ExpertWeights, Mlp};

impl Experts {
    /// Routes `tokens` rows of `x`, makes room for their visits, and sets `out` to the shared expert's output. Returns the experts
    /// that are visited, in order.
    pub fn begin(
        &mut self,
        threads: &mut Threads,
        moe: &MoE,
        weights: &ExpertWeights,
        tokens: usize,
        x: &[f32],
        out: &mut [f32],
    ) -> Vec<usize> {
        self.choose(threads, moe, weights, tokens, x);
        self.down.resize(self.visits * weights.router.cols, 0.0);
        match &weights.shared {
            Some(shared) => swiglu(threads, shared, tokens, x, self, out),
            None => out.fill(0.0),
        }
        (0..self.by_expert.len()).filter(|&expert| !self.by_expert[expert].is_empty()).collect()
    }

    /// Computes all visits to one expert.
    pub fn visit(&mut self, threads: &mut Threads, expert: usize, mlp: &Mlp, x: &[f32]) {
        let (hidden, width) = (mlp.gate.cols, mlp.gate.rows);
        let rows = &self.by_expert[expert];
        let first: usize = self.by_expert[..expert].iter().map(Vec::len).sum();
        let inputs = if self.w4a4 {
            self.shared_rounded.clear();
            for row in rows {
                self.shared_rounded.extend_from_slice(&x[row * hidden..(row + 1) * hidden]);
            }
            round_for(&[&mlp.gate, &mlp.up], &mut self.shared_rounded);
            Inputs::dense(&self.shared_rounded, hidden)
        } else {
            Inputs::Gathered { values: x, stride: hidden, rows }
        };
        self.gate.resize(rows.len() * width, 0.0);
        self.up.resize(rows.len() * width, 0.0);
        let products = [(&mlp.gate, &mut self.gate), (&mlp.up, &mut self.up)].map(|(weight, out)| Product {
            weight,
            rows: 0..width,
            inputs,
            count: rows.len(),
            // SAFETY: one output a buffer, dense.
            outputs: unsafe { OutputBuffer::new(out).rows(0, width, rows.len(), width) },
        });
        multiply(threads, &products);
        activate(&mut self.gate, &self.up);
        if self.w4a4 {
            round_for(&[&mlp.down], &mut self.gate);
        }
        let inputs = Inputs::dense(&self.gate, width);
        // SAFETY: the only output of this round.
        let outputs =
            unsafe { OutputBuffer::new(&mut self.down).rows(first * hidden, hidden, rows.len(), hidden) };
        multiply(
            threads,
            &[Product { weight: &mlp.down, rows: 0..hidden, inputs, count: rows.len(), outputs }],
        );
    }

    /// Adds the visits to `out`, once all are computed.
    pub fn end(&self, tokens: usize, hidden: usize, out: &mut [f32]) {
        self.combine(tokens, hidden, out);
    }
}
