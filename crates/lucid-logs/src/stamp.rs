//! Times as lines give them.

use jiff::civil::{Date, Time};

use crate::moment::Moment;

/// A time as a line gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamp {
    /// Date and time.
    Full(Moment),
    /// Without a year: `11-29 17:24:00`.
    Yearless { month: i8, day: i8, time: Time },
    /// Milliseconds since the process or the kernel started.
    Relative(i64),
}

/// `2026-11-29 12:00:00`, with `T`, fraction (`.` or `,`), and zone, which is applied. Gives the time and its length.
pub(crate) fn timestamp(text: &[u8]) -> Option<(Moment, usize)> {
    if text.len() < 19 || text[4] != b'-' || text[7] != b'-' || !matches!(text[10], b' ' | b'T') {
        return None;
    }
    let year = i16::from(two(text)?) * 100 + i16::from(two(&text[2..])?);
    let date = Date::new(year, two(&text[5..])?, two(&text[8..])?).ok()?;
    let (time, length) = clock(&text[11..])?;
    let mut length = 11 + length;
    let mut millis = Moment::from_civil(date.to_datetime(time)).millis();
    match text.get(length) {
        Some(b'Z') => length += 1,
        Some(sign @ (b'+' | b'-')) if text.get(length + 1).is_some_and(u8::is_ascii_digit) => {
            let hours = two(&text[length + 1..])?;
            let colon = usize::from(text.get(length + 3) == Some(&b':'));
            let minutes = text.get(length + 3 + colon..).and_then(two)?;
            let offset = (i64::from(hours) * 60 + i64::from(minutes)) * 60_000;
            millis -= if *sign == b'+' { offset } else { -offset };
            length += 5 + colon;
        }
        _ => {}
    }
    Some((Moment::from_millis(millis), length))
}

/// `17:24:43`, with a fraction of a second. Gives the time and its length.
pub(crate) fn clock(text: &[u8]) -> Option<(Time, usize)> {
    if text.len() < 8 || text[2] != b':' || text[5] != b':' {
        return None;
    }
    let (hour, minute, second) = (two(text)?, two(&text[3..])?, two(&text[6..])?);
    let mut length = 8;
    let mut nanos: i32 = 0;
    if matches!(text.get(8), Some(b'.' | b',')) {
        let digits = text[9..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits > 0 {
            let mut unit = 100_000_000;
            for digit in &text[9..9 + digits.min(9)] {
                nanos += i32::from(digit - b'0') * unit;
                unit /= 10;
            }
            length = 9 + digits;
        }
    }
    // 60 is a leap second.
    Some((Time::new(hour, minute, second.min(59), nanos).ok()?, length))
}

/// `Nov 29 12:00:00`, `Nov  9 12:00:00`.
pub(crate) fn month_day_time(text: &[u8]) -> Option<(i8, i8, Time, usize)> {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    if text.len() < 15 || text[3] != b' ' || text[6] != b' ' {
        return None;
    }
    let month = MONTHS.chunks(3).position(|month| month == &text[..3])?;
    let day = match text[4] {
        b' ' => (text[5] as char).to_digit(10)? as i8,
        _ => two(&text[4..])?,
    };
    let (time, length) = clock(&text[7..])?;
    Some((i8::try_from(month).ok()? + 1, day, time, 7 + length))
}

/// Two digits.
pub(crate) fn two(text: &[u8]) -> Option<i8> {
    match text {
        [a @ b'0'..=b'9', b @ b'0'..=b'9', ..] => Some(((a - b'0') * 10 + (b - b'0')) as i8),
        _ => None,
    }
}

/// A number of at most 12 digits and its length.
pub(crate) fn number(text: &[u8]) -> Option<(i64, usize)> {
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if length == 0 || length > 12 {
        return None;
    }
    let value = text[..length].iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    Some((value, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_applied() {
        let utc = timestamp(b"2026-11-29T11:00:00Z x").unwrap();
        assert_eq!(timestamp(b"2026-11-29T12:00:00.000000000+01:00").unwrap().0, utc.0);
        assert_eq!(timestamp(b"2026-11-29T06:30:00-0430 ").unwrap().0, utc.0);
        for broken in ["2026-13-29 11:00:00", "2026-11-29 25:00:00", "2026-11-29", "20x6-11-29 11:00:00"] {
            assert_eq!(timestamp(broken.as_bytes()), None, "{broken}");
        }
    }
}
