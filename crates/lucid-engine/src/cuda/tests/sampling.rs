use super::random::Random;
use super::{Gpu, Kernels, gpu};
use crate::choice::{Choice, pick};
use crate::cuda::sampling::Draws;

/// Rows at a time.
pub(super) const ROWS: usize = 48;

fn draw(gpu: &Gpu, kernels: &Kernels, logits: &[f32], choices: &[Choice]) -> Vec<Option<u32>> {
    let vocab = logits.len() / choices.len();
    let on_gpu = gpu.upload(logits).unwrap();
    let mut draws = Draws::new(gpu, ROWS).unwrap();
    draws.queue(gpu, kernels, (on_gpu.address(), vocab), choices).unwrap();
    let tokens = draws.take(gpu, choices.len()).unwrap();
    tokens.into_iter().map(|token| token.map(|token| token.0)).collect()
}

/// Logits about as a model has them, or few different ones, so that many are equal.
pub(super) fn logits(random: &mut Random, vocab: usize, kind: usize) -> Vec<f32> {
    let bell = |random: &mut Random| (0..6).map(|_| random.number()).sum::<f32>();
    (0..vocab)
        .map(|_| match kind {
            0 => 4.0 * bell(random) - 2.0,
            1 => random.below(5) as f32 - 2.0,
            2 => 0.0,
            3 => {
                if random.below(2) == 0 {
                    -0.0
                } else {
                    0.0
                }
            }
            4 => 0.02 * bell(random) + 900.0,
            // A few far ahead.
            _ => {
                if random.below(vocab) < 6 {
                    20.0 + random.number()
                } else {
                    bell(random)
                }
            }
        })
        .collect()
}

#[test]
fn draws_are_the_processors() {
    let Some((gpu, kernels)) = gpu() else { return };
    let mut random = Random::new(8);
    for vocab in [1, 7, 33, 1_023, 1_025, 4_096, 32_003, 163_840] {
        for kind in 0..6 {
            let rows = if vocab > 10_000 { [12, 18][kind % 2] } else { [ROWS, 16][kind % 2] };
            let all: Vec<f32> = (0..rows).flat_map(|_| logits(&mut random, vocab, kind)).collect();
            let choices: Vec<Choice> = (0..rows)
                .map(|row| Choice {
                    point: if row == 0 { u64::MAX } else { random.word() },
                    inverse_temperature: [0.0, 1.0, 1.0, 100.0, 0.5, 1.25][row % 6],
                    min_p: [0.0, 0.0, 0.3, 1e-3][random.below(4)],
                    top_p: [1.0, 0.95, 0.5, 1e-6, 0.999][random.below(5)],
                    top_k: [0, 1, 20, 5_000, u32::MAX][random.below(5)],
                })
                .collect();
            let drawn = draw(&gpu, &kernels, &all, &choices);
            for ((logits, choice), drawn) in all.chunks(vocab).zip(&choices).zip(drawn) {
                assert_eq!(drawn, Some(pick(choice, logits).0), "{vocab} tokens, kind {kind}, {choice:?}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_is_found_wherever_it_is() {
    let Some((gpu, kernels)) = gpu() else { return };
    let vocab = 5_003;
    let wrong = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN];
    let places = [0, 1, 1_023, 1_024, vocab - 1];
    let mut all = Vec::new();
    for (&value, &place) in wrong.iter().flat_map(|value| places.iter().map(move |place| (value, place))) {
        let mut row: Vec<f32> = (0..vocab).map(|i| (i as f32).sin()).collect();
        row[place] = value;
        all.extend(row);
    }
    all.extend(vec![1.0; vocab]);
    let mut choices = vec![Choice { inverse_temperature: 1.0, top_p: 0.9, ..Choice::GREEDY }; 21];
    choices[3] = Choice::GREEDY;
    let drawn = draw(&gpu, &kernels, &all, &choices);
    assert!(drawn[..20].iter().all(Option::is_none), "{drawn:?}");
    assert!(drawn[20].is_some());
}

/// Not a test of anything: prints the times of draws from Kimi's vocabulary, host and copies included.
#[test]
#[ignore = "a benchmark"]
fn draws_at_full_width() {
    let Some((gpu, kernels)) = gpu() else { return };
    let (vocab, most) = (163_840, 64);
    let mut random = Random::new(9);
    let all: Vec<f32> = (0..most).flat_map(|_| logits(&mut random, vocab, 0)).collect();
    let on_gpu = gpu.upload(&all).unwrap();
    let mut draws = Draws::new(&gpu, most).unwrap();
    let sampled = Choice { inverse_temperature: 1.0, ..Choice::GREEDY };
    let kinds = [
        ("greedy", Choice::GREEDY),
        ("temperature 1", sampled),
        ("top-p 0.95", Choice { top_p: 0.95, ..sampled }),
        ("top-k 20, top-p 0.95", Choice { top_p: 0.95, top_k: 20, ..sampled }),
    ];
    for (name, choice) in kinds {
        for rows in [1, 8, 64] {
            let mut times: Vec<f64> = (0..20)
                .map(|_| {
                    let choices: Vec<Choice> =
                        (0..rows).map(|_| Choice { point: random.word(), ..choice }).collect();
                    let start = std::time::Instant::now();
                    draws.queue(&gpu, &kernels, (on_gpu.address(), vocab), &choices).unwrap();
                    draws.take(&gpu, rows).unwrap();
                    start.elapsed().as_secs_f64()
                })
                .collect();
            times.sort_by(f64::total_cmp);
            println!("{name}, {rows} rows: {:.1} µs", times[10] * 1e6);
        }
    }
}
