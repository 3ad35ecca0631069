//! Do the tokens go to the experts that the checkpoint sends them to?
//!
//! A server that was started with `--enable-return-routed-experts` (vLLM, SGLang, Lucid) says where each token went. The reference computes
//! the same tokens, and what it prefers each expert by: the score plus the bias. Two experts that are preferred nearly alike may
//! honestly change places; by how much less a chosen one is preferred than the last that should have been chosen is the *shortfall*. In
//! the first layer with experts nothing but one attention came before, so what differs there is the router's own choice or what it
//! was given; later layers take over what differed before.

use lucid_client::{Endpoint, RoutedExperts};
use lucid_engine::Observer;

use crate::checks::{Check, Examined, Need, Skip, TypicalCost};
use crate::evidence::{Examination, Observed};
use crate::report::{Finding, ProbeTable, ProofKind, Severity};

pub(crate) struct Routes;

/// Sequences that are asked about.
const SEQUENCES: usize = 4;
/// Tokens of each, at the most: what the reference computes in one step.
const TOKENS: usize = 256;
/// Shortfall that rounding explains: of a server that declares f32, and of any other. Preferences are around 0 to 1.
const ROUNDING: f32 = 1e-3;
const NEAR_TIE: f32 = 0.02;
/// Share of a layer's tokens beyond a near tie at which its choice is another one, and below which it is the same.
const MANY: f64 = 0.1;
const FEW: f64 = 0.02;

impl Check for Routes {
    fn id(&self) -> &'static str {
        "reference.routes"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Server, Need::Checkpoint]
    }

    fn covers(&self) -> &'static str {
        "tokens go to the experts that the checkpoint's router chooses, layer by layer"
    }

    fn cost(&self) -> TypicalCost {
        TypicalCost { requests: 4, tokens: 1_030 }
    }

    fn run(&self, examination: &mut Examination<'_>) -> Result<Examined, Skip> {
        let endpoint = examination.endpoint()?;
        if !endpoint.dialect().capabilities().token_prompts {
            return Err(Skip("the server takes no token ids, and routes are those of tokens".to_owned()));
        }
        let reference =
            examination.reference.as_ref().ok_or_else(|| "the checkpoint can't be read".to_owned())?;
        let config = reference.config();
        let Some(moe) = &config.moe else { return Err(Skip("the model has no experts".to_owned())) };
        let layers = config.num_hidden_layers;
        let (top_k, experts) = (moe.num_experts_per_tok, moe.n_routed_experts);
        let first = (0..layers).find(|layer| config.is_moe_layer(*layer)).unwrap_or(0);
        let mut scorer = reference.scorer_as(examination.evidence.claim)?;
        let margin = if examination.evidence.claim.is_some() { ROUNDING } else { NEAR_TIE };
        let mut told = Told { compared: vec![Layer::default(); layers], ..Told::default() };
        for observed in sequences(examination) {
            let tokens = &observed.tokens[..observed.tokens.len().min(TOKENS)];
            let Some((exchange, routes)) = ask(examination, &endpoint, &observed, layers, top_k)? else {
                return Err(Skip(
                    "the server doesn't say which experts tokens go to: start it with --enable-return-routed-experts"
                        .to_owned(),
                ));
            };
            if routes.layers != layers {
                let said = routes.layers;
                return Err(Skip(format!("the server tells of {said} layers, the model has {layers}")));
            }
            told.exchange = exchange;
            told.sequences += 1;
            let mut compare = Compare { told: &mut told, routes: &routes, top_k, experts, margin };
            scorer
                .score_answer_observed(tokens, observed.prompt, |_, _| (), &mut compare)
                .map_err(|error| format!("the reference failed: {error}"))?;
            told.compared.iter_mut().for_each(Layer::end_sequence);
        }
        let tokens = told.compared[first].tokens;
        if tokens == 0 {
            return Err(Skip("no tokens could be compared".to_owned()));
        }
        examination.evidence.probes.push(told.table(self.id()));
        let share = told.compared[first].share();
        Ok(Examined {
            findings: told.findings(self.id(), first, top_k),
            covered: format!(
                "{tokens} tokens of {} sequences; in the first layer with experts {:.1} % went elsewhere, near ties left aside",
                told.sequences,
                share * 100.0
            ),
        })
    }
}

/// The shortest of the compared answers that say something.
fn sequences(examination: &Examination<'_>) -> Vec<Observed> {
    let observed = examination.evidence.observed.iter().map(|(observed, _)| observed);
    let mut sequences: Vec<Observed> =
        observed.filter(|observed| observed.tokens.len() > 8).cloned().collect();
    sequences.sort_by_key(|observed| observed.tokens.len());
    sequences.truncate(SEQUENCES);
    sequences
}

/// The exchange, and where the sequence's tokens went; `None` if the server doesn't tell.
fn ask(
    examination: &mut Examination<'_>,
    endpoint: &Endpoint,
    observed: &Observed,
    layers: usize,
    top_k: usize,
) -> Result<Option<(usize, RoutedExperts)>, String> {
    let tokens: Vec<u32> = observed.tokens.iter().take(TOKENS).map(|token| token.0).collect();
    let (number, outcome) = examination.take(endpoint.routed_experts(&tokens, layers, top_k));
    let routes = outcome.map_err(|error| error.to_string())?;
    Ok(routes.map(|routes| (number, routes)))
}

/// What one layer's choices come to.
#[derive(Clone, Debug, Default)]
struct Layer {
    tokens: usize,
    /// Tokens of which another set of experts was chosen.
    other: usize,
    /// Tokens of which one was chosen that is clearly not preferred.
    beyond: usize,
    /// Largest shortfall.
    shortfall: f32,
    /// `beyond` and `tokens` of the sequences that have ended.
    ended: (usize, usize),
    /// Sequences with many clearly different choices.
    sequences: usize,
}

impl Layer {
    #[allow(clippy::cast_precision_loss)] // counts of tokens
    fn share(&self) -> f64 {
        self.beyond as f64 / self.tokens.max(1) as f64
    }

    #[allow(clippy::cast_precision_loss)] // counts of tokens
    fn end_sequence(&mut self) {
        let (beyond, tokens) = (self.beyond - self.ended.0, self.tokens - self.ended.1);
        self.sequences += usize::from(beyond as f64 >= MANY / 2.0 * tokens.max(1) as f64 && beyond > 0);
        self.ended = (self.beyond, self.tokens);
    }
}

/// What the server told, compared.
#[derive(Debug, Default)]
struct Told {
    compared: Vec<Layer>,
    sequences: usize,
    /// Clear differences at the first position of a sequence, whose attention sees nothing but itself.
    at_beginning: usize,
    /// Another number of experts than the checkpoint's, if the server asks so many.
    asked: Option<usize>,
    /// An expert that the model doesn't have.
    unknown: Option<u32>,
    exchange: usize,
}

struct Compare<'a> {
    told: &'a mut Told,
    routes: &'a RoutedExperts,
    top_k: usize,
    experts: usize,
    margin: f32,
}

impl Observer for Compare<'_> {
    fn wants_preferences(&self) -> bool {
        true
    }

    fn preferences(&mut self, layer: usize, row: usize, preferences: &[f32]) {
        let chosen = self.routes.of(row, layer);
        let mut known: Vec<u32> = chosen.to_vec();
        known.sort_unstable();
        known.dedup();
        // A layer that a server doesn't tell of holds one number throughout.
        if chosen.is_empty() || (known.len() == 1 && chosen.len() > 1) {
            return;
        }
        if chosen.len() != self.top_k {
            self.told.asked = Some(chosen.len());
            return;
        }
        let numbers = known.iter().map(|expert| *expert as usize);
        if let Some(unknown) = numbers.clone().find(|expert| *expert >= self.experts) {
            self.told.unknown = u32::try_from(unknown).ok();
            return;
        }
        let shortfall = shortfall(preferences, numbers, self.top_k);
        let Some(compared) = self.told.compared.get_mut(layer) else { return };
        compared.tokens += 1;
        compared.other += usize::from(shortfall > 0.0);
        compared.shortfall = compared.shortfall.max(shortfall);
        if shortfall > self.margin {
            compared.beyond += 1;
            self.told.at_beginning += usize::from(row == 0);
        }
    }
}

/// By how much the least preferred of the chosen is behind the last that should have been chosen; 0 if these are they. An expert whose
/// group is out is as far behind as can be.
fn shortfall(preferences: &[f32], chosen: impl Iterator<Item = usize>, top_k: usize) -> f32 {
    let mut sorted = preferences.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let Some(last) = top_k.checked_sub(1).and_then(|last| sorted.get(last)) else { return 0.0 };
    let least = chosen.filter_map(|expert| preferences.get(expert)).fold(f32::INFINITY, |a, b| a.min(*b));
    let behind = last - least;
    if behind.is_nan() { f32::INFINITY } else { behind.max(0.0) }
}

impl Told {
    fn table(&self, check: &str) -> ProbeTable {
        let columns = ["layer", "tokens", "other experts", "beyond a near tie", "largest shortfall"];
        let mut table =
            ProbeTable::new(check, "Experts that tokens went to, against the reference", &columns);
        for (number, layer) in self.compared.iter().enumerate().filter(|(_, layer)| layer.tokens > 0) {
            let shortfall = format!("{:.3}", layer.shortfall);
            table.row(&[&number, &layer.tokens, &layer.other, &layer.beyond, &shortfall]);
        }
        table
    }

    fn findings(&self, check: &str, first: usize, top_k: usize) -> Vec<Finding> {
        let proven = |finding: Finding, excerpt: String| {
            finding.confidence(0.99).proof(ProofKind::Exchange, self.exchange.to_string(), excerpt)
        };
        if let Some(unknown) = self.unknown {
            let title = "Tokens go to experts that the model doesn't have";
            let finding = Finding::new(check, "unknown-expert", Severity::Error, title)
                .suggests("moe-routing", 4.0)
                .suggests("tp-sharding", 3.0)
                .suggests("wrong-checkpoint", 2.0);
            return vec![proven(finding, format!("expert {unknown}"))];
        }
        if let Some(asked) = self.asked {
            let title = format!("Every token goes to {asked} experts, the checkpoint says {top_k}");
            let finding =
                Finding::new(check, "other-number", Severity::Error, title).suggests("moe-routing", 7.0);
            return vec![proven(finding, format!("{asked} experts a token"))];
        }
        let layer = &self.compared[first];
        let percent = |layer: &Layer| format!("{:.0} %", layer.share() * 100.0);
        if layer.share() >= MANY && layer.sequences >= 2 {
            let at_once = self.at_beginning > 0;
            let finding = Finding::new(
                check,
                "others-chosen",
                Severity::Error,
                format!("Tokens go to other experts than the checkpoint's router chooses, from layer {first} on"),
            )
            .detail(format!(
                "{} of {} tokens in the first layer with experts, by up to {:.3} of preference: more than rounding moves.{}",
                percent(layer),
                layer.tokens,
                layer.shortfall,
                if at_once { " The very first token is among them, before positions and attention could matter." } else { "" }
            ))
            .suggests("moe-routing", if at_once { 4.0 } else { 2.0 })
            .suggests("rope-scaling", if at_once { -1.0 } else { 1.0 })
            .suggests("attention-kernel", if at_once { 0.0 } else { 1.0 });
            return vec![proven(finding, format!("{} of the tokens", percent(layer)))];
        }
        let later = self.compared.iter().enumerate().find(|(_, layer)| layer.share() >= MANY);
        match later {
            Some((number, later)) if layer.share() <= FEW => {
                let title = format!("The first layer with experts chooses rightly, layer {number} does not");
                let finding = Finding::new(check, "others-chosen-later", Severity::Info, title)
                    .detail(format!("{} of the tokens: what is wrong came between the two.", percent(later)))
                    .suggests("rope-scaling", -2.0)
                    .suggests("quantization-loader", 1.0)
                    .suggests("moe-routing", 0.5);
                vec![finding]
            }
            None if layer.share() <= FEW => {
                let title = "Tokens go to the experts that the checkpoint's router chooses";
                let finding =
                    Finding::new(check, "same-experts", Severity::Info, title).suggests("moe-routing", -1.0);
                vec![finding]
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFERENCES: [f32; 5] = [0.9, 0.5, 0.49, 0.1, f32::NEG_INFINITY];

    #[test]
    fn a_near_tie_is_no_difference_and_a_group_that_is_out_is_one() {
        let of = |chosen: [usize; 2]| shortfall(&PREFERENCES, chosen.into_iter(), 2);
        assert_eq!((of([1, 0]), of([0, 1])), (0.0, 0.0), "the order is nobody's business");
        assert!((of([0, 2]) - 0.01).abs() < 1e-6 && (of([0, 3]) - 0.4).abs() < 1e-6);
        assert_eq!(of([0, 4]), f32::INFINITY);
        assert_eq!(shortfall(&[], [0].into_iter(), 1), 0.0);
    }

    /// Two sequences of ten tokens in layers 1 and 2; `chosen` by token and layer.
    fn found(chosen: impl Fn(usize, usize) -> Vec<u32>) -> Vec<String> {
        let mut told = Told { compared: vec![Layer::default(); 3], ..Told::default() };
        for _ in 0..2 {
            let all = || (0..10).flat_map(|token| (0..3).map(move |layer| (token, layer)));
            let experts: Vec<u32> = all().flat_map(|(token, layer)| chosen(token, layer)).collect();
            let routes = RoutedExperts { layers: 3, top_k: experts.len() / 30, experts };
            let mut compare =
                Compare { told: &mut told, routes: &routes, top_k: 2, experts: 5, margin: NEAR_TIE };
            for (token, layer) in all().filter(|(_, layer)| *layer > 0) {
                compare.preferences(layer, token, &PREFERENCES);
            }
            told.compared.iter_mut().for_each(Layer::end_sequence);
            told.sequences += 1;
        }
        let findings = told.findings("reference.routes", 1, 2);
        findings
            .into_iter()
            .map(|f| format!("{} {:?}", f.id.rsplit('/').next().unwrap(), f.severity))
            .collect()
    }

    #[test]
    fn where_choices_part_says_what_is_wrong() {
        assert_eq!(found(|_, _| vec![0, 1]), ["same-experts Info"]);
        assert_eq!(found(|_, _| vec![0, 2]), ["same-experts Info"], "near ties");
        assert_eq!(found(|token, _| vec![0, if token % 3 == 1 { 3 } else { 1 }]), ["others-chosen Error"]);
        assert_eq!(
            found(|token, layer| vec![0, if layer == 2 && token > 3 { 3 } else { 1 }]),
            ["others-chosen-later Info"]
        );
        assert!(found(|token, _| vec![0, if token == 3 { 3 } else { 1 }]).len() <= 1);
        assert_eq!(found(|_, _| vec![0, 1, 2]), ["other-number Error"]);
        assert_eq!(found(|_, _| vec![0, 9]), ["unknown-expert Error"]);
    }

    #[test]
    fn a_layer_that_nothing_is_told_of_is_left_aside() {
        assert_eq!(found(|_, layer| if layer == 2 { vec![0, 0] } else { vec![0, 1] }), ["same-experts Info"]);
    }
}
