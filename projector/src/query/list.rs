//! Lists over all partitions: subjects in order of their keys, attention in order of time. Must never
//! leave a partition out, nor read what is not on the page.

use std::iter::Peekable;

use schema::projection::{Attention, AttentionKind, Page};
use schema::{Provider, Subject};
use serde_json::value::RawValue;
use service::problem::Problem;

use super::page::{List, page};
use super::parameters::{Parameters, invalid};
use super::{Source, internal};
use crate::store::keys::{AttentionKey, AttentionRecord};
use crate::store::{self, SubjectFilter};

/// A page of subjects, in order of their keys.
pub(super) fn subjects(source: &Source, parameters: &Parameters) -> Result<Page<Box<RawValue>>, Problem> {
    let provider = parameters.text("provider").map(|name| {
        Provider::from_name(name).ok_or_else(|| invalid("`provider`", "must be ycloud, shoc or yutai"))
    });
    let filter =
        SubjectFilter::new(parameters.text("tenant"), provider.transpose()?, parameters.text("kind"));
    let after = parameters.after_text(List::Subjects, |key| Subject::from_key(key).is_some())?;
    let store = source.store();
    let view = store.read();
    let partitions = 0..store.partitions();
    let scans = partitions.map(|partition| view.subjects(partition, &filter, after.as_deref()));
    let subjects = Merged::new(scans)?.map(|item| {
        let (key, record) = item?;
        let subject = Subject::from_key(&key).ok_or_else(internal)?;
        Ok((key.into_bytes(), record.fold.projection(&subject)))
    });
    page(List::Subjects, parameters.limit()?, subjects)
}

/// A page of attention entries, the oldest first.
pub(super) fn attention(source: &Source, parameters: &Parameters) -> Result<Page<Box<RawValue>>, Problem> {
    let kinds = match parameters.text("kind") {
        None => AttentionKind::ALL.to_vec(),
        Some(name) => vec![AttentionKind::from_name(name).ok_or_else(|| {
            let names = AttentionKind::ALL.map(AttentionKind::as_str).join(", ");
            invalid("`kind`", &format!("must be one of {names}"))
        })?],
    };
    let after = parameters.after(List::Attention, |place| AttentionKey::from_key(&place))?;
    let store = source.store();
    let view = store.read();
    let partitions = 0..store.partitions();
    let places = partitions.flat_map(|partition| kinds.iter().map(move |kind| (partition, *kind)));
    let scans = places.map(|(partition, kind)| view.attention(partition, kind, after));
    let entries = Merged::new(scans)?.map(|item| {
        let (key, record) = item?;
        Ok((key.key(), entry(key, record)))
    });
    page(List::Attention, parameters.limit()?, entries)
}

pub(super) fn entry(key: AttentionKey, record: AttentionRecord) -> Attention {
    Attention {
        id: key.id(),
        kind: key.kind,
        subject: record.subject.and_then(|key| Subject::from_key(&key)),
        observation_id: (key.kind != AttentionKind::Malformed).then_some(key.observation),
        event_id: record.event_id,
        reason: record.reason,
        since: record.since,
        acknowledged: record.acknowledged,
    }
}

/// Several scans as one, in order of their keys.
struct Merged<I: Iterator>(Vec<Peekable<I>>);

impl<I: Iterator> Merged<I> {
    fn new(scans: impl Iterator<Item = Result<I, store::Error>>) -> Result<Self, store::Error> {
        scans.map(|scan| Ok(scan?.peekable())).collect::<Result<_, _>>().map(Self)
    }
}

impl<K: Ord + Clone, V, I: Iterator<Item = Result<(K, V), store::Error>>> Iterator for Merged<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<Self::Item> {
        let mut least: Option<(usize, K)> = None;
        for (index, scan) in self.0.iter_mut().enumerate() {
            match scan.peek() {
                // An error is handed on at once: a list must not go on without a partition.
                Some(Err(_)) => return scan.next(),
                Some(Ok((key, _))) if least.as_ref().is_none_or(|(_, least)| key < least) => {
                    least = Some((index, key.clone()));
                }
                Some(Ok(_)) | None => {}
            }
        }
        self.0.get_mut(least?.0)?.next()
    }
}
