//! What this processor can do at the most.

use std::hint::black_box;

use lucid_engine::kernels::Unit;

/// Seconds that this thread has run.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub fn processor_time() -> f64 {
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
    }
    const CLOCK_THREAD_CPUTIME_ID: i32 = 3;
    let mut time = [0i64; 2];
    // SAFETY: `timespec` of 64-bit Linux is two 64-bit numbers.
    assert_eq!(unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    time[0] as f64 + time[1] as f64 / 1e9
}

/// The clock: what there is elsewhere.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
pub fn processor_time() -> f64 {
    use std::sync::LazyLock;
    use std::time::Instant;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_secs_f64()
}

/// f32 multiply-adds a second that need no memory: twelve chains side by side.
pub fn fma_rate(unit: Unit) -> f64 {
    const STEPS: usize = 400_000;
    let (lanes, chains): (usize, fn(usize) -> f32) = match unit {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the unit is there.
        Unit::Avx512 => (16, |steps| unsafe { x86::chains_512(steps) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the unit is there.
        Unit::Avx2 => (8, |steps| unsafe { x86::chains_256(steps) }),
        _ => (1, |steps| (0..12 * steps).fold(1f32, |sum, _| sum.mul_add(black_box(0.999), 0.001))),
    };
    let steps = if lanes == 1 { STEPS / 20 } else { STEPS };
    (0..5)
        .map(|_| {
            let start = processor_time();
            black_box(chains(black_box(steps)));
            (12 * lanes * steps) as f64 / (processor_time() - start)
        })
        .fold(0.0, f64::max)
}

/// Bytes a second that a thread reads out of `bytes`, again and again.
pub fn read_rate(bytes: usize) -> f64 {
    let values = vec![1u64; bytes / 8];
    let rounds = ((64 << 20) / bytes).max(1);
    (0..5)
        .map(|_| {
            let start = processor_time();
            for _ in 0..rounds {
                black_box(read(black_box(&values)));
            }
            (8 * values.len() * rounds) as f64 / (processor_time() - start)
        })
        .fold(0.0, f64::max)
}

fn read(values: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if Unit::best() >= Unit::Avx2 {
        // SAFETY: the unit is there.
        return unsafe { x86::read_256(values) };
    }
    values.iter().fold(0, |all, &value| all ^ value)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    #[target_feature(enable = "avx512f")]
    pub fn chains_512(steps: usize) -> f32 {
        let (factor, term) = (black_box(_mm512_set1_ps(0.999)), black_box(_mm512_set1_ps(0.001)));
        let mut sums = [_mm512_set1_ps(1.0); 12];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, factor, term);
            }
        }
        sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
    }

    #[target_feature(enable = "avx2,fma")]
    pub fn chains_256(steps: usize) -> f32 {
        let (factor, term) = (black_box(_mm256_set1_ps(0.999)), black_box(_mm256_set1_ps(0.001)));
        let mut sums = [_mm256_set1_ps(1.0); 12];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, term);
            }
        }
        let mut all = 0.0;
        for sum in sums {
            all += _mm256_cvtss_f32(sum);
        }
        all
    }

    #[target_feature(enable = "avx2")]
    pub fn read_256(values: &[u64]) -> u64 {
        let mut all = [_mm256_setzero_si256(); 8];
        for block in values.as_chunks::<32>().0 {
            for (all, part) in all.iter_mut().zip(block.as_chunks::<4>().0) {
                // SAFETY: 32 bytes.
                *all = _mm256_xor_si256(*all, unsafe { _mm256_loadu_si256(part.as_ptr().cast()) });
            }
        }
        let mut sum = _mm256_setzero_si256();
        for part in all {
            sum = _mm256_xor_si256(sum, part);
        }
        _mm256_extract_epi64::<0>(sum).cast_unsigned()
    }
}
