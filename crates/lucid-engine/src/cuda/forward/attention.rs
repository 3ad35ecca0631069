//! The attention of a layer.

use super::{CudaModel, vectors};
use crate::Error;
use crate::cuda::arguments::Order;
use crate::cuda::attention::{self, Pages, StepRows};
use crate::cuda::driver::{Address, Buffer};
use crate::cuda::expanded::{self, Expanded, Plan};
use crate::cuda::indexer;
use crate::cuda::matmul::{Product, multiply};
use crate::cuda::norm::{Norm, rms_norm};
use crate::cuda::ranks::Sum;
use crate::cuda::weights::{Attention, Query};

impl CudaModel {
    /// Multi-head latent attention from `normed`, added to `hidden`: answers in the absorbed form; prompts, where there are kernels for
    /// it, in the expanded one.
    pub(super) fn attention(&self, layer: usize, weights: &Attention, step: StepRows) -> Result<(), Error> {
        let (gpu, kernels, s, shape) = (&self.gpu, &self.kernels, &self.scratch, self.shape);
        let (count, heads, latent, nope) = (step.count, shape.heads, shape.latent, shape.nope);
        let (width, value) = (latent + shape.rope, self.value);
        let normed = |weight| vectors(weight, s.normed.address(), s.normed_nvfp4.address());

        // Queries, and the cache entry [c | k_pe].
        let product = |weight, x| Product::new(weight, x).packed_in(&self.experts.packing);
        let entry = product(&weights.kv_a, normed(&weights.kv_a)).into(s.entry.address());
        match &weights.query {
            Query::Latent { q_a, q_a_norm, q_b } => {
                let low = product(q_a, normed(q_a)).into(s.query_low.address());
                multiply(gpu, kernels, low, Some(entry), count)?;
                let (rank, eps) = (q_a.rows, self.semantics.latent_norm_eps as f32);
                let split = s.query_low_split.address();
                let natural = q_b.order() == Order::Natural;
                let (natural, nvfp4) = if natural { (split, Address::NULL) } else { (Address::NULL, split) };
                let x = (s.query_low.address(), rank);
                let wq_b = weights.indexer.as_ref().map(|indexer| &indexer.wq_b);
                let (natural, nvfp4) = match (wq_b, &self.indexer) {
                    (Some(wq_b), Some(indexer)) if wq_b.order() != q_b.order() => {
                        if natural.0 == 0 {
                            (indexer.low(), nvfp4)
                        } else {
                            (natural, indexer.low())
                        }
                    }
                    _ => (natural, nvfp4),
                };
                let norm = Norm { weight: q_a_norm.address(), eps, width: rank, natural, nvfp4 };
                rms_norm(gpu, kernels, count, x, norm)?;
                multiply(gpu, kernels, product(q_b, split).into(s.query.address()), None, count)?;
            }
            Query::Direct(q) => {
                let query = product(q, normed(q)).into(s.query.address());
                multiply(gpu, kernels, query, Some(entry), count)?;
            }
        }
        let plan = self.expanded.as_ref().map(Expanded::plan).filter(|plan| !plan.is_absorbed());
        let inputs = attention::Inputs {
            entries: s.entry.address(),
            norm: &weights.kv_a_norm,
            eps: self.semantics.latent_norm_eps as f32,
            queries: s.query.address(),
            angles: &self.angles,
            interleaved: self.semantics.rope_pairing == "interleaved",
            nope_split: if plan.is_some_and(|plan| plan.absorbed.is_empty()) {
                Address::NULL
            } else {
                s.nope.address()
            },
            absorbed: s.absorbed.address(),
        };
        let cache = self.cache.layer(layer);
        attention::inputs(gpu, kernels, shape, step, cache, &inputs)?;
        let step = self.choose(layer, weights, step)?;

        let order = weights.o.order();
        let all = Plan::absorbed(count);
        if let (Some(_), Some(prompts)) = (plan, &self.expanded) {
            let queries = (s.query.address(), s.absorbed.address());
            let (packing, out) = (&self.experts.packing, (s.heads.address(), order));
            prompts.attend(gpu, kernels, shape, &weights.kv_b, cache, packing, queries, out)?;
        }
        // The other rows in the absorbed form: q̃_h = UK_hᵀ q_h, then Σ_t p_t c_t, then UV_h of it.
        for &(first, count) in &plan.unwrap_or(&all).absorbed {
            let of = |buffer: &Buffer, bytes: usize| buffer.address().offset(first * bytes);
            let split = |columns: usize| columns * kernels.terms * 2;
            let step = expanded::part(step, first, count);
            let absorbed = of(&s.absorbed, heads * width * 4);
            let latents = of(&s.latent, split(heads * latent));
            let absorb = product(&weights.k_b_transposed, of(&s.nope, split(heads * nope)));
            let pages = self.partial.choose(kernels, shape, step);
            let absorb = if pages == Pages::Wide {
                let of_head = (latent, heads * latent);
                absorb.split_into(latents, Order::Natural).per_head(heads, (0, latent, latent), of_head)
            } else {
                absorb.into(absorbed).per_head(heads, (0, latent, latent), (width, heads * width))
            };
            multiply(gpu, kernels, absorb, None, count)?;
            let to = (latents, weights.kv_b.order());
            let values = product(&weights.kv_b, latents)
                .split_into(of(&s.heads, split(heads * value)), order)
                .per_head(heads, (nope, nope + value, value), (value, heads * value))
                .scaled(cache.scale);
            let sums = &self.partial;
            attention::attend_and_multiply(
                gpu, kernels, shape, step, cache, absorbed, sums, pages, to, values,
            )?;
        }
        let out = self.ranks.output(Sum::Attention, s.hidden.address());
        let output = product(&weights.o, s.heads.address());
        let output = if out.add { output.add_to(out.at) } else { output.into(out.at) };
        multiply(gpu, kernels, output, None, count)
    }

    /// The step with what its rows attend to: as the layer's indexer chooses, or as the last one chose.
    fn choose(&self, layer: usize, weights: &Attention, step: StepRows) -> Result<StepRows, Error> {
        let Some(indexer) = &self.indexer else { return Ok(step) };
        if let (Some(own), Query::Latent { q_b, .. }) = (&weights.indexer, &weights.query) {
            let s = &self.scratch;
            let same_order = own.wq_b.order() == q_b.order();
            let inputs = indexer::Inputs {
                normed: (s.normed.address(), s.normed_nvfp4.address()),
                query_low: if same_order { s.query_low_split.address() } else { indexer.low() },
                angles: &self.angles,
                cache: self.cache.index_keys(layer),
                mode: self.shape.mode,
            };
            indexer.run(&self.gpu, &self.kernels, own, step, inputs)?;
        }
        Ok(indexer.choice(step))
    }
}
