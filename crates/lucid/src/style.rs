//! Colours of the terminal. `anstream` drops them where they don't belong (pipes, NO_COLOR).

use std::fmt::Display;

use anstyle::{AnsiColor, Style};

fn painted(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Headings.
pub fn heading(text: impl Display) -> String {
    painted(Style::new().bold(), text)
}

/// Reasoning, hints, what may be skipped.
pub fn dim(text: impl Display) -> String {
    painted(Style::new().dimmed(), text)
}

/// Good news.
pub fn good(text: impl Display) -> String {
    painted(AnsiColor::Green.on_default().bold(), text)
}

/// Bad news.
pub fn error(text: impl Display) -> String {
    painted(AnsiColor::Red.on_default().bold(), text)
}

/// Names of things that can be typed.
pub fn name(text: impl Display) -> String {
    painted(AnsiColor::Cyan.on_default(), text)
}
