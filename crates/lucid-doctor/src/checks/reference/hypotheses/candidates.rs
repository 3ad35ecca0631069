//! What is tried: every known mistake, and every honest arithmetic.

use lucid_engine::{Dosage, Plant, Planted, Projection, SemanticsOptions};

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
    let mistakes = table.mistakes.iter().filter(|mistake| !mistake.copies && !is_of_sums(mistake));
    let mistakes = mistakes.filter(|mistake| !mistake.declared || claim.is_some());
    let mistakes = mistakes.flat_map(|mistake| of_mistake(mistake, None, claim));
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
        .filter(|mistake| !mistake.copies && mistake.plant().is_some_and(Plant::has_layers))
        .flat_map(|mistake| (0..layers).flat_map(move |layer| of_mistake(mistake, Some(layer), claim)))
        .collect()
}

/// A rank's part that sums lack, for every rank of two, four and eight.
pub(super) fn lost_sums(claim: Option<Claim>) -> Vec<Hypothesis> {
    let of_sums = |plant| matches!(plant, Some(Plant::AttentionSumsLackARank | Plant::SumsLackARank));
    let mistakes = hypotheses().mistakes.iter().filter(|mistake| of_sums(mistake.plant()));
    mistakes.flat_map(|mistake| of_mistake(mistake, None, claim)).collect()
}

/// Nothing near the right model lacks a rank's part: not worth trying on a server that is.
fn is_of_sums(mistake: &Mistake) -> bool {
    matches!(mistake.plant(), Some(Plant::AttentionSumsLackARank | Plant::SumsLackARank))
}

/// A projection of a layer that holds another layer's: the next one's, the one's before, the first's or the last's, whole or by half.
pub(super) fn copied(
    layers: usize,
    is_possible: impl Fn(Projection) -> bool + Copy,
    claim: Option<Claim>,
) -> Vec<Hypothesis> {
    let mut copies = Vec::new();
    let possible = || Projection::ALL.into_iter().filter(|projection| is_possible(*projection));
    for (projection, layer) in possible().flat_map(|of| (0..layers).map(move |layer| (of, layer))) {
        let mut sources: Vec<usize> = Vec::new();
        for from in [layer + 1, layer.wrapping_sub(1), 0, layers.saturating_sub(1)] {
            if from < layers && from != layer && !sources.contains(&from) {
                sources.push(from);
            }
        }
        for from in sources {
            copies.extend([1.0, 0.5].map(|share| Copied { projection, layer, from, share }));
        }
    }
    copies.into_iter().flat_map(|copied| copied.hypothesis(claim)).collect()
}

/// Where a projection holds another layer's, and to which share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Copied {
    pub(super) projection: Projection,
    pub(super) layer: usize,
    pub(super) from: usize,
    pub(super) share: f64,
}

impl Copied {
    /// The copy that a hypothesis is about.
    pub(super) fn of(hypothesis: &Hypothesis) -> Option<Copied> {
        match hypothesis.semantics.plant?.dosage {
            Dosage::Copied { projection, layer, from, share } => {
                Some(Copied { projection, layer, from, share })
            }
            _ => None,
        }
    }

    pub(super) fn hypothesis(self, claim: Option<Claim>) -> Option<Hypothesis> {
        let mistake = hypotheses().mistakes.iter().find(|mistake| mistake.copies)?;
        let (plant, Copied { projection, layer, from, share }) = (mistake.plant()?, self);
        let name = projection.name();
        let part = if share < 1.0 { format!("-by-{share}") } else { String::new() };
        let of_it =
            if share < 1.0 { format!(", in its first {:.0} %", share * 100.0) } else { String::new() };
        Some(Hypothesis {
            name: format!("{plant}{part}-{name}-of-layer-{from}-in-layer-{layer}"),
            title: format!("{}: {name} of layer {layer} is layer {from}'s{of_it}", mistake.title),
            semantics: with(
                Planted { plant, dosage: Dosage::Copied { projection, layer, from, share } },
                claim,
            ),
            cause: Some(&mistake.cause),
            within: None,
            remedy: mistake.remedy.as_ref(),
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_come_first_and_nobody_twice() {
        let copies: Vec<Copied> = copied(4, |projection| projection == Projection::Query, None)
            .iter()
            .filter_map(Copied::of)
            .collect();
        let of = |layer: usize| -> Vec<(usize, f64)> {
            let of_layer = copies.iter().filter(|copied| copied.layer == layer);
            of_layer.map(|copied| (copied.from, copied.share)).collect()
        };
        assert_eq!(of(0), [(1, 1.0), (1, 0.5), (3, 1.0), (3, 0.5)]);
        assert_eq!(of(1).iter().map(|(from, _)| *from).collect::<Vec<_>>(), [2, 2, 0, 0, 3, 3]);
        assert_eq!(copied(1, |_| true, None).len(), 0, "one layer has no other");
        assert_eq!(lost_sums(None).len(), 28);
        assert!(general(None).iter().all(|hypothesis| Copied::of(hypothesis).is_none()));
    }
}
