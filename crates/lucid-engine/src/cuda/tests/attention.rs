use lucid_checkpoint::{e4m3_to_f32, f32_to_e4m3};

use super::random::{self, Random};
use super::{bf16, gpu, joined, poisoned, read, same_bits};
use crate::cuda::attention::{Choices, Inputs, Pages, PartialSums, Shape, StepRows, attend, inputs};
use crate::cuda::cache::LayerCache;
use crate::cuda::driver::Address;
use crate::cuda::expanded::part;
use crate::cuda::kernels::Order;
use crate::kv_cache::PAGE_TOKENS;
use crate::{KvCacheDtype, Mode};

const LATENT: usize = 512;
const ROPE: usize = 64;
const NOPE: usize = 128;
const WIDTH: usize = LATENT + ROPE;

/// Sequences of ugly lengths, whose entries are written by the kernel itself and whose pages lie anywhere: sums against f64, and
/// pages side by side against pages in order, to the bit.
#[test]
fn attention_matches_f64_over_scattered_pages() {
    let Some((gpu, mut kernels)) = gpu() else { return };
    let mut random = Random::new(11);
    let has_tensor = kernels.roomy;
    use KvCacheDtype::{Bf16, F32, Fp8E4m3};
    for (mode, dtype, tensor, heads, interleaved, chooses, lengths) in [
        (Mode::Reference, F32, false, 8, true, false, &[1, 17, 64, 65, 200][..]),
        (Mode::Serving, Bf16, false, 3, false, false, &[1, 17, 64, 65, 200]),
        (Mode::Serving, Bf16, true, 3, false, false, &[1, 17, 64, 65, 530]),
        (Mode::Serving, Bf16, true, 20, true, false, &[300]),
        (Mode::Serving, Bf16, true, 64, true, false, &[70]),
        (Mode::Reference, F32, false, 8, true, true, &[1, 17, 64, 65, 200]),
        (Mode::Serving, Bf16, false, 3, false, true, &[1, 17, 64, 65, 200]),
        (Mode::Serving, Bf16, true, 3, false, true, &[1, 17, 64, 65, 530]),
        (Mode::Serving, Bf16, true, 33, true, true, &[300]),
        (Mode::Reference, Fp8E4m3, false, 8, true, false, &[1, 17, 64, 65, 200]),
        (Mode::Serving, Fp8E4m3, true, 3, false, false, &[1, 17, 64, 65, 530]),
        (Mode::Serving, Fp8E4m3, true, 64, true, false, &[130]),
        (Mode::Reference, Fp8E4m3, false, 3, false, true, &[1, 17, 64, 65, 200]),
        (Mode::Serving, Fp8E4m3, true, 33, true, true, &[300]),
    ] {
        kernels.roomy = tensor && has_tensor;
        let rows: usize = lengths.iter().sum();
        let pages: usize = lengths.iter().map(|len| len.div_ceil(PAGE_TOKENS)).sum();
        let mut order: Vec<u32> = (0..pages as u32 + 3).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i + 1));
        }
        let (mut words, mut table) = (Vec::new(), 0);
        for &len in lengths {
            words.extend((0..len).flat_map(|position| [position as u32, table]));
            table += len.div_ceil(PAGE_TOKENS) as u32;
        }
        let positions = *lengths.iter().max().unwrap();
        let entries = random::vector(rows * WIDTH, 1);
        let queries = random::vector(rows * heads * (NOPE + ROPE), 2);
        let norm = random::vector(LATENT, 3);
        let angles: Vec<f32> = (0..positions * ROPE / 2)
            .flat_map(|i| {
                let angle = (i / (ROPE / 2)) as f32 * 0.9f32.powi((i % (ROPE / 2)) as i32);
                [angle.cos(), angle.sin()]
            })
            .collect();
        let shape = Shape { heads, nope: NOPE, latent: LATENT, rope: ROPE, scale: 0.05, mode, cache: dtype };
        let (entries_gpu, queries_gpu) = (gpu.upload(&entries).unwrap(), gpu.upload(&queries).unwrap());
        let (norm_gpu, angles_gpu) = (gpu.upload(&norm).unwrap(), gpu.upload(&angles).unwrap());
        let (rows_gpu, pages_gpu) = (gpu.upload(&words).unwrap(), gpu.upload(&order).unwrap());
        // Whatever memory held before must not matter.
        let cache = gpu.upload(&vec![u32::MAX; (pages + 3) * PAGE_TOKENS * WIDTH]).unwrap();
        // No power of two, so that a factor too many or too few shows.
        let cache_scale = if dtype == Fp8E4m3 { 0.37 } else { 1.0 };
        let layer = LayerCache { at: cache.address(), scale: cache_scale };
        let nope = gpu.allocate(rows * heads * NOPE * 6).unwrap();
        let absorbed = poisoned(&gpu, rows * heads * WIDTH);
        // What rows of more than `most` tokens attend to: tokens anywhere, their own among them.
        let most = 45;
        let lists: Vec<Vec<u32>> = (0..rows)
            .map(|row| {
                let position = words[2 * row] as usize;
                let mut list: Vec<u32> = (0..=position as u32).collect();
                while list.len() > most {
                    list.remove(random.below(list.len() - 1));
                }
                list.resize(most, 7);
                list
            })
            .collect();
        let lists_gpu = gpu.upload(&lists.concat()).unwrap();
        let is_chosen = |row: usize, position: usize, j: usize| {
            !chooses || position < most || lists[row].contains(&(j as u32))
        };
        let step = StepRows {
            count: rows,
            rows: rows_gpu.address(),
            pages: pages_gpu.address(),
            most_pages: positions.div_ceil(PAGE_TOKENS),
            choices: match chooses {
                true => Choices { lists: lists_gpu.address(), most: most as u32 },
                false => Choices::EVERYTHING,
            },
        };
        let from = Inputs {
            entries: entries_gpu.address(),
            norm: &norm_gpu,
            eps: 1e-6,
            queries: queries_gpu.address(),
            angles: &angles_gpu,
            interleaved,
            nope_split: nope.address(),
            absorbed: absorbed.address(),
        };
        inputs(&gpu, &kernels, shape, step, layer, &from).unwrap();

        // The queries' two parts.
        let split = joined(&gpu, &kernels, nope.address(), rows, heads * NOPE);
        let rotated = read(&gpu, &absorbed, rows * heads * WIDTH);
        let rotate = |x: &[f32], position: usize| -> Vec<f32> {
            let mut out = vec![0f32; ROPE];
            for pair in 0..ROPE / 2 {
                let (cos, sin) = (angles[position * ROPE + 2 * pair], angles[position * ROPE + 2 * pair + 1]);
                let (low, high) =
                    if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + ROPE / 2) };
                out[low] = x[low] * cos - x[high] * sin;
                out[high] = x[high] * cos + x[low] * sin;
            }
            out
        };
        let mut absorbed_queries = random::vector(rows * heads * WIDTH, 4);
        for i in 0..rows * heads {
            let query = &queries[i * (NOPE + ROPE)..][..NOPE + ROPE];
            assert_eq!(&split[i * NOPE..][..NOPE], &query[..NOPE]);
            let expected = rotate(&query[NOPE..], words[2 * (i / heads)] as usize);
            assert_eq!(&rotated[i * WIDTH + LATENT..][..ROPE], &expected[..]);
            absorbed_queries[i * WIDTH + LATENT..][..ROPE].copy_from_slice(&expected);
        }
        gpu.write(absorbed.address(), &absorbed_queries).unwrap();

        let partial = PartialSums::new(&gpu, shape, positions).unwrap();
        let run = |pages: Pages, step: StepRows, queries: Address| {
            let rows = step.count;
            let out = gpu.allocate(rows * heads * LATENT * 6).unwrap();
            gpu.write(out.address(), &vec![u16::MAX; rows * heads * LATENT * 3]).unwrap();
            let to = (out.address(), Order::Natural);
            attend(&gpu, &kernels, shape, step, layer, queries, &partial, pages, to).unwrap();
            joined(&gpu, &kernels, out.address(), rows, heads * LATENT)
        };
        let in_order = run(Pages::InOrder, step, absorbed.address());
        let together = run(Pages::SideBySide, step, absorbed.address());
        assert!(same_bits(&in_order, &together), "{mode:?}, {tensor}, {heads} heads");
        // Few rows take blocks with fewer heads.
        let last = part(step, rows - 1, 1);
        let query = absorbed.address().offset(4 * (rows - 1) * heads * WIDTH);
        let same = &in_order[(rows - 1) * heads * LATENT..];
        for pages in [Pages::SideBySide, Pages::InOrder] {
            let alone = run(pages, last, query);
            assert!(same_bits(same, &alone), "{mode:?}, {tensor}, {heads} heads, one row, {pages:?}");
        }

        // Entries as they must stand in the cache.
        let mut stored: Vec<f32> = (0..rows)
            .flat_map(|row| {
                let entry = &entries[row * WIDTH..][..WIDTH];
                let mean = entry[..LATENT].iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / LATENT as f64;
                let scale = 1.0 / (mean + 1e-6).sqrt();
                let latent = (0..LATENT).map(|k| (f64::from(entry[k]) * scale * f64::from(norm[k])) as f32);
                let both: Vec<f32> =
                    latent.chain(rotate(&entry[LATENT..], words[2 * row] as usize)).collect();
                both
            })
            .map(|x| match dtype {
                F32 => x,
                Bf16 => bf16(x),
                Fp8E4m3 => e4m3_to_f32(f32_to_e4m3(x / cache_scale)) * cache_scale,
            })
            .collect();
        if dtype == Fp8E4m3 {
            // To the bit, but where an f32 that was computed in another order lies on the edge between two codes.
            let mut codes = vec![0u8; (pages + 3) * PAGE_TOKENS * WIDTH];
            gpu.read(&mut codes, cache.address()).unwrap();
            let mut edges = 0;
            for (row, stored) in stored.chunks_mut(WIDTH).enumerate() {
                let (position, table) = (words[2 * row] as usize, words[2 * row + 1] as usize);
                let page = order[table + position / PAGE_TOKENS] as usize;
                let at = (page * PAGE_TOKENS + position % PAGE_TOKENS) * WIDTH;
                for (stored, &code) in stored.iter_mut().zip(&codes[at..]) {
                    let decoded = e4m3_to_f32(code) * cache_scale;
                    edges += usize::from(decoded != *stored);
                    *stored = decoded;
                }
            }
            assert!(edges <= 1 + rows * WIDTH / 50_000, "{edges} codes differ");
        }
        // A bf16 entry on the edge between two values may round the other way.
        let tolerance = match (mode, tensor) {
            (Mode::Reference, _) => 2e-5,
            (Mode::Serving, false) => 2e-3,
            // Weights of the softmax are rounded to bf16.
            (Mode::Serving, true) => 6e-3,
        };
        let rounded = |x: &f32| if kernels.roomy { bf16(*x) } else { *x };
        let absorbed_queries: Vec<f32> = absorbed_queries.iter().map(rounded).collect();
        let mut first = 0;
        for &len in lengths {
            for position in [0, len / 2, len - 1] {
                for head in [0, heads - 1] {
                    let row = first + position;
                    let query = &absorbed_queries[(row * heads + head) * WIDTH..][..WIDTH];
                    let entry = |j: usize| &stored[(first + j) * WIDTH..][..WIDTH];
                    let scores: Vec<(usize, f64)> = (0..=position)
                        .filter(|&j| is_chosen(row, position, j))
                        .map(|j| (j, random::dot(entry(j), query).0 * 0.05))
                        .collect();
                    let highest = scores.iter().map(|&(_, score)| score).fold(f64::MIN, f64::max);
                    let total: f64 = scores.iter().map(|(_, score)| (score - highest).exp()).sum();
                    for k in 0..LATENT {
                        let expected: f64 = scores
                            .iter()
                            .map(|&(j, score)| (score - highest).exp() / total * f64::from(entry(j)[k]))
                            .sum();
                        let got = f64::from(in_order[row * heads * LATENT + head * LATENT + k] * cache_scale);
                        assert!(
                            (got - expected).abs() < tolerance * 3.0,
                            "{mode:?} {position} {head} {k}: {got} {expected}"
                        );
                    }
                }
            }
            first += len;
        }
    }
}
