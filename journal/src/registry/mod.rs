//! The journal with a schema registry: records carry the Confluent wire format in the log, and single-object
//! encoding on our side of it, so that nothing else has to know which ids one registry gave. Only headers are
//! looked at, and exchanged. Must never hide or drop a record whose id it cannot tell: it is handed on as it is,
//! and whoever decodes it stops there.

mod client;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use schema::wire::{self, RecordType};

pub use self::client::{Error, RegistryConfig};
use crate::kafka::TopicNames;
use crate::{
    AppendError, Appender, Consumer, Group, LogReader, NewRecord, PartitionOwner, Polled, Position,
    Publication, PublishError, ReadError, Record, Topic,
};
use client::Client;

/// How long an id that could not be told is not asked for again: a partition that stopped for it must not make
/// the others wait for the registry again and again.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// The ids of our schemas at one registry.
pub struct Registry {
    client: Client,
    /// By fingerprint, for writing: every version of every record, as registered at the start.
    ids: HashMap<u64, u32>,
    /// By id, for reading: those, and what the registry was asked for since.
    fingerprints: Mutex<HashMap<u32, Known>>,
}

#[derive(Clone, Copy)]
enum Known {
    Fingerprint(u64),
    /// Not a schema of ours, or not to be told, when it was asked for.
    Unknown(Instant),
}

impl Registry {
    /// Registers every version of every record's schema that is not registered yet, and learns their ids.
    /// Blocking.
    pub fn register(config: RegistryConfig, topics: &TopicNames) -> Result<Self, Error> {
        let client = Client::new(config);
        let mut ids = HashMap::new();
        for record_type in RecordType::ALL {
            let subject = subject(record_type, topics);
            for version in record_type.versions() {
                ids.insert(version.fingerprint, client.id(&subject, version.text)?);
            }
        }
        let known = ids.iter().map(|(fingerprint, id)| (*id, Known::Fingerprint(*fingerprint)));
        let fingerprints = Mutex::new(known.collect());
        Ok(Self { client, ids, fingerprints })
    }

    fn outgoing(&self, record: NewRecord) -> NewRecord {
        let value = wire::to_wire(record.value, |fingerprint| self.ids.get(&fingerprint).copied());
        NewRecord { value, ..record }
    }

    fn incoming(&self, record: Record) -> Record {
        let value = wire::from_wire(record.value, |id| self.fingerprint(id));
        Record { value, ..record }
    }

    /// What is known of an id; asks the registry for one that is new. Blocking.
    fn fingerprint(&self, id: u32) -> Option<u64> {
        let mut known = self.fingerprints.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(&id) {
            Some(Known::Fingerprint(fingerprint)) => return Some(*fingerprint),
            Some(Known::Unknown(asked)) if asked.elapsed() < ASK_AGAIN => return None,
            Some(Known::Unknown(_)) | None => {}
        }
        let fingerprint = match self.client.schema(id) {
            Ok(Some(schema)) => wire::fingerprint(&schema),
            Ok(None) => None,
            Err(error) => {
                tracing::error!(id, %error, "a record's schema cannot be told");
                None
            }
        };
        known.insert(id, fingerprint.map_or_else(|| Known::Unknown(Instant::now()), Known::Fingerprint));
        fingerprint
    }
}

/// The subject that a record's schema is registered under. A topic of one record type has the usual one; the
/// projections topic has two, so that each is named by topic and record (`TopicRecordNameStrategy`), and evolves
/// by itself.
fn subject(record_type: RecordType, topics: &TopicNames) -> String {
    match record_type {
        RecordType::Observation => format!("{}-value", topics.of(Topic::Observations)),
        RecordType::Claim => format!("{}-value", topics.of(Topic::Claims)),
        RecordType::Projection | RecordType::Fact => {
            format!("{}-{}", topics.of(Topic::Projections), record_type.name())
        }
    }
}

/// An appender that writes the wire format, where there is a registry.
pub fn appender(inner: Arc<dyn Appender>, registry: Option<&Arc<Registry>>) -> Arc<dyn Appender> {
    match registry {
        Some(registry) => Arc::new(Framed { inner, registry: registry.clone() }),
        None => inner,
    }
}

/// A consumer that reads both framings and publishes the wire format, where there is a registry.
pub fn consumer(inner: Box<dyn Consumer>, registry: Option<&Arc<Registry>>) -> Box<dyn Consumer> {
    match registry {
        Some(registry) => Box::new(Framed { inner, registry: registry.clone() }),
        None => inner,
    }
}

/// A reader of both framings, where there is a registry.
pub fn reader(inner: Box<dyn LogReader>, registry: Option<&Arc<Registry>>) -> Box<dyn LogReader> {
    match registry {
        Some(registry) => Box::new(Framed { inner, registry: registry.clone() }),
        None => inner,
    }
}

/// Any half of a journal, with single-object encoding on our side and the wire format on the log's.
struct Framed<J> {
    inner: J,
    registry: Arc<Registry>,
}

impl Appender for Framed<Arc<dyn Appender>> {
    fn append(&self, topic: Topic, record: NewRecord) -> BoxFuture<'_, Result<Position, AppendError>> {
        self.inner.append(topic, self.registry.outgoing(record))
    }

    fn partitions(&self) -> NonZeroU32 {
        self.inner.partitions()
    }

    fn health(&self) -> Result<(), String> {
        self.inner.health()
    }
}

impl Consumer for Framed<Box<dyn Consumer>> {
    fn group(&self) -> Arc<dyn Group> {
        self.inner.group()
    }

    fn poll(&mut self, owner: &mut dyn PartitionOwner, timeout: Duration) -> Result<Polled, ReadError> {
        Ok(match self.inner.poll(owner, timeout)? {
            Polled::Records { partition, records } => {
                let records = records.into_iter().map(|record| self.registry.incoming(record));
                Polled::Records { partition, records: records.collect() }
            }
            Polled::Nothing => Polled::Nothing,
        })
    }

    fn publish(&mut self, publications: Vec<Publication>) -> Result<(), PublishError> {
        let all = |records: Vec<NewRecord>| {
            records.into_iter().map(|record| self.registry.outgoing(record)).collect::<Vec<_>>()
        };
        let publications = publications.into_iter().map(|publication| Publication {
            projections: all(publication.projections),
            claims: all(publication.claims),
            ..publication
        });
        self.inner.publish(publications.collect())
    }
}

impl LogReader for Framed<Box<dyn LogReader>> {
    fn bounds(&mut self, partition: u32) -> Result<(u64, u64), ReadError> {
        self.inner.bounds(partition)
    }

    fn read(&mut self, partition: u32, from: u64, timeout: Duration) -> Result<Vec<Record>, ReadError> {
        let records = self.inner.read(partition, from, timeout)?.into_iter();
        Ok(records.map(|record| self.registry.incoming(record)).collect())
    }
}
