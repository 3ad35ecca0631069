//! How much the reference may compute for hypotheses, in processor time: a crowded machine must not change what is found.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::subject::Depth;

/// Processor time that may be spent from now on.
pub(super) struct Budget {
    begun: Duration,
    limit: Duration,
}

impl Budget {
    /// By depth, for each thread: more when something is wrong, and the question is what. All hypotheses on the canary take seconds; the
    /// limit is there for checkpoints of hundreds of gigabytes.
    pub(super) fn new(depth: Depth, wrong: bool, threads: usize) -> Budget {
        let seconds = match (depth, wrong) {
            (Depth::Quick, false) => 30,
            (Depth::Quick, true) | (Depth::Standard, false) => 60,
            (Depth::Standard, true) => 180,
            (Depth::Thorough, _) => 3_600,
        };
        Budget {
            begun: processor_time(),
            limit: Duration::from_secs(seconds) * u32::try_from(threads).unwrap_or(1),
        }
    }

    pub(super) fn spent(&self) -> Duration {
        processor_time().saturating_sub(self.begun)
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.spent() > self.limit
    }

    /// For the report.
    pub(super) fn words(&self) -> String {
        format!(
            "{:.1} s of processor time, of {} at the most",
            self.spent().as_secs_f64(),
            self.limit.as_secs()
        )
    }
}

/// Of this process, all threads.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_and_waiting_is_not() {
        let budget = Budget::new(Depth::Quick, false, 2);
        assert_eq!(budget.limit, Duration::from_secs(60));
        let mut sum = 0_u64;
        while budget.spent() < Duration::from_millis(5) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(
            !budget.is_exhausted() && budget.words().ends_with("of 60 at the most"),
            "{}",
            budget.words()
        );
        assert!(Budget { begun: Duration::ZERO, limit: Duration::ZERO }.is_exhausted());
    }
}
