//! Planted faults of a whole server: those of the engine, and those that live between engine and client.

mod act;

use std::fmt;

pub(crate) use act::Act;
use lucid_engine::Planted;

/// A mistake that a server makes on purpose, so that the doctor can be scored on finding it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plant {
    /// A fault of the engine; the engine was started with it, the server only reports it.
    Engine(lucid_engine::Plant),
    /// The text of `</think>` never reaches the parser: the whole answer ends up in `reasoning`, `content` is
    /// null, and `finish_reason` is `stop`. What a wrong `skip_special_tokens` or parser choice does in the field.
    ThinkEndDropped,
    /// The model's end-of-sequence tokens end nothing: answers run on until their budget is used up.
    EosIgnored,
    /// The conversation is rendered a little differently from the checkpoint's template.
    TemplateDrift,
    /// The arguments of tool calls are damaged.
    ToolArgumentsBroken,
    /// `seed` is taken and not used.
    SeedIgnored,
    /// Temperature 0 is replaced by a default.
    TemperatureIgnored,
    /// Every request leaves memory behind.
    MemoryGrowth,
    /// Some answers stop after five tokens, and nothing more comes.
    StallOnFiveTokens,
    /// Streams decode every token alone, which breaks characters of several tokens.
    StreamSplitsCharacters,
    /// The server cuts every budget to a small one of its own.
    BudgetCapped,
    /// Earlier parts of a conversation never reach the model.
    HistoryCut,
    /// A repetition penalty that nobody asked for.
    PenaltyByDefault,
    /// Tool calls keep the model's namespace or number in the function's name.
    ToolNameUnparsed,
    /// A prompt that came before is answered with nothing at all (ROCm/ATOM #1417).
    RepeatAnsweredEmpty,
    /// In streams, reasoning is not told from the answer.
    StreamThinkUnparsed,
}

impl Plant {
    /// Faults that live outside of the engine.
    const OWN: [Plant; 15] = [
        Plant::ThinkEndDropped,
        Plant::EosIgnored,
        Plant::TemplateDrift,
        Plant::ToolArgumentsBroken,
        Plant::SeedIgnored,
        Plant::TemperatureIgnored,
        Plant::MemoryGrowth,
        Plant::StallOnFiveTokens,
        Plant::StreamSplitsCharacters,
        Plant::BudgetCapped,
        Plant::HistoryCut,
        Plant::PenaltyByDefault,
        Plant::ToolNameUnparsed,
        Plant::RepeatAnsweredEmpty,
        Plant::StreamThinkUnparsed,
    ];

    /// Every fault that a server can plant.
    pub const ALL: [Plant; lucid_engine::Plant::ALL.len() + Plant::OWN.len()] = {
        let engine = lucid_engine::Plant::ALL;
        let mut all = [Plant::ThinkEndDropped; lucid_engine::Plant::ALL.len() + Plant::OWN.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = if i < engine.len() { Plant::Engine(engine[i]) } else { Plant::OWN[i - engine.len()] };
            i += 1;
        }
        all
    };

    /// The fault's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Plant::Engine(plant) => plant.name(),
            Plant::ThinkEndDropped => "think-end-dropped",
            Plant::EosIgnored => "eos-ignored",
            Plant::TemplateDrift => "template-drift",
            Plant::ToolArgumentsBroken => "tool-arguments-broken",
            Plant::SeedIgnored => "seed-ignored",
            Plant::TemperatureIgnored => "temperature-ignored",
            Plant::MemoryGrowth => "memory-growth",
            Plant::StallOnFiveTokens => "stall-on-five-tokens",
            Plant::StreamSplitsCharacters => "stream-splits-characters",
            Plant::BudgetCapped => "budget-capped",
            Plant::HistoryCut => "history-cut",
            Plant::PenaltyByDefault => "penalty-by-default",
            Plant::ToolNameUnparsed => "tool-name-unparsed",
            Plant::RepeatAnsweredEmpty => "repeat-answered-empty",
            Plant::StreamThinkUnparsed => "stream-think-unparsed",
        }
    }

    /// The fault of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Plant> {
        Plant::ALL.into_iter().find(|plant| plant.name() == name)
    }

    /// The part that the engine has to be started with, if it is a fault of the engine: as it is usually made without a
    /// seed, else drawn from it.
    #[must_use]
    pub fn engine(self, seed: Option<u64>) -> Option<Planted> {
        match (self, seed) {
            (Plant::Engine(plant), None) => Some(plant.into()),
            (Plant::Engine(plant), Some(seed)) => Some(Planted::drawn(plant, seed)),
            _ => None,
        }
    }
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_distinct_and_lead_back() {
        let names: HashSet<_> = Plant::ALL.iter().map(|plant| plant.name()).collect();
        assert_eq!(names.len(), Plant::ALL.len());
        for plant in Plant::ALL {
            assert_eq!(Plant::from_name(plant.name()), Some(plant));
        }
        assert_eq!(Plant::from_name("think-end-dropped"), Some(Plant::ThinkEndDropped));
        assert_eq!(Plant::from_name("no-such-fault"), None);
    }
}
