//! Instants: microseconds since the Unix epoch, read from and written as RFC 3339. Must never read a
//! clock, and never guess an offset that a provider did not write.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// An instant in microseconds since the Unix epoch (UTC). Written in JSON as RFC 3339 in UTC with six
/// digits of fraction; stored as the bare number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(transparent)]
pub struct Micros(pub i64);

impl Micros {
    /// Reads an RFC 3339 date-time with an explicit offset. `None` for anything else: a local time
    /// without an offset names no instant, and Witness does not pretend that it does. Finer digits than
    /// microseconds are cut off.
    pub fn parse(text: &str) -> Option<Self> {
        let instant = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        i64::try_from(instant.unix_timestamp_nanos().div_euclid(1_000)).ok().map(Self)
    }

    /// From whole seconds since the Unix epoch, saturating at the ends.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    /// Whole seconds since the Unix epoch, rounded down.
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }
}

impl fmt::Display for Micros {
    /// `2026-07-16T14:03:22.114208Z`. An instant outside the years 0–9999 has no RFC 3339 form; it is
    /// written as its number of microseconds, so that nothing is hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = OffsetDateTime::from_unix_timestamp(self.seconds());
        match whole {
            Ok(at) if (0..=9999).contains(&at.year()) => write!(
                f,
                "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
                at.year(),
                u8::from(at.month()),
                at.day(),
                at.hour(),
                at.minute(),
                at.second(),
                self.0.rem_euclid(1_000_000)
            ),
            Ok(_) | Err(_) => write!(f, "{}us", self.0),
        }
    }
}

impl Serialize for Micros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_i64(self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_one_instant() {
        let utc = Micros::parse("2026-07-16T14:03:22.114208Z");
        assert_eq!(utc, Some(Micros(1_784_210_602_114_208)));
        assert_eq!(utc, Micros::parse("2026-07-16T14:03:22.114208+00:00"));
        assert_eq!(utc, Micros::parse("2026-07-16T16:03:22.114208+02:00"));
        assert_eq!(utc, Micros::parse("2026-07-16T14:03:22.1142089Z"), "finer digits are cut off");
    }

    #[test]
    fn a_time_without_an_offset_is_no_instant() {
        for text in ["2026-07-14T09:12:00", "2026-07-14", "", "1784210602", "yesterday"] {
            assert_eq!(Micros::parse(text), None, "{text}");
        }
    }

    #[test]
    fn written_with_six_digits_in_utc() {
        assert_eq!(Micros(1_784_210_602_114_208).to_string(), "2026-07-16T14:03:22.114208Z");
        assert_eq!(Micros(-1).to_string(), "1969-12-31T23:59:59.999999Z");
        assert_eq!(Micros(i64::MAX).to_string(), "9223372036854775807us");
    }
}
