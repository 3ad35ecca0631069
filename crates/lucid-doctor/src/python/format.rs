//! How Python writes numbers and strings.

use super::value::Value;
use super::{Run, unsupported};

/// `repr` of a float: the shortest text that reads back the same, with `.0` for whole numbers.
pub(crate) fn float_repr(x: f64) -> String {
    if x.is_nan() {
        "nan".to_owned()
    } else if x.is_infinite() {
        if x > 0.0 { "inf" } else { "-inf" }.to_owned()
    } else if x != 0.0 && !(1e-4..1e16).contains(&x.abs()) {
        let text = format!("{x:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
        format!("{mantissa}e{sign}{digits:0>2}")
    } else if x.fract() == 0.0 {
        format!("{x:.1}")
    } else {
        format!("{x}")
    }
}

/// `repr` of a string.
pub(crate) fn str_repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut shown = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            '\r' => shown.push_str("\\r"),
            '\\' => shown.push_str("\\\\"),
            c if c == quote => {
                shown.push('\\');
                shown.push(c);
            }
            c => shown.push(c),
        }
    }
    shown.push(quote);
    shown
}

/// The format specifications that short programs use: none, `.Nf`, `d`, `0Nd`, `N`.
pub(crate) fn formatted(value: &Value<'_>, spec: &str) -> Run<String> {
    if spec.is_empty() {
        return Ok(value.text());
    }
    if let Some(digits) =
        spec.strip_prefix('.').and_then(|rest| rest.strip_suffix('f')).and_then(|n| n.parse::<usize>().ok())
        && digits <= 30
        && let Some(number) = value.number()
    {
        return Ok(format!("{:.digits$}", number.float()));
    }
    let (zero, width) =
        spec.strip_suffix('d').unwrap_or(spec).strip_prefix('0').map_or((false, spec), |rest| (true, rest));
    if let (Ok(width), Value::Int(n)) = (width.trim_end_matches('d').parse::<usize>(), value)
        && width <= 100
    {
        return Ok(if zero { format!("{n:0width$}") } else { format!("{n:width$}") });
    }
    if let (true, Value::Int(n)) = (spec == "d", value) {
        return Ok(n.to_string());
    }
    unsupported(format!("the format `{spec}`"))
}
