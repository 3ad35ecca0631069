//! `lucid serve`: an OpenAI-compatible server on the engine.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use lucid_checkpoint::{Checkpoint, Files};
use lucid_engine::{EngineOptions, LoadFormat};
use lucid_server::{App, Server, ServerOptions};

use crate::arguments::Serve;
use crate::{model, style};

/// Serves until interrupted or terminated.
pub fn run(arguments: &Serve) -> Result<ExitCode> {
    let started = Instant::now();
    let plant = arguments.plant.as_deref().map(model::plant).transpose()?;
    let path = arguments.model.as_deref();
    let name = arguments.served_model_name.clone().unwrap_or_else(|| model::default_name(path));
    let mut options = model::engine_options(&arguments.engine);
    options.progress = Some(show_loading);
    let mut server_options = ServerOptions::new(&name);
    server_options.plant = plant;
    server_options.plant_seed = arguments.plant_seed;
    server_options.return_routed_experts = arguments.enable_return_routed_experts;
    server_options.dev_mode = arguments.server_dev_mode;
    let files = model::files(path)?;
    let root = files.root();
    options.world = model::world(&arguments.engine)?;
    if options.world.as_ref().is_some_and(|world| world.rank > 0) {
        options.semantics.plant = plant.and_then(|plant| plant.engine(arguments.plant_seed));
        return follow(files, &options);
    }

    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    let address = format!("{}:{}", arguments.host, arguments.port);
    let app = App::load(&files, &options, server_options)?;
    let (semantics, memory) = (app.semantics().clone(), app.memory().to_vec());
    runtime.block_on(async {
        let server = Server::bind(&address, app).await?;
        anstream::eprintln!(
            "{} {} from {root} at {} ({:.1} s)",
            style::good("serving"),
            style::heading(&name),
            style::name(format!("http://{}/v1", server.local_addr())),
            started.elapsed().as_secs_f64()
        );
        anstream::eprintln!("{}", style::dim(semantics));
        for (i, (used, total)) in memory.into_iter().enumerate() {
            let line = format!("GPU {i}: {:.1} of {:.1} GB taken", used as f64 / 1e9, total as f64 / 1e9);
            anstream::eprintln!("{}", style::dim(line));
        }
        if let Some(plant) = plant {
            anstream::eprintln!(
                "{} {plant}: the answers are wrong on purpose",
                style::error("planted fault")
            );
        }
        server.run(interrupted()).await;
        Ok(ExitCode::SUCCESS)
    })
}

/// Computes a rank's part for the process that serves.
fn follow(files: Files, options: &EngineOptions) -> Result<ExitCode> {
    let Some(world) = &options.world else { return Ok(ExitCode::SUCCESS) };
    let rank = style::heading(format!("rank {} of {}", world.rank, world.size));
    anstream::eprintln!("{} as {rank} for {}:{}", style::good("computing"), world.host, world.port);
    let checkpoint = match options.load_format {
        LoadFormat::Checkpoint => Checkpoint::open(files)?,
        LoadFormat::Dummy => Checkpoint::without_weights(files)?,
    };
    lucid_engine::follow(&checkpoint, options, world)?;
    Ok(ExitCode::SUCCESS)
}

/// One line that says how far loading is, where somebody looks.
fn show_loading(layers: usize, of: usize) {
    if std::io::stderr().is_terminal() {
        // Standard error may be closed; then nobody misses the line.
        let end = if layers == of { "\r\x1b[K" } else { "" };
        let _ = write!(std::io::stderr(), "\r\x1b[Kloading layer {layers} of {of}{end}");
    } else if layers == of {
        tracing::info!("{of} layers loaded");
    }
}

/// Ends with Ctrl-C or SIGTERM.
async fn interrupted() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
            return;
        }
        Err(error) => tracing::warn!(%error, "SIGTERM will end the server without finishing requests"),
    }
    if let Err(error) = interrupt.await {
        tracing::warn!(%error, "Ctrl-C can't be caught");
        std::future::pending::<()>().await;
    }
}
