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
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                {
                    // SAFETY: the features were found.
                    return unsafe { avx512($($argument),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the features were found.
                    return unsafe { avx2($($argument),*) };
                }
            }
            plain($($argument),*)
        }
    )*};
}

pub(super) use vectorized;
