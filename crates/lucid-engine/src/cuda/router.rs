//! The router: which experts a token goes to, and the list of tokens that visit each of the experts that are here. All on the GPU.

use std::ops::Range;

use lucid_checkpoint::{MoE, ScoringFunc};

use super::arguments::{RoutingArgs, VisitsArgs};
use super::driver::{Address, Buffer, Gpu, launch};
use super::experts::Expected;
use super::kernels::Kernels;
use crate::Error;
use crate::cpu::Route;
use crate::parallel::Rank;

/// Shared memory that a block has without asking, in bytes.
const SHARED_BYTES: usize = 46 * 1024;

/// Experts of a token at the most: a lane has one.
const MOST_ROUTES: usize = 32;

/// Which visits to the shared expert are listed, as those to the expert behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedVisits {
    /// None: it isn't stored as the others, or there is none.
    Unlisted,
    /// Every token's.
    All,
    /// Those of the tokens that visit it on this rank (see [`rank_of_shared`](crate::parallel::rank_of_shared)).
    Of(Rank),
}

impl SharedVisits {
    fn listed(self) -> bool {
        self != SharedVisits::Unlisted
    }
}

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
    /// `[tokens]` u32, the same for the shared expert, if some tokens visit it here
    shared_places: Buffer,
    args: RoutingArgs,
}

impl Routes {
    /// For steps of up to `tokens` tokens. The experts with the numbers `here` are listed.
    ///
    /// # Errors
    /// When the memory is missing, or the step is too large for the kernels.
    pub fn new(gpu: &Gpu, moe: &MoE, here: Range<usize>, tokens: usize) -> Result<Routes, Error> {
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
            shared_places: words(tokens)?,
            args: RoutingArgs {
                experts: experts as u32,
                per_token: per_token as u32,
                groups: moe.n_group as u32,
                keep_groups: moe.topk_group as u32,
                softmax: i32::from(moe.scoring_func == ScoringFunc::Softmax),
                normalize: i32::from(moe.norm_topk_prob),
                scaling: moe.routed_scaling_factor as f32,
                shared: 0,
                first: here.start as u32,
                here: here.len() as u32,
                rank: 0,
                ranks: 0,
            },
        })
    }

    /// From `logits` to routes and lists.
    ///
    /// # Errors
    /// When the GPU fails.
    pub fn choose(
        &self,
        gpu: &Gpu,
        kernels: &Kernels,
        bias: Address,
        shared_visits: SharedVisits,
        count: usize,
    ) -> Result<(), Error> {
        let mut args = self.args;
        match shared_visits {
            SharedVisits::Unlisted => {}
            SharedVisits::All => args.shared = 1,
            SharedVisits::Of(rank) => (args.rank, args.ranks) = (rank.number() as u32, rank.count() as u32),
        }
        let (logits, chosen, weights) =
            (self.logits.address(), self.chosen.address(), self.weights.address());
        let shared_places = self.shared_places.address();
        let shared = 4 * (2 * args.experts + args.groups) as usize;
        let few =
            count <= FEW_TOKENS && count * self.per_token() <= FEW_ROUTES && count * shared <= SHARED_BYTES;
        if few {
            let VisitsArgs { slots, tokens, .. } = self.visits(shared_visits, count);
            let (tokens_of_step, places) = (count as u32, self.places.address());
            return launch!(gpu, kernels.route_few, (1, 1, 1), 32 * FEW_TOKENS, count * shared;
                args, logits, bias, tokens_of_step, chosen, weights, slots, tokens, places, shared_places);
        }
        launch!(gpu, kernels.route, (count, 1, 1), 32, shared; args, logits, bias, chosen, weights, shared_places)?;
        let VisitsArgs { slots, tokens, .. } = self.visits(shared_visits, count);
        let (tokens_of_step, places) = (count as u32, self.places.address());
        let shared = list_bytes(args.here as usize);
        launch!(gpu, kernels.group_visits, (1, 1, 1), 1024, shared;
            args, chosen, tokens_of_step, slots, tokens, places, shared_places)
    }

    /// Where the shared expert's visits stand, if only some tokens have one here.
    #[must_use]
    pub fn shared_places(&self, shared: SharedVisits) -> Address {
        match shared {
            SharedVisits::Of(_) => self.shared_places.address(),
            SharedVisits::Unlisted | SharedVisits::All => Address::NULL,
        }
    }

    /// The lists of `count` tokens, as the experts' kernels take them.
    #[must_use]
    pub fn visits(&self, shared: SharedVisits, count: usize) -> VisitsArgs {
        let step = count as u32;
        VisitsArgs {
            slots: self.slots.address(),
            tokens: self.tokens.address(),
            count: step * (self.args.per_token + u32::from(shared.listed())),
            shared: if shared == SharedVisits::All { self.args.here + 1 } else { 0 },
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
    pub fn expected(&self, shared: SharedVisits, count: usize) -> Expected {
        let of_all = count * self.per_token() * self.args.here as usize;
        Expected {
            slots: self.most_active(shared, count),
            usual: of_all.div_ceil(self.args.experts as usize),
            most: self.visits(shared, count).count as usize,
        }
    }

    /// Experts that `count` tokens visit here at the most, the shared one included.
    #[must_use]
    pub fn most_active(&self, shared: SharedVisits, count: usize) -> usize {
        (self.args.here as usize).min(count * self.per_token()) + usize::from(shared.listed())
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
