//! An allocator that ends the process when a reader takes more memory than its input is worth.
//!
//! libFuzzer's own `-malloc_limit_mb` needs a sanitizer's hooks, and `-rss_limit_mb` does not see memory that was asked for and not
//! touched. This sees both, with any toolchain.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that any input may take: parsers' buffers, messages.
const ALWAYS: usize = 16 << 20;

/// Bytes that a byte of the input may take: four bytes can be a tensor, with a name in a map.
const PER_BYTE: usize = 512;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The system's allocator, counting.
pub struct Bounded;

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

impl Bounded {
    fn take(bytes: usize) {
        let live = LIVE.fetch_add(bytes, Relaxed).saturating_add(bytes);
        let limit = LIMIT.load(Relaxed);
        if live > limit {
            // So that writing the message can't come here again.
            LIMIT.store(usize::MAX, Relaxed);
            eprintln!("{bytes} bytes more make {live}, but the limit for this input is {limit}");
            std::process::abort();
        }
    }
}

// SAFETY: every call goes to the system's allocator as it came; counting changes nothing about it.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Bounded::take(layout.size());
        // SAFETY: as promised by the caller, here and below.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Bounded::take(layout.size());
        // SAFETY: see `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Bounded::take(size.saturating_sub(layout.size()));
        LIVE.fetch_sub(layout.size().saturating_sub(size), Relaxed);
        // SAFETY: see `alloc`.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: see `alloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Runs `read` on an input of `input` bytes; the process ends if more memory is in use at once than that can be worth.
pub fn bounded(input: usize, read: impl FnOnce()) {
    let limit = LIVE.load(Relaxed).saturating_add(ALWAYS).saturating_add(PER_BYTE.saturating_mul(input));
    LIMIT.store(limit, Relaxed);
    read();
    LIMIT.store(usize::MAX, Relaxed);
}
