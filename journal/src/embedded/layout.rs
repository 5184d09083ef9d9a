//! How the embedded journal lies in its folder: every key and value, pinned. Must never be changed without
//! raising [`LAYOUT_VERSION`]: what is described here is on disks already.
//!
//! | tree | key | value |
//! | --- | --- | --- |
//! | a topic's name | partition (`u32`), offset (`u64`), both big-endian | length of the record's key (`u32` big-endian), its key, its value |
//! | `journal.meta` | `layout` or `partitions` | the number (`u32` big-endian) |

use bytes::Bytes;

use super::{Config, OpenError};
use crate::disk::{self, Batch, Disk, Tree};
use crate::{NewRecord, Record};

/// The layout this file describes. A folder of another one is refused.
pub(super) const LAYOUT_VERSION: u32 = 1;

/// Key of a record. A partition's records stand together and in order.
pub(super) fn record_key(partition: u32, offset: u64) -> [u8; 12] {
    let mut key = [0; 12];
    let (first, rest) = key.split_at_mut(4);
    first.copy_from_slice(&partition.to_be_bytes());
    rest.copy_from_slice(&offset.to_be_bytes());
    key
}

/// Value of a record.
pub(super) fn record_value(record: &NewRecord) -> Vec<u8> {
    let mut value = Vec::with_capacity(4 + record.key.len() + record.value.len());
    value.extend_from_slice(&(record.key.len() as u32).to_be_bytes());
    value.extend_from_slice(&record.key);
    value.extend_from_slice(&record.value);
    value
}

/// What [`record_value`] was made of, or `None` where the bytes are something else.
pub(super) fn record_of(offset: u64, value: Vec<u8>) -> Option<Record> {
    let mut rest = Bytes::from(value);
    let length = u32::from_be_bytes(*rest.first_chunk()?) as usize;
    if rest.len() - 4 < length {
        return None;
    }
    let value = rest.split_off(4 + length);
    Some(Record { offset, key: rest.split_off(4), value })
}

/// The first offset of a partition, and one past its last; `None` where it holds nothing.
pub(super) fn bounds(tree: &Tree, partition: u32) -> Result<Option<(u64, u64)>, disk::Error> {
    let mut keys = tree.keys(&record_key(partition, 0), &record_key(partition, u64::MAX));
    let Some(first) = keys.next().transpose()? else { return Ok(None) };
    let last = keys.next_back().transpose()?;
    let start = offset_of(tree, &first)?;
    let end = last.map_or(Ok(start), |last| offset_of(tree, &last))?.saturating_add(1);
    Ok(Some((start, end)))
}

fn offset_of(tree: &Tree, key: &[u8]) -> Result<u64, disk::Error> {
    match key.last_chunk() {
        Some(offset) if key.len() == 12 => Ok(u64::from_be_bytes(*offset)),
        Some(_) | None => Err(tree.damaged(key, "its key is not a partition and an offset")),
    }
}

/// Compares what the folder was made with, or writes it into a new one.
pub(super) fn check_meta(disk: &Disk, config: &Config) -> Result<(), OpenError> {
    let tree = disk.tree("journal.meta")?;
    let path = || config.path.clone();
    let wanted = config.partitions.get();
    let numbers = [(&b"layout"[..], LAYOUT_VERSION), (&b"partitions"[..], wanted)];
    let mut batch = Batch::default();
    for (name, ours) in numbers {
        let found = match tree.get(name)? {
            Some(value) => {
                let bytes =
                    value.as_slice().try_into().map_err(|_| tree.damaged(name, "it is not a number"))?;
                u32::from_be_bytes(bytes)
            }
            None => {
                batch.insert_new(name, &ours.to_be_bytes());
                ours
            }
        };
        if found != ours {
            return Err(match name {
                b"layout" => OpenError::Layout { path: path(), found },
                _ => OpenError::Partitions { path: path(), found, wanted },
            });
        }
    }
    tree.apply(batch)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_layout_is_pinned() {
        assert_eq!(record_key(258, 3), [0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
        let record = NewRecord { partition: 0, key: "key".into(), value: "value".into() };
        assert_eq!(record_value(&record), b"\0\0\0\x03keyvalue");
    }

    proptest! {
        #[test]
        fn a_record_comes_back(key: Vec<u8>, value: Vec<u8>, offset: u64) {
            let (key, value) = (Bytes::from(key), Bytes::from(value));
            let stored = record_value(&NewRecord { partition: 0, key: key.clone(), value: value.clone() });
            prop_assert_eq!(record_of(offset, stored), Some(Record { offset, key, value }));
        }

        #[test]
        fn no_bytes_are_too_strange(bytes: Vec<u8>) {
            if let Some(record) = record_of(0, bytes.clone()) {
                let (key, value) = (record.key, record.value);
                prop_assert_eq!(record_value(&NewRecord { partition: 0, key, value }), bytes);
            }
        }
    }
}
