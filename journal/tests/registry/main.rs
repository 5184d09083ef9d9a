//! The journal with a schema registry: what is registered, what stands in the log, and what comes out of it. Must
//! never need a registry or a broker from outside: one is a mock, the other the embedded journal.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod mock;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use journal::embedded::{Config, EmbeddedJournal};
use journal::kafka::TopicNames;
use journal::registry::{self, Error, Registry, RegistryConfig};
use journal::{Appender, Assigned, Consumer, NewRecord, PartitionOwner, Polled, Publication, Record, Topic};
use mock::Mock;
use schema::wire::RecordType;

struct FromTheBeginning;

impl PartitionOwner for FromTheBeginning {
    fn assigned(&mut self, assigned: Assigned) -> Result<u64, String> {
        Ok(assigned.log_start)
    }

    fn revoked(&mut self, _: u32) {}
}

fn config(url: &str) -> RegistryConfig {
    RegistryConfig::new(url).expect("a good URL")
}

fn register(url: &str) -> Arc<Registry> {
    Arc::new(Registry::register(config(url), &TopicNames::default()).expect("registers"))
}

fn journal(folder: &tempfile::TempDir) -> EmbeddedJournal {
    EmbeddedJournal::open(&Config::new(folder.path(), NonZeroU32::MIN)).expect("opens")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn record(value: impl Into<Bytes>) -> NewRecord {
    NewRecord { partition: 0, key: Bytes::from_static(b"key"), value: value.into() }
}

fn append(appender: &dyn Appender, value: impl Into<Bytes>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(appender.append(Topic::Observations, record(value))).expect("appends");
}

fn values(mut consumer: Box<dyn Consumer>) -> Vec<Bytes> {
    let mut found = Vec::new();
    while let Polled::Records { records, .. } =
        consumer.poll(&mut FromTheBeginning, Duration::ZERO).expect("readable")
    {
        found.extend(records.into_iter().map(|Record { value, .. }| value));
    }
    found
}

fn raw(journal: &EmbeddedJournal, topic: Topic) -> Vec<Bytes> {
    values(Box::new(journal.consumer(topic)))
}

fn framed(journal: &EmbeddedJournal, registry: &Arc<Registry>) -> Box<dyn Consumer> {
    registry::consumer(Box::new(journal.consumer(Topic::Observations)), Some(registry))
}

fn single_object(record_type: RecordType, datum: &[u8]) -> Vec<u8> {
    let version = record_type.versions().last().expect("a version");
    [b"\xc3\x01", &version.fingerprint.to_le_bytes()[..], datum].concat()
}

fn wire(id: u32, datum: &[u8]) -> Vec<u8> {
    [&[0], &id.to_be_bytes()[..], datum].concat()
}

#[test]
fn schemas_are_registered_under_their_topics_once() {
    let (mock, url) = Mock::start();
    mock.add("somebody-elses-value", r#""string""#);
    register(&url);
    let registered = |mock: &Mock| {
        let contents = mock.contents();
        let ours = contents.versions.iter().filter(|(subject, _)| subject.starts_with("witness."));
        ours.map(|(subject, id)| (subject.clone(), contents.schemas[*id - 1].clone())).collect::<Vec<_>>()
    };
    let text = |record_type: RecordType| record_type.versions().last().expect("a version").text.to_owned();
    let first = registered(&mock);
    for (subject, record_type) in [
        ("witness.observations-value", RecordType::Observation),
        ("witness.projections-witness.Projection", RecordType::Projection),
        ("witness.projections-witness.Fact", RecordType::Fact),
        ("witness.claims-value", RecordType::Claim),
    ] {
        assert!(first.contains(&(subject.to_owned(), text(record_type))), "{subject} is missing");
    }
    mock.contents().requests.clear();
    register(&url);
    assert_eq!(registered(&mock), first);
    let registering = |request: &String| request.ends_with("/versions");
    assert!(!mock.contents().requests.iter().any(registering), "what is known is not registered again");
}

#[test]
fn the_log_has_the_wire_format_and_readers_see_single_object_encoding() {
    let (mock, url) = Mock::start();
    let (registry, folder) = (register(&url), folder());
    let journal = journal(&folder);
    let ours = single_object(RecordType::Observation, b"datum");
    let newer = b"\xc3\x01\x01\x02\x03\x04\x05\x06\x07\x08of a newer release".to_vec();
    // Written before the registry was configured, by a newer release, and by nobody we know.
    for value in [&ours[..], &newer, b"text", b""] {
        append(&journal, value.to_vec());
    }
    append(&*registry::appender(Arc::new(journal.clone()), Some(&registry)), ours.clone());
    let id =
        mock.add("witness.observations-value", RecordType::Observation.versions().last().expect("one").text);
    let all: Vec<Bytes> = vec![ours.clone().into(), newer.clone().into(), "text".into(), "".into()];
    let with = |last: Vec<u8>| [&all[..], &[last.into()]].concat();
    assert_eq!(raw(&journal, Topic::Observations), with(wire(id, b"datum")));
    assert_eq!(values(framed(&journal, &registry)), with(ours.clone()));
    let log_reader = Box::new(journal.log_reader(Topic::Observations));
    let mut log_reader = registry::reader(log_reader, Some(&registry));
    let read = log_reader.read(0, 0, Duration::ZERO).expect("readable");
    assert_eq!(read.into_iter().map(|record| record.value).collect::<Vec<_>>(), with(ours));
    assert_eq!(log_reader.bounds(0), Ok((0, 5)));
}

#[test]
fn what_is_published_has_the_wire_format() {
    let (mock, url) = Mock::start();
    let (registry, folder) = (register(&url), folder());
    let journal = journal(&folder);
    let mut consumer = framed(&journal, &registry);
    assert!(matches!(consumer.poll(&mut FromTheBeginning, Duration::ZERO), Ok(Polled::Nothing)));
    let types = [RecordType::Projection, RecordType::Fact];
    consumer
        .publish(vec![Publication {
            partition: 0,
            offset: 0,
            metadata: String::new(),
            projections: types.map(|of| record(single_object(of, b"datum"))).to_vec(),
            claims: vec![record("no Avro")],
        }])
        .expect("publishes");
    let wanted = types.map(|of| {
        let subject = format!("witness.projections-{}", of.name());
        Bytes::from(wire(mock.add(&subject, of.versions().last().expect("one").text), b"datum"))
    });
    assert_eq!(raw(&journal, Topic::Projections), wanted);
    assert_eq!(raw(&journal, Topic::Claims), ["no Avro"]);
}

#[test]
fn an_id_that_is_not_known_is_asked_for_once_and_handed_on_if_nobody_knows_it() {
    let (mock, url) = Mock::start();
    let (registry, folder) = (register(&url), folder());
    let journal = journal(&folder);
    // Ours in other words, as another tool may have registered it; and one that is not ours.
    let ours = RecordType::Observation.versions().last().expect("a version");
    let reworded = mock.add("other-value", &ours.text.replace(r#""doc": "#, r#""doc":"#));
    let newer = mock.add("witness.observations-value", &ours.text.replace("event_type", "event_kind"));
    let missing = 77;
    for id in [reworded, newer, missing, newer, missing, reworded] {
        append(&journal, wire(id, b"datum"));
    }
    let (known, newer_value, missing_value): (Bytes, Bytes, Bytes) = (
        single_object(RecordType::Observation, b"datum").into(),
        wire(newer, b"datum").into(),
        wire(missing, b"datum").into(),
    );
    mock.contents().requests.clear();
    let found = values(framed(&journal, &registry));
    let (a, b, c) = (&known, &newer_value, &missing_value);
    assert_eq!(found.iter().collect::<Vec<_>>(), [a, b, c, b, c, a]);
    let asked = mock.contents().requests.clone();
    assert_eq!(asked, [reworded, newer, missing].map(|id| format!("GET /schemas/ids/{id}")));
    for unknown in [b, c] {
        let error = schema::avro::decode(unknown).expect_err("nobody knows the schema");
        assert!(matches!(error, schema::avro::DecodeError::UnknownSchema { .. }), "{error:?}");
    }
}

#[test]
fn a_registry_out_of_reach_hides_nothing_and_is_told_apart_from_one_that_refuses() {
    let (mock, url) = Mock::start();
    mock.contents().authorization = Some("Basic dXNlcjpwOnc=".to_owned());
    let refused = Registry::register(config(&url), &TopicNames::default()).err().expect("no credentials");
    assert!(matches!(refused, Error::Refused { status: 401, .. }), "{refused:?}");
    let credentials = config(&url).with_credentials("user:p:w");
    assert!(!format!("{credentials:?}").contains("dXNl"), "credentials are not shown");
    let registry = Registry::register(credentials, &TopicNames::default()).expect("registers");

    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let nobody = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let unreachable =
        Registry::register(config(&nobody), &TopicNames::default()).err().expect("nobody is there");
    assert!(matches!(unreachable, Error::Unreachable { .. }), "{unreachable:?}");

    // From now on it lets nobody in.
    mock.contents().authorization = Some("Basic none".to_owned());
    let folder = folder();
    let journal = journal(&folder);
    append(&journal, wire(99, b"datum"));
    let registry = Arc::new(registry);
    assert_eq!(values(framed(&journal, &registry)), [wire(99, b"datum")]);
}

#[test]
fn urls_are_refused_without_being_repeated() {
    for good in ["http://registry:8081", "https://registry/apis/ccompat/v7/"] {
        assert_eq!(config(good).url(), good.trim_end_matches('/'));
    }
    for bad in [
        "",
        "registry:8081",
        "http://",
        "http:///x",
        "http://user:secret@registry",
        "http://a b",
        "http://a?q=secret",
    ] {
        let reason = RegistryConfig::new(bad).expect_err(bad);
        assert!(!reason.contains("secret"), "{reason}");
    }
}

#[test]
fn an_appender_says_of_itself_what_the_journal_says() {
    let (_, url) = Mock::start();
    let folder = folder();
    let framed = registry::appender(Arc::new(journal(&folder)), Some(&register(&url)));
    assert_eq!((framed.partitions(), framed.health()), (NonZeroU32::MIN, Ok(())));
    assert!(framed.append(Topic::Observations, record("")).now_or_never().is_none_or(|done| done.is_ok()));
}
