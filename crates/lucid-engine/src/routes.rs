//! Where the tokens of a step go.

use lucid_checkpoint::Config;

use crate::Route;
use crate::cpu::{Observer, Span};
use crate::request::Routes;

/// The experts of a step's tokens, row by row.
#[derive(Debug, Default)]
pub struct StepRoutes {
    layers: usize,
    top_k: usize,
    /// `[rows, layers, top_k]`
    experts: Vec<u16>,
}

impl StepRoutes {
    /// For a model of this config.
    pub fn new(config: &Config) -> StepRoutes {
        let top_k = config.moe.as_ref().map_or(0, |moe| moe.num_experts_per_tok);
        StepRoutes { layers: config.num_hidden_layers, top_k, experts: Vec::new() }
    }

    /// Whether a model's routes can be told.
    pub fn can_tell(config: &Config) -> bool {
        config.moe.as_ref().is_some_and(|moe| moe.n_routed_experts <= usize::from(u16::MAX) + 1)
    }

    /// Numbers of one token.
    fn width(&self) -> usize {
        self.layers * self.top_k
    }

    /// A step of so many rows begins.
    pub fn begin(&mut self, rows: usize) {
        self.experts.clear();
        self.experts.resize(rows * self.width(), 0);
    }

    /// Puts a span's rows where they belong in its sequence, `[tokens, layers, top_k]`.
    pub fn keep(&self, sequence: &mut Vec<u16>, span: &Span<'_>) {
        let width = self.width();
        let (first, last) = (span.position * width, (span.position + span.count) * width);
        sequence.resize(last.max(sequence.len()), 0);
        sequence[first..last]
            .copy_from_slice(&self.experts[span.row * width..(span.row + span.count) * width]);
    }

    /// What was kept of a sequence.
    pub fn of(&self, experts: Vec<u16>) -> Routes {
        Routes { layers: self.layers, top_k: self.top_k, experts }
    }
}

impl Observer for StepRoutes {
    fn routes(&mut self, layer: usize, row: usize, routes: &[Route]) {
        let at = row * self.width() + layer * self.top_k;
        for (place, route) in self.experts[at..at + self.top_k].iter_mut().zip(routes) {
            // Engines refuse to tell where there are more experts than that.
            *place = u16::try_from(route.expert).unwrap_or(u16::MAX);
        }
    }
}
