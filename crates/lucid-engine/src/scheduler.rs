//! Continuous batching: who computes what in the next step. A pure state machine, without model or clock.
//!
//! Running requests decode first, one token each; what is left of the step's tokens goes to prompts, in order of arrival, cut into
//! chunks. A request that needs a page when none is free takes it from the youngest running one, which starts over later: its
//! tokens are computed again, to the same bits, because results don't depend on the batch.
//!
//! Whole pages of a prompt that was read are left for later requests that begin alike. Pages of answers are not: a backend may
//! compute prompts and answers by different forms of the same formula, and cold must equal warm to the bit.

use std::collections::VecDeque;

use lucid_checkpoint::TokenId;

use crate::RequestId;
use crate::kv_cache::{PAGE_TOKENS, PageId, PagePool};

/// Bounds of a scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests that run together.
    pub max_running: usize,
    /// Tokens of one step.
    pub max_step_tokens: usize,
    /// Of them, tokens of prompts while answers wait for the step: long steps read weights and earlier positions less often, but an
    /// answer stands still meanwhile. At least one.
    pub max_beside_answers: usize,
}

/// One request's place in the schedule.
#[derive(Debug)]
pub struct Sequence {
    /// Whose it is.
    pub id: RequestId,
    /// Prompt and generated tokens.
    pub tokens: Vec<TokenId>,
    /// How many of them are the prompt.
    pub prompt: usize,
    /// Tokens whose cache entries are written.
    pub computed: usize,
    /// Their pages.
    pub pages: Vec<PageId>,
    /// Tokens that another request had computed when this one began to run.
    pub cached: usize,
    /// Whether it may begin with pages of others.
    reuse: bool,
    /// Whether others may begin with its pages.
    shared: bool,
}

impl Sequence {
    /// Whether the next step brings its next token: it answers, or its prompt is almost read.
    fn next_is_last(&self) -> bool {
        self.tokens.len() - self.computed <= 1
    }
}

/// A piece of work of the next step: tokens `first..first + count` of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Index into [`Scheduler::running`].
    pub running: usize,
    /// First token to compute.
    pub first: usize,
    /// How many.
    pub count: usize,
}

/// The queue, the running set and the pages.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    pool: PagePool,
}

impl Scheduler {
    /// An empty scheduler over a pool of pages.
    #[must_use]
    pub fn new(limits: Limits, pool: PagePool) -> Scheduler {
        Scheduler { limits, waiting: VecDeque::new(), running: Vec::new(), pool }
    }

    /// Queues a request with a prompt that is not empty. With `reuse` it may begin with what other requests computed.
    pub fn add(&mut self, id: RequestId, prompt: Vec<TokenId>, reuse: bool) {
        debug_assert!(!prompt.is_empty());
        let (tokens, prompt, pages) = (prompt.len(), prompt, Vec::new());
        let sequence = Sequence {
            id,
            tokens: prompt,
            prompt: tokens,
            computed: 0,
            pages,
            cached: 0,
            reuse,
            shared: false,
        };
        self.waiting.push_back(sequence);
    }

    /// Lets later requests begin with the prompt's pages of a running sequence, once it is computed and found sound.
    pub fn share(&mut self, running: usize) {
        let sequence = &mut self.running[running];
        if !sequence.shared && sequence.computed >= sequence.prompt {
            sequence.shared = true;
            self.pool.share_prefix(&mut sequence.pages, &sequence.tokens[..sequence.prompt]);
        }
    }

    /// Takes a request out whose numbers went wrong: nobody shall begin with its pages.
    pub fn remove_unsound(&mut self, id: RequestId) -> bool {
        if let Some(sequence) = self.running.iter().find(|sequence| sequence.id == id) {
            self.pool.forget_prefix(&sequence.pages);
        }
        self.remove(id)
    }

    /// Takes a request out, wherever it is. False if it is not here.
    pub fn remove(&mut self, id: RequestId) -> bool {
        if let Some(at) = self.running.iter().position(|sequence| sequence.id == id) {
            let mut sequence = self.running.remove(at);
            self.pool.release(&mut sequence.pages);
            return true;
        }
        match self.waiting.iter().position(|sequence| sequence.id == id) {
            Some(at) => self.waiting.remove(at).is_some(),
            None => false,
        }
    }

    /// Lets no later request begin with what was computed until now. Who runs goes on, but shares nothing.
    pub fn forget_prefixes(&mut self) {
        self.running.iter_mut().for_each(|sequence| sequence.shared = true);
        self.pool.forget_all();
    }

    /// Running requests, oldest first.
    #[must_use]
    pub fn running(&self) -> &[Sequence] {
        &self.running
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The pages.
    #[must_use]
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// Appends a generated token.
    pub fn push(&mut self, running: usize, token: TokenId) {
        self.running[running].tokens.push(token);
    }

    /// Plans the next step. Every piece's pages have room for it. Empty when there is nothing to do.
    ///
    /// A request that alone needs more pages than there are can't be planned; the engine refuses it on arrival.
    pub fn plan(&mut self, plan: &mut Vec<Work>) {
        plan.clear();
        let mut budget = self.limits.max_step_tokens;
        let answers = self.running.iter().any(|sequence| sequence.next_is_last());
        let mut chunks = if answers { self.limits.max_beside_answers } else { budget };
        let mut running = 0;
        while running < self.running.len() && budget > 0 {
            let sequence = &self.running[running];
            let first = sequence.computed;
            let is_chunk = !sequence.next_is_last();
            let most = if is_chunk { budget.min(chunks) } else { budget };
            let count = most.min(sequence.tokens.len() - first);
            if count == 0 {
                // No chunk of a prompt fits; those behind it may only want their next token.
                running += 1;
                continue;
            }
            if !self.make_room(running, first + count) {
                // It was the youngest itself, and is waiting now; older ones hold all pages and go on.
                break;
            }
            plan.push(Work { running, first, count });
            budget -= count;
            chunks -= if is_chunk { count } else { 0 };
            running += 1;
        }
        let mut budget = budget.min(chunks);
        while budget > 0 && self.running.len() < self.limits.max_running {
            let Some(mut sequence) = self.waiting.pop_front() else { break };
            if sequence.reuse {
                // At least one token must be computed: its logits are what the answer begins with.
                let known = sequence.prompt.min(sequence.tokens.len() - 1);
                self.pool.find_prefix(&mut sequence.pages, &sequence.tokens[..known]);
            }
            let first = sequence.pages.len() * PAGE_TOKENS;
            let count = budget.min(sequence.tokens.len() - first);
            // Newcomers don't push anybody out.
            if !self.pool.extend(&mut sequence.pages, first + count) {
                self.pool.release(&mut sequence.pages);
                self.waiting.push_front(sequence);
                break;
            }
            (sequence.computed, sequence.cached) = (first, first);
            self.running.push(sequence);
            plan.push(Work { running: self.running.len() - 1, first, count });
            budget -= count;
        }
    }

    /// Notes that the planned pieces were computed.
    pub fn computed(&mut self, plan: &[Work]) {
        for work in plan {
            let sequence = &mut self.running[work.running];
            debug_assert_eq!(sequence.computed, work.first);
            sequence.computed = work.first + work.count;
        }
    }

    /// Pages for `tokens` tokens of a running sequence, if need be from younger ones. False if it had to give way itself.
    fn make_room(&mut self, running: usize, tokens: usize) -> bool {
        loop {
            if self.pool.extend(&mut self.running[running].pages, tokens) {
                return true;
            }
            let Some(mut youngest) = self.running.pop() else { return false };
            self.pool.release(&mut youngest.pages);
            (youngest.computed, youngest.shared) = (0, false);
            self.waiting.push_front(youngest);
            if self.running.len() == running {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kv_cache::PAGE_TOKENS;

    fn prompt(len: usize) -> Vec<TokenId> {
        vec![TokenId(1); len]
    }

    /// One of four families of prompts, equal up to `same` tokens and the request's own after that.
    fn kindred(id: usize, len: usize, same: usize) -> Vec<TokenId> {
        let token = |i: usize| if i < same { (id % 4) as u32 } else { 100 + id as u32 };
        (0..len).map(|i| TokenId(token(i))).collect()
    }

    fn scheduler(pages: usize, max_running: usize, max_step_tokens: usize) -> Scheduler {
        let max_beside_answers = max_step_tokens.div_ceil(4);
        let limits = Limits { max_running, max_step_tokens, max_beside_answers };
        Scheduler::new(limits, PagePool::new(pages * PAGE_TOKENS))
    }

    #[test]
    fn decoding_goes_before_prompts_and_prompts_are_cut() {
        let mut s = scheduler(10, 4, 8);
        let mut plan = Vec::new();
        s.add(RequestId(1), prompt(3), true);
        s.plan(&mut plan);
        assert_eq!(plan, [Work { running: 0, first: 0, count: 3 }]);
        s.computed(&plan);
        s.push(0, TokenId(2));
        s.add(RequestId(2), prompt(20), true);
        s.plan(&mut plan);
        // Beside an answer a quarter of a step goes to prompts.
        assert_eq!(plan, [Work { running: 0, first: 3, count: 1 }, Work { running: 1, first: 0, count: 2 }]);
        s.computed(&plan);
        s.push(0, TokenId(2));
        s.add(RequestId(3), prompt(1), true);
        s.plan(&mut plan);
        assert_eq!(plan, [Work { running: 0, first: 4, count: 1 }, Work { running: 1, first: 2, count: 2 }]);
        s.computed(&plan);
        s.remove(RequestId(1));
        s.plan(&mut plan);
        assert_eq!(plan, [Work { running: 0, first: 4, count: 8 }]);
        s.computed(&plan);
        s.plan(&mut plan);
        assert_eq!(plan, [Work { running: 0, first: 12, count: 8 }]);
        s.computed(&plan);
        s.push(0, TokenId(2));
        s.plan(&mut plan);
        assert_eq!(plan, [Work { running: 0, first: 20, count: 1 }, Work { running: 1, first: 0, count: 1 }]);
    }

    #[test]
    fn a_prompt_that_is_known_is_not_computed_again_but_for_its_last_page() {
        let mut s = scheduler(10, 4, 1000);
        let mut plan = Vec::new();
        let long = 2 * PAGE_TOKENS;
        for (id, len, reuse, first) in
            [(1, long, true, 0), (2, long + 9, true, long), (3, long, true, PAGE_TOKENS), (4, long, false, 0)]
        {
            s.add(RequestId(id), prompt(len), reuse);
            s.plan(&mut plan);
            assert_eq!(plan, [Work { running: 0, first, count: len - first }]);
            assert_eq!(s.running()[0].cached, first);
            s.computed(&plan);
            s.share(0);
            assert!(s.remove(RequestId(id)));
        }
        // Only sound prompts are shared, and an unsound one takes its pages with it.
        s.add(RequestId(5), prompt(long), true);
        s.plan(&mut plan);
        s.computed(&plan);
        assert!(s.remove_unsound(RequestId(5)));
        s.add(RequestId(6), prompt(long), true);
        s.plan(&mut plan);
        assert_eq!(plan[0].first, 0);
    }

    proptest! {
        /// Whatever arrives, leaves or runs out of pages: each request gets exactly its tokens, nobody starves, no page is lost
        /// or held by somebody who doesn't know, and what comes from the cache is the request's own beginning.
        #[test]
        fn every_request_is_served_once(
            requests in prop::collection::vec((1usize..300, 1usize..200, 0usize..300, 0usize..9), 1..20),
            pages in 8usize..20,
            max_running in 1usize..6,
            max_step_tokens in 1usize..200,
            cancel in prop::collection::vec(any::<bool>(), 20),
        ) {
            let mut s = scheduler(pages, max_running, max_step_tokens);
            let mut left: Vec<usize> = requests.iter().map(|r| r.1).collect();
            for (id, &(len, _, same, kind)) in requests.iter().enumerate() {
                s.add(RequestId(id as u64), kindred(id, len, same), kind > 1);
            }
            // What every slot of every page holds: the tokens up to and with its own.
            let mut written = vec![vec![Vec::new(); PAGE_TOKENS]; pages];
            let mut plan = Vec::new();
            let mut steps = 0;
            loop {
                // Who waits for an answer's next token. One who was pushed out and comes back may be among them only after this step.
                let waiting: Vec<RequestId> =
                    s.running().iter().filter(|q| q.next_is_last() && q.computed >= q.prompt).map(|q| q.id).collect();
                s.plan(&mut plan);
                if plan.is_empty() { break; }
                steps += 1;
                prop_assert!(steps < 200_000, "no progress");
                let tokens: usize = plan.iter().map(|w| w.count).sum();
                prop_assert!(tokens <= max_step_tokens && plan.len() <= max_running);
                let answers = |w: &Work| waiting.contains(&s.running()[w.running].id);
                if plan.iter().any(answers) {
                    let chunks: usize = plan.iter().map(|w| w.count).filter(|&count| count > 1).sum();
                    prop_assert!(chunks <= max_step_tokens.div_ceil(4), "an answer waits too long");
                }
                s.pool().check(s.running().iter().flat_map(|q| q.pages.iter().copied()));
                for work in &plan {
                    let sequence = &s.running()[work.running];
                    prop_assert!(sequence.pages.len() * PAGE_TOKENS >= work.first + work.count);
                    prop_assert!(sequence.cached == 0 || requests[sequence.id.0 as usize].3 > 1);
                    for position in work.first..work.first + work.count {
                        let slot = &mut written[sequence.pages[position / PAGE_TOKENS].index()];
                        slot[position % PAGE_TOKENS] = sequence.tokens[..=position].to_vec();
                    }
                }
                for sequence in s.running() {
                    for position in 0..sequence.computed {
                        let page = sequence.pages[position / PAGE_TOKENS].index();
                        prop_assert_eq!(&written[page][position % PAGE_TOKENS], &sequence.tokens[..=position]);
                    }
                }
                s.computed(&plan);
                let mut done = Vec::new();
                for work in plan.clone() {
                    let sequence = &s.running()[work.running];
                    if sequence.computed < sequence.tokens.len() { continue; }
                    let id = sequence.id;
                    let at = id.0 as usize;
                    s.share(work.running);
                    s.push(work.running, TokenId(7));
                    left[at] -= 1;
                    let early = cancel[at] && left[at] == requests[at].1 / 2;
                    if left[at] == 0 || early { done.push(id); left[at] = 0; }
                }
                prop_assert!(s.pool().is_rooted(), "a page stays that nobody can find");
                for id in done { prop_assert!(s.remove(id)); }
            }
            prop_assert!(left.iter().all(|&n| n == 0), "somebody was forgotten: {left:?}");
            prop_assert_eq!((s.pool().used(), s.waiting(), s.running().len()), (0, 0, 0));
        }
    }
}
