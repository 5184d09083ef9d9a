//! The Confluent wire format: a zero byte, the id that a schema registry gave the schema (big-endian), the datum.
//! An id means something at one registry only, so everything else here knows records by their fingerprints, in
//! single-object encoding, and a journal that speaks the wire format exchanges the header on its way in and out.
//! Must never ask anyone what an id means, nor touch a datum.

use apache_avro::Schema;
use bytes::Bytes;

use crate::single_object::{self, Versions};

/// What every record in the wire format begins with; the id follows.
const MAGIC: u8 = 0;

/// The kinds of records that the journal's topics hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordType {
    /// A delivery, as received.
    Observation,
    /// The state of a subject.
    Projection,
    /// A fact of a subject.
    Fact,
    /// A claim to an inbox key.
    Claim,
}

/// One version of a record's schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaVersion {
    /// The `.avsc` text.
    pub text: &'static str,
    /// What names it in single-object encoding.
    pub fingerprint: u64,
}

impl RecordType {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Observation, Self::Projection, Self::Fact, Self::Claim];

    /// The schema's full name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Observation => "witness.Observation",
            Self::Projection => "witness.Projection",
            Self::Fact => "witness.Fact",
            Self::Claim => "witness.Claim",
        }
    }

    /// Every version of the schema that was ever written, oldest first.
    pub fn versions(self) -> impl Iterator<Item = SchemaVersion> {
        let history = self.schemas().history.iter();
        history.map(|(text, fingerprint)| SchemaVersion { text, fingerprint: *fingerprint })
    }

    fn schemas(self) -> &'static Versions {
        match self {
            Self::Observation => &crate::avro::OBSERVATION,
            Self::Projection => &crate::published::PROJECTION,
            Self::Fact => &crate::published::FACT,
            Self::Claim => &crate::claim::CLAIM,
        }
    }
}

/// The record in the wire format, under the id that `id_of` knows for its schema. What is no single-object
/// encoding, or of a schema without an id, stays as it is: both framings may stand in one log.
pub fn to_wire(value: Bytes, id_of: impl FnOnce(u64) -> Option<u32>) -> Bytes {
    let Some((fingerprint, datum)) = single_object::split(&value) else { return value };
    match id_of(fingerprint) {
        Some(id) => [&[MAGIC], &id.to_be_bytes()[..], datum].concat().into(),
        None => value,
    }
}

/// The record in single-object encoding, under the fingerprint that `fingerprint_of` knows for its id. What is
/// not in the wire format, or has an id that is not known, stays as it is, and decoding it says so.
pub fn from_wire(value: Bytes, fingerprint_of: impl FnOnce(u32) -> Option<u64>) -> Bytes {
    let Some((id, datum)) = split(&value) else { return value };
    match fingerprint_of(id) {
        Some(fingerprint) => single_object::join(fingerprint, datum).into(),
        None => value,
    }
}

/// The fingerprint of the known version that has this schema, whatever its documentation says. A schema of a
/// newer release has none.
pub fn fingerprint(text: &str) -> Option<u64> {
    let wanted = canonical(text)?;
    let mut known = RecordType::ALL.into_iter().flat_map(RecordType::versions);
    known.find(|known| canonical(known.text).as_ref() == Some(&wanted)).map(|known| known.fingerprint)
}

/// Id and datum of a record in the wire format.
pub(crate) fn split(value: &[u8]) -> Option<(u32, &[u8])> {
    let (id, datum) = value.strip_prefix(&[MAGIC])?.split_first_chunk()?;
    Some((u32::from_be_bytes(*id), datum))
}

/// The schema in parsing canonical form. Logical types go first, because implementations do not agree on what
/// they leave behind.
fn canonical(text: &str) -> Option<String> {
    let mut schema = serde_json::from_str(text).ok()?;
    remove_logical_types(&mut schema);
    Some(Schema::parse(&schema).ok()?.canonical_form())
}

fn remove_logical_types(schema: &mut serde_json::Value) {
    if let serde_json::Value::Object(map) = schema {
        map.remove("logicalType");
        map.values_mut().for_each(remove_logical_types);
    } else if let serde_json::Value::Array(items) = schema {
        items.iter_mut().for_each(remove_logical_types);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::avro::{DecodeError, decode};
    use crate::single_object::MARKER;

    #[test]
    fn every_known_version_is_known_by_its_text_alone() {
        for version in RecordType::ALL.into_iter().flat_map(RecordType::versions) {
            assert_eq!(fingerprint(version.text), Some(version.fingerprint));
            // As a registry may give it back: without documentation, in one line, keys in another order.
            let mut other: serde_json::Value = serde_json::from_str(version.text).expect("JSON");
            other.as_object_mut().expect("an object").remove("doc");
            assert_eq!(fingerprint(&other.to_string()), Some(version.fingerprint));
        }
        let newer =
            RecordType::Fact.versions().last().expect("a version").text.replace("fact_id", "fact_name");
        for unknown in [newer.as_str(), r#""string""#, "{", "", "[]", r#"{"type":"record"}"#] {
            assert_eq!(fingerprint(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn names_are_those_in_the_schemas() {
        for record_type in RecordType::ALL {
            for version in record_type.versions() {
                let schema = Schema::parse_str(version.text).expect("a schema");
                let name = schema.name().expect("a record has a name").fullname(None);
                assert_eq!(name, record_type.name());
            }
        }
    }

    #[test]
    fn an_id_that_nobody_knows_is_an_unknown_schema_and_not_a_malformed_record() {
        let value = Bytes::from_static(b"\0\0\0\x01\x02datum");
        let kept = from_wire(value.clone(), |_| None);
        assert_eq!(kept, value);
        let error = decode(&kept).expect_err("no id is known");
        assert!(matches!(error, DecodeError::UnknownSchema { .. }), "{error:?}");
        assert!(error.to_string().contains("258"), "{error}");
        assert!(matches!(decode(b"\0\0\0\x01"), Err(DecodeError::Malformed(_))), "no whole header");
    }

    proptest! {
        #[test]
        fn headers_are_exchanged_and_back(datum in prop::collection::vec(any::<u8>(), 0..50), id in any::<u32>(), fingerprint in any::<u64>()) {
            let single = Bytes::from([&MARKER, &fingerprint.to_le_bytes()[..], &datum].concat());
            let wire = to_wire(single.clone(), |asked| (asked == fingerprint).then_some(id));
            prop_assert_eq!(&wire, &[&[0], &id.to_be_bytes()[..], &datum].concat());
            prop_assert_eq!(from_wire(wire.clone(), |asked| (asked == id).then_some(fingerprint)), &single);
            prop_assert_eq!(from_wire(single.clone(), |_| Some(0)), &single);
            prop_assert_eq!(to_wire(wire.clone(), |_| Some(0)), &wire);
            prop_assert_eq!(to_wire(single.clone(), |_| None), &single);
        }

        #[test]
        fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..30), is_known in any::<bool>()) {
            let bytes = Bytes::from(bytes);
            drop(decode(&from_wire(bytes.clone(), |_| is_known.then_some(0x87d0_c3c6_ae48_de86))));
            drop(to_wire(bytes, |_| is_known.then_some(7)));
        }
    }
}
