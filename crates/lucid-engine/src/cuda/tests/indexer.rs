use super::gpu;
use super::random::Random;
use crate::cuda::indexer::{Rules, choose};

/// The definition: by score, highest first, then by position.
fn best(scores: &[f32], most: usize) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..scores.len()).collect();
    positions.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap().then(a.cmp(&b)));
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
        let words = stride / 32 + 3;
        let rows: Vec<u32> = (0..count).flat_map(|row| [positions[row / 4] as u32, 0]).collect();
        let (on_gpu, rows_gpu) = (gpu.upload(&scores).unwrap(), gpu.upload(&rows).unwrap());
        let chosen = gpu.upload(&vec![0u32; count * words]).unwrap();
        let rules = Rules { heads: 1, width: 4, most: most as u32, interleaved: 0, scale: 1.0 };
        let run = || {
            let (scores, to) = ((on_gpu.address(), stride as u32), (chosen.address(), words as u32));
            choose(&gpu, &kernels, rules, scores, rows_gpu.address(), to, count).unwrap();
            let mut bits = vec![0u32; count * words];
            gpu.read(&mut bits, chosen.address()).unwrap();
            bits
        };
        let bits = run();
        for row in 0..count {
            let seen = positions[row / 4] + 1;
            let found: Vec<usize> =
                (0..seen).filter(|i| bits[row * words + i / 32] >> (i % 32) & 1 == 1).collect();
            let expected =
                if seen <= most { (0..seen).collect() } else { best(&scores[row * stride..][..seen], most) };
            assert!(found == expected, "{most} of {seen}, row {row}");
        }
        // A score that is no number leaves nothing to attend to.
        let last = count - 4;
        scores[last * stride + positions[last / 4] / 2] = f32::NAN;
        gpu.write(on_gpu.address(), &scores).unwrap();
        assert!(run()[last * words..][..words - 3].iter().all(|&word| word == 0), "{most} of {stride}");
    }
}
