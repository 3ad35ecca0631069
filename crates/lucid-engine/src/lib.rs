//! The model: configuration, weights, KV cache, forward pass, sampler, scheduler.
