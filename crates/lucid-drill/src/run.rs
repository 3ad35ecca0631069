//! One run: a server with the fault, the doctor on it, and what the doctor said.

use lucid_checkpoint::Files;
use lucid_doctor::{Progress, Report, Subject, Verdict, diagnose};
use lucid_engine::EngineOptions;
use lucid_server::{App, Error, Plant, RunningServer, ServerOptions, spawn};
use serde::Serialize;

use crate::Case;

/// How one run ended.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The case's name.
    pub case: &'static str,
    /// The seed.
    pub seed: u64,
    /// The cause that should be said; `None` for a healthy run.
    pub expected: Option<&'static str>,
    /// The doctor's verdict.
    pub verdict: Verdict,
    /// The causes that it named, best first, with their probabilities.
    pub said: Vec<(String, f64)>,
    /// Tokens that the server read and wrote for it.
    pub tokens: u64,
    /// Requests that the server answered for it.
    pub requests: u64,
    /// Seconds from the first question to the report.
    pub seconds: f64,
}

impl Outcome {
    /// A fault whose cause is the first named of a faulty verdict, or a healthy run that was called healthy.
    #[must_use]
    pub fn is_right(&self) -> bool {
        match self.expected {
            None => self.verdict == Verdict::Healthy,
            Some(cause) => {
                self.verdict == Verdict::Faulty && self.said.first().is_some_and(|(said, _)| said == cause)
            }
        }
    }

    /// The right cause is among the first three of a faulty verdict.
    #[must_use]
    pub fn is_among_three(&self) -> bool {
        match self.expected {
            None => self.is_right(),
            Some(cause) => {
                self.verdict == Verdict::Faulty && self.said.iter().take(3).any(|(said, _)| said == cause)
            }
        }
    }

    /// A healthy run that was called faulty.
    #[must_use]
    pub fn is_false_alarm(&self) -> bool {
        self.expected.is_none() && self.verdict == Verdict::Faulty
    }
}

/// Starts a server for `files` on a free port of this machine, with a fault or without.
///
/// # Errors
/// When the model can't be loaded or the server can't be started.
pub fn serve(files: &Files, model_name: &str, plant: Option<Plant>) -> Result<RunningServer, Error> {
    let mut options = ServerOptions::new(model_name);
    options.plant = plant;
    spawn("127.0.0.1:0", App::load(files, &EngineOptions::default(), options)?)
}

/// Runs one case with one seed.
///
/// # Errors
/// When the server can't be started or stopped.
pub fn run(
    files: &Files,
    model_name: &str,
    case: &Case,
    seed: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Outcome, Report), Error> {
    let server = serve(files, model_name, case.plant)?;
    let subject = Subject {
        endpoint: Some(server.url().to_owned()),
        checkpoint: Some(files.clone()),
        seed,
        ..Subject::default()
    };
    let report = diagnose(subject, progress);
    server.stop()?;
    let outcome = Outcome {
        case: case.name,
        seed,
        expected: case.cause,
        verdict: report.verdict,
        said: report.causes.iter().map(|cause| (cause.id.clone(), cause.probability)).collect(),
        tokens: report.cost.prompt_tokens + report.cost.completion_tokens,
        requests: report.cost.requests,
        seconds: report.seconds,
    };
    Ok((outcome, report))
}
