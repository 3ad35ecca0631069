//! Which experts tokens went to, as vLLM writes it: a NumPy file in base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lucid_engine::Routes;

/// An array `[tokens, layers, experts per token]` in NumPy's format (version 1.0, see `numpy.lib.format`), in base64: bytes where all
/// numbers fit, else 16 bits.
pub(crate) fn base64_npy(routes: &Routes) -> String {
    let width = (routes.layers * routes.top_k).max(1);
    let bytes = routes.experts.iter().all(|expert| *expert < 256);
    let kind = if bytes { "|u1" } else { "<u2" };
    let shape = format!("({}, {}, {})", routes.experts.len() / width, routes.layers, routes.top_k);
    let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
    // Magic, version, length and header are a multiple of 64 bytes; a newline ends it.
    let padding = 63 - (10 + header.len()) % 64;
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    // Some hundred bytes.
    file.extend(u16::try_from(header.len()).unwrap_or(u16::MAX).to_le_bytes());
    file.extend(header.as_bytes());
    for expert in &routes.experts {
        let both = expert.to_le_bytes();
        file.extend(if bytes { &both[..1] } else { &both[..] });
    }
    STANDARD.encode(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `base64.b64encode` of what `numpy.save` (2.3) writes for these arrays.
    #[test]
    fn arrays_are_what_numpy_saves() {
        let small = Routes { layers: 1, top_k: 2, experts: vec![3, 255, 0, 7] };
        assert_eq!(base64_npy(&small), include_str!("routes_u1.b64").trim());
        let large = Routes { layers: 2, top_k: 1, experts: vec![256, 1] };
        assert_eq!(base64_npy(&large), include_str!("routes_u2.b64").trim());
    }
}
