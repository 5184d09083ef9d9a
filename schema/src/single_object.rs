//! Avro single-object encoding: `C3 01`, the schema's CRC-64-AVRO fingerprint in little-endian, the datum.
//! Every version of a schema that was ever written is kept and stays readable. Must never skip what a
//! newer writer wrote, nor trust a length.

use std::io::BufRead;
use std::sync::OnceLock;

use apache_avro::{Schema, from_avro_datum, from_value, write_avro_datum_ref};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_avro_fast::Schema as FastSchema;
use serde_avro_fast::de::DeserializerState;
use serde_avro_fast::de::read::SliceRead;
use thiserror::Error;

use crate::limits::RECORD_BYTES_MAX;
use crate::wire;

/// What every single-object header begins with; the fingerprint follows in little-endian.
pub(crate) const MARKER: [u8; 2] = [0xc3, 0x01];

/// Bytes that are no record of ours.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// A schema this build knows, or no schema at all, but not what it promises: poison, to be kept aside.
    #[error("the record is malformed: {0}")]
    Malformed(String),
    /// A schema this build does not know: perhaps a newer writer's good data, never to be skipped.
    #[error("the record has a schema this release does not know: {schema}")]
    UnknownSchema {
        /// What the record's header says of it.
        schema: UnknownSchema,
    },
}

/// How the header of a record names a schema that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UnknownSchema {
    /// In single-object encoding.
    #[error("fingerprint {0:016x}; run a release that does")]
    Fingerprint(u64),
    /// In the Confluent wire format.
    #[error(
        "id {0} of a schema registry; run a release that does, with `journal.schema_registry` set and that registry within reach"
    )]
    RegistryId(u32),
}

/// One version of a schema: its text, and the fingerprint its records carry for ever.
///
/// The fingerprint is written down, not computed, because implementations do not agree on a primitive with
/// a logical type (apache-avro 0.21 keeps `{"type":"long"}`, apache/avro-rs#61; Java, whom the others
/// follow, writes `"long"`). These are Java's, and a test computes them.
pub(crate) type Version = (&'static str, u64);

/// Every version of one schema that was ever written, oldest first.
pub(crate) struct Versions {
    pub(crate) history: &'static [Version],
    /// Kept as a `Result` so that a mistake in an `.avsc` is an error that every encode and decode names,
    /// instead of a panic; a test shows that there is none.
    schemas: OnceLock<Result<Vec<Schema>, String>>,
    /// The current version once more, for the library that reads without a value tree in between.
    fast: OnceLock<Result<FastSchema, String>>,
}

impl Versions {
    pub(crate) const fn new(history: &'static [Version]) -> Self {
        Self { history, schemas: OnceLock::new(), fast: OnceLock::new() }
    }

    fn schemas(&self) -> Result<&[Schema], DecodeError> {
        let schemas = self.schemas.get_or_init(|| {
            apache_avro::util::max_allocation_bytes(RECORD_BYTES_MAX);
            let parsed = self.history.iter().map(|(text, _)| Schema::parse_str(text));
            parsed.collect::<Result<_, _>>().map_err(|error| error.to_string())
        });
        schemas.as_deref().map_err(|error| DecodeError::Malformed(error.clone()))
    }

    fn current(&self) -> Result<(u64, &FastSchema), DecodeError> {
        let schema = self.fast.get_or_init(|| {
            let (text, _) = self.history.last().ok_or("there is no schema")?;
            text.parse().map_err(|error| format!("{error}"))
        });
        let schema = schema.as_ref().map_err(|error| DecodeError::Malformed(error.clone()))?;
        let fingerprint = self.history.last().map(|(_, fingerprint)| *fingerprint);
        Ok((fingerprint.unwrap_or_default(), schema))
    }

    /// Writes a datum, whose fields are in the order of the schema's, with the current version. Fails when
    /// the record would have more than [`RECORD_BYTES_MAX`] bytes, which no reader would take.
    pub(crate) fn encode<T: Serialize>(
        &self,
        datum: &T,
        bytes_expected: usize,
    ) -> Result<Vec<u8>, DecodeError> {
        let (Some(schema), Some((_, fingerprint))) = (self.schemas()?.last(), self.history.last()) else {
            return Err(DecodeError::Malformed("there is no schema".to_owned()));
        };
        let mut bytes = Vec::with_capacity(bytes_expected);
        bytes.extend_from_slice(&MARKER);
        bytes.extend_from_slice(&fingerprint.to_le_bytes());
        write_avro_datum_ref(schema, datum, &mut bytes)
            .map_err(|_| DecodeError::Malformed("its fields do not fit its schema".to_owned()))?;
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(DecodeError::Malformed(format!("it has more than {RECORD_BYTES_MAX} bytes")));
        }
        Ok(bytes)
    }

    /// Reads a record that any release wrote whose version is in the history.
    pub(crate) fn decode<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, DecodeError> {
        let malformed = |reason: &str| DecodeError::Malformed(reason.to_owned());
        let Some((fingerprint, mut datum)) = split(bytes) else {
            return Err(match wire::split(bytes) {
                Some((id, _)) => DecodeError::UnknownSchema { schema: UnknownSchema::RegistryId(id) },
                None => malformed("it does not begin with the header of Avro's single-object encoding"),
            });
        };
        // What this release wrote itself is nearly everything; reading it is a quarter of what the projector does
        // where it goes through a tree of values (BENCHMARKS.md).
        let (current, schema) = self.current()?;
        if fingerprint == current {
            let mut state = DeserializerState::new(SliceRead::new(datum), schema);
            let read = T::deserialize(state.deserializer());
            // The library's own messages may quote the value, and a body must not get into a reason.
            let read = read.map_err(|_| malformed("its datum does not decode under its schema"))?;
            let is_all = state.into_reader().fill_buf().is_ok_and(<[u8]>::is_empty);
            return if is_all { Ok(read) } else { Err(malformed("bytes follow the datum")) };
        }
        let mut versions = self.history.iter().zip(self.schemas()?);
        let Some((_, writer)) = versions.find(|((_, known), _)| *known == fingerprint) else {
            return Err(DecodeError::UnknownSchema { schema: UnknownSchema::Fingerprint(fingerprint) });
        };
        let reader = self.schemas()?.last();
        let value = from_avro_datum(writer, &mut datum, reader)
            .map_err(|_| malformed("its datum does not decode under its schema"))?;
        if !datum.is_empty() {
            return Err(malformed("bytes follow the datum"));
        }
        from_value(&value).map_err(|_| malformed("its datum does not hold the fields of its schema"))
    }
}

/// Fingerprint and datum of a record in single-object encoding.
pub(crate) fn split(value: &[u8]) -> Option<(u64, &[u8])> {
    let (fingerprint, datum) = value.strip_prefix(&MARKER)?.split_first_chunk()?;
    Some((u64::from_le_bytes(*fingerprint), datum))
}

/// A record in single-object encoding.
pub(crate) fn join(fingerprint: u64, datum: &[u8]) -> Vec<u8> {
    [&MARKER, &fingerprint.to_le_bytes()[..], datum].concat()
}

#[cfg(test)]
mod tests {
    use apache_avro::headers::{HeaderBuilder as _, RabinFingerprintHeader};
    use apache_avro::schema_compatibility::SchemaCompatibility;

    use super::*;

    fn all() -> [(&'static str, &'static str, &'static [Version]); 4] {
        [
            ("observation", include_str!("../avro/observation.avsc"), crate::avro::OBSERVATION.history),
            ("projection", include_str!("../avro/projection.avsc"), crate::published::PROJECTION.history),
            ("fact", include_str!("../avro/fact.avsc"), crate::published::FACT.history),
            ("claim", include_str!("../avro/claim.avsc"), crate::claim::CLAIM.history),
        ]
    }

    #[test]
    fn the_current_schema_is_the_last_of_its_history_and_reads_all_of_it() {
        for (name, current, history) in all() {
            assert_eq!(history.last().map(|(text, _)| *text), Some(current), "{name}");
            let current = Schema::parse_str(current).expect("a schema");
            for (version, _) in history {
                let version = Schema::parse_str(version).expect("a schema");
                SchemaCompatibility::can_read(&version, &current).expect("backward compatible");
            }
        }
    }

    /// Without logical types all implementations agree.
    #[test]
    fn fingerprints_are_those_that_java_computes() {
        fn without_logical_types(schema: &mut serde_json::Value) {
            if let serde_json::Value::Object(map) = schema {
                map.remove("logicalType");
                map.values_mut().for_each(without_logical_types);
            } else if let serde_json::Value::Array(items) = schema {
                items.iter_mut().for_each(without_logical_types);
            }
        }
        for (name, _, history) in all() {
            for (text, fingerprint) in history {
                let mut schema = serde_json::from_str(text).expect("JSON");
                without_logical_types(&mut schema);
                let header = RabinFingerprintHeader::from_schema(&Schema::parse(&schema).expect("a schema"));
                let found = header.build_header();
                let found = u64::from_le_bytes(found[MARKER.len()..].try_into().expect("eight bytes"));
                assert_eq!(found, *fingerprint, "{name}: {found:#018x}");
            }
        }
    }
}
