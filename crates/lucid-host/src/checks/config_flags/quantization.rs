//! `--quantization` and the GPU against how the checkpoint stores its weights.

use lucid_findings::{Finding, ProofKind, Severity};

use super::{CHECK, Serving};
use crate::serving::{WeightLayout, normal_layout};

pub(super) fn check(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    contradiction(serving, findings);
    weight_only(serving, findings);
}

fn contradiction(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let (Some(flag), Some(config)) = (serving.flag("quantization"), serving.config) else { return };
    let layout = config.layout();
    let stored = config.quantization.as_ref();
    let method = stored.and_then(|stored| stored.method.as_deref()).unwrap_or("none");
    let wrong_layout = normal_layout(flag).is_some_and(|fitting| !fitting.contains(&layout));
    // ModelOpt multiplies by its global scale, compressed-tensors stores the reciprocal: the bytes fit, the values don't.
    let wrong_producer = (flag.starts_with("modelopt") && method == "compressed-tensors")
        || (flag == "compressed-tensors" && method.starts_with("modelopt"));
    if !wrong_layout && !wrong_producer {
        return;
    }
    let said = stored.map_or("no quantization_config".to_owned(), |stored| {
        format!("quant_method {method}, {}", stored.format.as_deref().unwrap_or("no format named"))
    });
    let finding = serving
        .refused(
            "quantization-contradiction",
            if wrong_producer && !wrong_layout { "quantization-loader" } else { "wrong-flags" },
            5.0,
            format!("--quantization {flag} contradicts the checkpoint, which says {said}"),
        )
        .suggests("quantization-loader", if wrong_producer { 4.0 } else { 2.5 })
        .detail("The engine refuses, or decodes the weights by rules that they were not written by.");
    findings.push(
        serving
            .command_proof(finding, serving.typed("quantization"))
            .proof(ProofKind::File, "config.json", said)
            .remedy(
                "Leave the flag out: the engine reads the checkpoint's own config.",
                vec![serving.start("")],
            ),
    );
}

/// Formats without units on the GPU run as weight-only kernels: right, but slower than the numbers that people quote.
fn weight_only(serving: &Serving<'_>, findings: &mut Vec<Finding>) {
    let (Some(config), Some((major, minor))) = (serving.config, serving.compute_capability()) else { return };
    let (name, needs) = match config.layout() {
        WeightLayout::Nvfp4 | WeightLayout::Mxfp4 if major < 10 => ("4-bit floats", "10.0 (Blackwell)"),
        WeightLayout::Fp8 | WeightLayout::Fp8Block if (major, minor) < (8, 9) => {
            ("8-bit floats", "8.9 (Ada)")
        }
        _ => return,
    };
    findings.push(
        Finding::new(
            CHECK,
            "weight-only-kernels",
            Severity::Info,
            format!("compute capability {major}.{minor} has no units for {name} (from {needs}): weights are decoded in the kernel"),
        )
        .detail("Answers are right (activations stay in 16 bits), speed is that of a 16-bit product with fewer bytes to read.")
        .proof(ProofKind::File, "config.json", format!("{:?}", config.layout())),
    );
}
