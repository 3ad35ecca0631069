//! Plain loops, compiled once for every vector unit.
//!
//! Rust never fuses or reorders float operations, so all copies give the same bits, and the plain one is the only one to read.

/// Wraps functions so that their bodies are compiled for AVX-512, AVX2 and the baseline, and the best one here runs.
macro_rules! vectorized {
    ($($(#[$meta:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {$(
        $(#[$meta])*
        $visibility fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn plain($($argument: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
                fn avx512($($argument: $type),*) $(-> $result)? {
                    plain($($argument),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($argument: $type),*) $(-> $result)? {
                    plain($($argument),*)
                }
                match $crate::cpu::unit::Unit::best() {
                    // SAFETY: the processor has the unit.
                    $crate::cpu::unit::Unit::Avx512 => return unsafe { avx512($($argument),*) },
                    // SAFETY: the processor has the unit.
                    $crate::cpu::unit::Unit::Avx2 => return unsafe { avx2($($argument),*) },
                    $crate::cpu::unit::Unit::Plain => {}
                }
            }
            plain($($argument),*)
        }
    )*};
}

pub(super) use vectorized;
