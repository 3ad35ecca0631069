//! No bytes of a shard make the reader panic, or make it hand out a tensor that is not what its header says.

#![allow(clippy::unwrap_used)] // A test fails by panicking, also in a function that is not marked as one.

mod folder;

use std::sync::LazyLock;

use folder::{canary, file};
use lucid_checkpoint::{Checkpoint, Files, inspect};
use proptest::prelude::*;

fn check(shard: &[u8]) {
    let place = folder::folder(&[("model.safetensors", shard)]);
    let Ok(checkpoint) = Checkpoint::open(Files::open(place.path()).unwrap()) else { return };
    for tensor in checkpoint.tensors() {
        if let Some(size) = tensor.dtype.size() {
            let elements: u64 = tensor.shape.iter().map(|&dim| dim as u64).product();
            assert_eq!(elements * size, tensor.bytes.len() as u64, "{}", tensor.name);
        }
        let _ = checkpoint.vector(&tensor.name, tensor.shape.first().copied().unwrap_or(0));
    }
    // Walks every matrix through the layout's checks.
    let _ = inspect(&checkpoint).render(true);
}

/// The first tensors of the real header, with data: a seed that mutations start from.
static SEED: LazyLock<(Vec<u8>, Vec<u8>)> = LazyLock::new(|| {
    let shard = std::fs::read(canary().join("model-00002-of-00002.safetensors")).unwrap();
    let length = u64::from_le_bytes(*shard.first_chunk().unwrap()) as usize;
    let header: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&shard[8..8 + length]).unwrap();
    let few: serde_json::Map<_, _> =
        header.into_iter().filter(|(name, _)| name.contains("experts.3.")).collect();
    let few = serde_json::Value::Object(few).to_string().into_bytes();
    (few, vec![0x38; 4096])
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        check(&bytes);
    }

    #[test]
    fn random_header_text(header in "\\PC{0,128}", data in 0usize..64) {
        check(&file(&header, &vec![0; data]));
    }

    #[test]
    fn random_tensors(
        tensors in proptest::collection::vec(
            (
                "m\\.(weight|weight_scale|weight_scale_2|input_scale|weight_packed|bias)|layers\\.[0-9]{1,3}\\.weight",
                "U8|I32|F32|BF16|F16|F8_E4M3|NEW",
                proptest::collection::vec(prop_oneof![0u64..40, any::<u64>()], 0..4),
                prop_oneof![0u64..64, any::<u64>()],
                prop_oneof![0u64..64, any::<u64>()],
            ),
            0..8,
        ),
        data in 0usize..256,
    ) {
        // As text, so that a name can be there twice.
        let tensors: Vec<String> = tensors
            .iter()
            .map(|(name, dtype, shape, begin, end)| {
                format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
            })
            .collect();
        check(&file(&format!("{{{}}}", tensors.join(",")), &vec![0x38; data]));
    }

    /// The right sizes, so that the layouts' checks are reached.
    #[test]
    fn random_layouts(
        tensors in proptest::collection::btree_map(
            "m\\.(weight|weight_scale|weight_scale_2|input_scale|weight_packed|weight_scale_inv|bias)",
            ("U8|I32|F32|BF16|F16|F8_E4M3", proptest::collection::vec(0usize..40, 0..3)),
            0..8,
        ),
        fill in any::<u8>(),
    ) {
        let size = |dtype: &str| match dtype { "U8" | "F8_E4M3" => 1, "BF16" | "F16" => 2, _ => 4 };
        let specs: Vec<folder::Spec<'_>> = tensors
            .iter()
            .map(|(name, (dtype, shape))| {
                let bytes = vec![fill; shape.iter().product::<usize>() * size(dtype)];
                (name.as_str(), dtype.as_str(), shape.as_slice(), bytes)
            })
            .collect();
        check(&folder::shard(&specs));
    }

    #[test]
    fn mutations_of_the_real_header(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..6),
        length in prop_oneof![4 => Just(None), 1 => any::<u64>().prop_map(Some), 1 => (0u64..1000).prop_map(Some)],
    ) {
        let (header, data) = &*SEED;
        let mut header = header.clone();
        for (at, byte, kind) in changes {
            let at = at.index(header.len());
            match kind {
                0 => header[at] = byte,
                1 => header.insert(at, b"0123456789[]{},:\""[byte as usize % 17]),
                _ => drop(header.remove(at)),
            }
        }
        let length = length.unwrap_or(header.len() as u64);
        let mut file = length.to_le_bytes().to_vec();
        file.extend_from_slice(&header);
        file.extend_from_slice(data);
        check(&file);
    }
}
