use super::gpu;
use super::random::Random;
use crate::cuda::indexer::{Rules, choose};

/// The definition: by score, highest first, then by position.
fn best(scores: &[f32], most: usize) -> Vec<u32> {
    let mut positions: Vec<u32> = (0..scores.len() as u32).collect();
    positions.sort_by(|&a, &b| scores[b as usize].partial_cmp(&scores[a as usize]).unwrap().then(a.cmp(&b)));
    positions.truncate(most);
    positions.sort_unstable();
    positions
}

#[test]
fn the_best_are_chosen_of_equal_ones_the_earlier() {
    let Some((gpu, kernels)) = gpu() else { return };
    let mut random = Random::new(12);
    for (most, stride) in [(1, 64), (13, 192), (64, 2_112), (2_048, 5_056), (2_048, 70_016)] {
        // Up to `most` tokens all are chosen, and from there on `most`.
        let positions = [0, most - 1, most, most + 1, most + 40, stride / 2, stride - 1];
        let positions: Vec<usize> = positions.into_iter().filter(|&position| position < stride).collect();
        let count = positions.len() * 4;
        let mut scores = vec![f32::NAN; count * stride];
        for (row, scores) in scores.chunks_mut(stride).enumerate() {
            let kind = row % 4;
            for score in &mut scores[..=positions[row / 4]] {
                *score = match kind {
                    0 => random.number(),
                    // Mostly zeros of both signs, as ReLU leaves them.
                    1 => [0.0, -0.0, 0.0, 1.0, -1.0][random.below(5)],
                    2 => [f32::MAX, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -1e-40][random.below(5)],
                    _ => 0.5,
                };
            }
        }
        let rows: Vec<u32> = (0..count).flat_map(|row| [positions[row / 4] as u32, 0]).collect();
        let (on_gpu, rows_gpu) = (gpu.upload(&scores).unwrap(), gpu.upload(&rows).unwrap());
        let lists_gpu = gpu.upload(&vec![7u32; count * most]).unwrap();
        let rules = Rules { heads: 1, width: 16, most: most as u32, interleaved: 0, scale: 1.0 };
        let run = || {
            let scores = (on_gpu.address(), stride as u32);
            choose(&gpu, &kernels, rules, scores, rows_gpu.address(), lists_gpu.address(), count).unwrap();
            let mut lists = vec![0u32; count * most];
            gpu.read(&mut lists, lists_gpu.address()).unwrap();
            lists
        };
        let lists = run();
        for (row, found) in lists.chunks(most).enumerate() {
            let seen = positions[row / 4] + 1;
            // Rows that see everything have no list.
            let expected =
                if seen <= most { vec![7; most] } else { best(&scores[row * stride..][..seen], most) };
            assert!(found == expected, "{most} of {seen}, row {row}");
        }
        // A score that is no number leaves nothing to attend to.
        let last = count - 4;
        scores[last * stride + positions[last / 4] / 2] = f32::NAN;
        gpu.write(on_gpu.address(), &scores).unwrap();
        assert_eq!(run()[last * most], u32::MAX, "{most} of {stride}");
    }
}
