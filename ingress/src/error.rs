//! Why a delivery was refused, and what the caller is told: the one place where a reason becomes a
//! status, a problem `code` and a header. Must never tell a caller which signature check failed, and
//! never carry a secret, a signature or a body.

use axum::http::StatusCode;
use schema::provider::EnvelopeError;
use schema::signature::{MalformedSignature, Rejection};
use service::problem::Problem;
use thiserror::Error;

/// Seconds after which a caller may try again when we were merely busy.
const RETRY_AFTER_BUSY_SECONDS: u64 = 1;
/// Seconds after which a caller may try again when the journal did not answer.
const RETRY_AFTER_JOURNAL_SECONDS: u64 = 5;

/// Why a request was not accepted. The messages are for our own log.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Refusal {
    /// No endpoint is configured under that path.
    #[error("no endpoint has this path")]
    UnknownEndpoint,
    /// Not the path's method.
    #[error("the path does not take this method")]
    MethodNotAllowed,
    /// Not one `application/json`.
    #[error("the content type is not application/json")]
    UnsupportedContentType,
    /// A charset other than UTF-8.
    #[error("the charset is not utf-8")]
    UnsupportedCharset,
    /// The signed bytes must be the bytes on the wire.
    #[error("the content encoding is not identity")]
    UnsupportedContentEncoding,
    /// Every place is taken.
    #[error("too many deliveries are in flight")]
    TooManyInFlight,
    /// The sender is not proven.
    #[error(transparent)]
    InvalidSignature(#[from] InvalidSignature),
    /// More bytes than the endpoint takes.
    #[error("the body has more than {bytes_max} bytes")]
    BodyTooLarge {
        /// The endpoint's limit.
        bytes_max: usize,
    },
    /// The body ended before its length, or is not well framed.
    #[error("the body did not arrive whole")]
    BodyIncomplete,
    /// The body took too long.
    #[error("the body did not arrive in time")]
    BodyTimedOut,
    /// Authentic, but its envelope cannot be accepted.
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    /// Over the endpoint's rate.
    #[error("the endpoint's rate is spent")]
    RateLimited {
        /// When the next token is there.
        retry_after_seconds: u64,
    },
    /// Whether the sender is who it says cannot be told now.
    #[error("no usable key document")]
    KeySourceUnavailable {
        /// When the next fetch is allowed.
        retry_after_seconds: u64,
    },
    /// The journal cannot write, or its answer was lost.
    #[error("the journal is unavailable: {0}")]
    JournalUnavailable(String),
    /// The journal's queue is full.
    #[error("the journal's queue is full")]
    JournalQueueFull,
    /// The journal did not acknowledge in time. The record may still turn out to have been written.
    #[error("the journal did not acknowledge in time")]
    JournalTimeout,
}

/// Which signature check failed. For metrics and the log alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum InvalidSignature {
    /// The headers are not of the contract's shape.
    #[error(transparent)]
    Header(#[from] MalformedSignature),
    /// No key has the id that the sender names.
    #[error("no key has the id that the sender names")]
    UnknownKey,
    /// The time window or the HMAC.
    #[error(transparent)]
    Rejected(#[from] Rejection),
}

impl Refusal {
    /// The answer. Title and code are stable, and the same for all that a caller must not tell apart; a
    /// detail is given only where our own configuration or the sender's own, proven body explains.
    pub(crate) fn problem(&self) -> Problem {
        use StatusCode as S;
        let new = Problem::new;
        match self {
            Self::UnknownEndpoint => new(S::NOT_FOUND, "unknown_endpoint", "There is no such endpoint"),
            Self::MethodNotAllowed => Problem::method_not_allowed("POST"),
            Self::UnsupportedContentType => new(
                S::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_content_type",
                "The content type must be application/json",
            ),
            Self::UnsupportedCharset => {
                new(S::UNSUPPORTED_MEDIA_TYPE, "unsupported_charset", "The charset must be utf-8")
            }
            Self::UnsupportedContentEncoding => new(
                S::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_content_encoding",
                "The content encoding must be identity",
            ),
            Self::TooManyInFlight => {
                new(S::SERVICE_UNAVAILABLE, "too_many_in_flight", "Too many deliveries are in flight")
                    .retry_after(RETRY_AFTER_BUSY_SECONDS)
            }
            Self::InvalidSignature(_) => {
                new(S::UNAUTHORIZED, "invalid_signature", "The signature does not hold")
            }
            Self::BodyTooLarge { .. } => {
                new(S::PAYLOAD_TOO_LARGE, "body_too_large", "The body is over the endpoint's limit")
                    .detail(self.to_string())
            }
            Self::BodyIncomplete => {
                let problem = new(S::BAD_REQUEST, "body_incomplete", "The body did not arrive whole");
                Problem { retryable: true, ..problem }
            }
            Self::BodyTimedOut => {
                let problem = new(S::REQUEST_TIMEOUT, "body_timeout", "The body did not arrive in time");
                Problem { retryable: true, ..problem }
            }
            Self::Envelope(error) => envelope_problem(error),
            Self::RateLimited { retry_after_seconds } => {
                new(S::TOO_MANY_REQUESTS, "rate_limited", "The endpoint's rate is spent")
                    .retry_after(*retry_after_seconds)
            }
            Self::KeySourceUnavailable { retry_after_seconds } => {
                new(S::SERVICE_UNAVAILABLE, "key_source_unavailable", "The keys cannot be read now")
                    .retry_after(*retry_after_seconds)
            }
            Self::JournalUnavailable(_) => {
                new(S::SERVICE_UNAVAILABLE, "journal_unavailable", "The journal is unavailable")
                    .retry_after(RETRY_AFTER_JOURNAL_SECONDS)
            }
            Self::JournalQueueFull => {
                new(S::SERVICE_UNAVAILABLE, "journal_queue_full", "The journal's queue is full")
                    .retry_after(RETRY_AFTER_BUSY_SECONDS)
            }
            Self::JournalTimeout => {
                new(S::SERVICE_UNAVAILABLE, "journal_timeout", "The journal did not acknowledge in time")
                    .retry_after(RETRY_AFTER_JOURNAL_SECONDS)
            }
        }
    }

    /// The class of the reason, a metric label and a log field: the problem's code, or which of the
    /// signature checks failed.
    pub(crate) fn class(&self) -> &'static str {
        let Self::InvalidSignature(failed) = self else { return self.problem().code };
        match failed {
            InvalidSignature::Header(MalformedSignature) => "malformed_signature",
            InvalidSignature::UnknownKey => "unknown_key",
            InvalidSignature::Rejected(Rejection::OutsideWindow) => "outside_window",
            InvalidSignature::Rejected(Rejection::StaleSigned) => "stale_signed",
            InvalidSignature::Rejected(Rejection::WrongSignature) => "wrong_signature",
        }
    }

    /// Whether the signature holds although its timestamp is outside the window.
    pub(crate) fn is_stale_signed(&self) -> bool {
        *self == Self::InvalidSignature(InvalidSignature::Rejected(Rejection::StaleSigned))
    }
}

fn envelope_problem(error: &EnvelopeError) -> Problem {
    let bad = |code, title| Problem::new(StatusCode::BAD_REQUEST, code, title);
    let problem = match error {
        EnvelopeError::InvalidUtf8 => bad("invalid_utf8", "The body is not UTF-8"),
        EnvelopeError::ByteOrderMark => bad("byte_order_mark", "The body begins with a byte-order mark"),
        EnvelopeError::InvalidJson => bad("invalid_json", "The body is not one JSON text"),
        EnvelopeError::NotAnObject => bad("not_an_object", "The body is not a JSON object"),
        EnvelopeError::NestedTooDeeply => bad("nested_too_deeply", "The body nests too deeply"),
        EnvelopeError::DuplicateKey => bad("duplicate_key", "A key of the envelope stands twice"),
        EnvelopeError::Field { .. } => bad("invalid_envelope", "The envelope does not hold"),
        EnvelopeError::UnknownSchemaVersion => Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "unknown_schema_version",
            "The schema version is not known",
        ),
    };
    problem.detail(error.to_string())
}
