//! The shortest program that serves a model: `cargo run -p lucid-server --example serve -- models/canary 127.0.0.1:8000`

use std::path::Path;

use lucid_checkpoint::Files;
use lucid_engine::EngineOptions;
use lucid_server::{App, Server, ServerOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| "models/canary".to_owned());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8000".to_owned());

    let files = Files::open(Path::new(&folder))?;
    let app = App::load(&files, &EngineOptions::default(), ServerOptions::new("canary"))?;
    let server = Server::bind(&address, app).await?;
    eprintln!("http://{}", server.local_addr());
    server.run(async { _ = tokio::signal::ctrl_c().await }).await;
    Ok(())
}
