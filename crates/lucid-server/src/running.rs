//! A server on a thread of its own, for programs that are not asynchronous: the demo, the drill, and tests.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

use crate::{App, Error, Server};

/// A server that runs until it is stopped or dropped.
#[derive(Debug)]
pub struct RunningServer {
    url: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts a server on a thread of its own and returns once it listens.
///
/// # Errors
/// [`Error::Bind`] as [`Server::bind`], [`Error::Threads`] if the operating system refuses a thread.
pub fn spawn(address: &str, app: App) -> Result<RunningServer, Error> {
    let (bound, is_bound) = mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let address = address.to_owned();
    let serve = move || {
        let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
        {
            Ok(runtime) => runtime,
            Err(error) => {
                _ = bound.send(Err(Error::Threads(error)));
                return;
            }
        };
        runtime.block_on(async {
            match Server::bind(&address, app).await {
                Err(error) => _ = bound.send(Err(error)),
                Ok(server) => {
                    _ = bound.send(Ok(server.local_addr()));
                    // A dropped sender is a request to stop, too.
                    server.run(async { _ = stopped.await }).await;
                }
            }
        });
    };
    let thread =
        thread::Builder::new().name("lucid-server".to_owned()).spawn(serve).map_err(Error::Threads)?;
    let address = is_bound.recv().map_err(|_| Error::Panicked)??;
    Ok(RunningServer { url: format!("http://{address}"), stop: Some(stop), thread: Some(thread) })
}

impl RunningServer {
    /// Where the server is, without a path: `http://127.0.0.1:8000`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Stops the server and waits for it: at most the grace time of its limits.
    ///
    /// # Errors
    /// [`Error::Panicked`] if the server's thread panicked.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        drop(self.stop.take());
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|_| Error::Panicked),
            None => Ok(()),
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        if self.end().is_err() {
            tracing::error!("the server's thread ended in a panic");
        }
    }
}
