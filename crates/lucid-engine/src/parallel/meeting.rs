//! The sum over all ranks, and where the ranks of one processor meet for it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::rank::Rank;

/// What ranks do together. Every rank calls the same in the same order.
pub trait Collective: Send {
    /// Replaces `values` by their sum over all ranks, in the order of the ranks: every rank gets the same bits.
    fn sum(&self, values: &mut [f32]);

    /// Tells the other ranks that this one has failed: they must not wait for it.
    fn leave(&self) {}
}

/// A single rank: nobody to meet.
impl Collective for () {
    fn sum(&self, _values: &mut [f32]) {}
}

/// A rank's seat at the meeting of all ranks, which are threads.
pub struct Meeting {
    rank: Rank,
    room: Arc<Room>,
}

struct Room {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What each rank has brought.
    brought: Vec<Vec<f32>>,
    arrived: usize,
    /// How often all have met.
    meetings: usize,
    /// A rank has ended before the others: nobody must wait for it.
    broken: bool,
}

impl Meeting {
    /// A seat for each of `count` ranks.
    #[must_use]
    pub fn seats(count: usize) -> Vec<Meeting> {
        let state = State { brought: vec![Vec::new(); count], ..State::default() };
        let room = Arc::new(Room { state: Mutex::new(state), changed: Condvar::new() });
        Rank::all(count).map(|rank| Meeting { rank, room: Arc::clone(&room) }).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.room.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all ranks are here.
    ///
    /// # Panics
    /// When another rank has panicked: its part of the sum will never come.
    fn meet(&self, mut state: MutexGuard<'_, State>) {
        let meeting = state.meetings;
        state.arrived += 1;
        if state.arrived == self.rank.count() {
            state.arrived = 0;
            state.meetings += 1;
            self.room.changed.notify_all();
            return;
        }
        while state.meetings == meeting && !state.broken {
            state = self.room.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        assert!(!state.broken, "another rank has failed");
    }
}

impl Collective for Meeting {
    fn sum(&self, values: &mut [f32]) {
        let mut state = self.state();
        let mine = &mut state.brought[self.rank.number()];
        mine.clear();
        mine.extend_from_slice(values);
        self.meet(state);
        {
            let state = self.state();
            values.copy_from_slice(&state.brought[0]);
            for part in &state.brought[1..] {
                for (sum, part) in values.iter_mut().zip(part) {
                    *sum += part;
                }
            }
        }
        // Nobody brings anything new before all have taken this.
        self.meet(self.state());
    }

    fn leave(&self) {
        self.state().broken = true;
        self.room.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_the_same_sum_in_the_order_of_the_ranks() {
        // In another order the small ones would be lost.
        let parts = [1e8f32, -1e8, 0.25, 0.5];
        let results: Vec<f32> = std::thread::scope(|scope| {
            let threads: Vec<_> = Meeting::seats(4)
                .into_iter()
                .zip(parts)
                .map(|(seat, part)| {
                    scope.spawn(move || {
                        let mut values = vec![part; 3];
                        for _ in 0..100 {
                            values.fill(part);
                            seat.sum(&mut values);
                        }
                        values[2]
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(results, [0.75; 4]);
    }

    #[test]
    fn a_rank_that_has_failed_is_not_waited_for() {
        let seats = Meeting::seats(2);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| seats[0].sum(&mut [1.0]));
            seats[1].leave();
            assert!(waiting.join().is_err());
        });
    }
}
