//! NCCL, for GPUs of several processes: the library is loaded when it is asked for, and few of its calls are needed.
//!
//! Only copies go over it. Sums are made here, in the order of the ranks, so that they have the same bits for any number of rows;
//! NCCL's own sums have an order that depends on the message's size.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstream;

use super::driver::{Address, Gpu};
use crate::Error;
use crate::parallel::Rank;

/// `ncclFloat32` of `nccl.h`.
const FLOAT32: c_int = 7;
/// What `ncclGetVersion` gives for 2.12, the first that every call here is in as it is used.
const OLDEST: c_int = 21_200;
/// How long ranks that were all there a moment ago may take to meet.
const MEETING: Duration = Duration::from_secs(120);
/// How long a call may be under way when the meeting is given up.
const LAST_CALL: Duration = Duration::from_secs(1);

/// `ncclUniqueId`.
#[derive(Clone, Copy)]
#[repr(C)]
struct UniqueId([u8; 128]);

type Comm = *mut c_void;

/// The library's functions, as `nccl.h` declares them.
struct Library {
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init_rank: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int,
    abort: unsafe extern "C" fn(Comm) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Comm, CUstream) -> c_int,
    receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int,
    all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, CUstream) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Keeps the functions.
    _library: libloading::Library,
}

impl Library {
    fn load() -> Result<Library, String> {
        if std::env::var_os("NCCL_NVLS_ENABLE").is_none() {
            // NVLink multicast would be set up at the meeting, for sums that aren't made with NCCL.
            // SAFETY: models are loaded by one thread, before the server's threads have work; the standard library's own reads lock.
            unsafe { std::env::set_var("NCCL_NVLS_ENABLE", "0") };
        }
        // SAFETY: NCCL has no initializers that ask for anything.
        let open = |name| unsafe { libloading::Library::new(name) };
        let library =
            open("libnccl.so.2").or_else(|_| open("libnccl.so")).map_err(|error| error.to_string())?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the field's type is that of `nccl.h`.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(|error| error.to_string())?
            };
        }
        Ok(Library {
            get_version: function!("ncclGetVersion"),
            get_unique_id: function!("ncclGetUniqueId"),
            init_rank: function!("ncclCommInitRank"),
            abort: function!("ncclCommAbort"),
            group_start: function!("ncclGroupStart"),
            group_end: function!("ncclGroupEnd"),
            send: function!("ncclSend"),
            receive: function!("ncclRecv"),
            all_gather: function!("ncclAllGather"),
            error_string: function!("ncclGetErrorString"),
            _library: library,
        })
    }
}

fn library() -> Result<&'static Library, Error> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let missing = |problem: String| Error::NoGpu {
        problem: format!("ranks in several processes need NCCL: {problem}"),
        hint: "install NCCL 2.12 or later (libnccl2), or `pip install nvidia-nccl-cu13` and add its lib folder to LD_LIBRARY_PATH",
    };
    let library = LIBRARY.get_or_init(Library::load).as_ref().map_err(|problem| missing(problem.clone()))?;
    let mut version = 0;
    // SAFETY: writes one integer.
    let known = unsafe { (library.get_version)(&raw mut version) } == 0;
    if !known || version < OLDEST {
        return Err(missing(format!("it is of version {version}, and {OLDEST} is the oldest that will do")));
    }
    Ok(library)
}

/// Turns a result of NCCL into ours, saying what was being done.
fn check(library: &Library, doing: &'static str, result: c_int) -> Result<(), Error> {
    if result == 0 {
        return Ok(());
    }
    // SAFETY: NCCL has a text for every number, which is never freed.
    let text = unsafe { CStr::from_ptr((library.error_string)(result)) };
    let problem = format!("NCCL: {} (set NCCL_DEBUG=WARN for more)", text.to_string_lossy());
    Err(Error::Gpu { doing, problem })
}

/// # Errors
/// When there is no NCCL, or it is too old.
pub fn present() -> Result<(), Error> {
    library().map(|_| ())
}

/// A name for a meeting, which all of its ranks must know.
///
/// # Errors
/// When there is no NCCL, or it finds no network.
pub fn new_meeting() -> Result<[u8; 128], Error> {
    let library = library()?;
    let mut id = MaybeUninit::<UniqueId>::zeroed();
    // SAFETY: writes the 128 bytes.
    check(library, "naming a meeting", unsafe { (library.get_unique_id)(id.as_mut_ptr()) })?;
    // SAFETY: written, and zero before.
    Ok(unsafe { id.assume_init() }.0)
}

/// One rank's end of a meeting of GPUs.
pub struct Communicator {
    library: &'static Library,
    comm: AtomicPtr<c_void>,
    rank: Rank,
    calling: AtomicBool,
    given_up: AtomicBool,
}

impl Communicator {
    /// Meets the other ranks.
    ///
    /// # Errors
    /// When there is no NCCL, or the others don't come.
    pub fn meet(gpu: &Gpu, rank: Rank, meeting: [u8; 128]) -> Result<Communicator, Error> {
        let library = library()?;
        let (send, done) = channel();
        let gpu = gpu.clone();
        // A rank that doesn't come would be waited for without end. Then this thread stays, and the process ends with an error.
        let meet = move || {
            let mut comm: Comm = std::ptr::null_mut();
            let (count, number) = (rank.count() as c_int, rank.number() as c_int);
            let met = gpu.make_current().and_then(|()| {
                // SAFETY: writes the handle; the GPU is current.
                let met = unsafe { (library.init_rank)(&raw mut comm, count, UniqueId(meeting), number) };
                check(library, "meeting the other ranks", met)
            });
            // If nobody waits any more, nobody needs it.
            let _ = send.send(met.map(|()| AtomicPtr::new(comm)));
        };
        std::thread::Builder::new().name("lucid-meeting".into()).spawn(meet).map_err(Error::Threads)?;
        let comm = done.recv_timeout(MEETING).map_err(|error| Error::World {
            problem: match error {
                RecvTimeoutError::Timeout => {
                    format!("the GPUs of {} ranks did not meet within {} s", rank.count(), MEETING.as_secs())
                }
                RecvTimeoutError::Disconnected => "NCCL's thread has ended".to_owned(),
            },
            hint: "set NCCL_DEBUG=INFO, and NCCL_SOCKET_IFNAME where machines have several networks",
        })??;
        let (calling, given_up) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Communicator { library, comm, rank, calling, given_up })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Ends whatever waits for another rank on the GPU; nothing can be sent afterwards. Safe to call from another thread while
    /// this one's waits for the GPU.
    pub fn give_up(&self) {
        if self.given_up.swap(true, Ordering::SeqCst) {
            return;
        }
        let start = Instant::now();
        // A call that is under way ends soon, or waits for the rank that is lost.
        while self.calling.load(Ordering::SeqCst) && start.elapsed() < LAST_CALL {
            std::thread::yield_now();
        }
        let comm = self.comm.swap(std::ptr::null_mut(), Ordering::SeqCst);
        if !comm.is_null() {
            // SAFETY: made in `meet`, and taken out by whoever comes first. What it says about a meeting that is over is moot.
            let _ = unsafe { (self.library.abort)(comm) };
        }
    }

    /// Sends or receives, all at once.
    fn group(&self, calls: impl FnOnce(&Library, Comm) -> Result<(), Error>) -> Result<(), Error> {
        self.calling.store(true, Ordering::SeqCst);
        let comm = self.comm.load(Ordering::SeqCst);
        let result = if self.given_up.load(Ordering::SeqCst) || comm.is_null() {
            Err(Error::World {
                problem: "another rank is lost".into(),
                hint: "look at the output of all ranks",
            })
        } else {
            self.grouped(comm, calls)
        };
        self.calling.store(false, Ordering::SeqCst);
        result
    }

    fn grouped(
        &self,
        comm: Comm,
        calls: impl FnOnce(&Library, Comm) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let doing = "sending to other ranks";
        // SAFETY: a group is ended whatever the calls in it say.
        check(self.library, doing, unsafe { (self.library.group_start)() })?;
        let called = calls(self.library, comm);
        // SAFETY: begun above.
        let ended = check(self.library, doing, unsafe { (self.library.group_end)() });
        called.and(ended)
    }

    /// Queues: every rank gets all ranks' `count` f32 from `from`, in the order of the ranks, at `to`.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn all_gather(&self, gpu: &Gpu, from: Address, to: Address, count: usize) -> Result<(), Error> {
        self.group(|library, comm| {
            let (from, to) = (from.0 as *const c_void, to.0 as *mut c_void);
            // SAFETY: memory of the GPU, as large as the callers say; the stream is the GPU's.
            let queued = unsafe { (library.all_gather)(from, to, count, FLOAT32, comm, gpu.stream()) };
            check(library, "gathering", queued)
        })
    }

    /// Queues copies of f32 to and from other ranks: rank, place, count.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn exchange(
        &self,
        gpu: &Gpu,
        sent: &[(usize, Address, usize)],
        received: &[(usize, Address, usize)],
    ) -> Result<(), Error> {
        self.group(|library, comm| {
            for &(to, from, count) in sent {
                // SAFETY: as above.
                let queued = unsafe {
                    (library.send)(from.0 as *const c_void, count, FLOAT32, to as c_int, comm, gpu.stream())
                };
                check(library, "sending", queued)?;
            }
            for &(from, to, count) in received {
                // SAFETY: as above.
                let queued = unsafe {
                    (library.receive)(to.0 as *mut c_void, count, FLOAT32, from as c_int, comm, gpu.stream())
                };
                check(library, "receiving", queued)?;
            }
            Ok(())
        })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_the_error_says_what_to_install() {
        if let Err(error) = new_meeting() {
            let text = error.to_string();
            assert!(
                text.contains("NCCL") && text.contains("pip install") || text.contains("network"),
                "{text}"
            );
        }
    }
}
