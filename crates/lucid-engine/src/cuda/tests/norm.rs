use super::{gpu, joined, random};
use crate::cuda::driver::Address;
use crate::cuda::norm::rms_norm;

#[test]
fn norms_match_f64() {
    let Some((gpu, kernels)) = gpu() else { return };
    for (count, width, stride) in [(1, 256, 256), (17, 192, 200), (3, 7_168, 7_168), (2, 5, 9)] {
        let (x, weight) = (random::vector(count * stride, 1), random::vector(width, 2));
        let (on_gpu, weight_on_gpu) = (gpu.upload(&x).unwrap(), gpu.upload(&weight).unwrap());
        let out = gpu.allocate(count * width * 6).unwrap();
        let input = (on_gpu.address(), stride);
        rms_norm(
            &gpu,
            &kernels,
            count,
            input,
            weight_on_gpu.address(),
            1e-5,
            width,
            out.address(),
            Address::NULL,
        )
        .unwrap();
        for (i, y) in joined(&gpu, &kernels, out.address(), count, width).into_iter().enumerate() {
            let row = &x[i / width * stride..][..width];
            let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / width as f64;
            let expected = f64::from(row[i % width]) / (mean + 1e-5).sqrt() * f64::from(weight[i % width]);
            assert!((f64::from(y) - expected).abs() <= 1e-6 * expected.abs() + 1e-9, "{y} {expected}");
        }
    }
}
