//! The report for a terminal: verdict first, then why, then what to do.

use std::fmt::Write;

use lucid_logs::{PhaseKind, Timeline, spoken};

use super::html::nats;
use super::{Cause, CheckOutcome, Finding, Report, Severity, Verdict, percent};
use crate::evidence::{Divergence, RungScore, RungState};

/// How to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    color: bool,
    width: usize,
}

impl Style {
    /// Without colour.
    #[must_use]
    pub fn plain(width: usize) -> Style {
        Style { color: false, width: width.clamp(60, 120) }
    }

    /// With colour if `is_terminal`, unless the environment variable `NO_COLOR` is set to something (no-color.org).
    #[must_use]
    pub fn detect(is_terminal: bool, width: usize) -> Style {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Style { color: is_terminal && !no_color, ..Style::plain(width) }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.color { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }
}

/// Hypotheses that are listed, the nearest first.
pub(super) const MOST_HYPOTHESES: usize = 6;

const GREEN: &str = "1;32";
const RED: &str = "1;31";
const YELLOW: &str = "1;33";

/// The report as text. Texts from outside lose their control characters, so that they can't steer the terminal.
#[must_use]
pub fn render(report: &Report, style: &Style) -> String {
    let mut page = Page { text: String::new(), style: *style };
    page.verdict(report);
    page.causes(report);
    page.findings(report);
    page.ladder(&report.ladder);
    if let Some(divergence) = &report.divergence {
        page.divergence(divergence);
    }
    if let Some(timeline) = &report.timeline {
        page.timeline(timeline);
    }
    page.checks(report);
    page.cost(report);
    page.text
}

struct Page {
    text: String,
    style: Style,
}

impl Page {
    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn heading(&mut self, text: &str) {
        self.line("");
        let heading = self.style.bold(text);
        self.line(&heading);
    }

    /// Writes `text` wrapped, with `first` before the first line and as many spaces before the others.
    fn wrapped(&mut self, first: &str, text: &str) {
        let indent = first.chars().count();
        for (number, line) in wrap(&clean(text), self.style.width.saturating_sub(indent)).iter().enumerate() {
            let start = if number == 0 { first.to_owned() } else { " ".repeat(indent) };
            self.line(&format!("{start}{line}"));
        }
    }

    fn verdict(&mut self, report: &Report) {
        let style = self.style;
        let (mark, color, text) = match report.verdict {
            Verdict::Healthy => ("\u{2713}", GREEN, "HEALTHY".to_owned()),
            Verdict::Faulty => ("\u{2717}", RED, "FAULTY".to_owned()),
            Verdict::Undecided => ("?", YELLOW, "UNDECIDED".to_owned()),
        };
        let reason = match (report.verdict, report.top_cause()) {
            (Verdict::Faulty, Some(cause)) => format!("{} ({})", cause.title, percent(cause.probability)),
            (Verdict::Faulty, None) => "something is wrong, and no single cause stands out".to_owned(),
            (Verdict::Healthy, _) => healthy_reason(report),
            (Verdict::Undecided, _) => "the examination could not come to a verdict".to_owned(),
        };
        self.line(&format!(
            "{}  {}",
            style.paint(color, &format!("{mark} {text}")),
            style.bold(&clean(&reason))
        ));
        let mut subject = Vec::new();
        if let Some(endpoint) = &report.subject.endpoint {
            let server = report.subject.server.as_ref().map(|server| {
                let version =
                    server.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
                format!(" ({}{version}, model {})", server.dialect.name(), server.model)
            });
            subject.push(format!("{endpoint}{}", server.unwrap_or_default()));
        }
        subject.extend(report.subject.checkpoint.clone());
        let machine = [&report.subject.env, &report.subject.log, &report.subject.host];
        let lines = [subject.join("  against  ")].into_iter().chain(machine.into_iter().flatten().cloned());
        for line in lines.filter(|line| !line.is_empty()) {
            let line = style.dim(&clean(&line));
            self.line(&format!("  {line}"));
        }
        for obstacle in &report.obstacles {
            self.wrapped("  ! ", obstacle);
        }
    }

    fn causes(&mut self, report: &Report) {
        if report.causes.is_empty() {
            if report.verdict == Verdict::Faulty {
                self.heading("Cause");
                self.wrapped(
                    "  ",
                    "No cause is known for these findings. Nothing is accused without evidence.",
                );
            }
            return;
        }
        let benign = report.causes.iter().all(|cause| cause.benign);
        self.heading(if benign { "What explains it, with nothing wrong" } else { "Likely causes" });
        let likely = report
            .causes
            .iter()
            .enumerate()
            .filter(|(number, cause)| *number == 0 || (cause.probability >= 0.02 && !cause.also));
        for (number, cause) in likely.take(4) {
            self.cause(number + 1, cause);
        }
        self.line(&format!("  {:>6}  something else", percent(report.something_else)));
        // What the symptom could be as well, and what clears it.
        let unlikely: Vec<&Cause> =
            report.causes.iter().skip(1).filter(|cause| cause.probability < 0.02 && !cause.also).collect();
        let (cleared, open): (Vec<&Cause>, Vec<&Cause>) =
            unlikely.into_iter().partition(|cause| !cause.against.is_empty());
        let (open, weak): (Vec<&Cause>, Vec<&Cause>) =
            open.into_iter().partition(|cause| cause.supported_by.is_empty());
        for (what, causes) in
            [("argued against: ", cleared), ("too little speaks for: ", weak), ("nothing speaks for: ", open)]
        {
            if !causes.is_empty() {
                let names: Vec<&str> = causes.iter().map(|cause| cause.id.as_str()).collect();
                self.wrapped(&format!("          {what}"), &names.join(", "));
            }
        }
        if let Some(cause) = report.causes.first() {
            self.line("");
            self.wrapped("  What to do: ", &cause.remedy.text);
            self.commands(&cause.remedy.commands);
            self.wrapped("  Next test:  ", &cause.next_test);
        }
        for cause in report.causes.iter().filter(|cause| cause.also) {
            self.line("");
            let title = self.style.bold(&cause.title);
            self.line(&format!("  Also wrong: {title}  {}", self.style.dim(&cause.id)));
            self.wrapped("              for      ", &cause.supported_by.join(", "));
            self.wrapped("  What to do: ", &cause.remedy.text);
            self.commands(&cause.remedy.commands);
        }
    }

    fn commands(&mut self, commands: &[String]) {
        for command in commands {
            let command = self.style.paint("36", &clean(command));
            self.line(&format!("    $ {command}"));
        }
    }

    fn cause(&mut self, number: usize, cause: &Cause) {
        let share = format!("{:>6}", percent(cause.probability));
        let title = if number == 1 { self.style.bold(&cause.title) } else { cause.title.clone() };
        let id = self.style.dim(&cause.id);
        self.line(&format!("  {share}  {title}  {id}"));
        for (name, ids) in [("for", &cause.supported_by), ("against", &cause.against)] {
            if !ids.is_empty() {
                self.wrapped(&format!("          {name:<8} "), &ids.join(", "));
            }
        }
    }

    fn findings(&mut self, report: &Report) {
        let shown: Vec<&Finding> =
            report.findings.iter().filter(|finding| finding.severity > Severity::Info).collect();
        if shown.is_empty() {
            return;
        }
        self.heading("Findings");
        for finding in shown {
            let (word, color) =
                if finding.severity == Severity::Error { ("error  ", RED) } else { ("warning", YELLOW) };
            let id = self.style.dim(&finding.id);
            let word = self.style.paint(color, word);
            self.line(&format!("  {word}  {}  {id}", clean(&finding.title)));
            if !finding.detail.is_empty() {
                self.wrapped("           ", &finding.detail);
            }
            for proof in &finding.evidence {
                let kind = format!("{:?}", proof.kind).to_lowercase();
                if proof.text.contains('\n') {
                    self.wrapped("           \u{2022} ", &format!("{kind} {}:", proof.place));
                    self.quoted(&proof.text);
                } else {
                    self.wrapped("           \u{2022} ", &format!("{kind} {}: {}", proof.place, proof.text));
                }
            }
            if finding.active == Some(false) {
                self.wrapped("           ", "(not on the path that this model takes)");
            }
        }
    }

    /// A diff or a traceback: as it is, its beginning.
    fn quoted(&mut self, text: &str) {
        const MOST: usize = 14;
        let width = self.style.width.saturating_sub(15);
        for line in text.lines().take(MOST) {
            let line: String = clean(&line.replace('\t', "    ")).chars().take(width).collect();
            let line = self.style.dim(&line);
            self.line(&format!("               {line}"));
        }
        let more = text.lines().count().saturating_sub(MOST);
        if more > 0 {
            self.line(&format!("               … {more} more lines with --html or --json"));
        }
    }

    fn ladder(&mut self, rungs: &[RungScore]) {
        if rungs.is_empty() {
            return;
        }
        self.heading("Ladder");
        for rung in rungs {
            let (mark, color) = match rung.state {
                RungState::Passed => ("\u{2713}", GREEN),
                RungState::Failing => ("\u{2717}", RED),
                RungState::Undecided => ("?", YELLOW),
                RungState::Skipped => ("\u{2013}", "2"),
            };
            let mark = self.style.paint(color, mark);
            if rung.state == RungState::Skipped {
                self.line(&format!(
                    "  {mark} {:<30} {}",
                    rung.title,
                    clean(rung.note.as_deref().unwrap_or_default())
                ));
                continue;
            }
            let rate = &rung.rate;
            let cut = if rung.cut > 0 { format!("  {} cut", rung.cut) } else { String::new() };
            let unjudged =
                if rung.unjudged > 0 { format!("  {} not judged", rung.unjudged) } else { String::new() };
            self.line(&format!(
                "  {mark} {:<30} {}  {:>2}/{:<2}  {:>3.0}\u{2013}{:<3.0}%{cut}{unjudged}",
                rung.title,
                bar(rate.observed(), rung.floor),
                rate.passed,
                rate.trials,
                rate.low * 100.0,
                rate.high * 100.0
            ));
        }
        let legend = self.style.dim("    \u{2588} right answers, \u{2502} what a healthy model reaches at least, then the 95 % Wilson interval");
        self.line(&legend);
    }

    fn divergence(&mut self, divergence: &Divergence) {
        self.heading("Against the reference");
        self.line(&format!(
            "  {} nats a token ({} to {}), likeliest token equal or tied at {:.1} % of {} positions: {}",
            nats(divergence.kl.mean),
            nats(divergence.kl.low),
            nats(divergence.kl.high),
            divergence.top1_agreement * 100.0,
            divergence.positions,
            self.style.bold(&divergence.decision)
        ));
        let most = divergence.by_position.iter().map(|bin| bin.kl).fold(0.0, f64::max);
        let marks =
            ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0..=7
        let line: String = divergence
            .by_position
            .iter()
            .map(|bin| {
                marks
                    .get(if most > 0.0 { (bin.kl / most * 7.0).round() as usize } else { 0 })
                    .copied()
                    .unwrap_or('\u{2588}')
            })
            .collect();
        if let (Some(first), Some(last)) = (divergence.by_position.first(), divergence.by_position.last()) {
            self.line(&format!(
                "  by position {}\u{2026}{}  {line}  highest {}",
                first.from,
                last.to - 1,
                nats(most)
            ));
        }
        let (shown, more) = divergence.hypotheses.split_at(divergence.hypotheses.len().min(MOST_HYPOTHESES));
        for fit in shown {
            self.line(&format!(
                "  if the server computed with {:<32} {:>8} nats: {}",
                fit.name,
                nats(fit.kl),
                fit.outcome
            ));
        }
        if !more.is_empty() {
            self.line(&format!("  {} other hypotheses are farther away", more.len()));
        }
        if divergence.is_explained_by_nothing() {
            self.line("  none of them explains the server better than rounding does");
        }
        self.wrapped("  reference: ", &divergence.semantics);
    }

    fn timeline(&mut self, timeline: &Timeline) {
        if timeline.runs.is_empty() {
            return;
        }
        self.heading("Time line");
        for run in super::timeline::shown(timeline) {
            let parts: Vec<String> = super::timeline::stretches(timeline, run.number)
                .iter()
                .filter(|part| part.kind != PhaseKind::Crash && part.kind != PhaseKind::Shutdown)
                .map(|part| match part.seconds {
                    Some(seconds) => format!("{} {}", part.kind, spoken(seconds)),
                    None => part.kind.to_string(),
                })
                .collect();
            let start = run.first.time.map(|time| format!("{time}  ")).unwrap_or_default();
            let phases =
                if parts.is_empty() { String::new() } else { format!("{}: ", parts.join(" \u{2192} ")) };
            self.wrapped(
                &format!("  run {:<3} {start}", run.number + 1),
                &format!("{phases}{}", super::timeline::ending(run)),
            );
        }
    }

    fn checks(&mut self, report: &Report) {
        self.heading("What was checked");
        for check in report.checks.iter().filter(|check| check.outcome != CheckOutcome::Skipped) {
            let (mark, color) = match check.outcome {
                CheckOutcome::Passed => ("\u{2713}", GREEN),
                CheckOutcome::Found => ("\u{2717}", RED),
                CheckOutcome::Crashed | CheckOutcome::Skipped => ("!", YELLOW),
            };
            let mark = self.style.paint(color, mark);
            let text = check.reason.as_deref().unwrap_or(&check.covered);
            self.line(&format!("  {mark} {:<25} {:>6.1} s  {}", check.id, check.seconds, clean(text)));
        }
        let skipped: Vec<_> =
            report.checks.iter().filter(|check| check.outcome == CheckOutcome::Skipped).collect();
        if !skipped.is_empty() {
            self.heading("What was not checked");
            let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
            for check in skipped {
                let reason = check.reason.as_deref().unwrap_or_default();
                match reasons.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, checks)) => checks.push(&check.id),
                    None => reasons.push((reason, vec![&check.id])),
                }
            }
            for (reason, checks) in reasons {
                self.wrapped("  \u{2013} ", &format!("{}: {reason}", checks.join(", ")));
            }
        }
    }

    fn cost(&mut self, report: &Report) {
        let cost = &report.cost;
        let text = format!(
            "{} requests, {} prompt and {} generated tokens, {:.1} s",
            cost.requests, cost.prompt_tokens, cost.completion_tokens, report.seconds
        );
        let text = self.style.dim(&text);
        let _ = write!(self.text, "\n{text}\n");
    }
}

/// What "healthy" rests on.
pub(super) fn healthy_reason(report: &Report) -> String {
    if report.subject.endpoint.is_none() {
        let warned = report.findings.iter().any(|finding| finding.severity == Severity::Warning);
        return if warned {
            "nothing that was examined is wrong; see the warnings".to_owned()
        } else {
            "nothing that was examined is wrong".to_owned()
        };
    }
    let agrees = report.findings.iter().any(|finding| finding.id == "reference.logprobs/agrees");
    let warned = report.findings.iter().any(|finding| finding.severity == Severity::Warning);
    let reason = match report.divergence.as_ref().filter(|_| agrees) {
        Some(divergence) => format!("the server computes {}", divergence.witness),
        None if warned => "the model answers as it should".to_owned(),
        None => "the model answers as it should, as far as it was asked".to_owned(),
    };
    if warned { format!("{reason}; see the warnings") } else { reason }
}

/// `████████│··` in ten cells: the rate, and the floor as a mark.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // rates in 0..=1
fn bar(rate: f64, floor: f64) -> String {
    let (filled, mark) = ((rate * 20.0).round() as usize, (floor * 20.0).round() as usize);
    (0..20)
        .map(|cell| {
            if cell == mark {
                '\u{2502}'
            } else if cell < filled {
                '\u{2588}'
            } else {
                '\u{b7}'
            }
        })
        .collect()
}

/// Texts from servers and models, without control characters.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut length = 0;
    for word in text.split_whitespace() {
        let word_length = word.chars().count();
        if length > 0 && length + 1 + word_length > width {
            lines.push(String::new());
            length = 0;
        }
        let Some(line) = lines.last_mut() else { break };
        if length > 0 {
            line.push(' ');
            length += 1;
        }
        line.push_str(word);
        length += word_length;
    }
    lines
}
