//! What an answer is held to: a grammar, seen from the sampler.

use std::fmt;

use lucid_checkpoint::TokenId;

/// Says before every draw which tokens may come next, and is told what came. One for each answer.
///
/// The engine knows no grammars; whoever does implements this.
pub trait Guide: fmt::Debug + Send {
    /// Whether every token may come next, for as long as nothing is told: a device may draw by itself then.
    fn is_idle(&self) -> bool;

    /// Sets the logits of tokens that must not come next to −∞. `logits` is `[vocab_size]`; the tokens that end an answer are among the
    /// allowed ones exactly where the answer is complete.
    ///
    /// # Errors
    /// When the grammar has become too large to go on with; the request fails with this text.
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// Takes note of a token that was drawn.
    ///
    /// # Errors
    /// When the token cannot stand there, which means that masks and grammar disagree; the request fails with this text.
    fn accept(&mut self, token: TokenId) -> Result<(), String>;

    /// Another one in the same state, for another answer to the same request.
    fn duplicate(&self) -> Box<dyn Guide>;
}

impl Clone for Box<dyn Guide> {
    fn clone(&self) -> Self {
        self.duplicate()
    }
}
