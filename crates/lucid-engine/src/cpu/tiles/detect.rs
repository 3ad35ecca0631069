//! Whether this processor has the tile unit and the operating system lets us use it.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::LazyLock;

use super::super::unit::Unit;

/// Whether tiles can be used, and the environment names no lesser unit. Asks the operating system once for the whole process.
pub fn available() -> bool {
    static AVAILABLE: LazyLock<bool> =
        LazyLock::new(|| matches!(Unit::limit(), Ok(None)) && has_instructions() && is_permitted());
    *AVAILABLE
}

fn has_instructions() -> bool {
    let vectors = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("xsave");
    if !vectors {
        return false;
    }
    // Leaf 7, edx: bit 22 AMX-BF16, bit 24 AMX-TILE (Intel SDM, volume 2A, CPUID).
    let edx = __cpuid_count(7, 0).edx;
    // SAFETY: XSAVE was found. Bits 17 and 18: the system saves tile configuration and tile data.
    let saved = unsafe { xcr0() };
    edx >> 22 & 1 == 1 && edx >> 24 & 1 == 1 && saved >> 17 & 3 == 3
}

#[target_feature(enable = "xsave")]
unsafe fn xcr0() -> u64 {
    // SAFETY: the caller has XSAVE; register 0 always exists then.
    unsafe { _xgetbv(0) }
}

/// Tile data is 8 KB a thread, so Linux gives it only to processes that ask (Documentation/arch/x86/xstate.rst).
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XTILEDATA: usize = 18;
    let result: isize;
    // SAFETY: this call changes nothing but the process' permission; the kernel clobbers rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}
