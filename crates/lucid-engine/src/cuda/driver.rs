//! The CUDA driver: one GPU's context and stream, its memory, and kernel launches. All `unsafe` driver calls are in this file
//! and in `graph.rs`.
//!
//! The driver library is loaded when a GPU is asked for. A binary that never asks runs where there is none.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::Error;

/// Bytes after the end of every buffer that may be read.
const READ_AHEAD: usize = 256;

/// An address in the GPU's memory; 0 is none. Passed to kernels as a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// What kernels take as "not there".
    pub const NULL: Address = Address(0);

    /// `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}

/// A GPU: its primary context, and the one stream on which everything runs in order.
#[derive(Clone)]
pub struct Gpu {
    inner: Arc<Inner>,
}

struct Inner {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// Compute capability, as 90 for 9.0.
    capability: u32,
    /// As the driver counts: 13000 for CUDA 13.0.
    driver_version: i32,
}

// SAFETY: contexts and streams may be used from any thread; every call makes the context current on its own thread first.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver locks inside.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: made in `Gpu::open`, and nothing that uses them is left. A lost GPU can't be told anything: errors are moot.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// Turns a driver error into ours, saying what was being done.
pub fn failed(doing: &'static str) -> impl FnOnce(result::DriverError) -> Error {
    move |error| {
        let text = error.error_string().ok().and_then(|text| text.to_str().ok()).unwrap_or("unknown error");
        Error::Gpu { doing, problem: format!("{text} ({:?})", error.0) }
    }
}

impl Gpu {
    /// Opens GPU `ordinal`.
    ///
    /// # Errors
    /// When there is no driver, no such GPU, or a GPU older than Ampere.
    pub fn open(ordinal: usize) -> Result<Gpu, Error> {
        let count = Gpu::count()?;
        if ordinal >= count {
            return Err(Error::NoGpu {
                problem: format!("there is no GPU {ordinal}: this machine shows {count}"),
                hint: "check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
            });
        }
        let device = result::device::get(ordinal as i32).map_err(failed("opening the GPU"))?;
        let name = result::device::get_name(device).map_err(failed("asking the GPU's name"))?;
        let attribute = |which| {
            // SAFETY: `device` is a device.
            unsafe { result::device::get_attribute(device, which) }
                .map_err(failed("asking the GPU's version"))
        };
        let major = attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if major < 8 {
            return Err(Error::NoGpu {
                problem: format!("GPU {ordinal} ({name}) has compute capability {major}.{minor}"),
                hint: "8.0 (Ampere) or later is needed: earlier GPUs have no bf16",
            });
        }
        let mut driver_version = 0;
        // SAFETY: writes one integer.
        unsafe { sys::cuDriverGetVersion(&raw mut driver_version) }
            .result()
            .map_err(failed("asking the driver's version"))?;
        // SAFETY: `device` is a device; the context is current before the stream is made; `Inner` gives both back.
        let inner = unsafe {
            let context = result::primary_ctx::retain(device).map_err(failed("opening the GPU"))?;
            result::ctx::set_current(context).map_err(failed("opening the GPU"))?;
            let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
                .map_err(failed("making a stream"))?;
            let capability = (10 * major + minor) as u32;
            Inner { device, context, stream, capability, driver_version }
        };
        Ok(Gpu { inner: Arc::new(inner) })
    }

    /// GPUs that the process sees.
    ///
    /// # Errors
    /// When there is no driver.
    pub fn count() -> Result<usize, Error> {
        // SAFETY: only tries to load the library. Without it every other call would panic.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoGpu {
                problem: "the NVIDIA driver (libcuda.so.1) is not installed".into(),
                hint: "install an NVIDIA driver of version 525 or later, or run on the processor",
            });
        }
        result::init().map_err(|error| Error::NoGpu {
            problem: format!("the NVIDIA driver found no usable GPU: {error}"),
            hint: "check `nvidia-smi`; in a container, pass the GPU through (docker run --gpus all)",
        })?;
        Ok(result::device::get_count().map_err(failed("counting GPUs"))?.max(0) as usize)
    }

    /// Compute capability, as 90 for 9.0.
    #[must_use]
    pub fn capability(&self) -> u32 {
        self.inner.capability
    }

    /// As the driver counts: 13000 for CUDA 13.0.
    #[must_use]
    pub fn driver_version(&self) -> i32 {
        self.inner.driver_version
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> sys::CUstream {
        self.inner.stream
    }

    /// Shared memory that a block may ask for, in bytes.
    ///
    /// # Errors
    /// When the GPU is lost.
    pub fn shared_bytes_of_a_block(&self) -> Result<usize, Error> {
        let which = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        // SAFETY: the device is a device.
        let bytes = unsafe { result::device::get_attribute(self.inner.device, which) };
        Ok(bytes.map_err(failed("asking for the GPU's shared memory"))?.max(0) as usize)
    }

    /// Multiprocessors of the GPU.
    ///
    /// # Errors
    /// When the GPU is lost.
    pub fn multiprocessors(&self) -> Result<usize, Error> {
        let which = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        // SAFETY: the device is a device.
        let count = unsafe { result::device::get_attribute(self.inner.device, which) };
        Ok(count.map_err(failed("asking for the GPU's multiprocessors"))?.max(1) as usize)
    }

    /// Lets a kernel's blocks take so much shared memory.
    ///
    /// # Errors
    /// When the GPU has less.
    pub fn allow_shared(&self, kernel: sys::CUfunction, bytes: usize) -> Result<(), Error> {
        let which = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the kernel's program is loaded.
        unsafe { result::function::set_function_attribute(kernel, which, bytes as i32) }
            .map_err(failed("giving a kernel its shared memory"))
    }

    /// Blocks of a kernel that run at once on the whole GPU.
    ///
    /// # Errors
    /// When the driver doesn't know.
    pub fn blocks_at_once(
        &self,
        kernel: sys::CUfunction,
        threads: usize,
        shared: usize,
    ) -> Result<usize, Error> {
        let mut blocks = 0;
        // SAFETY: the kernel's program is loaded; writes one integer.
        unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, kernel, threads as i32, shared)
        }
        .result()
        .map_err(failed("counting the blocks that run at once"))?;
        Ok(blocks.max(0) as usize * self.multiprocessors()?)
    }

    /// Lets this GPU's kernels read and write the memory of `other`.
    ///
    /// # Errors
    /// When nothing connects the two.
    pub fn reach(&self, other: &Gpu) -> Result<(), Error> {
        self.make_current()?;
        let mut can = 0;
        // SAFETY: both are devices; writes one integer.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.inner.device, other.inner.device) }
            .result()
            .map_err(failed("asking how GPUs are connected"))?;
        if can == 0 {
            return Err(Error::NoGpu {
                problem: "the GPUs can't reach each other's memory".into(),
                hint: "start one process a GPU, which need not (docs/ranks.md), or see `nvidia-smi topo -p2p r`",
            });
        }
        // SAFETY: the other context lives as long as `other`.
        match unsafe { sys::cuCtxEnablePeerAccess(other.inner.context, 0) }.result() {
            Err(error) if error.0 != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => {
                Err(failed("connecting GPUs")(error))
            }
            _ => Ok(()),
        }
    }

    /// Makes the GPU the calling thread's. Everything here needs that once a thread.
    ///
    /// # Errors
    /// When the GPU is lost.
    pub fn make_current(&self) -> Result<(), Error> {
        self.make_current_raw().map_err(failed("switching to the GPU"))
    }

    fn make_current_raw(&self) -> Result<(), result::DriverError> {
        // SAFETY: the context lives as long as `self`.
        unsafe { result::ctx::set_current(self.inner.context) }
    }

    /// Memory of the GPU that is free now, and all of it, in bytes.
    ///
    /// # Errors
    /// When the GPU is lost.
    pub fn memory(&self) -> Result<(usize, usize), Error> {
        result::mem_get_info().map_err(failed("asking for free memory"))
    }

    /// Takes memory, with whatever is in it.
    ///
    /// # Errors
    /// When there isn't enough.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        // Kernels that read ahead read, and don't use, up to 256 bytes past the end.
        // SAFETY: nobody uses it before it was written: kernels and copies run in order on one stream.
        let address = unsafe { result::malloc_sync(bytes + READ_AHEAD) }.map_err(|error| {
            if error.0 != sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                return failed("taking GPU memory")(error);
            }
            let (free, total) = self.memory().unwrap_or_default();
            Error::GpuMemory { wanted: bytes, free, total }
        })?;
        Ok(Buffer { address: Address(address), bytes, gpu: self.clone() })
    }

    /// Takes memory and fills it.
    ///
    /// # Errors
    /// When there isn't enough, or the copy fails.
    pub fn upload<T: Copy>(&self, values: &[T]) -> Result<Buffer, Error> {
        let buffer = self.allocate(size_of_val(values))?;
        self.write(buffer.address, values)?;
        Ok(buffer)
    }

    /// Copies `values` to `to`, and waits for it.
    ///
    /// # Errors
    /// When the copy fails.
    pub fn write<T: Copy>(&self, to: Address, values: &[T]) -> Result<(), Error> {
        if values.is_empty() {
            return Ok(());
        }
        // SAFETY: `to` begins memory of at least that size (callers stay within their buffers); the stream's work is done
        // before, and the copy before this returns.
        unsafe { result::memcpy_htod_async(to.0, values, self.inner.stream) }
            .map_err(failed("copying to the GPU"))?;
        self.synchronize()
    }

    /// Copies from `from`, after all work so far, and waits for it.
    ///
    /// # Errors
    /// When the copy or any work before it failed.
    pub fn read<T: Copy>(&self, values: &mut [T], from: Address) -> Result<(), Error> {
        if values.is_empty() {
            return Ok(());
        }
        // SAFETY: as for `write`; every bit pattern is a value of the number types that this is used with.
        unsafe { result::memcpy_dtoh_async(values, from.0, self.inner.stream) }
            .map_err(failed("copying from the GPU"))?;
        self.synchronize()
    }

    /// Queues a copy within the GPU's memory of `rows` rows of `bytes` bytes; rows begin `pitch` bytes apart.
    ///
    /// # Errors
    /// When it can't be queued.
    pub fn copy_rows(
        &self,
        (from, from_pitch): (Address, usize),
        (to, to_pitch): (Address, usize),
        bytes: usize,
        rows: usize,
    ) -> Result<(), Error> {
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: from.0,
            srcArray: std::ptr::null_mut(),
            srcPitch: from_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.0,
            dstArray: std::ptr::null_mut(),
            dstPitch: to_pitch,
            WidthInBytes: bytes,
            Height: rows,
        };
        // SAFETY: callers stay within their buffers.
        unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, self.inner.stream) }
            .result()
            .map_err(failed("copying"))
    }

    /// Copies within the GPU's memory.
    pub fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), Error> {
        // SAFETY: callers stay within their buffers.
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, self.inner.stream) }
            .map_err(failed("copying"))
    }

    /// How long the GPU takes for what `queue` queues, in seconds.
    #[cfg(test)]
    pub fn time(&self, queue: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
        let make = || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed("timing"));
        let (start, end) = (make()?, make()?);
        // SAFETY: both events live until they are destroyed below.
        unsafe {
            result::event::record(start, self.inner.stream).map_err(failed("timing"))?;
            queue()?;
            result::event::record(end, self.inner.stream).map_err(failed("timing"))?;
            self.synchronize()?;
            let seconds = f64::from(result::event::elapsed(start, end).map_err(failed("timing"))?) / 1e3;
            let _ = (result::event::destroy(start), result::event::destroy(end));
            Ok(seconds)
        }
    }

    /// Work queued after this begins when `other` has done what was queued there so far.
    ///
    /// # Errors
    /// When a GPU is lost.
    pub fn follow(&self, other: &Gpu) -> Result<(), Error> {
        other.make_current()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(failed("waiting for another GPU"))?;
        // SAFETY: the event and both streams live; the driver keeps a destroyed event until nobody waits for it any more.
        unsafe {
            let recorded = result::event::record(event, other.inner.stream);
            let waits = recorded.and_then(|()| {
                self.make_current_raw()?;
                let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                result::stream::wait_event(self.inner.stream, event, flags)
            });
            let _ = result::event::destroy(event);
            waits.map_err(failed("waiting for another GPU"))
        }
    }

    /// Waits for all work so far.
    ///
    /// # Errors
    /// When any of it failed.
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.inner.stream) }.map_err(failed("computing"))
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// `arguments` point to values of the kernel's parameter types, in order, and the memory they name is as large as the
    /// kernel takes it to be.
    pub unsafe fn launch(
        &self,
        kernel: sys::CUfunction,
        grid: (usize, usize, usize),
        threads: usize,
        shared_bytes: usize,
        arguments: &mut [*mut c_void],
    ) -> Result<(), Error> {
        // From Hopper on a kernel may start before the last one has ended: all kernels wait for each other themselves
        // (`wait_for_previous` in `numerics.cuh`), but fetch weights first.
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: grid.0 as u32,
            gridDimY: grid.1 as u32,
            gridDimZ: grid.2 as u32,
            blockDimX: threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared_bytes as u32,
            hStream: self.inner.stream,
            attrs: &raw mut early,
            numAttrs: u32::from(self.inner.capability >= 90),
        };
        // SAFETY: the caller's promise; the stream is ours, and the configuration lives until the call returns.
        unsafe {
            sys::cuLaunchKernelEx(&raw const config, kernel, arguments.as_mut_ptr(), std::ptr::null_mut())
        }
        .result()
        .map_err(failed("starting a kernel"))
    }
}

/// Memory of a GPU, given back on drop.
pub struct Buffer {
    address: Address,
    bytes: usize,
    gpu: Gpu,
}

impl Buffer {
    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: ours since `allocate`; freeing waits for the work that uses it. Errors can't be handled here.
        unsafe {
            let _ = self.gpu.make_current();
            let _ = result::free_sync(self.address.0);
        }
    }
}

/// Host memory that the GPU reads directly, for the small inputs of every step.
pub struct Pinned {
    at: *mut u32,
    words: usize,
    gpu: Gpu,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Takes `words` words.
    ///
    /// # Errors
    /// When the operating system has no memory to lock.
    pub fn new(gpu: &Gpu, words: usize) -> Result<Pinned, Error> {
        // SAFETY: zeroed before anything else sees it.
        let at = unsafe {
            let at = result::malloc_host(words.max(1) * 4, 0)
                .map_err(failed("locking host memory"))?
                .cast::<u32>();
            at.write_bytes(0, words.max(1));
            at
        };
        Ok(Pinned { at, words, gpu: gpu.clone() })
    }

    /// The words.
    pub fn words(&mut self) -> &mut [u32] {
        // SAFETY: allocated and zeroed in `new`; `copy_to` of an earlier step is over (see there).
        unsafe { std::slice::from_raw_parts_mut(self.at, self.words) }
    }

    /// Waits until copies are over.
    ///
    /// # Errors
    /// When any work so far failed.
    pub fn wait(&self) -> Result<(), Error> {
        self.gpu.synchronize()
    }

    /// Queues the copy of the first `words` words to `to`. They must not change before the stream was synchronized.
    ///
    /// # Errors
    /// When the copy can't be queued.
    pub fn copy_to(&self, to: Address, words: usize) -> Result<(), Error> {
        assert!(words <= self.words, "more words than there are");
        // SAFETY: within our memory; every step ends with a synchronization before the words are written again.
        unsafe {
            let words = std::slice::from_raw_parts(self.at, words);
            result::memcpy_htod_async(to.0, words, self.gpu.stream()).map_err(failed("copying to the GPU"))
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: ours since `new`.
        unsafe {
            let _ = self.gpu.make_current();
            let _ = result::free_host(self.at.cast());
        }
    }
}

/// `launch!(gpu, kernel, grid, threads, shared bytes; arguments…)`: queues a kernel.
///
/// Callers name the kernel and its arguments side by side, so that their types can be read against the `.cu` file.
macro_rules! launch {
    ($gpu:expr, $kernel:expr, $grid:expr, $threads:expr, $shared:expr; $($argument:expr),+ $(,)?) => {
        // SAFETY: the arguments have the kernel's parameter types, and buffers the sizes that its comment names.
        unsafe {
            $gpu.launch($kernel, $grid, $threads, $shared, &mut [$((&raw const *&$argument).cast_mut().cast()),+])
        }
    };
}
pub(crate) use launch;
