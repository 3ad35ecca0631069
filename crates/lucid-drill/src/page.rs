//! The drill's result as one self-contained page: no script, no network.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::Score;
use crate::score::rate;

const STYLE: &str = "
:root { color-scheme: light dark; --paper: #f7f7f5; --card: #fff; --ink: #1d2126; --soft: #5c6470; --line: #e1e3e0; --good: #1a7f4b; --bad: #c0322b; --accent: 47, 95, 196; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --card: #1c2026; --ink: #e7e9ec; --soft: #9aa3af; --line: #2d333b; --good: #4cc38a; --bad: #ff7b72; --accent: 134, 169, 245; } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.05rem; margin-top: 2.2rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .8rem; padding: 1rem 1.2rem; overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; } td, th { text-align: left; padding: .25rem .7rem .25rem 0; }
th { color: var(--soft); font-weight: 600; } .n { text-align: right; font-variant-numeric: tabular-nums; }
.right { color: var(--good); } .wrong { color: var(--bad); } .soft { color: var(--soft); }
.matrix td, .matrix th { padding: .2rem .35rem; border: 1px solid var(--line); text-align: center; font-size: .8rem; }
.matrix th.up { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; } .matrix th.row { text-align: right; }
.matrix td.diagonal { outline: 2px solid var(--good); outline-offset: -2px; }
";

/// The page.
#[must_use]
pub fn html(score: &Score) -> String {
    let mut page = String::new();
    let body = Page { score };
    // Writing to a String can't fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>Lucid drill</title>\n<style>{STYLE}</style>\n</head>\n<body><main>\n<h1>Drill</h1>\n{}{}{}</main></body>\n</html>\n",
        body.summary(),
        body.matrix(),
        body.runs()
    );
    page
}

struct Page<'a> {
    score: &'a Score,
}

impl Page<'_> {
    fn summary(&self) -> String {
        let score = self.score;
        let mut rows = String::new();
        let calibration = score.calibration.iter().map(|bin| {
            (format!("right, of those said with about {:.0} %", 100.0 * bin.said), rate(&bin.right))
        });
        let lines = [
            ("faults called faulty".to_owned(), rate(&score.found)),
            ("right cause first".to_owned(), rate(&score.top_1)),
            ("among the first three".to_owned(), rate(&score.top_3)),
            ("known faults, right cause first".to_owned(), rate(&score.known)),
            ("held-out faults, right cause first".to_owned(), rate(&score.held_out)),
            ("healthy runs called faulty".to_owned(), rate(&score.false_alarms)),
        ];
        let median = format!(
            "{} requests, {} tokens, {:.1} s",
            score.median_requests, score.median_tokens, score.median_seconds
        );
        for (name, value) in
            lines.into_iter().chain(calibration).chain([("median of a run".to_owned(), median)])
        {
            let _ = writeln!(rows, "<tr><th>{}</th><td>{}</td></tr>", escaped(&name), escaped(&value));
        }
        format!("<section class=\"card\"><table>\n{rows}</table></section>\n")
    }

    /// Rows: what should be said. Columns: what was said first.
    fn matrix(&self) -> String {
        let confusion = &self.score.confusion;
        let expected: BTreeSet<&str> = confusion.iter().map(|cell| cell.expected.as_str()).collect();
        let said: BTreeSet<&str> =
            confusion.iter().map(|cell| cell.said.as_str()).chain(expected.iter().copied()).collect();
        let mut text = String::from(
            "<h2>Confusion</h2>\n<section class=\"card\"><table class=\"matrix\">\n<tr><th class=\"soft\">should say ↓ said →</th>",
        );
        for said in &said {
            let _ = write!(text, "<th class=\"up\">{}</th>", escaped(said));
        }
        text.push_str("</tr>\n");
        for expected in &expected {
            let of = |said: &str| {
                confusion
                    .iter()
                    .find(|cell| cell.expected == *expected && cell.said == said)
                    .map_or(0, |cell| cell.runs)
            };
            let all: u64 = said.iter().map(|said| of(said)).sum();
            let _ = write!(text, "<tr><th class=\"row\">{}</th>", escaped(expected));
            for said in &said {
                let runs = of(said);
                let share = runs as f64 / all.max(1) as f64;
                let class = if said == expected { " class=\"diagonal\"" } else { "" };
                let shown = if runs == 0 { String::new() } else { runs.to_string() };
                let _ = write!(
                    text,
                    "<td{class} style=\"background: rgba(var(--accent), {share:.2})\">{shown}</td>"
                );
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</table></section>\n");
        text
    }

    fn runs(&self) -> String {
        let mut text = String::from(
            "<h2>Runs</h2>\n<section class=\"card\"><table>\n<tr><th></th><th>case</th><th>fault</th><th>should say</th><th>said</th><th class=\"n\">requests</th><th class=\"n\">tokens</th><th class=\"n\">s</th></tr>\n",
        );
        for outcome in &self.score.outcomes {
            let (class, mark) = if outcome.is_right() { ("right", "✓") } else { ("wrong", "✗") };
            let said = match (outcome.is_accused(), outcome.said.as_slice()) {
                (true, said @ [_, ..]) => said
                    .iter()
                    .take(3)
                    .map(|(cause, probability)| format!("{cause} {:.0} %", 100.0 * probability))
                    .collect::<Vec<_>>()
                    .join(", "),
                _ => outcome.word().to_owned(),
            };
            let _ = writeln!(
                text,
                "<tr><td class=\"{class}\">{mark}</td><td>{}{}</td><td class=\"soft\">{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{:.1}</td></tr>",
                escaped(&outcome.case),
                if outcome.held_out { " <span class=\"soft\">held out</span>" } else { "" },
                escaped(outcome.fault.as_deref().unwrap_or("–")),
                escaped(outcome.expected.as_deref().unwrap_or("healthy")),
                escaped(&said),
                outcome.requests,
                outcome.tokens,
                outcome.seconds
            );
        }
        text.push_str("</table></section>\n");
        text
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use lucid_doctor::Verdict;

    use super::*;
    use crate::score::tests::outcome;

    #[test]
    fn the_page_stands_alone_and_says_it_all() {
        let page = html(&Score::of(vec![
            outcome(Some("rope-scaling"), Verdict::Faulty, &["rope-scaling"]),
            outcome(Some("rope-scaling"), Verdict::Faulty, &["<b>"]),
            outcome(None, Verdict::Healthy, &[]),
        ]));
        assert!(page.contains("1 of 2") && page.contains("&lt;b&gt;") && !page.contains("<b>"), "{page}");
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("<script"));
        assert_eq!(page.matches("class=\"diagonal\"").count(), 2);
    }
}
