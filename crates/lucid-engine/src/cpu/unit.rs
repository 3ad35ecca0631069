//! The vector unit that kernels use.

use std::sync::LazyLock;

/// A vector unit, worst first. Every kernel has the same bits on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// Whatever the compiler makes of plain code.
    Plain,
    /// 256 bits: AVX2, FMA and F16C.
    Avx2,
    /// 512 bits: AVX-512 F, BW, VL and DQ, and all of `Avx2`.
    Avx512,
}

impl Unit {
    /// The best one of this processor; looked up once.
    #[must_use]
    pub fn best() -> Unit {
        static BEST: LazyLock<Unit> = LazyLock::new(look);
        *BEST
    }

    /// All that this processor has: for tests and benchmarks.
    pub fn all() -> impl Iterator<Item = Unit> {
        [Unit::Plain, Unit::Avx2, Unit::Avx512].into_iter().filter(|&unit| unit <= Unit::best())
    }
}

#[cfg(target_arch = "x86_64")]
fn look() -> Unit {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq");
    if avx512 {
        Unit::Avx512
    } else if avx2 {
        Unit::Avx2
    } else {
        Unit::Plain
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn look() -> Unit {
    Unit::Plain
}
