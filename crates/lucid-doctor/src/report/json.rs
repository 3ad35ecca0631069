//! The machine form.

use super::Report;

/// The report as indented JSON, ending in a newline.
#[must_use]
pub fn render(report: &Report) -> String {
    // A report holds strings, numbers and lists: it can't fail.
    let mut text =
        serde_json::to_string_pretty(report).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"));
    text.push('\n');
    text
}
