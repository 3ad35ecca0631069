//! The checks: one file each. A check says what it needs, what a pass covers and what it costs.

mod endpoint;
mod machine;
mod reference;

pub(crate) use lucid_findings::{Examined, Skip};
pub(crate) use reference::prompts;

use crate::evidence::Examination;

/// Evidence that a check can't do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The address of a server.
    Address,
    /// A server that answers.
    Server,
    /// The checkpoint that it should be serving.
    Checkpoint,
    /// The checkpoint that it should be serving, or a record of what it should say.
    Reference,
    /// A Python environment.
    Environment,
    /// A log.
    Logs,
    /// The serving command.
    Command,
    /// A process, a container or a unit.
    Patient,
    /// The machine itself.
    Host,
    /// The checkpoint's files, whether or not they can be loaded.
    CheckpointFiles,
}

/// What a check spends, typically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypicalCost {
    /// Requests to the server.
    pub requests: u32,
    /// Tokens that the server reads and writes.
    pub tokens: u32,
}

/// One check.
pub(crate) trait Check {
    /// Its name: `endpoint.ladder`.
    fn id(&self) -> &'static str;
    /// What it needs.
    fn needs(&self) -> &'static [Need];
    /// What a pass covers, in a sentence.
    fn covers(&self) -> &'static str;
    /// What it costs.
    fn cost(&self) -> TypicalCost;
    /// Runs it.
    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip>;
}

/// All checks, in the order in which they run: cheap ones first, and those that others build on.
pub(crate) fn registry() -> Vec<Box<dyn Check>> {
    let mut checks = machine::machine_checks();
    let asking: Vec<Box<dyn Check>> = vec![
        Box::new(endpoint::Liveness),
        Box::new(endpoint::Ladder),
        Box::new(endpoint::Budget),
        Box::new(endpoint::Streaming),
        Box::new(endpoint::Tools),
        Box::new(endpoint::Schema),
        Box::new(endpoint::Determinism),
        Box::new(reference::PromptTokens),
        Box::new(reference::Logprobs),
        Box::new(reference::Routes),
        Box::new(reference::Hypotheses),
        Box::new(endpoint::MultiTurn),
        Box::new(endpoint::ColdWarm),
        Box::new(endpoint::LengthSweep),
        Box::new(reference::Sizes),
        Box::new(endpoint::Batch),
        Box::new(endpoint::Soak),
    ];
    checks.extend(asking);
    checks
}

/// A check as lists and documentation show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckInfo {
    /// Its name.
    pub id: &'static str,
    /// What it needs.
    pub needs: &'static [Need],
    /// What a pass covers.
    pub covers: &'static str,
    /// What it costs, typically.
    pub cost: TypicalCost,
}

/// Every check, in the order in which they run.
#[must_use]
pub fn list() -> Vec<CheckInfo> {
    let info = |check: &dyn Check| CheckInfo {
        id: check.id(),
        needs: check.needs(),
        covers: check.covers(),
        cost: check.cost(),
    };
    registry().iter().map(|check| info(check.as_ref())).collect()
}
