use lucid_checkpoint::{e4m3_to_f32, f32_to_e4m3};

use super::random::{self, Random};
use super::{bf16, gpu_with_terms, joined, poisoned, read, same_bits, some_of};
use crate::cuda::arguments::Order;
use crate::cuda::attention::{Choices, Inputs, Pages, PartialSums, Shape, StepRows, attend, inputs};
use crate::cuda::cache::LayerCache;
use crate::cuda::driver::Gpu;
use crate::cuda::expanded::part;
use crate::cuda::kernels::Kernels;
use crate::cuda::matmul;
use crate::kv_cache::PAGE_TOKENS;
use crate::{KvCacheDtype, Mode};

const LATENT: usize = 512;
const ROPE: usize = 64;
const NOPE: usize = 128;
const WIDTH: usize = LATENT + ROPE;

/// A case: the heads, whether RoPE's pairs are adjacent, whether rows attend to lists, and the sequences' lengths.
struct Case {
    mode: Mode,
    dtype: KvCacheDtype,
    tensor: bool,
    heads: usize,
    interleaved: bool,
    chooses: bool,
    lengths: &'static [usize],
}

const fn case(
    (mode, dtype, tensor): (Mode, KvCacheDtype, bool),
    heads: usize,
    (interleaved, chooses): (bool, bool),
    lengths: &'static [usize],
) -> Case {
    Case { mode, dtype, tensor, heads, interleaved, chooses, lengths }
}

/// Sequences of ugly lengths, whose entries are written by the kernel itself and whose pages lie anywhere: sums against f64, and
/// pages side by side (with a few heads in a block, or all) against pages in order, to the bit.
#[test]
fn attention_matches_f64_over_scattered_pages() {
    use KvCacheDtype::{Bf16, F32, Fp8E4m3};
    const PLAIN: (Mode, KvCacheDtype, bool) = (Mode::Serving, Bf16, false);
    const TENSOR: (Mode, KvCacheDtype, bool) = (Mode::Serving, Bf16, true);
    const CODES: (Mode, KvCacheDtype, bool) = (Mode::Serving, Fp8E4m3, true);
    let cases = [
        case((Mode::Reference, F32, false), 8, (true, false), &[1, 17, 64, 65, 200]),
        case(PLAIN, 3, (false, false), &[1, 17, 64, 65, 200]),
        case(TENSOR, 3, (false, false), &[1, 17, 63, 64, 65, 530]),
        case(TENSOR, 2, (false, false), &[1_100]),
        case(TENSOR, 1, (true, false), &[4_300]),
        case(TENSOR, 20, (true, false), &[300]),
        case(TENSOR, 64, (true, false), &[70, 129]),
        case(TENSOR, 70, (true, false), &[66]),
        case((Mode::Reference, F32, false), 8, (true, true), &[1, 17, 64, 65, 200]),
        case(PLAIN, 3, (false, true), &[1, 17, 64, 65, 200]),
        case(TENSOR, 3, (false, true), &[1, 17, 64, 65, 530]),
        case(TENSOR, 33, (true, true), &[300]),
        case((Mode::Reference, Fp8E4m3, false), 8, (true, false), &[1, 17, 64, 65, 200]),
        case(CODES, 3, (false, false), &[1, 17, 63, 64, 65, 530]),
        case(CODES, 2, (false, false), &[1_100]),
        case(CODES, 64, (true, false), &[130]),
        case((Mode::Reference, Fp8E4m3, false), 3, (false, true), &[1, 17, 64, 65, 200]),
        case(CODES, 33, (true, true), &[300]),
    ];
    for terms in [3, 1] {
        let Some((gpu, mut kernels)) = gpu_with_terms(terms) else { return };
        let has_tensor = kernels.roomy;
        for case in some_of(&cases, |case| case.lengths.iter().all(|&length| length < 1_000)) {
            // Reference mode has exact activations.
            if terms == 3 || case.mode == Mode::Serving {
                kernels.roomy = case.tensor && has_tensor;
                check(&gpu, &kernels, case);
            }
        }
    }
}

/// The kernel for all heads on few pages: what `compute-sanitizer` sees to its end.
#[test]
fn attention_of_all_heads_matches_f64_on_few_pages() {
    let Some((gpu, kernels)) = gpu_with_terms(1) else { return };
    let of_all = |dtype, chooses, lengths| {
        check(&gpu, &kernels, &case((Mode::Serving, dtype, kernels.roomy), 64, (true, chooses), lengths));
    };
    of_all(KvCacheDtype::Bf16, false, &[5, 130]);
    of_all(KvCacheDtype::Fp8E4m3, false, &[130]);
    of_all(KvCacheDtype::Bf16, true, &[140]);
}

fn check(gpu: &Gpu, kernels: &Kernels, case: &Case) {
    use KvCacheDtype::{Bf16, F32, Fp8E4m3};
    let &Case { mode, dtype, tensor, heads, interleaved, chooses, lengths } = case;
    let mut random = Random::new(11);
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
    let absorbed = poisoned(gpu, rows * heads * WIDTH);
    // What rows of more than `most` tokens attend to: tokens anywhere, their own among them.
    let most = 45;
    let lists: Vec<Vec<u32>> = (0..if chooses { rows } else { 1 })
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
    inputs(gpu, kernels, shape, step, layer, &from).unwrap();

    // The queries' two parts.
    let split = joined(gpu, kernels, nope.address(), rows, heads * NOPE);
    let rotated = read(gpu, &absorbed, rows * heads * WIDTH);
    let rotate = |x: &[f32], position: usize| -> Vec<f32> {
        let mut out = vec![0f32; ROPE];
        for pair in 0..ROPE / 2 {
            let (cos, sin) = (angles[position * ROPE + 2 * pair], angles[position * ROPE + 2 * pair + 1]);
            let (low, high) = if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + ROPE / 2) };
            out[low] = x[low] * cos - x[high] * sin;
            out[high] = x[high] * cos + x[low] * sin;
        }
        out
    };
    let mut absorbed_queries = random::vector(rows * heads * WIDTH, 4);
    for i in 0..rows * heads {
        let query = &queries[i * (NOPE + ROPE)..][..NOPE + ROPE];
        let rounded = |x: &f32| if kernels.terms == 1 { bf16(*x) } else { *x };
        assert_eq!(&split[i * NOPE..][..NOPE], query[..NOPE].iter().map(rounded).collect::<Vec<_>>());
        let expected = rotate(&query[NOPE..], words[2 * (i / heads)] as usize);
        assert_eq!(&rotated[i * WIDTH + LATENT..][..ROPE], &expected[..]);
        absorbed_queries[i * WIDTH + LATENT..][..ROPE].copy_from_slice(&expected);
    }
    gpu.write(absorbed.address(), &absorbed_queries).unwrap();

    let partial = PartialSums::new(gpu, shape, positions).unwrap();
    let latents: Vec<f32> =
        absorbed_queries.chunks(WIDTH).flat_map(|query| &query[..LATENT]).copied().collect();
    let latents_gpu = gpu.upload(&latents).unwrap();
    // From row `first` on.
    let run = |pages: Pages, first: usize| {
        let (rows, step) = (rows - first, part(step, first, rows - first));
        let out = gpu.allocate(rows * heads * LATENT * 6).unwrap();
        gpu.write(out.address(), &vec![u16::MAX; rows * heads * LATENT * 3]).unwrap();
        if pages == Pages::Wide {
            let from = latents_gpu.address().offset(4 * first * heads * LATENT);
            matmul::split(gpu, kernels, rows, heads * LATENT, from, Order::Natural, out.address()).unwrap();
        }
        let (queries, to) =
            (absorbed.address().offset(4 * first * heads * WIDTH), (out.address(), Order::Natural));
        attend(gpu, kernels, shape, step, layer, queries, &partial, pages, to).unwrap();
        joined(gpu, kernels, out.address(), rows, heads * LATENT)
    };
    let mut ways = vec![Pages::InOrder, Pages::SideBySide];
    if tensor && kernels.hopper.is_some() {
        ways.push(Pages::Wide);
    }
    let in_order = run(Pages::InOrder, 0);
    // Few rows take blocks with fewer heads.
    for first in [0, rows - 1] {
        let same = &in_order[first * heads * LATENT..];
        for &pages in &ways {
            let found = run(pages, first);
            assert!(same_bits(same, &found), "{mode:?}, {tensor}, {heads} heads, from {first}, {pages:?}");
        }
    }

    // Entries as they must stand in the cache.
    let mut stored: Vec<f32> = (0..rows)
        .flat_map(|row| {
            let entry = &entries[row * WIDTH..][..WIDTH];
            let mean = entry[..LATENT].iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / LATENT as f64;
            let scale = 1.0 / (mean + 1e-6).sqrt();
            let latent = (0..LATENT).map(|k| (f64::from(entry[k]) * scale * f64::from(norm[k])) as f32);
            let both: Vec<f32> = latent.chain(rotate(&entry[LATENT..], words[2 * row] as usize)).collect();
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
                    // One term is the sum rounded to bf16.
                    let rounding = if kernels.terms == 1 { expected.abs() / 256.0 } else { 0.0 };
                    assert!(
                        (got - expected).abs() < tolerance * 3.0 + rounding,
                        "{mode:?} {position} {head} {k}: {got} {expected}"
                    );
                }
            }
        }
        first += len;
    }
}
