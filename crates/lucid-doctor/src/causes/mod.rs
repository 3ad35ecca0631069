//! Ranks the causes by the findings for and against them.

mod beside;

use std::collections::{BTreeMap, BTreeSet};

use crate::knowledge::{CauseEntry, LearnedWeight, causes, learned};
use crate::report::{Cause, Finding, Remedy, Severity};
use crate::subject::Symptom;

/// The ranked causes, and the probability of none of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// Best first.
    pub causes: Vec<Cause>,
    /// Probability that it is something else; 0 when no finding asks for a cause.
    pub something_else: f64,
}

/// Causes less likely than this are not listed,
const LEAST: f64 = 0.02;
/// but for the first three, if they are likelier than this: whoever finds the first one innocent goes on with the next.
const LEAST_OF_THREE: f64 = 0.002;

/// Log-odds that a benign cause loses where something else is surely wrong.
const BENIGN: f64 = 3.0;

/// Log-odds that a symptom adds to the causes that can produce it, and takes from the others.
const SYMPTOM: f64 = 1.5;

/// Adds each cause's prior and what the findings say about it (log-odds), and normalizes over all causes and "something else".
///
/// Findings speak through `knowledge/causes.toml` and through their own suggestions. Suggestions of one check about one cause
/// come from the same evidence, a hundred log lines of one crash for example: only the strongest for it and the strongest against
/// it count. What lies off the path that the model takes can't be its cause, so an inactive finding speaks for none.
///
/// A cause that no finding speaks for is not listed, unless the symptom asks for it: then it was weighed, and the reader sees why
/// it was found unlikely.
///
/// What drills taught (`knowledge/learned.toml`) is added last, to causes that something speaks for.
#[must_use]
pub fn rank(findings: &[Finding], symptom: Option<Symptom>) -> Ranking {
    rank_with(findings, symptom, learned())
}

/// The check that is a cause's next test, if the server can be asked for it.
pub(crate) fn deeper(cause: &str) -> Option<&'static str> {
    causes().causes.iter().find(|known| known.id == cause)?.deeper.as_deref()
}

/// The class of a finding: its id; hypotheses of one outcome are one class, whatever the mistake, its strength and its layer.
#[must_use]
pub fn class_of(finding: &str) -> String {
    match finding.strip_prefix("reference.hypotheses/").and_then(|slug| slug.rsplit_once('-')) {
        Some((_, outcome @ ("fits" | "nearest" | "excluded"))) => format!("reference.hypotheses/*-{outcome}"),
        _ => finding.to_owned(),
    }
}

/// The scores of all causes that something speaks for, by chosen weights alone, in natural log-odds; the last one, without a name, is
/// "something else". What learning starts from.
#[must_use]
pub fn chosen_scores(findings: &[Finding]) -> Vec<(String, f64)> {
    let scored = all_scored(findings, None, &[]).into_iter();
    let supported = scored.filter(Scored::supported).map(|scored| (scored.cause.id.clone(), scored.score));
    supported.chain([(String::new(), causes().something_else)]).collect()
}

/// Every cause on the scales.
fn all_scored<'a>(
    findings: &'a [Finding],
    symptom: Option<Symptom>,
    learned: &[LearnedWeight],
) -> Vec<Scored<'a>> {
    let mut scored: Vec<Scored<'_>> =
        causes().causes.iter().map(|cause| Scored::new(cause, findings, symptom, learned)).collect();
    // What explains without accusing explains no error.
    let error = findings.iter().any(|finding| {
        let accuses = finding.suggests.iter().any(|suggestion| suggestion.weight > 0.0);
        finding.severity == Severity::Error && finding.active != Some(false) && accuses
    });
    scored.iter_mut().filter(|scored| error && scored.cause.benign).for_each(|scored| scored.score -= BENIGN);
    scored
}

fn rank_with(findings: &[Finding], symptom: Option<Symptom>, learned: &[LearnedWeight]) -> Ranking {
    let table = causes();
    let mut scored = all_scored(findings, symptom, learned);
    // Without anything wrong, only what explains without accusing can be listed.
    let wrong = findings.iter().any(|finding| finding.severity > Severity::Info);
    scored.retain(|scored| (wrong && scored.asked_for) || scored.supported());
    scored.retain(|scored| wrong || scored.cause.benign);
    if !scored.iter().any(Scored::supported) {
        return Ranking { causes: Vec::new(), something_else: 0.0 };
    }
    scored.sort_by(|a, b| b.score.total_cmp(&a.score));
    if let Some((first, others)) = scored.split_first_mut() {
        let left = beside::of_the_other_kind(findings, first.cause, &first.supported_by);
        for other in others {
            other.also = left.as_deref() == Some(other.cause.id.as_str())
                || beside::is_accused_alone(&first.cause.id, other.cause, findings);
        }
    }
    let total = scored.iter().map(|scored| scored.score.exp()).sum::<f64>() + table.something_else.exp();
    let listed = scored
        .into_iter()
        .enumerate()
        .map(|(place, scored)| (place, scored.asked_for || scored.also, scored.into_cause(total)))
        .filter(|(place, asked_for, cause)| {
            *asked_for || cause.probability >= if *place < 3 { LEAST_OF_THREE } else { LEAST }
        })
        .map(|(_, _, cause)| cause);
    Ranking { causes: listed.collect(), something_else: table.something_else.exp() / total }
}

/// A cause on the scales.
struct Scored<'a> {
    cause: &'static CauseEntry,
    score: f64,
    supported_by: Vec<String>,
    against: Vec<String>,
    /// The symptom is one of those that it can produce.
    asked_for: bool,
    /// See [`Cause::also`].
    also: bool,
    /// What the finding that speaks for it the loudest says to do: it names the package or the file.
    remedy: Option<(f64, &'a Remedy)>,
}

impl<'a> Scored<'a> {
    fn new(
        cause: &'static CauseEntry,
        findings: &'a [Finding],
        symptom: Option<Symptom>,
        learned: &[LearnedWeight],
    ) -> Scored<'a> {
        let asked_for = symptom.is_some_and(|symptom| cause.explains.contains(&symptom));
        let mut scored = Scored {
            cause,
            score: cause.prior,
            supported_by: Vec::new(),
            against: Vec::new(),
            asked_for,
            also: false,
            remedy: None,
        };
        if symptom.is_some() {
            scored.score += if asked_for { SYMPTOM } else { -SYMPTOM };
        }
        // The strongest suggestion of each check, for and against.
        let mut strongest: BTreeMap<(&str, bool), f64> = BTreeMap::new();
        for finding in findings {
            for weight in cause.evidence.iter().filter(|weight| weight.is_about(&finding.id)) {
                scored.score += weight.weight;
                scored.note(weight.weight, &finding.id);
            }
            let inactive = finding.active == Some(false);
            for suggestion in finding.suggests.iter().filter(|suggestion| {
                // A weight of 0 says nothing, neither for nor against.
                suggestion.cause == cause.id && suggestion.weight.abs() > 0.0
            }) {
                if suggestion.weight > 0.0 && inactive {
                    continue;
                }
                let entry = strongest.entry((&finding.check, suggestion.weight > 0.0)).or_default();
                if suggestion.weight.abs() > entry.abs() {
                    *entry = suggestion.weight;
                }
                scored.note(suggestion.weight, &finding.id);
                let louder = scored.remedy.is_none_or(|(weight, _)| suggestion.weight > weight);
                if let (true, Some(remedy)) = (louder && suggestion.weight > 0.0, &finding.remedy) {
                    scored.remedy = Some((suggestion.weight, remedy));
                }
            }
        }
        scored.score += strongest.values().sum::<f64>();
        let classes: BTreeSet<String> = findings.iter().map(|finding| class_of(&finding.id)).collect();
        let taught =
            learned.iter().filter(|weight| weight.cause == cause.id && classes.contains(&weight.finding));
        scored.score += taught.map(|weight| weight.weight).sum::<f64>();
        scored
    }

    fn note(&mut self, weight: f64, finding: &str) {
        let list = if weight > 0.0 { &mut self.supported_by } else { &mut self.against };
        if !list.iter().any(|known| known == finding) {
            list.push(finding.to_owned());
        }
    }

    fn supported(&self) -> bool {
        !self.supported_by.is_empty()
    }

    fn into_cause(self, total: f64) -> Cause {
        Cause {
            id: self.cause.id.clone(),
            title: self.cause.title.clone(),
            probability: self.score.exp() / total,
            benign: self.cause.benign,
            also: self.also,
            supported_by: self.supported_by,
            against: self.against,
            next_test: self.cause.next_test.clone(),
            remedy: self.remedy.map_or_else(|| self.cause.remedy.clone(), |(_, remedy)| remedy.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_benign_explains_no_error() {
        let slow =
            Finding::new("logs.signatures", "wait", Severity::Info, "x").suggests("slow-start-benign", 3.0);
        let hang =
            Finding::new("logs.signatures", "watchdog", Severity::Error, "x").suggests("collectives", 2.0);
        let first = |findings: &[Finding]| rank(findings, None).causes[0].id.clone();
        assert_eq!(first(std::slice::from_ref(&slow)), "slow-start-benign");
        assert_eq!(first(&[slow.clone(), hang.clone()]), "collectives");
        // What learning starts from is what is ranked.
        let score = |findings: &[Finding]| {
            let scores = chosen_scores(findings);
            scores.into_iter().find(|(cause, _)| cause == "slow-start-benign").map(|(_, score)| score)
        };
        let (alone, beside) = (score(std::slice::from_ref(&slow)), score(&[slow, hang]));
        assert!(alone.zip(beside).is_some_and(|(alone, beside)| (alone - beside - BENIGN).abs() < 1e-9));
    }

    #[test]
    fn what_was_learned_is_added_to_what_was_chosen() {
        let findings =
            [Finding::new("endpoint.cold-warm", "x", Severity::Error, "x").suggests("prefix-cache", 5.0)];
        let weight = |finding: &str, weight| LearnedWeight {
            finding: finding.to_owned(),
            cause: "prefix-cache".to_owned(),
            weight,
        };
        let probability =
            |learned: &[LearnedWeight]| rank_with(&findings, None, learned).causes[0].probability;
        let chosen = probability(&[]);
        assert!(probability(&[weight("endpoint.cold-warm/x", 1.0)]) > chosen);
        assert_eq!(probability(&[weight("endpoint.cold-warm/y", 1.0)]), chosen, "another finding");
        assert_eq!(class_of("reference.hypotheses/rope-half-split-fits"), "reference.hypotheses/*-fits");
        assert_eq!(
            class_of("reference.hypotheses/first-token-right"),
            "reference.hypotheses/first-token-right"
        );
    }

    /// Seen in a drill: a cache without its scales wrote arguments that were no JSON, and the parser was blamed with 87 %.
    #[test]
    fn a_broken_model_is_judged_before_its_parser() {
        let calls =
            Finding::new("endpoint.tools", "arguments", Severity::Error, "x").suggests("tool-parser", 9.0);
        let model = Finding::new("reference.logprobs", "differs", Severity::Error, "x");
        let answers = Finding::new("reference.logprobs", "only-while-decoding", Severity::Error, "x")
            .suggests("kv-cache-scales", 7.0);
        let first = |findings: &[Finding]| rank(findings, None).causes[0].id.clone();
        assert_eq!(first(std::slice::from_ref(&calls)), "tool-parser");
        assert_eq!(first(&[calls, model, answers]), "kv-cache-scales");
    }

    fn rank_ids(ids: &[&str]) -> Ranking {
        let findings: Vec<Finding> = ids
            .iter()
            .map(|id| {
                let (check, slug) = id.split_once('/').unwrap();
                let info = ["agrees", "separates", "coherent", "excluded", "only-long"]
                    .iter()
                    .any(|word| slug.contains(word));
                Finding::new(check, slug, if info { Severity::Info } else { Severity::Error }, "")
            })
            .collect();
        rank(&findings, None)
    }

    fn top(ids: &[&str]) -> (String, f64) {
        let ranking = rank_ids(ids);
        ranking.causes.first().map_or((String::new(), 0.0), |cause| (cause.id.clone(), cause.probability))
    }

    #[test]
    fn a_fitting_mistake_names_its_cause() {
        for (fits, cause) in [
            ("rope-half-split", "rope-scaling"),
            ("router-bias-missing", "moe-routing"),
            ("nvfp4-global-scale-inverted", "quantization-loader"),
        ] {
            let mut ids: Vec<String> = vec![
                "reference.logprobs/differs".into(),
                "endpoint.ladder/incoherent".into(),
                format!("reference.hypotheses/{fits}-fits"),
            ];
            for other in ["rope-half-split", "router-bias-missing", "nvfp4-global-scale-inverted"] {
                if other != fits {
                    ids.push(format!("reference.hypotheses/{other}-excluded"));
                }
            }
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            let (found, probability) = top(&ids);
            assert_eq!(found, cause);
            assert!(probability > 0.9, "{cause}: {probability}");
        }
    }

    #[test]
    fn parser_and_budget_are_not_numerics() {
        let agreeing = ["reference.logprobs/agrees", "reference.prompt-tokens/agrees"];
        assert_eq!(
            top(&[&["endpoint.budget/answer-inside-reasoning"], &agreeing[..]].concat()).0,
            "reasoning-parser"
        );
        assert_eq!(top(&[&["endpoint.budget/answers-cut"], &agreeing[..]].concat()).0, "reasoning-budget");
        assert_eq!(top(&["reference.prompt-tokens/differs"]).0, "chat-template");
    }

    #[test]
    fn thin_evidence_makes_no_accusation() {
        // Incoherent, and no checkpoint to compare with: no cause may be called more likely than not.
        let ranking = rank_ids(&["endpoint.ladder/incoherent", "endpoint.ladder/fact-low"]);
        assert!(ranking.causes.iter().all(|cause| cause.probability < 0.5), "{ranking:?}");
        assert!(ranking.something_else > 0.3, "{ranking:?}");
        // Different, and no known mistake fits.
        let ranking = rank_ids(&["reference.logprobs/differs", "reference.hypotheses/none-fits"]);
        assert!(ranking.causes.iter().all(|cause| cause.probability < 0.5), "{ranking:?}");
    }

    #[test]
    fn healthy_has_nothing_to_explain() {
        let ranking =
            rank_ids(&["reference.logprobs/agrees", "endpoint.ladder/coherent", "endpoint.budget/separates"]);
        assert_eq!(ranking, Ranking { causes: vec![], something_else: 0.0 });
    }

    fn suggesting(check: &str, severity: Severity, cause: &str, weight: f64) -> Finding {
        Finding::new(check, "x", severity, "").suggests(cause, weight)
    }

    #[test]
    fn many_lines_of_one_log_are_one_piece_of_evidence() {
        let one = suggesting("logs.signatures", Severity::Error, "out-of-memory", 3.0);
        let alone = rank(std::slice::from_ref(&one), None);
        assert_eq!(rank(&vec![one; 50], None).causes[0].probability, alone.causes[0].probability);
    }

    #[test]
    fn what_does_not_run_is_no_cause() {
        let patched = suggesting("env.record-integrity", Severity::Warning, "modified-package-files", 4.0)
            .active(Some(false));
        assert!(rank(&[patched], None).causes.is_empty());
    }

    #[test]
    fn the_loudest_finding_says_what_to_do() {
        let skew = suggesting("env.version-sets", Severity::Error, "package-version-skew", 6.0)
            .remedy("one install", vec!["uv pip install --no-deps flashinfer-cubin==0.6.4".into()]);
        let other = suggesting("logs.signatures", Severity::Error, "package-version-skew", 3.0)
            .remedy("something general", vec![]);
        let cause = &rank(&[other, skew], None).causes[0];
        assert_eq!(cause.remedy.commands, ["uv pip install --no-deps flashinfer-cubin==0.6.4"]);
        assert!(cause.probability > 0.9);
    }

    #[test]
    fn a_symptom_lists_what_it_could_be_and_what_speaks_against_it() {
        let debug = suggesting("env.debug-code", Severity::Error, "leftover-debug-code", 6.0);
        let clean = suggesting("checkpoint.digest", Severity::Info, "checkpoint-corrupt", -6.0);
        let ranking = rank(&[debug, clean], Some(Symptom::Incoherent));
        assert_eq!(ranking.causes[0].id, "leftover-debug-code");
        let innocent = ranking.causes.iter().find(|cause| cause.id == "checkpoint-corrupt").unwrap();
        assert!(innocent.probability < 0.02 && innocent.against == ["checkpoint.digest/x"]);
    }

    #[test]
    fn a_benign_explanation_accuses_nobody() {
        let slow = suggesting("logs.timeline", Severity::Info, "slow-start-benign", 4.0);
        let leaked = suggesting("logs.signatures", Severity::Info, "memory-leak", 1.0);
        let ranking = rank(&[slow, leaked], None);
        assert_eq!(ranking.causes.len(), 1);
        assert!(ranking.causes[0].benign && ranking.causes[0].id == "slow-start-benign");
    }

    #[test]
    fn probabilities_add_up() {
        let ranking = rank_ids(&[
            "reference.logprobs/differs",
            "endpoint.ladder/only-long-fails",
            "endpoint.ladder/long-needle-low",
        ]);
        let sum: f64 =
            ranking.causes.iter().map(|cause| cause.probability).sum::<f64>() + ranking.something_else;
        assert!(sum <= 1.0 + 1e-9 && sum > 0.9, "{sum}");
    }
}
