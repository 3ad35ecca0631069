//! Random answers of a grammar: at every place one of the tokens that are allowed there.

use std::path::Path;

use lucid_checkpoint::{Files, TokenId};
use lucid_engine::Guide;
use lucid_grammar::{Grammar, Grammars};
use lucid_text::Tokenizer;

/// The bundled canary's tokens.
pub struct Canary {
    pub tokenizer: Tokenizer,
    pub grammars: Grammars,
    pub eos: Vec<TokenId>,
}

pub fn canary() -> Canary {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/canary");
    let tokenizer = Tokenizer::open(&Files::open(&folder).expect("the folder is there"))
        .expect("the canary has a tokenizer");
    let eos =
        ["<|im_end|>", "[EOS]"].map(|name| tokenizer.id(name).expect("Kimi's vocabulary has it")).to_vec();
    let grammars = Grammars::new(&tokenizer, tokenizer.vocab_size(), &eos).expect("it has ends");
    Canary { tokenizer, grammars, eos }
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) >> 16).expect("48 bits") % n
    }
}

impl Canary {
    /// The tokens that may come next.
    pub fn allowed(&self, guide: &mut Box<dyn Guide>) -> Vec<TokenId> {
        let mut logits = vec![0.0; self.tokenizer.vocab_size()];
        guide.restrict(&mut logits).expect("there is a way on");
        (0..).map(TokenId).zip(logits).filter(|&(_, logit)| logit == 0.0).map(|(id, _)| id).collect()
    }

    /// A random answer; `None` if it has not ended after 600 tokens. What closes something is preferred the longer it takes.
    pub fn walk(&self, grammar: &Grammar, seed: u64) -> Option<String> {
        let mut guide =
            self.grammars.compile(grammar, lucid_grammar::Beginning::Answer).expect("it compiles");
        let mut random = Random(seed);
        let mut answer = Vec::new();
        for step in 0..600 {
            let allowed = self.allowed(&mut guide);
            let ends = allowed.iter().any(|id| self.eos.contains(id));
            if ends && (step > 40 || random.below(3) == 0) || allowed.iter().all(|id| self.eos.contains(id)) {
                return Some(self.tokenizer.decode(&answer, false));
            }
            let inside: Vec<TokenId> = allowed.iter().copied().filter(|id| !self.eos.contains(id)).collect();
            let closing = |id: &&TokenId| {
                self.tokenizer
                    .bytes(**id)
                    .is_some_and(|bytes| matches!(bytes, [b'"' | b'}' | b']'] | [b'0'..=b'9']))
            };
            let closers: Vec<TokenId> = inside.iter().filter(closing).copied().collect();
            let from = if !closers.is_empty() && random.below(80) < step + 8 { &closers } else { &inside };
            let token = from[random.below(from.len())];
            guide.accept(token).expect("it was allowed");
            answer.push(token);
        }
        None
    }
}
