//! How strong is a mistake whose strength can be any number? Found as the strength whose model is nearest to the server.

/// Strengths that are tried first, evenly on a logarithmic scale.
const GRID: usize = 7;
/// Steps of the search between the best one's neighbours: each leaves 62 % of the interval.
const STEPS: usize = 12;

/// The strength in `range` with the smallest distance, by a grid and then golden sections (Kiefer, "Sequential minimax search for
/// a maximum", Proceedings of the AMS 4, 1953) of the logarithm. `distance` gives `None` when it can't be measured any more; the
/// best one until then is the answer. `worth` says whether the grid's best is worth the search.
pub(super) fn nearest(
    range: [f64; 2],
    worth: impl Fn(f64) -> bool,
    mut distance: impl FnMut(f64) -> Option<f64>,
) -> Option<f64> {
    let [low, high] = range.map(f64::ln);
    let step = (high - low) / (GRID - 1) as f64;
    let mut best: Option<(f64, f64)> = None;
    let mut measure = |at: f64, best: &mut Option<(f64, f64)>| -> Option<f64> {
        let value = distance(at.exp())?;
        if best.is_none_or(|(_, least)| value < least) {
            *best = Some((at, value));
        }
        Some(value)
    };
    for i in 0..GRID {
        if measure(low + step * i as f64, &mut best).is_none() {
            break;
        }
    }
    let (center, least) = best?;
    if !worth(least) {
        return None;
    }
    let golden = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut a, mut b) = ((center - step).max(low), (center + step).min(high));
    let inner = |a: f64, b: f64| (b - golden * (b - a), a + golden * (b - a));
    let (left, right) = inner(a, b);
    let mut known = (measure(left, &mut best), measure(right, &mut best));
    for _ in 0..STEPS {
        let (Some(at_left), Some(at_right)) = known else { break };
        // One of the two inner points is one of the next two.
        if at_left < at_right {
            b = inner(a, b).1;
            known = (measure(inner(a, b).0, &mut best), Some(at_left));
        } else {
            a = inner(a, b).0;
            known = (Some(at_right), measure(inner(a, b).1, &mut best));
        }
    }
    // People choose round numbers, and a search comes near them.
    if let Some((at, _)) = best {
        for round in [rounded(at.exp(), 1), rounded(at.exp(), 2)] {
            measure(round.ln(), &mut best);
        }
    }
    best.map(|(at, _)| rounded(at.exp(), 9))
}

/// To so many significant digits.
fn rounded(value: f64, digits: usize) -> f64 {
    // Rust writes and reads decimal numbers exactly.
    format!("{value:.*e}", digits - 1).parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strength_is_found_between_the_grids_points() {
        for truth in [0.013, 0.3, 2.97] {
            let found =
                nearest([1e-3, 100.0], |_| true, |x| Some((x.ln() - f64::ln(truth)).powi(2))).unwrap();
            assert!((found / truth - 1.0).abs() < 0.02, "{found} for {truth}");
        }
    }

    #[test]
    fn round_numbers_are_found_to_the_digit() {
        for truth in [1e5, 0.0015, 1.3] {
            let found = nearest([1e-3, 1e8], |_| true, |x| Some((x.ln() - f64::ln(truth)).abs())).unwrap();
            assert_eq!(found, truth);
        }
    }

    #[test]
    fn a_search_that_is_not_worth_it_costs_the_grid_alone() {
        let mut asked = 0;
        let found = nearest(
            [0.1, 10.0],
            |least| least < 0.5,
            |_| {
                asked += 1;
                Some(1.0)
            },
        );
        assert_eq!((found, asked), (None, GRID));
        assert_eq!(nearest([0.1, 10.0], |_| true, |_| None), None);
    }
}
