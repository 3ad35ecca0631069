//! Loops that are gone before the compiler looks: an array of vectors stays in registers only if no index is a variable.

/// `unroll!(I < COUNT => { … })` repeats the block with the constant `I` from 0 on; `COUNT` is a constant of at most eight.
/// `unroll!(I < COUNT, at most 4 => { … })` is for indices into arrays of four: no dead code is left behind them; `at most 2` and `at most 12` likewise.
macro_rules! unroll {
    ($i:ident < $count:expr, at most 2 => $body:block) => {
        unroll!(@ $i, $count, $body, 0 1)
    };
    ($i:ident < $count:expr, at most 4 => $body:block) => {
        unroll!(@ $i, $count, $body, 0 1 2 3)
    };
    ($i:ident < $count:expr, at most 12 => $body:block) => {
        unroll!(@ $i, $count, $body, 0 1 2 3 4 5 6 7 8 9 10 11)
    };
    ($i:ident < $count:expr => $body:block) => {
        unroll!(@ $i, $count, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident, $count:expr, $body:block, $($n:literal)*) => {$(
        if $n < $count {
            const $i: usize = $n;
            $body
        }
    )*};
}

pub(super) use unroll;
