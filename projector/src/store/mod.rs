//! The store: what the projector has derived, and every observation it was derived from, on one machine's
//! disk. Only this module knows sled. Must never make a batch visible before it is durable, nor let a
//! reader see half of one.

pub mod keys;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use journal::disk::{self, Disk, Tree};
use schema::{Digest, Micros};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::derive::Entry;
use keys::{
    AttentionKey, AttentionRecord, BLOCK_RAW_BYTES, FactRecord, LAYOUT_VERSION, META, Meta, PAGE_ENTRIES,
    SubjectRecord,
};

/// The epoch of the derivation in this release. It rises when the same log would derive other answers.
pub const EPOCH: u32 = 1;

/// Why the store cannot be used.
#[derive(Debug, Error)]
pub enum Error {
    /// The disk, or what is on it.
    #[error(transparent)]
    Disk(#[from] disk::Error),
    /// Another release wrote it.
    #[error(
        "the store in {path} was written with {what} {found}, this release has {wanted}; stop the service, delete the folder and start again: the store is derived anew from the journal"
    )]
    Other {
        /// The folder.
        path: PathBuf,
        /// Layout or epoch.
        what: &'static str,
        /// What was found.
        found: u32,
        /// What this release has.
        wanted: u32,
    },
    /// A value could not be packed.
    #[error("a value could not be packed: {0}")]
    Packing(String),
}

/// The store of all partitions this instance has held.
#[derive(Debug)]
pub struct Store {
    disk: Disk,
    partitions: Vec<Tree>,
    /// Held for writing while a batch is applied, for reading while an answer is put together.
    visible: RwLock<()>,
}

/// What one batch changes in its partition.
#[derive(Debug, Default)]
pub struct Changes {
    /// Observations exactly as read, in offset order.
    pub observations: Vec<(u64, Bytes)>,
    /// Subjects by key.
    pub subjects: BTreeMap<String, SubjectRecord>,
    /// Pages that were sealed: subject key, number, entries.
    pub pages: Vec<(String, u32, Vec<Entry>)>,
    /// Facts by fact key.
    pub facts: BTreeMap<String, FactRecord>,
    /// Attention entries raised or rewritten (`Some`) and removed (`None`).
    pub attention: BTreeMap<AttentionKey, Option<AttentionRecord>>,
    /// Where the partition stands after the batch.
    pub meta: Option<Meta>,
}

impl Store {
    /// Opens the store in its folder, making it where it is missing.
    pub fn open(path: &Path, partitions: NonZeroU32) -> Result<Self, Error> {
        let disk = Disk::open(path)?;
        let trees = (0..partitions.get()).map(|partition| disk.tree(&format!("observations/{partition}")));
        let store = Self { partitions: trees.collect::<Result<_, _>>()?, disk, visible: RwLock::new(()) };
        // What a killed process had applied but not synced is made durable before anyone sees it.
        store.disk.sync()?;
        for partition in 0..partitions.get() {
            let meta = store.read().meta(partition)?;
            for (what, found, wanted) in
                [("layout", meta.layout, LAYOUT_VERSION), ("epoch", meta.epoch, EPOCH)]
            {
                if found != wanted {
                    return Err(Error::Other { path: path.to_owned(), what, found, wanted });
                }
            }
        }
        Ok(store)
    }

    /// A view that no batch changes while it is held.
    pub fn read(&self) -> View<'_> {
        View { store: self, _visible: self.visible.read().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Applies a batch whole, and returns once it is durable.
    pub fn commit(&self, partition: u32, changes: Changes) -> Result<(), Error> {
        let tree = self.tree(partition)?;
        let mut batch = disk::Batch::default();
        for records in blocks(&changes.observations) {
            let Some((first, _)) = records.first() else { continue };
            let block = keys::encode_block(records).map_err(|error| Error::Packing(error.to_string()))?;
            batch.insert_new(&keys::block(*first), &block);
        }
        for (key, record) in &changes.subjects {
            batch.replace(tree, &keys::subject(key), &packed(record)?)?;
        }
        for (key, number, entries) in &changes.pages {
            batch.insert_new(&keys::page(key, *number), &packed(entries)?);
            for entry in entries.iter().filter(|entry| entry.inbox == schema::projection::Inbox::New) {
                batch.insert_new(&keys::index(key, entry.event), &packed(entry)?);
            }
        }
        for (key, record) in &changes.facts {
            batch.replace(tree, &keys::fact(key), &packed(record)?)?;
        }
        for (key, record) in &changes.attention {
            match record {
                Some(record) => batch.replace(tree, &key.key(), &packed(record)?)?,
                None => batch.remove(tree, &key.key())?,
            }
        }
        if let Some(meta) = &changes.meta {
            batch.replace(tree, META, &packed(meta)?)?;
        }
        let visible = self.visible.write().unwrap_or_else(PoisonError::into_inner);
        tree.apply(batch)?;
        self.disk.sync()?;
        drop(visible);
        Ok(())
    }

    /// Bytes on the disk.
    pub fn size_bytes(&self) -> Result<u64, Error> {
        Ok(self.disk.size_bytes()?)
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> u32 {
        self.partitions.len() as u32
    }

    fn tree(&self, partition: u32) -> Result<&Tree, Error> {
        self.partitions.get(partition as usize).ok_or_else(|| {
            Error::Packing(format!("partition {partition} of {} does not exist", self.partitions.len()))
        })
    }
}

/// Consecutive records in pieces of about [`BLOCK_RAW_BYTES`].
fn blocks(mut records: &[(u64, Bytes)]) -> Vec<&[(u64, Bytes)]> {
    let mut blocks = Vec::new();
    while !records.is_empty() {
        let mut bytes = 0;
        let fitting = records.iter().take_while(|(_, value)| {
            bytes += value.len();
            bytes <= BLOCK_RAW_BYTES
        });
        let (block, rest) = records.split_at(fitting.count().max(1));
        blocks.push(block);
        records = rest;
    }
    blocks
}

fn packed<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(value).map_err(|error| Error::Packing(error.to_string()))
}

/// The store as it stands between two batches.
pub struct View<'a> {
    store: &'a Store,
    _visible: RwLockReadGuard<'a, ()>,
}

impl View<'_> {
    /// Where the partition stands; at its beginning, if nothing was read of it yet.
    pub fn meta(&self, partition: u32) -> Result<Meta, Error> {
        Ok(self.get(partition, META)?.unwrap_or(Meta {
            layout: LAYOUT_VERSION,
            epoch: EPOCH,
            next_offset: 0,
            last_observation: None,
            journal_time: Micros(i64::MIN),
        }))
    }

    /// A subject's record.
    pub fn subject(&self, partition: u32, key: &str) -> Result<Option<SubjectRecord>, Error> {
        self.get(partition, &keys::subject(key))
    }

    /// A fact's record.
    pub fn fact(&self, partition: u32, fact_key: &str) -> Result<Option<FactRecord>, Error> {
        self.get(partition, &keys::fact(fact_key))
    }

    /// The first entry under an inbox key, where its page is sealed.
    pub fn indexed(&self, partition: u32, subject_key: &str, event: Digest) -> Result<Option<Entry>, Error> {
        self.get(partition, &keys::index(subject_key, event))
    }

    /// A subject's entries after `offset` (all, without one), in order, at most `limit`.
    pub fn entries(
        &self,
        partition: u32,
        subject_key: &str,
        record: &SubjectRecord,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Entry>, Error> {
        let is_after = |entry: &Entry| after.is_none_or(|after| entry.offset > after);
        // The first page whose last entry is after the cursor, found by halving.
        let (mut low, mut high) = (0, record.pages);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.page(partition, subject_key, middle)?.last().is_some_and(is_after) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let mut entries = Vec::new();
        for number in low..record.pages {
            if entries.len() >= limit {
                break;
            }
            entries.extend(self.page(partition, subject_key, number)?.into_iter().filter(is_after));
        }
        entries.extend(record.recent.iter().filter(|entry| is_after(entry)).cloned());
        entries.truncate(limit);
        Ok(entries)
    }

    fn page(&self, partition: u32, subject_key: &str, number: u32) -> Result<Vec<Entry>, Error> {
        let key = keys::page(subject_key, number);
        match self.get::<Vec<Entry>>(partition, &key)? {
            Some(page) if page.len() == PAGE_ENTRIES => Ok(page),
            Some(_) | None => {
                Err(self.store.tree(partition)?.damaged(&key, "the page is missing or cut").into())
            }
        }
    }

    /// The observations at `offsets` (ascending), exactly as they were read.
    pub fn observations(&self, partition: u32, offsets: &[u64]) -> Result<BTreeMap<u64, Vec<u8>>, Error> {
        let tree = self.store.tree(partition)?;
        let mut found = BTreeMap::new();
        for offset in offsets {
            if found.contains_key(offset) {
                continue;
            }
            let (from, to) = (keys::block(0), keys::block(offset.saturating_add(1)));
            let block = tree.range(&from, &to).next_back().transpose()?;
            let Some((key, block)) = block else { continue };
            let records =
                keys::decode_block(&block).ok_or_else(|| tree.damaged(&key, "the block is damaged"))?;
            found.extend(records.into_iter().filter(|(offset, _)| offsets.binary_search(offset).is_ok()));
        }
        Ok(found)
    }

    /// Subjects of a partition whose keys begin with `prefix`, after the key `after`, in order.
    pub fn subjects(
        &self,
        partition: u32,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<impl Iterator<Item = Result<(String, SubjectRecord), Error>>, Error> {
        self.scan(partition, keys::subject(prefix), after.map(keys::subject), |key| {
            key.strip_prefix(b"s").and_then(|key| String::from_utf8(key.to_vec()).ok())
        })
    }

    /// Facts of a subject, after the fact key `after`, in order of their keys.
    pub fn facts(
        &self,
        partition: u32,
        subject_key: &str,
        after: Option<&str>,
    ) -> Result<impl Iterator<Item = Result<(String, FactRecord), Error>>, Error> {
        self.scan(partition, keys::fact(&format!("{subject_key}/")), after.map(keys::fact), |key| {
            key.strip_prefix(b"f").and_then(|key| String::from_utf8(key.to_vec()).ok())
        })
    }

    /// Attention entries of a partition after the key `after`, the oldest first.
    pub fn attention(
        &self,
        partition: u32,
        after: Option<AttentionKey>,
    ) -> Result<impl Iterator<Item = Result<(AttentionKey, AttentionRecord), Error>>, Error> {
        self.scan(partition, b"a".to_vec(), after.map(AttentionKey::key), AttentionKey::from_key)
    }

    /// One attention entry.
    pub fn attention_record(
        &self,
        partition: u32,
        key: AttentionKey,
    ) -> Result<Option<AttentionRecord>, Error> {
        self.get(partition, &key.key())
    }

    /// Keys that begin with `prefix`, after the key `after`.
    fn scan<K, V: DeserializeOwned>(
        &self,
        partition: u32,
        prefix: Vec<u8>,
        after: Option<Vec<u8>>,
        read_key: impl Fn(&[u8]) -> Option<K>,
    ) -> Result<impl Iterator<Item = Result<(K, V), Error>>, Error> {
        let tree = self.store.tree(partition)?;
        let mut to = prefix.clone();
        to.push(0xff);
        // The least key greater than `after` is `after` and a zero byte.
        let from = after.map(|mut after| {
            after.push(0);
            after
        });
        let from = from.filter(|from| *from > prefix).unwrap_or(prefix);
        Ok(tree.range(&from, &to).map(move |item| {
            let (key, value) = item?;
            let unreadable = || tree.damaged(&key, "it cannot be read");
            Ok((
                read_key(&key).ok_or_else(unreadable)?,
                postcard::from_bytes(&value).map_err(|_| unreadable())?,
            ))
        }))
    }

    fn get<T: DeserializeOwned>(&self, partition: u32, key: &[u8]) -> Result<Option<T>, Error> {
        let tree = self.store.tree(partition)?;
        let Some(value) = tree.get(key)? else { return Ok(None) };
        postcard::from_bytes(&value).map(Some).map_err(|_| tree.damaged(key, "it cannot be read").into())
    }
}
