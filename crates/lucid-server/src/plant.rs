//! Planted faults of a whole server: those of the engine, and those that live between engine and client.

use std::fmt;

/// A mistake that a server makes on purpose, so that the doctor can be scored on finding it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plant {
    /// A fault of the engine; the engine was started with it, the server only reports it.
    Engine(lucid_engine::Plant),
    /// The text of `</think>` never reaches the parser: the whole answer ends up in `reasoning`, `content` is
    /// null, and `finish_reason` is `stop`. What a wrong `skip_special_tokens` or parser choice does in the field.
    ThinkEndDropped,
}

impl Plant {
    /// Every fault that a server can plant.
    pub const ALL: [Plant; lucid_engine::Plant::ALL.len() + 1] = {
        let mut all = [Plant::ThinkEndDropped; lucid_engine::Plant::ALL.len() + 1];
        let mut i = 0;
        while i < lucid_engine::Plant::ALL.len() {
            all[i] = Plant::Engine(lucid_engine::Plant::ALL[i]);
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
        }
    }

    /// The fault of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Plant> {
        Plant::ALL.into_iter().find(|plant| plant.name() == name)
    }

    /// The part that the engine has to be started with, if it is a fault of the engine.
    #[must_use]
    pub fn engine(self) -> Option<lucid_engine::Plant> {
        match self {
            Plant::Engine(plant) => Some(plant),
            Plant::ThinkEndDropped => None,
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
