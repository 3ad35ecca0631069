//! One run: a server with the fault, the doctor on it, and what the doctor said.

use std::time::Duration;

use lucid_checkpoint::Files;
use lucid_doctor::{Depth, Progress, Report, Subject, Verdict, diagnose};
use lucid_engine::{Device, EngineOptions, Mode, SemanticsOptions};
use lucid_server::{App, Error, Plant, RunningServer, ServerOptions, spawn};
use serde::Serialize;

use crate::{Case, Setup};

/// For one answer: long enough for a loaded machine, short enough for answers that never end.
const TIMEOUT: Duration = Duration::from_secs(300);

/// How one run ended.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The case's name.
    pub case: &'static str,
    /// The planted fault, with its place and strength.
    pub fault: Option<String>,
    /// The seed.
    pub seed: u64,
    /// The cause that should be said; `None` for a healthy run.
    pub expected: Option<&'static str>,
    /// The doctor was not made with this fault in mind.
    pub held_out: bool,
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
    /// What each check cost.
    pub by_check: Vec<CheckCost>,
}

/// What one check cost.
#[derive(Clone, Debug, Serialize)]
pub struct CheckCost {
    /// The check.
    pub check: String,
    /// Requests to the server.
    pub requests: u64,
    /// Tokens that the server read and wrote.
    pub tokens: u64,
    /// Seconds.
    pub seconds: f64,
}

impl Outcome {
    /// What was said first: a cause, `unknown` for a faulty verdict without one, or the verdict.
    #[must_use]
    pub fn word(&self) -> &str {
        match (self.verdict, self.said.first()) {
            (Verdict::Faulty, Some((cause, _))) => cause,
            (Verdict::Faulty, None) => "unknown",
            (verdict, _) => verdict.name(),
        }
    }

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

/// Starts a server for `files` on a free port of this machine, with a fault as it is usually made, or without.
///
/// # Errors
/// When the model can't be loaded or the server can't be started.
pub fn serve(files: &Files, model_name: &str, plant: Option<Plant>) -> Result<RunningServer, Error> {
    let mut options = ServerOptions::new(model_name);
    options.plant = plant;
    spawn("127.0.0.1:0", App::load(files, &EngineOptions::default(), options)?)
}

/// Starts the server of a case; place and strength of its fault come from the seed.
fn serve_case(
    files: &Files,
    model_name: &str,
    case: &Case,
    seed: u64,
    place: Place,
) -> Result<(RunningServer, Option<String>), Error> {
    let mut options = ServerOptions::new(model_name);
    (options.plant, options.plant_seed) = (case.plant, Some(seed));
    // A stalled answer would hold up the end of its run.
    options.limits.shutdown_grace = Duration::from_millis(200);
    let app = App::load(
        files,
        &EngineOptions {
            device: place.device,
            ranks: place.ranks,
            ..engine_options(case.setup, place.threads)
        },
        options,
    )?;
    let own = || case.plant.map(|plant| format!("{plant}, variant of seed {seed}"));
    let fault = app.semantics().plant.clone().or_else(own);
    Ok((spawn("127.0.0.1:0", app)?, fault))
}

fn engine_options(setup: Setup, threads: Option<usize>) -> EngineOptions {
    let usual = EngineOptions { threads, ..EngineOptions::default() };
    match setup {
        Setup::Usual => usual,
        Setup::Reference => EngineOptions {
            semantics: SemanticsOptions { mode: Mode::Reference, ..SemanticsOptions::default() },
            ..usual
        },
        Setup::LatentEps => EngineOptions {
            semantics: SemanticsOptions { latent_norm_eps: Some(1e-6), ..SemanticsOptions::default() },
            ..usual
        },
        Setup::SmallSteps => EngineOptions { max_step_tokens: 48, max_running: 4, ..usual },
        Setup::OneThread => EngineOptions { threads: Some(1), ..usual },
        Setup::SmallCache => EngineOptions { kv_cache_tokens: 4_608, ..usual },
    }
}

/// Where the patient runs, and how. The doctor's own engine always runs on the processor.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its device, the first if there are several.
    pub device: Device,
    /// Ranks that share the model.
    pub ranks: usize,
    /// Threads of the server, and of the doctor's own engine; `None` takes the machine's cores. The bits are the same, and on a
    /// crowded machine one thread waits for nobody.
    pub threads: Option<usize>,
}

impl Default for Place {
    fn default() -> Place {
        let EngineOptions { device, ranks, .. } = EngineOptions::default();
        Place { device, ranks, threads: None }
    }
}

/// Runs one case with one seed on the processor.
///
/// # Errors
/// When the server can't be started or stopped.
pub fn run(
    files: &Files,
    model_name: &str,
    case: &Case,
    seed: u64,
    depth: Depth,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Outcome, Report), Error> {
    run_on(Place::default(), files, model_name, case, seed, depth, progress)
}

/// The same somewhere else.
///
/// # Errors
/// As [`run`]; also when the fault can't be planted there.
pub fn run_on(
    place: Place,
    files: &Files,
    model_name: &str,
    case: &Case,
    seed: u64,
    depth: Depth,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Outcome, Report), Error> {
    let (server, fault) = serve_case(files, model_name, case, seed, place)?;
    let subject = Subject {
        endpoint: Some(server.url().to_owned()),
        checkpoint: Some(files.clone()),
        seed,
        depth,
        timeout: TIMEOUT,
        threads: place.threads,
        ..Subject::default()
    };
    let report = diagnose(subject, progress);
    server.stop()?;
    let by_check = report.checks.iter().map(|check| CheckCost {
        check: check.id.clone(),
        requests: check.cost.requests,
        tokens: check.cost.tokens(),
        seconds: check.seconds,
    });
    let outcome = Outcome {
        case: case.name,
        fault,
        held_out: case.held_out,
        by_check: by_check.collect(),
        seed,
        expected: case.cause,
        verdict: report.verdict,
        said: report.causes.iter().map(|cause| (cause.id.clone(), cause.probability)).collect(),
        tokens: report.cost.tokens(),
        requests: report.cost.requests,
        seconds: report.seconds,
    };
    Ok((outcome, report))
}
