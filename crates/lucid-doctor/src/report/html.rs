//! One self-contained page: no script, no network, everything from outside escaped.

use minijinja::Environment;
use minijinja::value::Serde;
use serde::Serialize;
use serde_json::{Value, json};

use super::terminal::{MOST_HYPOTHESES, healthy_reason};
use super::{CheckOutcome, Report, Severity, Verdict, percent};
use crate::evidence::{Divergence, RungState};

/// Divergence below which an honest server stays, nats a token: `reference.logprobs` decides by it.
const HONEST: f64 = 0.02;

/// The report as an HTML page.
///
/// # Errors
/// Only if the embedded template itself is broken; its test renders it.
pub fn render(report: &Report) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    // The name's ending turns on HTML escaping.
    environment.add_template("report.html", include_str!("report.html.jinja"))?;
    environment.add_filter("code", code);
    let page = environment.get_template("report.html")?;
    let of = |info: bool| {
        report
            .findings
            .iter()
            .filter(|finding| (finding.severity == Severity::Info) == info)
            .collect::<Vec<_>>()
    };
    let server = report.subject.server.as_ref().map(|server| {
        let version = server.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
        format!("{}{version}, model {}", server.dialect.name(), server.model)
    });
    let view = json!({
        "report": report,
        "verdict": verdict(report),
        "server": server,
        "problems": of(false),
        "facts": of(true),
        "rungs": rungs(report),
        "divergence": report.divergence.as_ref().map(headline),
        "chart": report.divergence.as_ref().map(Chart::new),
        "shares": report.causes.iter().map(|cause| percent(cause.probability)).collect::<Vec<_>>(),
        "unlikely": report.causes.iter().skip(1).filter(|cause| cause.probability < 0.02 && !cause.also).collect::<Vec<_>>(),
        "benign": report.causes.iter().all(|cause| cause.benign),
        "something_else": percent(report.something_else),
        "timeline": report.timeline.as_ref().filter(|timeline| !timeline.runs.is_empty()).map(super::timeline::view),
        "checked": checks(report, false),
        "skipped": by_reason(checks(report, true)),
        "exchanges": exchanges(report),
    });
    page.render(Serde(&view))
}

/// Our texts mark names with backticks: `name` becomes `<code>name</code>`, and everything is escaped. A single backtick stays.
fn code(text: &str) -> minijinja::Value {
    let mut html = String::new();
    let mut parts = text.split('`').peekable();
    let mut inside = false;
    while let Some(part) = parts.next() {
        let escaped = minijinja::HtmlEscape(part).to_string();
        match (inside, parts.peek()) {
            (true, Some(_)) => html.push_str(&format!("<code>{escaped}</code>")),
            (true, None) => html.push_str(&format!("`{escaped}")),
            (false, _) => html.push_str(&escaped),
        }
        inside = !inside;
    }
    minijinja::Value::from_safe_string(html)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_without_the_same_evidence_stand_together() {
        let check = |id: &str, reason: &str| json!({ "id": id, "reason": reason });
        let groups = by_reason(vec![check("a", "no log"), check("b", "no GPU"), check("c", "no log")]);
        let ids = |group: &Value| -> Vec<String> {
            let checks = group["checks"].as_array().into_iter().flatten();
            checks.filter_map(|check| check["id"].as_str().map(str::to_owned)).collect()
        };
        assert_eq!(groups.iter().map(ids).collect::<Vec<_>>(), [vec!["a", "c"], vec!["b"]]);
        assert_eq!(groups[0]["reason"], "no log");
    }

    #[test]
    fn backticks_become_code_and_the_rest_is_escaped() {
        assert_eq!(code("set `a<b` & go").to_string(), "set <code>a&lt;b</code> &amp; go");
        assert_eq!(code("one ` alone").to_string(), "one ` alone");
        assert_eq!(code("plain").to_string(), "plain");
    }
}

fn verdict(report: &Report) -> Value {
    let reason = match (report.verdict, report.top_cause()) {
        (Verdict::Faulty, Some(cause)) => {
            // The share stays in one piece.
            format!("{} ({})", cause.title, percent(cause.probability).replace(' ', "\u{a0}"))
        }
        (Verdict::Faulty, None) => "Something is wrong, and no single cause stands out".to_owned(),
        (Verdict::Healthy, _) => healthy_reason(report),
        (Verdict::Undecided, _) => "The examination could not come to a verdict".to_owned(),
    };
    let mut reason = reason.chars();
    let reason: String = reason.next().into_iter().flat_map(char::to_uppercase).chain(reason).collect();
    json!({ "class": report.verdict.name(), "word": report.verdict.name(), "reason": reason })
}

fn rungs(report: &Report) -> Vec<Value> {
    let percent = |share: f64| (share * 1000.0).round() / 10.0;
    report
        .ladder
        .iter()
        .map(|rung| {
            let mark = match rung.state {
                RungState::Passed => "✓",
                RungState::Failing => "✗",
                RungState::Undecided => "?",
                RungState::Skipped => "–",
            };
            json!({
                "title": rung.title, "state": rung.state, "mark": mark, "rate": rung.rate, "note": rung.note, "cut": rung.cut,
                "low": percent(rung.rate.low), "width": percent(rung.rate.high - rung.rate.low),
                "floor": percent(rung.floor), "observed": percent(rung.rate.observed()),
            })
        })
        .collect()
}

fn headline(divergence: &Divergence) -> Value {
    let headline = match divergence.decision.as_str() {
        "same" => format!("The server computes {}", divergence.witness),
        "different" => format!("The server does not compute {}", divergence.witness),
        "near" => {
            "The server is near the checkpoint, but not as near as the arithmetic that it declares".to_owned()
        }
        "mistaken" => {
            "The server is near the checkpoint, but nearer to a model with a known mistake".to_owned()
        }
        _ => "Not decided".to_owned(),
    };
    let numbers = format!(
        "{} nats a token (95 % interval {} to {}), likeliest token equal or tied at {:.1} % of {} positions; {} of {} prompts",
        nats(divergence.kl.mean),
        nats(divergence.kl.low),
        nats(divergence.kl.high),
        divergence.top1_agreement * 100.0,
        divergence.positions,
        divergence.of,
        divergence.prompts
    );
    let fits: Vec<Value> = divergence
        .hypotheses
        .iter()
        .map(|fit| json!({ "name": fit.name, "outcome": fit.outcome, "shown": nats(fit.kl) }))
        .collect();
    // They come nearest first.
    let (nearest, farther) = fits.split_at(fits.len().min(MOST_HYPOTHESES));
    let explained_by_nothing = divergence.is_explained_by_nothing();
    json!({ "headline": headline, "numbers": numbers, "nearest": nearest, "farther": farther,
            "explained_by_nothing": explained_by_nothing })
}

/// Two significant digits, without `e` where people can read it.
pub(crate) fn nats(value: f64) -> String {
    match value {
        value if value >= 1.0 => format!("{value:.2}"),
        value if value >= 0.001 => format!("{value:.4}"),
        value if value > 0.0 => format!("{value:.1e}"),
        _ => "0".to_owned(),
    }
}

/// The bar chart of the divergence by position, on a logarithmic scale from 1e-6 to 1 nat.
#[derive(Serialize)]
struct Chart {
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    bottom: f64,
    limit: f64,
    limit_text: String,
    ticks: Vec<Value>,
    bars: Vec<Value>,
}

impl Chart {
    #[allow(clippy::cast_precision_loss)] // a dozen bars
    fn new(divergence: &Divergence) -> Chart {
        let (width, height, left, right, top, bottom) = (880.0, 260.0, 70.0, 870.0, 24.0, 212.0);
        let y = |kl: f64| {
            let share = (kl.clamp(1e-6, 1.0).log10() + 6.0) / 6.0;
            ((bottom - share * (bottom - top)) * 10.0_f64).round() / 10.0
        };
        let ticks = [
            (1e-6, "10⁻⁶"),
            (1e-5, "10⁻⁵"),
            (1e-4, "10⁻⁴"),
            (1e-3, "0.001"),
            (1e-2, "0.01"),
            (1e-1, "0.1"),
            (1.0, "1"),
        ];
        let slot = (right - left) / divergence.by_position.len().max(1) as f64;
        let bars = divergence.by_position.iter().enumerate().map(|(number, bin)| {
            let label = if bin.to - bin.from == 1 { bin.from.to_string() } else { format!("{}–{}", bin.from, bin.to - 1) };
            let wide = (slot * 0.62).min(90.0);
            json!({
                "x": ((left + slot * number as f64 + (slot - wide) / 2.0) * 10.0).round() / 10.0, "y": y(bin.kl),
                "width": wide.round(), "height": (bottom - y(bin.kl)).max(1.5), "over": bin.kl > HONEST,
                "label": label, "kl": nats(bin.kl), "positions": bin.positions,
            })
        });
        Chart {
            width,
            height,
            left,
            right,
            bottom,
            limit: y(HONEST),
            limit_text: HONEST.to_string(),
            ticks: ticks.iter().map(|(kl, label)| json!({ "y": y(*kl), "label": label })).collect(),
            bars: bars.collect(),
        }
    }
}

fn checks(report: &Report, skipped: bool) -> Vec<Value> {
    let wanted = report.checks.iter().filter(|check| (check.outcome == CheckOutcome::Skipped) == skipped);
    wanted
        .map(|check| {
            let mark = match check.outcome {
                CheckOutcome::Passed => "✓",
                CheckOutcome::Found => "✗",
                CheckOutcome::Skipped => "–",
                CheckOutcome::Crashed => "!",
            };
            let mut value = serde_json::to_value(check).unwrap_or_default();
            value["mark"] = mark.into();
            value
        })
        .collect()
}

/// Skipped checks, those together that have the same reason, in their order.
fn by_reason(checks: Vec<Value>) -> Vec<Value> {
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for check in checks {
        match groups.iter_mut().find(|(reason, _)| *reason == check["reason"]) {
            Some((_, group)) => group.push(check),
            None => groups.push((check["reason"].clone(), vec![check])),
        }
    }
    groups.into_iter().map(|(reason, checks)| json!({ "reason": reason, "checks": checks })).collect()
}

fn exchanges(report: &Report) -> Vec<Value> {
    report
        .exchanges
        .iter()
        .map(|kept| {
            let exchange = &kept.exchange;
            let pretty = |text: &str| {
                let parsed = serde_json::from_str::<Value>(text).ok();
                parsed.and_then(|value| serde_json::to_string_pretty(&value).ok()).filter(|pretty| pretty.len() < 8_000).unwrap_or_else(|| text.to_owned())
            };
            json!({
                "method": exchange.method, "url": exchange.url, "status": exchange.status.map_or("no answer".to_owned(), |status| status.to_string()),
                "seconds": exchange.seconds, "check": kept.check, "error": exchange.error,
                "request": exchange.request.as_ref().map(|request| pretty(&request.to_string())),
                "body": pretty(&exchange.body), "truncated": exchange.truncated,
            })
        })
        .collect()
}
