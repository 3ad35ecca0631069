//! The vector unit that kernels use.

use std::sync::LazyLock;

use crate::Error;

/// The environment variable that names the best unit to use, where a better one is not wanted: to compare, or to rule one out.
const LIMIT: &str = "LUCID_CPU";

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
    /// The best one of this processor that the environment allows; looked up once.
    #[must_use]
    pub fn best() -> Unit {
        static BEST: LazyLock<Unit> =
            LazyLock::new(|| Unit::limit().ok().flatten().map_or(look(), |limit| limit.min(look())));
        *BEST
    }

    /// What `LUCID_CPU` names, if it is set.
    ///
    /// # Errors
    /// When it names none.
    pub fn limit() -> Result<Option<Unit>, Error> {
        match std::env::var(LIMIT) {
            Ok(name) => Unit::named(&name).map(Some).ok_or(Error::Option {
                option: LIMIT,
                value: name,
                expected: "it must be plain, avx2 or avx512",
            }),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(name)) => Err(Error::Option {
                option: LIMIT,
                value: name.to_string_lossy().into_owned(),
                expected: "it must be plain, avx2 or avx512",
            }),
        }
    }

    fn named(name: &str) -> Option<Unit> {
        match name {
            "plain" => Some(Unit::Plain),
            "avx2" => Some(Unit::Avx2),
            "avx512" => Some(Unit::Avx512),
            _ => None,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_have_names_that_the_environment_can_give() {
        assert_eq!(Unit::named("avx2"), Some(Unit::Avx2));
        assert_eq!(Unit::named("plain"), Some(Unit::Plain));
        assert_eq!(Unit::named("AVX3"), None);
        assert!(Unit::best() <= look(), "nothing that the processor has not");
    }
}
