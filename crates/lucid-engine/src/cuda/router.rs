//! The router: which experts a token goes to, and the list of tokens that visit each of the experts that are here. All on the GPU.

use std::ops::Range;

use lucid_checkpoint::{MoE, ScoringFunc};

use super::driver::{Address, Buffer, Gpu, launch};
use super::experts::Expected;
use super::kernels::{Kernels, RoutingArgs, VisitsArgs};
use crate::Error;
use crate::cpu::Route;

/// Shared memory that a block has without asking, in bytes.
const SHARED_BYTES: usize = 46 * 1024;

/// Experts of a token at the most: a lane has one.
const MOST_ROUTES: usize = 32;

/// Where a step's routes and lists stand; made for the largest step.
pub struct Routes {
    /// `[tokens, experts]` f32
    pub logits: Buffer,
    /// `[tokens, per_token]` u32
    chosen: Buffer,
    /// `[tokens, per_token]` f32
    pub weights: Buffer,
    /// `[experts here + 1]`: expert, counted from the first that is here, first visit, visits, nothing; u32 each
    slots: Buffer,
    /// `[visits]` u32
    tokens: Buffer,
    /// `[tokens, per_token]` u32, all ones for experts of other ranks
    pub places: Buffer,
    args: RoutingArgs,
}

impl Routes {
    /// For steps of up to `tokens` tokens. The experts with the numbers `here` are listed, and the shared one if it stands behind them.
    ///
    /// # Errors
    /// When the memory is missing, or the step is too large for the kernels.
    pub fn new(
        gpu: &Gpu,
        moe: &MoE,
        here: Range<usize>,
        shared: bool,
        tokens: usize,
    ) -> Result<Routes, Error> {
        let (experts, per_token) = (moe.n_routed_experts, moe.num_experts_per_tok);
        let shared_bytes = list_bytes(experts).max(4 * (2 * experts + moe.n_group));
        if shared_bytes > SHARED_BYTES || per_token > experts.min(MOST_ROUTES) {
            return Err(Error::Unsupported {
                what: format!("a choice of {per_token} from {experts} experts, on a GPU,"),
                hint: "up to 32 from up to 720 are",
            });
        }
        let words = |count: usize| gpu.allocate(4 * count);
        Ok(Routes {
            logits: words(tokens * experts)?,
            chosen: words(tokens * per_token)?,
            weights: words(tokens * per_token)?,
            slots: words(4 * (here.len() + 1))?,
            tokens: words(tokens * (per_token + 1))?,
            places: words(tokens * per_token)?,
            args: RoutingArgs {
                experts: experts as u32,
                per_token: per_token as u32,
                groups: moe.n_group as u32,
                keep_groups: moe.topk_group as u32,
                softmax: i32::from(moe.scoring_func == ScoringFunc::Softmax),
                normalize: i32::from(moe.norm_topk_prob),
                scaling: moe.routed_scaling_factor as f32,
                shared: i32::from(shared),
                first: here.start as u32,
                here: here.len() as u32,
            },
        })
    }

    /// From `logits` to routes and lists.
    pub fn choose(&self, gpu: &Gpu, kernels: &Kernels, bias: Address, count: usize) -> Result<(), Error> {
        let args = self.args;
        let (logits, chosen, weights) =
            (self.logits.address(), self.chosen.address(), self.weights.address());
        let shared = 4 * (2 * args.experts + args.groups) as usize;
        let few =
            count <= FEW_TOKENS && count * self.per_token() <= FEW_ROUTES && count * shared <= SHARED_BYTES;
        if few {
            let VisitsArgs { slots, tokens, .. } = self.visits(count);
            let (tokens_of_step, places) = (count as u32, self.places.address());
            return launch!(gpu, kernels.route_few, (1, 1, 1), 32 * FEW_TOKENS, count * shared;
                args, logits, bias, tokens_of_step, chosen, weights, slots, tokens, places);
        }
        launch!(gpu, kernels.route, (count, 1, 1), 32, shared; args, logits, bias, chosen, weights)?;
        let VisitsArgs { slots, tokens, .. } = self.visits(count);
        let (tokens_of_step, places) = (count as u32, self.places.address());
        let shared = list_bytes(args.here as usize);
        launch!(gpu, kernels.group_visits, (1, 1, 1), 1024, shared;
            args, chosen, tokens_of_step, slots, tokens, places)
    }

    /// The lists of `count` tokens, as the experts' kernels take them.
    #[must_use]
    pub fn visits(&self, count: usize) -> VisitsArgs {
        let step = count as u32;
        VisitsArgs {
            slots: self.slots.address(),
            tokens: self.tokens.address(),
            count: step * (self.args.per_token + self.args.shared as u32),
            shared: if self.args.shared != 0 { self.args.here + 1 } else { 0 },
            step,
        }
    }

    /// Experts that the last step used here, the shared one included.
    #[cfg(test)]
    pub fn active(&self, gpu: &Gpu) -> usize {
        let mut slots = vec![0u32; 4 * (self.args.here as usize + 1)];
        gpu.read(&mut slots, self.slots.address()).unwrap();
        slots.chunks(4).filter(|slot| slot[2] > 0).count()
    }

    /// What is known of the visits of `count` tokens before they have chosen.
    #[must_use]
    pub fn expected(&self, count: usize) -> Expected {
        let of_all = count * self.per_token() * self.args.here as usize;
        Expected {
            slots: self.most_active(count),
            usual: of_all.div_ceil(self.args.experts as usize),
            most: self.visits(count).count as usize,
        }
    }

    /// Experts that `count` tokens visit here at the most, the shared one included.
    #[must_use]
    pub fn most_active(&self, count: usize) -> usize {
        (self.args.here as usize).min(count * self.args.per_token as usize) + self.args.shared as usize
    }

    /// Experts of a token.
    #[must_use]
    pub fn per_token(&self) -> usize {
        self.args.per_token as usize
    }

    /// The routes of the last step's `count` tokens, for who wants to look.
    pub fn read(&self, gpu: &Gpu, count: usize) -> Result<Vec<Vec<Route>>, Error> {
        let per_token = self.per_token();
        let (mut chosen, mut weights) = (vec![0u32; count * per_token], vec![0f32; count * per_token]);
        gpu.read(&mut chosen, self.chosen.address())?;
        gpu.read(&mut weights, self.weights.address())?;
        let routes: Vec<Route> = chosen
            .iter()
            .zip(&weights)
            .map(|(&expert, &weight)| Route { expert: expert as usize, weight })
            .collect();
        Ok(routes.chunks(per_token).map(<[Route]>::to_vec).collect())
    }
}

/// Tokens of `route_few`, one a warp, and their routes together: as in `router.cu`.
const FEW_TOKENS: usize = 8;
const FEW_ROUTES: usize = 256;

/// What the list-making block keeps in shared memory.
fn list_bytes(experts: usize) -> usize {
    4 * experts + 2 * 32 * experts
}
