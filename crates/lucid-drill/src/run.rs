//! One run: a server with the fault, the doctor on it, and what the doctor said.

use std::time::Duration;

use lucid_checkpoint::Files;
use lucid_doctor::{Depth, Progress, Report, Subject, diagnose};
use lucid_engine::{Device, EngineOptions, Mode, SemanticsOptions};
use lucid_server::{App, Error, Guise, Plant, RunningServer, ServerOptions, spawn};

use crate::{Case, Outcome, Setup, machine};

/// For one answer: long enough for a loaded machine, short enough for answers that never end.
const TIMEOUT: Duration = Duration::from_secs(300);

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
    run: Run,
    place: Place,
) -> Result<(RunningServer, Option<String>), Error> {
    let mut options = ServerOptions::new(model_name);
    let seed = run.seed;
    (options.plant, options.plant_seed) = (case.plant, Some(seed));
    options.guise = surface(case, run);
    (options.return_routed_experts, options.dev_mode) = (true, true);
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

/// Whose surface the server wears.
pub(crate) fn surface(case: &Case, run: Run) -> Option<Guise> {
    match case.setup {
        Setup::As(guise) => Some(guise),
        _ => run.guise,
    }
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
        Setup::SmallSteps => EngineOptions { max_step_tokens: Some(48), max_running: 4, ..usual },
        Setup::OneThread => EngineOptions { threads: Some(1), ..usual },
        Setup::As(_) => usual,
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

/// How a case is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Draws place and strength of the fault, and the doctor's questions.
    pub seed: u64,
    /// How much the examination may cost.
    pub depth: Depth,
    /// The doctor must not know the mistake: it isn't tried as a hypothesis.
    pub forget: bool,
    /// The test that the first cause names is run where that leaves a doubt.
    pub deep: bool,
    /// What the server tells is reduced to what another one tells. A case that has a surface of its own keeps it.
    pub guise: Option<Guise>,
}

impl Run {
    /// What the run is called in outcomes.
    #[must_use]
    pub fn label(self, case: &Case) -> String {
        let (unknown, deep) =
            (if self.forget { " (unknown)" } else { "" }, if self.deep { " (deep)" } else { "" });
        let guise = self.guise.map_or_else(String::new, |guise| format!(" (as {})", guise.name()));
        format!("{}{unknown}{deep}{guise}", case.name)
    }
}

/// Why a case could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The server can't be started or stopped, or the fault can't be planted there.
    #[error(transparent)]
    Server(#[from] Error),
    /// The machine's files can't be written.
    #[error("cannot make the machine: {0}")]
    Machine(#[from] std::io::Error),
}

/// Runs one case on the processor.
///
/// # Errors
/// See [`RunError`].
pub fn run(
    files: &Files,
    model_name: &str,
    case: &Case,
    run: Run,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Outcome, Report), RunError> {
    run_on(Place::default(), files, model_name, case, run, progress)
}

/// The same somewhere else.
///
/// # Errors
/// See [`RunError`].
pub fn run_on(
    place: Place,
    files: &Files,
    model_name: &str,
    case: &Case,
    run: Run,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Outcome, Report), RunError> {
    if let Some(machine) = case.machine {
        let (fault, report) = machine::examine(machine, files, run.seed, run.depth, progress)?;
        return Ok((Outcome::of(case, run, fault, &report), report));
    }
    let (server, fault) = serve_case(files, model_name, case, run, place)?;
    let subject = Subject {
        endpoint: Some(server.url().to_owned()),
        checkpoint: Some(files.clone()),
        seed: run.seed,
        depth: run.depth,
        timeout: TIMEOUT,
        threads: place.threads,
        deep: run.deep,
        unknown: case.plant.filter(|_| run.forget).map(|plant| plant.name().to_owned()).into_iter().collect(),
        ..Subject::default()
    };
    let report = diagnose(subject, progress);
    server.stop()?;
    Ok((Outcome::of(case, run, fault, &report), report))
}
