//! The parts of a step's time, for benchmarks.

use lucid_checkpoint::TokenId;

use super::CudaModel;
use crate::Error;
use crate::cpu::Span;
use crate::cuda::arguments::Order;
use crate::cuda::experts::{self, Normed};
use crate::cuda::ranks::Sum;
use crate::cuda::weights::FeedForward;

impl CudaModel {
    /// Prints the parts of a layer's time in a step of `count` tokens of one sequence.
    pub fn time_parts(&mut self, count: usize, pages: &[crate::kv_cache::PageId]) {
        let span = Span { pages, position: 0, count, row: 0, prompt: count };
        let tokens = vec![TokenId(1); count];
        let step = self.step.send(&tokens, &[span]).unwrap();
        if let Some(expanded) = &mut self.expanded {
            expanded.send(&self.gpu, &[span], self.shape.heads).unwrap();
        }
        self.gpu.synchronize().unwrap();
        let layer = &self.weights.layers[0];
        let hidden = self.scratch.hidden.address();
        let time = |queue: &dyn Fn() -> Result<(), Error>| {
            let mut times: Vec<f64> = (0..4).map(|_| self.gpu.time(queue).unwrap()).collect();
            times.sort_by(f64::total_cmp);
            times[1] * 1e3
        };
        let attention = time(&|| self.attention(0, &layer.attention, step));
        let cache = self.cache.layer(0);
        let sums = time(&|| {
            let s = &self.scratch;
            let (packing, to) = (&self.experts.packing, (s.heads.address(), Order::Natural));
            let queries = (s.query.address(), s.absorbed.address());
            let kv_b = &layer.attention.kv_b;
            match &self.expanded {
                Some(prompts) => {
                    prompts.attend(&self.gpu, &self.kernels, self.shape, kv_b, cache, packing, queries, to)
                }
                None => Ok(()),
            }
        });
        println!("{count} tokens: attention {attention:.2} ms, its sums in the expanded form {sums:.2} ms");
        if let (FeedForward::Experts(experts), Some(routes)) = (&layer.feed_forward, &self.routes) {
            let x =
                Normed { natural: self.scratch.normed.address(), nvfp4: self.scratch.normed_nvfp4.address() };
            let out = self.ranks.output(Sum::FeedForward, hidden);
            let all = time(&|| {
                experts::run(&self.gpu, &self.kernels, experts, routes, &self.experts, count, x, out)
            });
            let shared = experts.shared_visits;
            let slots = routes.most_active(shared, count);
            let visits = time(&|| {
                let (gpu, kernels, mlps, buffers) =
                    (&self.gpu, &self.kernels, &experts.routed, &self.experts);
                let pass = experts::Pass::best(kernels, mlps, Some(routes.expected(shared, count)), count);
                let visits = routes.visits(shared, count);
                experts::visit(experts::Job { gpu, kernels, mlps, visits, slots, pass, x, buffers })
            });
            println!("{count} tokens: experts with router {all:.2} ms, the experts alone {visits:.2} ms");
        }
    }
}
