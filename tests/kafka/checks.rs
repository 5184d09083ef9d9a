//! What must be true once things have calmed down: nothing acknowledged is lost, what is published is what the
//! stores answer and what a fresh store answers, and no version ever went backwards. Must never look into a
//! store or a log other than as anybody can: through HTTP and an ordinary Kafka client.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Instant;

use schema::projection::Version;
use schema::published::{PublishedFact, PublishedProjection};
use schema::subject::partition_of;
use schema::{Digest, Micros, Source};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};

use crate::common::{Client, PATIENCE, items};
use crate::fleet::{Fleet, LOOK_AGAIN, PARTITIONS};
use crate::load::Ledger;
use crate::reader::Record;

/// A longer value is published as its event id and digest alone.
const PUBLISHED_VALUE_BYTES_MAX: usize = 32 * 1024;

/// By path, the exact texts of what is answered about each subject: itself, its history, its facts.
type Answers = BTreeMap<String, Vec<String>>;

/// Waits until everything is derived and published, and checks all of it.
pub(crate) fn check(fleet: &mut Fleet, ledger: &Ledger) {
    fleet.assert_running();
    let log = fleet.reader.observations();
    nothing_is_lost(&log, ledger);
    wait_until_all_is_published(fleet);

    let keys = log.iter().map(|record| record.key.clone()).collect::<BTreeSet<_>>();
    let answers = answers_of_the_fleet(fleet, &keys);
    let published = published(fleet, &answers);
    versions_never_go_backwards(&published);

    fleet.rebuild_all();
    let rebuilt = answers_of_the_fleet(fleet, &keys);
    for (path, answer) in &answers {
        assert_eq!(answer, &rebuilt[path], "{path} differs from a store built from the log alone");
    }
    assert_eq!(answers.len(), rebuilt.len(), "the stores do not know the same subjects");
    assert_eq!(fleet.reader.projections().len(), published.len(), "a rebuild has published something");
    eprintln!(
        "  {} observations of {} subjects; {} records published of {} keys",
        log.len(),
        keys.len(),
        published.len(),
        published.iter().map(|record| &record.key).collect::<BTreeSet<_>>().len()
    );
}

fn partitions() -> NonZeroU32 {
    NonZeroU32::new(PARTITIONS).expect("more than none")
}

/// Every acknowledged delivery is in the log, and everything there was sent. A producer that lost a broker may
/// write a record once more, which then is a duplicate.
fn nothing_is_lost(log: &[Record], ledger: &Ledger) {
    let (mut found, mut repeats) = (BTreeMap::new(), 0);
    for record in log {
        let observation = schema::avro::decode(&record.value).expect("an observation");
        if observation.source == Source::Verdict {
            continue;
        }
        let digest = Digest::of(&observation.body);
        assert!(ledger.sent.contains(&digest), "nobody sent observation {}", observation.id);
        assert_eq!(observation.subject.key(), record.key);
        assert_eq!(record.partition, partition_of(record.key.as_bytes(), partitions()), "{}", record.key);
        if let Some(other) = found.insert(observation.id.to_string(), digest) {
            assert_eq!(other, digest, "observation {} is two things", observation.id);
            repeats += 1;
        }
    }
    for (id, digest) in &ledger.acknowledged {
        assert_eq!(found.get(id), Some(digest), "observation {id} was acknowledged and is lost");
    }
    if repeats > 0 {
        eprintln!("  {repeats} records were written twice by the producer itself");
    }
}

/// The group's committed offset is the only mark of what is published.
fn wait_until_all_is_published(fleet: &Fleet) {
    let ends = fleet.reader.ends();
    let started = Instant::now();
    loop {
        let committed = fleet.reader.committed();
        if committed.as_ref() == Some(&ends) {
            return;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "not everything is published: the log ends at {ends:?}, and committed is {committed:?}"
        );
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// All that the projectors answer, each from its own partitions.
fn answers_of_the_fleet(fleet: &Fleet, keys: &BTreeSet<String>) -> Answers {
    let ends = fleet.reader.ends();
    let mut answers = Answers::new();
    let started = Instant::now();
    for key in keys {
        let path = format!("/v1/subjects/{key}");
        let end = ends[&partition_of(key.as_bytes(), partitions())];
        let owner = loop {
            match fleet.owner(&path) {
                Some((owner, answer)) if answer.offset == Some(end) => break owner,
                found => {
                    let found = found.map(|(_, answer)| answer);
                    assert!(started.elapsed() < PATIENCE, "{path} is not derived up to {end}: {found:?}");
                }
            }
            std::thread::sleep(LOOK_AGAIN);
        };
        answers.extend(answers_about(owner, key));
    }
    answers
}

fn answers_about(projector: &Client, key: &str) -> [(String, Vec<String>); 3] {
    let path = format!("/v1/subjects/{key}");
    let [history, facts] = ["history", "facts"].map(|part| format!("{path}/{part}"));
    let current = projector.get(&path);
    assert_eq!(current.status, 200, "{path}: {}", current.text);
    let (history_pages, facts_pages) = (projector.pages(&history), projector.pages(&facts));
    [(path, vec![current.text]), (history, history_pages), (facts, facts_pages)]
}

/// All committed records of the projections topic, whose last ones by key are what is answered.
fn published(fleet: &Fleet, answers: &Answers) -> Vec<Record> {
    let expected = answers.iter().flat_map(|(path, pages)| expected_records(path, pages));
    let expected = expected.collect::<BTreeMap<_, _>>();
    let started = Instant::now();
    loop {
        let records = fleet.reader.projections();
        let latest = records.iter().map(|record| (record.key.clone(), as_json(record)));
        let latest = latest.collect::<BTreeMap<_, _>>();
        if latest == expected {
            return records;
        }
        // A transaction's end may reach the projections a little later than the group's offsets.
        if started.elapsed() > PATIENCE {
            for (key, record) in &expected {
                assert_eq!(latest.get(key), Some(record), "{key} is not published as it is answered");
            }
            let known = |key: &&String| !expected.contains_key(*key);
            panic!("published, and not known: {:?}", latest.keys().find(known));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The published form, with the version of a fact left out: it is not part of an answer.
fn as_json(record: &Record) -> Json {
    if let Ok(projection) = PublishedProjection::decode(&record.value) {
        return json!(projection);
    }
    let fact = PublishedFact::decode(&record.value).expect("a projection or a fact");
    let mut fact = json!(fact);
    fact.as_object_mut().expect("an object").remove("version");
    fact
}

fn version(record: &Record) -> Version {
    let projection = PublishedProjection::decode(&record.value).map(|projection| projection.version());
    projection
        .unwrap_or_else(|_| PublishedFact::decode(&record.value).expect("a projection or a fact").version())
}

/// Along the whole topic each key's version rises; what is repeated is the same bytes.
fn versions_never_go_backwards(published: &[Record]) {
    let mut latest = BTreeMap::<&str, &Record>::new();
    for record in published {
        let subject = record.key.splitn(5, '/').take(4).collect::<Vec<_>>().join("/");
        assert_eq!(record.partition, partition_of(subject.as_bytes(), partitions()), "{}", record.key);
        if let Some(before) = latest.insert(&record.key, record) {
            assert!(before.offset < record.offset, "the reader reads a partition in its order");
            let versions = (version(before), version(record));
            assert!(versions.0 <= versions.1, "{} goes backwards: {versions:?}", record.key);
            if versions.0 == versions.1 {
                assert_eq!(before.value, record.value, "{} is two things at one version", record.key);
            }
        }
    }
}

/// An answer about a subject, or one of its facts, as far as it is published.
#[derive(Deserialize)]
struct Known<'a> {
    subject: Json,
    fact_id: Option<String>,
    certainty: String,
    status: Option<String>,
    #[serde(borrow)]
    value: Option<&'a RawValue>,
    as_of: Option<String>,
    basis: Option<Json>,
    contenders: List<'a>,
    unplaced: Option<List<'a>>,
    needs_refresh: Option<bool>,
    meta: Option<Meta>,
}

#[derive(Deserialize)]
struct List<'a> {
    total: u64,
    #[serde(borrow)]
    items: Vec<Evidence<'a>>,
}

#[derive(Deserialize)]
struct Evidence<'a> {
    event_id: String,
    body_digest: String,
    status: Option<String>,
    #[serde(borrow)]
    value: Option<&'a RawValue>,
    as_of: Option<String>,
}

#[derive(Deserialize)]
struct Meta {
    version: Json,
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    items: Vec<Known<'a>>,
}

/// The records, by key, that must be the last published of what these pages answer.
fn expected_records(path: &str, pages: &[String]) -> Vec<(String, Json)> {
    let key = path.trim_start_matches("/v1/subjects/");
    if key.ends_with("/history") {
        return Vec::new();
    }
    if let Some(subject) = key.strip_suffix("/facts") {
        let facts = pages.iter().map(|page| serde_json::from_str::<Page<'_>>(page).expect("facts"));
        let facts = facts.flat_map(|page| page.items);
        let record = |fact: Known<'_>| {
            let fact_id = fact.fact_id.as_deref().expect("a fact has an id");
            (format!("{subject}/{}", schema::subject::encoded(fact_id)), fact.published())
        };
        return facts.map(record).collect();
    }
    let known = serde_json::from_str::<Known<'_>>(&pages[0]).expect("a projection");
    vec![(key.to_owned(), known.published())]
}

impl Known<'_> {
    fn published(&self) -> Json {
        let mut published = json!({
            "subject": self.subject,
            "certainty": self.certainty,
            "value": published_value(self.value),
            "as_of": published_time(self.as_of.as_deref()),
            "contenders": self.contenders.published(),
        });
        let (name, value) = match &self.fact_id {
            Some(fact_id) => ("fact_id", json!(fact_id)),
            None => {
                published["status"] = json!(self.status);
                published["basis"] = json!(self.basis);
                published["unplaced"] = self.unplaced.as_ref().expect("of a projection").published();
                published["needs_refresh"] = json!(self.needs_refresh.expect("of a projection"));
                ("version", self.meta.as_ref().expect("of a projection").version.clone())
            }
        };
        published[name] = value;
        published
    }
}

impl List<'_> {
    fn published(&self) -> Json {
        let items = self.items.iter().map(|of| {
            json!({
                "event_id": of.event_id,
                "body_digest": of.body_digest,
                "status": of.status,
                "value": published_value(of.value),
                "as_of": published_time(of.as_of.as_deref()),
            })
        });
        json!({ "total": self.total, "items": items.collect::<Vec<_>>() })
    }
}

fn published_value(value: Option<&RawValue>) -> Option<&str> {
    value.map(RawValue::get).filter(|text| *text != "null" && text.len() <= PUBLISHED_VALUE_BYTES_MAX)
}

fn published_time(time: Option<&str>) -> Option<i64> {
    time.map(|text| Micros::parse(text).expect("a time").0)
}

/// What is known of a subject: certainty, status, whether the provider should be asked, how many facts, and
/// inbox classification and outcome of every observation in the order of the log.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) certainty: String,
    pub(crate) status: Option<String>,
    pub(crate) needs_refresh: bool,
    pub(crate) facts: usize,
    pub(crate) history: Vec<(String, String)>,
}

/// Asks whoever answers for that subject.
pub(crate) fn outcome(fleet: &Fleet, key: &str) -> Outcome {
    let path = format!("/v1/subjects/{key}");
    let (owner, answer) = fleet.owner(&path).unwrap_or_else(|| panic!("nobody answers {path}"));
    assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    let current = answer.json();
    let word = |json: &Json| json.as_str().map(str::to_owned);
    let history = items(&owner.pages(&format!("{path}/history")));
    Outcome {
        certainty: word(&current["certainty"]).expect("a word"),
        status: word(&current["status"]),
        needs_refresh: current["needs_refresh"].as_bool().expect("yes or no"),
        facts: items(&owner.pages(&format!("{path}/facts"))).len(),
        history: history
            .iter()
            .map(|entry| ["inbox", "outcome"].map(|part| word(&entry[part]).expect("a word")).into())
            .collect(),
    }
}
