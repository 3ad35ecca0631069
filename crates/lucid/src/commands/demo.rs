//! `lucid demo`: the whole thing in a minute on the bundled canary.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use lucid_client::{ChatRequest, Endpoint, EndpointOptions, Message};
use lucid_doctor::{Progress, Report, Subject, Verdict, diagnose};
use lucid_server::Plant;

use super::chat::AnswerPrinter;
use super::doctor::{print_report, write_html};
use crate::arguments::Demo;
use crate::progress::ProgressLine;
use crate::{bundled, model, style};

/// What the healthy server is asked.
const QUESTIONS: [&str; 3] = [
    "What is the capital of France? Answer in one sentence.",
    "Write a Python function that checks if a number is prime. Be concise.",
    "What is 47 + 85?",
];

/// Serves, asks, diagnoses, plants a fault, finds it, writes the report.
pub fn run(arguments: &Demo) -> Result<ExitCode> {
    let started = Instant::now();
    let plant = model::plant(&arguments.plant)?;
    let Some(case) = lucid_drill::find(plant.name()) else {
        bail!("{plant} is not in the drill's catalogue");
    };

    step(1, "Serve a real, small DeepSeek-V3 model from its NVFP4 checkpoint, on this processor");
    let clock = Instant::now();
    let healthy = lucid_drill::serve(&bundled::canary(), bundled::NAME, None)?;
    anstream::println!(
        "{} {} {}",
        style::name(format!("{}/v1", healthy.url())),
        style::good("is up"),
        style::dim(format!("after {:.2} s (yours: lucid serve)", clock.elapsed().as_secs_f64()))
    );

    step(2, "Ask it (reasoning in grey, the answer below it)");
    let endpoint = Endpoint::connect(healthy.url(), EndpointOptions::default())?;
    for question in QUESTIONS {
        ask(&endpoint, question)?;
    }

    step(
        3,
        "Diagnose it: probes, and every distribution compared with the reference engine on the same file",
    );
    let report = examine(healthy.url(), None)?;
    verdict(&report);
    healthy.stop()?;
    if report.verdict != Verdict::Healthy {
        print_report(&report);
        bail!("the healthy server was not called healthy: please report this");
    }

    step(4, &format!("Plant a fault: {} ({})", style::name(plant), case.about));
    let broken = lucid_drill::serve(&bundled::canary(), bundled::NAME, Some(plant))?;
    let endpoint = Endpoint::connect(broken.url(), EndpointOptions::default())?;
    ask(&endpoint, QUESTIONS[0])?;

    step(5, "Let the doctor find it, without telling it");
    let report = examine(broken.url(), Some(plant))?;
    broken.stop()?;
    print_report(&report);
    write_html(&report, &arguments.html)?;

    let said = report.top_cause().map(|cause| cause.id.as_str());
    let found = said == case.cause;
    anstream::println!();
    anstream::println!(
        "{} planted {}, the doctor says {}",
        if found { style::good("✓") } else { style::error("✗") },
        style::name(plant),
        said.map_or_else(|| "nothing certain".to_owned(), |cause| style::name(cause).to_string())
    );
    anstream::println!(
        "report: {}   {}",
        style::name(arguments.html.display()),
        style::dim(format!("{:.0} s in all", started.elapsed().as_secs_f64()))
    );
    Ok(ExitCode::from(u8::from(!found)))
}

fn step(number: usize, text: &str) {
    anstream::println!();
    anstream::println!("{} {}", style::heading(format!("{number}.")), style::heading(text));
}

fn ask(endpoint: &Endpoint, question: &str) -> Result<()> {
    anstream::println!("{} {question}", style::name("›"));
    let mut request = ChatRequest::new(vec![Message::user(question)]);
    request.temperature = Some(0.0);
    // A broken model may never stop by itself.
    request.max_tokens = Some(160);
    let mut printer = AnswerPrinter::default();
    let reply = endpoint.chat_stream(&request, |delta| printer.print(delta));
    printer.end();
    let streamed = reply.outcome.context("the server did not answer")?;
    match streamed.error {
        // A planted fault may break an answer; that is what the doctor is for.
        Some(error) => anstream::println!("{}", style::dim(format!("(the server broke off: {error})"))),
        None if streamed.answer.finish_reason() == Some("length") => {
            anstream::println!("{}", style::dim("(cut after 160 tokens)"));
        }
        None => {}
    }
    Ok(())
}

fn examine(url: &str, plant: Option<Plant>) -> Result<Report> {
    let checkpoint = Some(bundled::canary());
    let subject = Subject { endpoint: Some(url.to_owned()), checkpoint, ..Subject::default() };
    let mut line = ProgressLine::new();
    let mut crashed = None;
    let report = diagnose(subject, &mut |progress| {
        if let Progress::Finished { check, outcome: lucid_doctor::CheckOutcome::Crashed } = &progress {
            crashed = Some(*check);
        }
        line.show(&progress);
    });
    line.clear();
    if let Some(check) = crashed {
        let where_ = plant.map_or_else(|| "the healthy server".to_owned(), |plant| plant.to_string());
        bail!("the check {check} broke down on {where_}: please report this");
    }
    Ok(report)
}

fn verdict(report: &Report) {
    let text = report.verdict.name();
    let text = if report.verdict == Verdict::Healthy { style::good(text) } else { style::error(text) };
    let tokens = report.cost.prompt_tokens + report.cost.completion_tokens;
    let cost = format!("{} requests, {tokens} tokens, {:.1} s", report.cost.requests, report.seconds);
    anstream::println!("{text} {}", style::dim(cost));
    for check in &report.checks {
        anstream::println!("  {:<24} {}", check.id, style::dim(&check.covered));
    }
}
