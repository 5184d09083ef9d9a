//! The store: what the projector has derived, and every observation it was derived from, on one machine's
//! disk. Only this module knows sled. Must never make a batch visible before it is durable, nor let a
//! reader see half of one.

mod digest;
mod filter;
mod folder;
pub mod keys;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use journal::disk::{self, Disk, Tree};
use schema::projection::AttentionKind;
use schema::{Digest, Micros};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use uuid::Uuid;

use crate::derive::Entry;
pub use digest::PartitionDigest;
use filter::Place;
pub use filter::SubjectFilter;
pub use folder::Folder;
use keys::{
    AttentionKey, AttentionRecord, BLOCK_RAW_BYTES, ClaimRecord, FactRecord, LAYOUT_VERSION, META, Meta,
    PAGE_ENTRIES, SubjectRecord,
};

/// The epoch of the derivation in this release. It rises when the same log would derive other answers. What an
/// operator adds to it, because the log was imported or reset, makes the epoch of a store.
pub const DERIVATION_EPOCH: u32 = 1;

/// Why the store cannot be used.
#[derive(Debug, Error)]
pub enum Error {
    /// The disk, or what is on it.
    #[error(transparent)]
    Disk(#[from] disk::Error),
    /// Another release wrote it.
    #[error(
        "the store in {path} was written with {what} {found}, but {what} {wanted} is wanted; stop the service, delete the folder and start again: the store is derived anew from the journal"
    )]
    Other {
        /// The folder.
        path: PathBuf,
        /// Layout or epoch.
        what: &'static str,
        /// What was found.
        found: u32,
        /// What is wanted.
        wanted: u32,
    },
    /// The folder around the stores.
    #[error("the store's folder {path}: {problem}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A value could not be packed.
    #[error("a value could not be packed: {0}")]
    Packing(String),
}

/// The store of all partitions this instance has held.
#[derive(Debug)]
pub struct Store {
    disk: Disk,
    epoch: u32,
    partitions: Vec<Tree>,
    claims: Vec<Tree>,
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
    /// Pages that were sealed or written anew, by subject key and number.
    pub pages: BTreeMap<(String, u32), Vec<Entry>>,
    /// Facts by fact key.
    pub facts: BTreeMap<String, FactRecord>,
    /// Attention entries raised or rewritten (`Some`) and removed (`None`).
    pub attention: BTreeMap<AttentionKey, Option<AttentionRecord>>,
    /// Where the partition stands after the batch.
    pub meta: Option<Meta>,
}

/// What one batch of claims changes in its partition.
#[derive(Debug, Default)]
pub struct ClaimChanges {
    /// By inbox digest.
    pub claims: BTreeMap<Digest, ClaimRecord>,
    /// Where the partition stands after the batch.
    pub meta: Option<Meta>,
}

impl Store {
    /// Opens the store in its folder, making it where it is missing. `epoch` is the one its answers carry.
    pub fn open(path: &Path, partitions: NonZeroU32, epoch: u32) -> Result<Self, Error> {
        let disk = Disk::open(path)?;
        let trees = |topic: &str| {
            let trees = (0..partitions.get()).map(|partition| disk.tree(&format!("{topic}/{partition}")));
            trees.collect::<Result<Vec<_>, _>>()
        };
        let (partition_trees, claims) = (trees("observations")?, trees("claims")?);
        let visible = RwLock::new(());
        let store = Self { partitions: partition_trees, claims, epoch, disk, visible };
        // What a killed process had applied but not synced is made durable before anyone sees it.
        store.disk.sync()?;
        for partition in 0..partitions.get() {
            let refused = |what, found, wanted| Error::Other { path: path.to_owned(), what, found, wanted };
            match store.read().layout(partition)? {
                None | Some(LAYOUT_VERSION) => {}
                Some(found) => return Err(refused("layout", found, LAYOUT_VERSION)),
            }
            let found = store.read().meta(partition)?.epoch;
            if found != epoch {
                return Err(refused("epoch", found, epoch));
            }
        }
        Ok(store)
    }

    /// The observations of a partition, exactly as they were read. Blocks never change once written, so
    /// no batch waits for whoever reads them.
    pub fn observations(&self, partition: u32) -> Result<Observations<'_>, Error> {
        Ok(Observations { tree: self.tree(partition)?, block: Vec::new() })
    }

    /// Every observation of a partition from the offset `from` on, in order, exactly as it was read.
    pub fn observations_from(
        &self,
        partition: u32,
        from: u64,
    ) -> Result<impl Iterator<Item = Result<(u64, Vec<u8>), Error>>, Error> {
        let tree = self.tree(partition)?;
        // The offset may stand inside the block that begins before it.
        let earlier = tree.range(&keys::block(0), &keys::block(from.saturating_add(1))).next_back();
        let begin = earlier.transpose()?.map_or_else(|| keys::block(from), |(key, _)| key);
        let blocks = tree.range(&begin, b"c").map(|block| {
            let (key, block) = block?;
            Ok(keys::decode_block(&block).ok_or_else(|| tree.damaged(&key, "the block is damaged"))?)
        });
        Ok(blocks.flat_map(move |block: Result<_, Error>| {
            let (records, failure) = match block {
                Ok(records) => (records, None),
                Err(error) => (Vec::new(), Some(Err(error))),
            };
            records.into_iter().filter(move |(offset, _)| *offset >= from).map(Ok).chain(failure)
        }))
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
        for ((key, number), entries) in &changes.pages {
            batch.replace(tree, &keys::page(key, *number), &packed(entries)?)?;
            for entry in entries.iter().filter(|entry| entry.inbox == schema::projection::Inbox::New) {
                // Always one piece, so that nothing of an older one is left behind it.
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

    /// Applies a batch of claims whole, and returns once it is durable.
    pub fn commit_claims(&self, partition: u32, changes: &ClaimChanges) -> Result<(), Error> {
        let tree = self.claims_tree(partition)?;
        let mut batch = disk::Batch::default();
        for (inbox, record) in &changes.claims {
            batch.replace(tree, &keys::claim(*inbox), &packed(record)?)?;
        }
        if let Some(meta) = &changes.meta {
            batch.replace(tree, META, &packed(meta)?)?;
        }
        tree.apply(batch)?;
        self.disk.sync()?;
        Ok(())
    }

    /// Where a partition of the claims stands; at its beginning, if nothing was read of it yet.
    pub fn claims_meta(&self, partition: u32) -> Result<Meta, Error> {
        let tree = self.claims_tree(partition)?;
        let meta = tree.get(META)?.map(|value| read(tree, META, &value)).transpose()?;
        Ok(meta.unwrap_or_else(|| self.at_the_beginning()))
    }

    /// The first claim of an inbox key, in its partition of the claims.
    pub fn claim(&self, partition: u32, inbox: Digest) -> Result<Option<ClaimRecord>, Error> {
        let tree = self.claims_tree(partition)?;
        let key = keys::claim(inbox);
        tree.get(&key)?.map(|value| read(tree, &key, &value)).transpose()
    }

    /// The epoch that answers carry.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    fn at_the_beginning(&self) -> Meta {
        Meta {
            layout: LAYOUT_VERSION,
            epoch: self.epoch,
            next_offset: 0,
            last_observation: None,
            journal_time: Micros(i64::MIN),
        }
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

    fn claims_tree(&self, partition: u32) -> Result<&Tree, Error> {
        self.claims.get(partition as usize).ok_or_else(|| {
            Error::Packing(format!("partition {partition} of {} does not exist", self.claims.len()))
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

/// Reads observations block by block; asking in the order of offsets unpacks each block once.
#[derive(Debug)]
pub struct Observations<'a> {
    tree: &'a Tree,
    /// The block unpacked last: offsets and values.
    block: Vec<(u64, Vec<u8>)>,
}

impl Observations<'_> {
    /// The value at `offset`. Fails where no record with that offset was read.
    pub fn at(&mut self, offset: u64) -> Result<&[u8], Error> {
        if !self.block.iter().any(|(known, _)| *known == offset) {
            let (from, to) = (keys::block(0), keys::block(offset.saturating_add(1)));
            if let Some((key, block)) = self.tree.range(&from, &to).next_back().transpose()? {
                let damaged = || self.tree.damaged(&key, "the block is damaged");
                self.block = keys::decode_block(&block).ok_or_else(damaged)?;
            }
        }
        let found = self.block.iter().find(|(known, _)| *known == offset);
        let missing = || self.tree.damaged(&keys::block(offset), "no block holds this offset");
        Ok(found.map(|(_, value)| value.as_slice()).ok_or_else(missing)?)
    }
}

/// The store as it stands between two batches.
pub struct View<'a> {
    store: &'a Store,
    _visible: RwLockReadGuard<'a, ()>,
}

impl View<'_> {
    /// Where the partition stands; at its beginning, if nothing was read of it yet.
    pub fn meta(&self, partition: u32) -> Result<Meta, Error> {
        Ok(self.get(partition, META)?.unwrap_or_else(|| self.store.at_the_beginning()))
    }

    /// The epoch that answers carry.
    pub fn epoch(&self) -> u32 {
        self.store.epoch
    }

    /// The partition's observations, exactly as they were read.
    pub fn observations(&self, partition: u32) -> Result<Observations<'_>, Error> {
        self.store.observations(partition)
    }

    /// The layout that a partition was written with. It stands first whatever else [`Meta`] holds.
    fn layout(&self, partition: u32) -> Result<Option<u32>, Error> {
        let tree = self.store.tree(partition)?;
        let Some(value) = tree.get(META)? else { return Ok(None) };
        let layout = postcard::take_from_bytes(&value).map(|(layout, _)| Some(layout));
        layout.map_err(|_| tree.damaged(META, "it cannot be read").into())
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

    /// A sealed page of a subject's entries.
    pub fn page(&self, partition: u32, subject_key: &str, number: u32) -> Result<Vec<Entry>, Error> {
        let key = keys::page(subject_key, number);
        match self.get::<Vec<Entry>>(partition, &key)? {
            Some(page) if page.len() == PAGE_ENTRIES => Ok(page),
            Some(_) | None => {
                Err(self.store.tree(partition)?.damaged(&key, "the page is missing or cut").into())
            }
        }
    }

    /// Subjects of a partition that `filter` wants, after the key `after`, in order of their keys.
    pub fn subjects(
        &self,
        partition: u32,
        filter: &SubjectFilter,
        after: Option<&str>,
    ) -> Result<impl Iterator<Item = Result<(String, SubjectRecord), Error>>, Error> {
        let tree = self.store.tree(partition)?;
        let from = |key: &str| tree.range(&keys::subject(key), b"t");
        let mut range = after.map_or_else(|| from(""), |after| from(&least_after(after)));
        let mut next = move || -> Result<_, Error> {
            while let Some((key, value)) = range.next().transpose()? {
                let text = text_after(b"s", &key).ok_or_else(|| unreadable(tree, &key))?;
                match filter.place(&text) {
                    Place::Wanted => return Ok(Some((text, read(tree, &key, &value)?))),
                    Place::NotBefore(place) => range = from(&place),
                    Place::PastAll => break,
                }
            }
            Ok(None)
        };
        Ok(std::iter::from_fn(move || next().transpose()))
    }

    /// Facts of a subject, after the fact key `after`, in order of their keys.
    pub fn facts(
        &self,
        partition: u32,
        subject_key: &str,
        after: Option<&str>,
    ) -> Result<impl Iterator<Item = Result<(String, FactRecord), Error>>, Error> {
        let tree = self.store.tree(partition)?;
        // The character after `/` ends the range.
        let (first, end) = (format!("{subject_key}/"), format!("{subject_key}0"));
        let from = after.map_or(first, least_after);
        let range = tree.range(&keys::fact(&from), &keys::fact(&end));
        Ok(range.map(|item| {
            let (key, value) = item?;
            let text = text_after(b"f", &key).ok_or_else(|| unreadable(tree, &key))?;
            Ok((text, read(tree, &key, &value)?))
        }))
    }

    /// Attention entries of one kind in a partition that come after the entry `after`, the oldest first.
    pub fn attention(
        &self,
        partition: u32,
        kind: AttentionKind,
        after: Option<AttentionKey>,
    ) -> Result<impl Iterator<Item = Result<(AttentionKey, AttentionRecord), Error>>, Error> {
        let tree = self.store.tree(partition)?;
        let first = after.map_or(Uuid::nil(), |after| after.observation);
        let from = AttentionKey { observation: first, kind }.key();
        let end = [b'a', (kind as u8).saturating_add(1)];
        let entries = tree.range(&from, &end).map(|item| {
            let (key, value) = item?;
            let place = AttentionKey::from_key(&key).ok_or_else(|| unreadable(tree, &key))?;
            Ok((place, read(tree, &key, &value)?))
        });
        // Of entries that one observation raised, some are before `after` and some are not.
        let is_after = move |key: &AttentionKey| after.is_none_or(|after| *key > after);
        Ok(entries.filter(move |item| item.as_ref().map_or(true, |(key, _)| is_after(key))))
    }

    /// One attention entry.
    pub fn attention_record(
        &self,
        partition: u32,
        key: AttentionKey,
    ) -> Result<Option<AttentionRecord>, Error> {
        self.get(partition, &key.key())
    }

    fn get<T: DeserializeOwned>(&self, partition: u32, key: &[u8]) -> Result<Option<T>, Error> {
        let tree = self.store.tree(partition)?;
        let value = tree.get(key)?;
        value.map(|value| read(tree, key, &value)).transpose()
    }
}

/// The least text greater than `text`.
fn least_after(text: &str) -> String {
    format!("{text}\0")
}

fn text_after(table: &[u8], key: &[u8]) -> Option<String> {
    String::from_utf8(key.strip_prefix(table)?.to_vec()).ok()
}

fn read<T: DeserializeOwned>(tree: &Tree, key: &[u8], value: &[u8]) -> Result<T, Error> {
    postcard::from_bytes(value).map_err(|_| unreadable(tree, key))
}

fn unreadable(tree: &Tree, key: &[u8]) -> Error {
    tree.damaged(key, "it cannot be read").into()
}
