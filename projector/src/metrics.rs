//! The names and descriptions of the projector's metrics. Must never carry a label whose values come
//! from a body.

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use schema::Provider;
use schema::projection::{AttentionKind, Inbox, Outcome};

const OBSERVATIONS: &str = "witness_projector_observations_total";
const ATTENTION: &str = "witness_projector_attention_total";
const BATCH_SECONDS: &str = "witness_projector_batch_seconds";
const BATCH_RECORDS: &str = "witness_projector_batch_records";
const NEXT_OFFSET: &str = "witness_projector_next_offset";
const REPLAY: &str = "witness_projector_replay_offsets";
const STOPPED: &str = "witness_projector_partition_stopped";
const STORE_BYTES: &str = "witness_projector_store_bytes";

const VERDICTS: &str = "witness_projector_verdicts_total";
const CLAIMS_NEXT_OFFSET: &str = "witness_projector_claims_next_offset";
const PUBLISHED: &str = "witness_projector_published_total";

/// Describes every metric; called once when the service starts.
pub(crate) fn describe() {
    describe_counter!(VERDICTS, "verdicts that voided an observation, by what they said");
    describe_gauge!(CLAIMS_NEXT_OFFSET, "the next offset of the claims to read, by partition");
    describe_counter!(PUBLISHED, "projections and facts published, each in a committed transaction");
    describe_counter!(OBSERVATIONS, "observations derived, by provider, inbox classification and outcome");
    describe_counter!(
        ATTENTION,
        "attention entries raised, by kind; those no longer needed are not taken off"
    );
    describe_histogram!(BATCH_SECONDS, "seconds from a batch read to the batch durable");
    describe_histogram!(BATCH_RECORDS, "records in a batch");
    describe_gauge!(NEXT_OFFSET, "the next offset to read, by partition");
    describe_gauge!(REPLAY, "offsets between the store and the log's end when it was assigned, by partition");
    describe_gauge!(STOPPED, "1 where a partition is stopped, by partition; an alarm");
    describe_gauge!(STORE_BYTES, "bytes of the store on the disk");
}

pub(crate) fn observation(provider: Provider, inbox: Inbox, outcome: Outcome) {
    let inbox = match inbox {
        Inbox::New => "new",
        Inbox::Duplicate => "duplicate",
        Inbox::Conflict => "conflict",
    };
    let outcome = match outcome {
        Outcome::Applied => "applied",
        Outcome::NoChange => "no_change",
        Outcome::OutOfOrder => "out_of_order",
        Outcome::Contested => "contested",
        Outcome::Unordered => "unordered",
        Outcome::Unsupported => "unsupported",
        Outcome::Failed => "failed",
        Outcome::NotRun => "not_run",
    };
    counter!(OBSERVATIONS, "provider" => provider.as_str(), "inbox" => inbox, "outcome" => outcome)
        .increment(1);
}

pub(crate) fn verdict(inbox: Inbox) {
    let verdict = match inbox {
        Inbox::New | Inbox::Duplicate => "duplicate",
        Inbox::Conflict => "conflict",
    };
    counter!(VERDICTS, "verdict" => verdict).increment(1);
}

pub(crate) fn claims_progress(partition: u32, next_offset: u64) {
    gauge!(CLAIMS_NEXT_OFFSET, "partition" => partition.to_string()).set(next_offset as f64);
}

pub(crate) fn attention(kind: AttentionKind) {
    counter!(ATTENTION, "kind" => kind.as_str()).increment(1);
}

pub(crate) fn batch(records: usize, seconds: f64, store_bytes: u64) {
    histogram!(BATCH_SECONDS).record(seconds);
    histogram!(BATCH_RECORDS).record(records as f64);
    gauge!(STORE_BYTES).set(store_bytes as f64);
}

pub(crate) fn progress(partition: u32, next_offset: u64, log_end: u64) {
    gauge!(NEXT_OFFSET, "partition" => partition.to_string()).set(next_offset as f64);
    gauge!(REPLAY, "partition" => partition.to_string()).set(log_end.saturating_sub(next_offset) as f64);
}

pub(crate) fn stopped(partition: u32) {
    gauge!(STOPPED, "partition" => partition.to_string()).set(1.0);
}

pub(crate) fn published(records: usize) {
    counter!(PUBLISHED).increment(records as u64);
}
