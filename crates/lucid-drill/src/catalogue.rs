//! What can be planted, and which cause the doctor should say.

use lucid_server::Plant;

/// One entry: a planted fault, or a healthy run as a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is planted; `None` is a healthy run.
    pub plant: Option<Plant>,
    /// The cause that the doctor should say; `None` for a healthy run.
    pub cause: Option<&'static str>,
    /// What happens, in a sentence.
    pub about: &'static str,
}

/// All cases, the healthy run first.
pub const CATALOGUE: [Case; 5] = [
    Case {
        name: "healthy",
        plant: None,
        cause: None,
        about: "nothing is planted: whatever the doctor says is a false alarm",
    },
    Case {
        name: "rope-half-split",
        plant: Some(Plant::Engine(lucid_engine::Plant::RopeHalfSplit)),
        cause: Some("rope-scaling"),
        about: "RoPE turns halves instead of neighbours: the most common porting error",
    },
    Case {
        name: "router-bias-missing",
        plant: Some(Plant::Engine(lucid_engine::Plant::RouterBiasMissing)),
        cause: Some("moe-routing"),
        about: "experts are chosen without e_score_correction_bias",
    },
    Case {
        name: "nvfp4-global-scale-inverted",
        plant: Some(Plant::Engine(lucid_engine::Plant::Nvfp4GlobalScaleInverted)),
        cause: Some("quantization-loader"),
        about: "NVFP4 weights are divided by weight_scale_2 instead of multiplied",
    },
    Case {
        name: "think-end-dropped",
        plant: Some(Plant::ThinkEndDropped),
        cause: Some("reasoning-parser"),
        about: "the text of </think> never reaches the reasoning parser",
    },
];

/// The case of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Case> {
    CATALOGUE.iter().find(|case| case.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_that_can_be_planted_is_here_once_under_its_own_name() {
        for plant in Plant::ALL {
            let cases: Vec<_> = CATALOGUE.iter().filter(|case| case.plant == Some(plant)).collect();
            assert_eq!(cases.len(), 1, "{plant}");
            assert_eq!(cases[0].name, plant.name());
        }
        assert!(CATALOGUE.iter().all(|case| case.plant.is_some() == case.cause.is_some()));
    }
}
