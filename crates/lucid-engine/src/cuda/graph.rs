//! A step's kernels, recorded once and started together: on small models the starts would cost more than the kernels.

use std::collections::HashMap;

use cudarc::driver::{result, sys};

use super::driver::{Gpu, failed};
use crate::Error;

/// Recorded steps by what changes their kernels' grids: tokens, and the most pages that a row sees.
pub struct Graphs {
    recorded: HashMap<(usize, usize), sys::CUgraphExec>,
    gpu: Gpu,
}

// SAFETY: handles of the driver, with one owner.
unsafe impl Send for Graphs {}

impl Graphs {
    /// None yet.
    #[must_use]
    pub fn new(gpu: &Gpu) -> Graphs {
        Graphs { recorded: HashMap::new(), gpu: gpu.clone() }
    }

    /// Starts the step recorded under `key`; the first time `queue` queues its kernels, which are recorded.
    ///
    /// # Errors
    /// When recording or starting fails.
    pub fn run(
        &mut self,
        key: (usize, usize),
        queue: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let graph = match self.recorded.get(&key) {
            Some(&graph) => graph,
            None => {
                let graph = self.record(queue)?;
                self.recorded.insert(key, graph);
                graph
            }
        };
        // SAFETY: the graph and the stream are ours; the buffers that it names live in the model beside it.
        unsafe { result::graph::launch(graph, self.gpu.stream()) }.map_err(failed("starting a recorded step"))
    }

    fn record(&self, queue: impl FnOnce() -> Result<(), Error>) -> Result<sys::CUgraphExec, Error> {
        let stream = self.gpu.stream();
        // SAFETY: begin and end of the capture pair up whatever `queue` says; the graph is destroyed once it is instantiated.
        unsafe {
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            result::stream::begin_capture(stream, mode).map_err(failed("recording a step"))?;
            let queued = queue();
            let graph = result::stream::end_capture(stream).map_err(failed("recording a step"));
            queued?;
            let graph = graph?;
            let mut exec = std::ptr::null_mut();
            let made = sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0).result();
            let _ = result::graph::destroy(graph);
            made.map_err(failed("recording a step"))?;
            Ok(exec)
        }
    }
}

impl Drop for Graphs {
    fn drop(&mut self) {
        let _ = self.gpu.make_current();
        for &graph in self.recorded.values() {
            // SAFETY: made in `record`, and started by nobody any more.
            let _ = unsafe { result::graph::exec_destroy(graph) };
        }
    }
}
