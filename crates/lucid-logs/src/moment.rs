//! When a line was written, by the clock of whoever wrote it.

use std::fmt;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const EPOCH: DateTime = jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0);

/// A wall-clock time in milliseconds, as written: engines write local time without a zone, containers and journals UTC.
/// Differences are right within one source; [`SourceSummary::clock`](crate::SourceSummary::clock) says whose clock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(i64);

impl Moment {
    /// From milliseconds since 1970-01-01 00:00 of that clock.
    #[must_use]
    pub fn from_millis(millis: i64) -> Moment {
        Moment(millis)
    }

    /// From a date and a time of the day.
    #[must_use]
    pub fn from_civil(time: DateTime) -> Moment {
        Moment(i64::try_from(time.duration_since(EPOCH).as_millis()).unwrap_or(i64::MAX))
    }

    /// Milliseconds since 1970-01-01 00:00 of that clock.
    #[must_use]
    pub fn millis(self) -> i64 {
        self.0
    }

    /// As a date and a time of the day; `None` outside the calendar.
    #[must_use]
    pub fn civil(self) -> Option<DateTime> {
        EPOCH.checked_add(SignedDuration::from_millis(self.0)).ok()
    }

    /// Seconds from `earlier` to here; negative if it is later.
    #[must_use]
    pub fn seconds_since(self, earlier: Moment) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 / 1000.0
    }

    /// Now, in UTC.
    #[must_use]
    pub fn now() -> Moment {
        Moment(jiff::Timestamp::now().as_millisecond())
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.civil() {
            // A clock that starts at zero counts from the start of the process.
            Some(time) if time.year() <= 1971 => write!(formatter, "+{}", spoken(self.0 as f64 / 1000.0)),
            Some(time) => write!(formatter, "{}", time.strftime("%Y-%m-%d %H:%M:%S")),
            None => write!(formatter, "{} ms", self.0),
        }
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.civil() {
            Some(time) => serializer.collect_str(&time),
            None => serializer.serialize_i64(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Moment, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            Millis(i64),
        }
        match Written::deserialize(deserializer)? {
            Written::Text(text) => text
                .parse::<DateTime>()
                .map(Moment::from_civil)
                .map_err(|error| serde::de::Error::custom(format!("{text:?} is no date and time: {error}"))),
            Written::Millis(millis) => Ok(Moment(millis)),
        }
    }
}

/// A duration in words: `13 min 2 s`.
#[must_use]
pub fn spoken(seconds: f64) -> String {
    let whole = seconds.round().max(0.0) as u64;
    match whole {
        0..=9 => format!("{seconds:.1} s"),
        10..=119 => format!("{whole} s"),
        120..=7199 => match whole % 60 {
            0 => format!("{} min", whole / 60),
            rest => format!("{} min {rest} s", whole / 60),
        },
        7200..=172_799 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} days {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_json() {
        for millis in [0, 1_796_000_000_123, -5, i64::MAX / 4] {
            let moment = Moment::from_millis(millis);
            let json = serde_json::to_string(&moment).unwrap();
            assert_eq!(serde_json::from_str::<Moment>(&json).unwrap(), moment, "{json}");
        }
        assert!(serde_json::from_str::<Moment>("\"yesterday\"").is_err());
    }

    #[test]
    fn durations_are_spoken() {
        assert_eq!(spoken(3.25), "3.2 s");
        assert_eq!(spoken(780.0), "13 min");
        assert_eq!(spoken(782.0), "13 min 2 s");
        assert_eq!(spoken(3.0 * 86_400.0), "3 days 0 h");
    }
}
