//! Every bound the schema sets, in one place, each named with its unit. Must never hold a bound that
//! belongs to one provider only: those stand in the provider's own file.

/// Levels of `{` and `[` a body may nest.
pub const NESTING_LEVELS_MAX: usize = 128;

/// Seconds a signature's timestamp may differ from now, both directions, inclusive, unless configured
/// (all three contracts recommend this value).
pub const TOLERANCE_SECONDS_DEFAULT: u64 = 300;

/// Digits a signature's timestamp may have. Eighteen keep every value inside an `i64`, and still let a
/// provider that signs with milliseconds be noticed as `stale_signed` instead of merely malformed.
pub const TIMESTAMP_DIGITS_MAX: usize = 18;

/// Contenders, and unplaced values, that an answer shows; `total` counts all of them.
pub const EVIDENCE_SHOWN_MAX: usize = 16;

/// Bytes one record of the journal may have, and so the most that reading one may allocate. Above every
/// body limit an endpoint can be configured with.
pub const RECORD_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes a subject's key may have. Longer keys would make pages of the store that its database keeps in
/// files it never syncs (measured: none with keys of 6,000 bytes, some with 10,000); a fact's key is a
/// subject's key and up to 3,100 bytes more. A delivery about a longer subject is kept as its own event.
pub const SUBJECT_KEY_BYTES_MAX: usize = 3_500;
