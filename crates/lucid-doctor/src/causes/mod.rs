//! Ranks the causes by the findings for and against them.

use crate::knowledge::{CauseEntry, causes};
use crate::report::{Cause, Finding};

/// The ranked causes, and the probability of none of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking {
    /// Best first.
    pub causes: Vec<Cause>,
    /// Probability that it is something else; 0 when no finding asks for a cause.
    pub something_else: f64,
}

/// Causes less likely than this are not listed.
const LEAST: f64 = 0.02;

/// Adds each cause's prior and the weights of the findings that are there (log-odds), and normalizes over all causes and
/// "something else". A cause that no finding speaks for is not listed.
#[must_use]
pub fn rank(findings: &[Finding]) -> Ranking {
    let table = causes();
    let mut scored: Vec<(f64, &CauseEntry, Vec<String>, Vec<String>)> = Vec::new();
    for cause in &table.causes {
        let (mut score, mut supported_by, mut against) = (cause.prior, Vec::new(), Vec::new());
        for finding in findings {
            for weight in cause.evidence.iter().filter(|weight| weight.is_about(&finding.id)) {
                score += weight.weight;
                if weight.weight > 0.0 { &mut supported_by } else { &mut against }.push(finding.id.clone());
            }
        }
        if !supported_by.is_empty() {
            scored.push((score, cause, supported_by, against));
        }
    }
    // Without anything wrong there is nothing to explain.
    if !findings.iter().any(|finding| finding.severity > crate::report::Severity::Info) || scored.is_empty() {
        return Ranking { causes: Vec::new(), something_else: 0.0 };
    }
    let total = scored.iter().map(|(score, ..)| score.exp()).sum::<f64>() + table.something_else.exp();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let causes = scored.into_iter().map(|(score, cause, supported_by, against)| Cause {
        id: cause.id.clone(),
        title: cause.title.clone(),
        probability: score.exp() / total,
        supported_by,
        against,
        next_test: cause.next_test.clone(),
        remedy: cause.remedy.clone(),
    });
    Ranking {
        causes: causes.filter(|cause| cause.probability >= LEAST).collect(),
        something_else: table.something_else.exp() / total,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Severity;

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
        rank(&findings)
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
