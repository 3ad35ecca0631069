use lucid_checkpoint::TokenId;

use super::random::Random;
use super::sampling::{ROWS, logits};
use super::{Gpu, Kernels, gpu};
use crate::choice::Choice;
use crate::cuda::driver::Address;
use crate::cuda::sampling::Draws;
use crate::cuda::scoring::{MOST_LISTED, Scores, Wish};
use crate::logprobs::score;
use crate::request::TokenLogprobs;

fn scores(
    gpu: &Gpu,
    kernels: &Kernels,
    logits: (Address, usize),
    wishes: &[Wish],
    drawn: Address,
) -> Vec<Option<TokenLogprobs>> {
    let mut scores = Scores::new(gpu, ROWS).unwrap();
    scores.queue(gpu, kernels, logits, wishes, drawn).unwrap();
    scores.take(gpu, wishes).unwrap().collect()
}

#[test]
fn entries_are_the_processors() {
    let Some((gpu, kernels)) = gpu() else { return };
    let mut random = Random::new(10);
    for vocab in [1, 7, 33, 255, 257, 1_025, 4_096, 32_003, 163_840] {
        // The last kinds rise and fall, so that every value, or none, is a new best.
        for kind in 0..8 {
            let rows = if vocab > 10_000 { [12, 18][kind % 2] } else { [ROWS, 16][kind % 2] };
            let row = |random: &mut Random| match kind {
                6 => (0..vocab).map(|i| i as f32 * 1e-3).collect(),
                7 => (0..vocab).map(|i| i as f32 * -1e-3).collect(),
                _ => logits(random, vocab, kind),
            };
            let all: Vec<f32> = (0..rows).flat_map(|_| row(&mut random)).collect();
            let on_gpu = gpu.upload(&all).unwrap();
            let wishes: Vec<Wish> = (0..rows)
                .map(|i| Wish {
                    // Not in their order.
                    row: (7 * i + 3) % rows,
                    token: Some(TokenId(random.below(vocab) as u32)),
                    top: [0, 1, 5, 20, MOST_LISTED][i % 5],
                })
                .collect();
            let entries = scores(&gpu, &kernels, (on_gpu.address(), vocab), &wishes, Address::NULL);
            for (wish, entry) in wishes.iter().zip(entries) {
                let (row, token) = (&all[wish.row * vocab..(wish.row + 1) * vocab], wish.token.unwrap());
                // None is NaN, so equal floats have equal bits.
                assert_eq!(entry, score(row, token, wish.top).ok(), "{vocab} tokens, kind {kind}, {wish:?}");
            }
        }
    }
}

#[test]
fn drawn_tokens_are_scored_where_they_were_drawn() {
    let Some((gpu, kernels)) = gpu() else { return };
    let (vocab, rows, mut random) = (5_000, 20, Random::new(11));
    let mut all: Vec<f32> = (0..rows).flat_map(|_| logits(&mut random, vocab, 0)).collect();
    all[3 * vocab + 77] = f32::NAN;
    all[5 * vocab] = f32::INFINITY;
    let on_gpu = gpu.upload(&all).unwrap();
    let choices: Vec<Choice> = (0..rows)
        .map(|_| Choice { point: random.word(), inverse_temperature: 1.0, ..Choice::GREEDY })
        .collect();
    let (mut draws, logits) = (Draws::new(&gpu, ROWS).unwrap(), (on_gpu.address(), vocab));
    draws.queue(&gpu, &kernels, logits, &choices).unwrap();
    let wishes: Vec<Wish> = (0..rows).rev().map(|row| Wish { row, token: None, top: 4 }).collect();
    let entries = scores(&gpu, &kernels, logits, &wishes, draws.drawn());
    let tokens = draws.take(&gpu, rows).unwrap();
    for (wish, entry) in wishes.iter().zip(entries) {
        let row = &all[wish.row * vocab..(wish.row + 1) * vocab];
        let expected = tokens[wish.row].map(|token| score(row, token, 4).unwrap());
        assert_eq!(entry, expected, "row {}", wish.row);
        assert_eq!(entry.is_none(), [3, 5].contains(&wish.row));
    }
}

/// Not a test of anything: prints the times of entries from Kimi's vocabulary, host and copies included.
#[test]
#[ignore = "a benchmark"]
fn scores_at_full_width() {
    let Some((gpu, kernels)) = gpu() else { return };
    let (vocab, most, mut random) = (163_840, 64, Random::new(12));
    let all: Vec<f32> = (0..most).flat_map(|_| logits(&mut random, vocab, 0)).collect();
    let on_gpu = gpu.upload(&all).unwrap();
    let mut scores = Scores::new(&gpu, most).unwrap();
    for rows in [1, 8, 64] {
        let wishes: Vec<Wish> =
            (0..rows).map(|row| Wish { row, token: Some(TokenId(row as u32)), top: 20 }).collect();
        let mut times: Vec<f64> = (0..20)
            .map(|_| {
                let start = std::time::Instant::now();
                scores.queue(&gpu, &kernels, (on_gpu.address(), vocab), &wishes, Address::NULL).unwrap();
                assert_eq!(scores.take(&gpu, &wishes).unwrap().flatten().count(), rows);
                start.elapsed().as_secs_f64()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("log-probabilities, {rows} rows: {:.1} µs", times[10] * 1e6);
    }
}
