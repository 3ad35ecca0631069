//! Runs of zero bytes within a tensor.

/// Bytes that are looked at together; a run is seen when it fills one of them.
const CHUNK: usize = 512;

/// The zero runs of a piece, joined with those of its neighbours by [`add`](ZeroRuns::add).
#[derive(Clone, Debug, Default)]
pub(crate) struct ZeroRuns {
    /// Bytes of all runs that are whole chunks long.
    pub(crate) bytes: u64,
    /// Start and length of the longest.
    pub(crate) longest: Option<(u64, u64)>,
    /// The piece's place and length.
    start: u64,
    length: u64,
    /// Zeros at the piece's beginning and end; all of it when it is all zeros.
    leading: u64,
    trailing: u64,
}

impl ZeroRuns {
    /// The runs of the piece that begins `at` bytes into the tensor.
    pub(crate) fn of(piece: &[u8], at: u64) -> ZeroRuns {
        let length = piece.len() as u64;
        let mut runs = ZeroRuns { start: at, length, ..ZeroRuns::default() };
        runs.leading = piece.iter().take_while(|byte| **byte == 0).count() as u64;
        if runs.leading == length {
            runs.trailing = length;
            return runs;
        }
        runs.trailing = piece.iter().rev().take_while(|byte| **byte == 0).count() as u64;
        // Runs that touch an end wait for the neighbour.
        let inner_end = piece.len() - runs.trailing as usize;
        let mut from = runs.leading as usize;
        while from < inner_end {
            let chunk = &piece[from..inner_end.min(from + CHUNK)];
            if chunk.len() < CHUNK || !is_zero(chunk) {
                from += CHUNK;
                continue;
            }
            let before = piece[..from].iter().rev().take_while(|byte| **byte == 0).count();
            let after = piece[from..].iter().take_while(|byte| **byte == 0).count();
            runs.found(at + (from - before) as u64, (before + after) as u64);
            from += after;
        }
        runs
    }

    /// Adds the piece that follows.
    pub(crate) fn add(&mut self, next: ZeroRuns) {
        if self.length == 0 {
            *self = next;
            return;
        }
        self.bytes += next.bytes;
        if next.longest.is_some_and(|(_, length)| self.longest.is_none_or(|(_, longest)| length > longest)) {
            self.longest = next.longest;
        }
        let joined = self.trailing + next.leading;
        let all = self.leading == self.length;
        let next_all = next.leading == next.length;
        match (all, next_all) {
            (_, true) => self.trailing = joined,
            (true, false) => self.trailing = next.trailing,
            (false, false) => {
                self.found(next.start - self.trailing, joined);
                self.trailing = next.trailing;
            }
        }
        if all {
            self.leading = joined;
        }
        self.length += next.length;
    }

    /// The tensor ends here.
    pub(crate) fn end(&mut self) {
        if self.leading == self.length {
            self.found(self.start, self.length);
        } else {
            self.found(self.start, self.leading);
            self.found(self.start + self.length - self.trailing, self.trailing);
        }
    }

    fn found(&mut self, start: u64, length: u64) {
        if length >= CHUNK as u64 {
            self.bytes += length;
            if self.longest.is_none_or(|(_, longest)| length > longest) {
                self.longest = Some((start, length));
            }
        }
    }
}

fn is_zero(chunk: &[u8]) -> bool {
    // Nearly always decided by the first eight bytes.
    chunk.as_chunks::<8>().0.iter().all(|eight| u64::from_ne_bytes(*eight) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_however_the_bytes_are_cut() {
        let mut bytes = vec![7u8; 20_000];
        bytes[..600].fill(0);
        bytes[3_001..9_002].fill(0);
        bytes[12_000..12_400].fill(0);
        bytes[19_000..].fill(0);
        for cut in [1, 100, 511, 512, 513, 3_001, 8_192, 20_000] {
            let mut whole = ZeroRuns::default();
            for (i, piece) in bytes.chunks(cut).enumerate() {
                whole.add(ZeroRuns::of(piece, (i * cut) as u64));
            }
            whole.end();
            assert_eq!(whole.longest, Some((3_001, 6_001)), "cut {cut}");
            assert_eq!(whole.bytes, 600 + 6_001 + 1_000, "cut {cut}");
        }
    }

    #[test]
    fn all_zeros_are_one_run() {
        let mut whole = ZeroRuns::default();
        for at in 0..5 {
            whole.add(ZeroRuns::of(&[0; 300], at * 300));
        }
        whole.end();
        assert_eq!((whole.longest, whole.bytes), (Some((0, 1_500)), 1_500));
    }
}
