//! Which experts tokens went to, as servers tell it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The experts that the tokens of a sequence went to. Nothing was computed after the last generated token, so it went nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutedExperts {
    /// Layers of the model, those without experts included.
    pub layers: usize,
    /// Experts that a token goes to.
    pub top_k: usize,
    /// `[tokens, layers, top_k]`
    pub experts: Vec<u32>,
}

impl RoutedExperts {
    /// Tokens that are told of.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.experts.len() / (self.layers * self.top_k).max(1)
    }

    /// The experts of a token in a layer; none beyond the end.
    #[must_use]
    pub fn of(&self, token: usize, layer: usize) -> &[u32] {
        let at = (token * self.layers + layer) * self.top_k;
        self.experts.get(at..at + self.top_k).filter(|_| layer < self.layers).unwrap_or_default()
    }

    /// From vLLM's field (0.32): the base64 of a NumPy file, `[tokens, layers, top_k]` of `uint8`, `uint16` or `int32`.
    ///
    /// # Errors
    /// What can't be read, in words.
    pub fn from_npy(text: &str) -> Result<RoutedExperts, String> {
        let file = decode(text)?;
        let rest = file.strip_prefix(b"\x93NUMPY\x01\x00").ok_or("it is no NumPy file of version 1.0")?;
        let (length, rest) = rest.split_first_chunk::<2>().ok_or("the NumPy file is cut")?;
        let (header, data) =
            rest.split_at_checked(usize::from(u16::from_le_bytes(*length))).ok_or("the NumPy file is cut")?;
        let header = String::from_utf8_lossy(header);
        let after = |name: &str| header.split_once(name).map(|(_, rest)| rest.trim_start());
        if !after("'fortran_order':").is_some_and(|rest| rest.starts_with("False")) {
            return Err(format!("the array is not in C's order: {header:.80}"));
        }
        let shape = after("'shape': (").and_then(|rest| rest.split_once(')')).map_or("", |(shape, _)| shape);
        let sizes: Vec<usize> = shape.split(',').filter_map(|size| size.trim().parse().ok()).collect();
        let &[tokens, layers, top_k] = sizes.as_slice() else {
            return Err(format!("the array has the shape ({shape:.40}), not [tokens, layers, experts]"));
        };
        let kind = after("'descr': '").and_then(|rest| rest.split_once('\'')).map_or("", |(kind, _)| kind);
        let experts: Vec<u32> = match kind {
            "|u1" => data.iter().map(|byte| u32::from(*byte)).collect(),
            "<u2" => data.as_chunks().0.iter().map(|two| u32::from(u16::from_le_bytes(*two))).collect(),
            "<i4" => numbers(data)?,
            other => return Err(format!("the array has the type {other:.20}")),
        };
        let wanted = tokens.checked_mul(layers).and_then(|size| size.checked_mul(top_k));
        if wanted != Some(experts.len()) {
            return Err(format!("the array has {} numbers for the shape ({shape:.40})", experts.len()));
        }
        Ok(RoutedExperts { layers, top_k, experts })
    }

    /// From SGLang's field (`sglext.routed_experts`): the base64 of `int32` numbers, which don't tell their shape.
    ///
    /// # Errors
    /// What can't be read, in words.
    pub fn from_numbers(text: &str, layers: usize, top_k: usize) -> Result<RoutedExperts, String> {
        let experts = numbers(&decode(text)?)?;
        if layers * top_k == 0 || !experts.len().is_multiple_of(layers * top_k) {
            return Err(format!(
                "{} numbers are no multiple of {layers} layers of {top_k} experts",
                experts.len()
            ));
        }
        Ok(RoutedExperts { layers, top_k, experts })
    }
}

fn decode(text: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|error| format!("it is no base64: {error}"))
}

fn numbers(data: &[u8]) -> Result<Vec<u32>, String> {
    let (numbers, []) = data.as_chunks() else { return Err("the numbers are cut".to_owned()) };
    numbers
        .iter()
        .map(|four| u32::try_from(i32::from_le_bytes(*four)))
        .collect::<Result<_, _>>()
        .map_err(|_| "an expert has a negative number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by `numpy.save` 2.3 and `base64.b64encode`.
    const BYTES: &str = "k05VTVBZAQB2AHsnZGVzY3InOiAnfHUxJywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDIsIDIsIDIpLCB9ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoAAAP/AAAHAQ==";
    const WORDS: &str = "k05VTVBZAQB2AHsnZGVzY3InOiAnPGk0JywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDIsIDIsIDIpLCB9ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoAAAAAAAAAAAMAAAD/AAAAAAAAAAAAAAAHAAAAAQAAAA==";
    /// `base64.b64encode(array.tobytes())` of the same numbers in `int32`, as SGLang encodes them.
    const BARE: &str = "AAAAAAAAAAADAAAA/wAAAAAAAAAAAAAABwAAAAEAAAA=";

    #[test]
    fn every_form_is_read() {
        let expected = RoutedExperts { layers: 2, top_k: 2, experts: vec![0, 0, 3, 255, 0, 0, 7, 1] };
        assert_eq!(RoutedExperts::from_npy(BYTES), Ok(expected.clone()));
        assert_eq!(RoutedExperts::from_npy(WORDS), Ok(expected.clone()));
        assert_eq!(RoutedExperts::from_numbers(BARE, 2, 2), Ok(expected.clone()));
        assert_eq!(
            (expected.tokens(), expected.of(0, 1), expected.of(1, 1)),
            (2, &[3, 255][..], &[7, 1][..])
        );
        assert!(expected.of(2, 0).is_empty() && expected.of(0, 2).is_empty());
    }

    #[test]
    fn what_is_no_array_is_said() {
        for (text, reason) in [("%%", "base64"), ("AAAA", "no NumPy"), ("k05VTVBZAQD//w==", "cut")] {
            let error = RoutedExperts::from_npy(text).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let mut file = STANDARD.decode(BYTES).unwrap();
        file.pop();
        assert!(RoutedExperts::from_npy(&STANDARD.encode(file)).unwrap_err().contains("7 numbers"));
        assert!(RoutedExperts::from_numbers(BARE, 3, 2).unwrap_err().contains("no multiple"));
        assert!(RoutedExperts::from_numbers("AAA=", 1, 1).unwrap_err().contains("cut"));
        assert!(RoutedExperts::from_numbers("/////w==", 1, 1).unwrap_err().contains("negative"));
    }
}
