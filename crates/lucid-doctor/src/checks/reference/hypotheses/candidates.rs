//! What is tried: every known mistake, and every honest arithmetic.

use lucid_engine::{Dosage, Plant, Planted, SemanticsOptions};

use crate::evidence::Claim;
use crate::knowledge::{Mistake, hypotheses};
use crate::report::Remedy;

/// What the reference computes with.
pub(super) struct Hypothesis {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) semantics: SemanticsOptions,
    /// The cause that a mistake speaks for; `None` for an honest arithmetic.
    pub(super) cause: Option<&'static str>,
    /// The wider mistake of which it is a single strength.
    pub(super) within: Option<Plant>,
    /// What to do, in place of the cause's own remedy.
    pub(super) remedy: Option<&'static Remedy>,
}

impl Hypothesis {
    /// The mistake that is made.
    pub(super) fn plant(&self) -> Option<Plant> {
        self.semantics.plant.map(|planted| planted.plant)
    }
}

/// Every mistake as it is usually made, and the other arithmetics.
pub(super) fn general(claim: Option<Claim>) -> Vec<Hypothesis> {
    let table = hypotheses();
    let mistakes = table.mistakes.iter().flat_map(|mistake| of_mistake(mistake, None, claim));
    let variations = table.variations.iter().map(|variation| Hypothesis {
        name: variation.name.clone(),
        title: variation.title.clone(),
        semantics: variation.semantics(claim),
        cause: variation.cause.as_deref(),
        within: None,
        remedy: None,
    });
    mistakes.chain(variations).collect()
}

/// Mistakes that can sit in one layer, in each layer.
pub(super) fn layered(layers: usize, claim: Option<Claim>) -> Vec<Hypothesis> {
    let mistakes = hypotheses().mistakes.iter();
    mistakes
        .filter(|mistake| mistake.plant().is_some_and(Plant::has_layers))
        .flat_map(|mistake| (0..layers).flat_map(move |layer| of_mistake(mistake, Some(layer), claim)))
        .collect()
}

/// Mistakes whose strength is any number, with its range.
pub(super) fn continuous() -> impl Iterator<Item = (&'static Mistake, [f64; 2])> {
    hypotheses().mistakes.iter().filter_map(|mistake| Some((mistake, mistake.range?)))
}

/// A mistake in every strength, in one layer or in all.
fn of_mistake(mistake: &'static Mistake, layer: Option<usize>, claim: Option<Claim>) -> Vec<Hypothesis> {
    let Some(plant) = mistake.plant() else { return Vec::new() };
    let place = layer.map_or_else(String::new, |layer| format!("-in-layer-{layer}"));
    let alone = layer.map_or_else(String::new, |layer| format!(", in layer {layer} alone"));
    let usual = Hypothesis {
        name: format!("{plant}{place}"),
        title: format!("{}{alone}", mistake.title_in(None)),
        semantics: with(Planted { plant, dosage: layer.map_or(Dosage::Typical, Dosage::InLayer) }, claim),
        cause: Some(&mistake.cause),
        within: mistake.within(),
        remedy: mistake.remedy.as_ref(),
    };
    let strengths = mistake.strengths.iter();
    let others = strengths.filter_map(|&strength| in_strength(mistake, strength, layer, claim));
    std::iter::once(usual).chain(others).collect()
}

/// A mistake in one strength.
pub(super) fn in_strength(
    mistake: &'static Mistake,
    strength: f64,
    layer: Option<usize>,
    claim: Option<Claim>,
) -> Option<Hypothesis> {
    let plant = mistake.plant()?;
    let place = layer.map_or_else(String::new, |layer| format!("-in-layer-{layer}"));
    let alone = layer.map_or_else(String::new, |layer| format!(", in layer {layer} alone"));
    Some(Hypothesis {
        name: format!("{plant}-by-{}{place}", (strength * 1e4).round() / 1e4),
        title: format!("{}{alone}", mistake.title_in(Some(strength))),
        semantics: with(Planted { plant, dosage: Dosage::Strength(strength, layer) }, claim),
        cause: Some(&mistake.cause),
        within: mistake.within(),
        remedy: mistake.remedy.as_ref(),
    })
}

/// A mistake in the arithmetic that the server declares, or exactly.
fn with(planted: Planted, claim: Option<Claim>) -> SemanticsOptions {
    SemanticsOptions { plant: Some(planted), ..crate::evidence::semantics_of(claim) }
}
