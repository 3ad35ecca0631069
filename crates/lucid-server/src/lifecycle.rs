//! A server's life: listen, serve within bounds, stop within a bound.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::{App, Error, routes};

/// A server that listens.
pub struct Server {
    app: App,
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens on an address like `127.0.0.1:8000`; port 0 takes a free one.
    ///
    /// # Errors
    /// [`Error::Bind`] if the address is in use, not permitted, or not one of this machine's.
    pub async fn bind(address: &str, app: App) -> Result<Server, Error> {
        let error = |source| Error::bind(address, source);
        let listener = TcpListener::bind(address).await.map_err(error)?;
        let address = listener.local_addr().map_err(error)?;
        Ok(Server { app, listener, address })
    }

    /// The address that the server really has.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` completes. Then no new connection is taken, running requests get
    /// [`Limits::shutdown_grace`](crate::Limits::shutdown_grace) to finish, and what still runs is cancelled in the engine.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let limits = self.app.inner.limits.clone();
        let router = routes::router(self.app);
        let permits = Arc::new(Semaphore::new(limits.connections));
        let (stop, stopping) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut shutdown = pin!(shutdown);
        loop {
            let accepted = tokio::select! {
                () = &mut shutdown => break,
                accepted = accept(&self.listener, &permits) => accepted,
                // Collects connections that have ended.
                Some(_) = connections.join_next() => continue,
            };
            let Some((stream, permit)) = accepted else { continue };
            let service = TowerToHyperService::new(router.clone());
            let mut stopping = stopping.clone();
            connections.spawn(async move {
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(limits.read_timeout)
                    .serve_connection(TokioIo::new(stream), service);
                let mut connection = pin!(connection);
                let ended = tokio::select! {
                    ended = connection.as_mut() => ended,
                    () = async { _ = stopping.wait_for(|stop| *stop).await } => {
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                };
                if let Err(error) = ended {
                    // A client that went away, or spoke no HTTP. Its request is logged where it ends.
                    tracing::debug!(%error, "a connection ended early");
                }
                drop(permit);
            });
        }
        drop(self.listener);
        _ = stop.send(true);
        let finished = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(limits.shutdown_grace, finished).await.is_err() {
            tracing::warn!("requests still run after the grace time: they are cancelled");
            // Dropping a connection drops its request, which cancels it in the engine.
            connections.shutdown().await;
        }
    }
}

/// The next connection, as soon as there is room for it. `None`: it failed, and the next may not.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = permits.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Events of a stream are small and must not wait for each other.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a connection keeps its delays");
            }
            Some((stream, permit))
        }
        Err(error) => {
            // Out of file descriptors, mostly: wait for connections to end instead of asking in a tight loop.
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            None
        }
    }
}
