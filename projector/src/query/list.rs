//! Lists over all partitions: subjects in order of their keys, attention in order of time. Must never
//! leave a partition out, nor read more than a bounded number of entries for one page.

use std::iter::Peekable;

use schema::projection::{Attention, AttentionKind, Page, Projection};
use schema::subject::encoded;
use schema::{Provider, Subject};
use service::problem::Problem;

use super::Source;
use super::parameters::{Parameters, cursor, invalid};
use crate::store;
use crate::store::keys::{AttentionKey, AttentionRecord};

/// Entries one page may look at. A filter that few entries pass gives shorter pages, each with its
/// `next`, instead of a query that reads everything.
const SCANNED_MAX: usize = 10_000;

/// A page of subjects, in order of their keys.
pub(super) fn subjects(source: &Source, parameters: &Parameters) -> Result<Page<Projection>, Problem> {
    let (tenant, kind) = (parameters.text("tenant"), parameters.text("kind"));
    let provider = parameters.text("provider").map(|name| {
        Provider::from_name(name).ok_or_else(|| invalid("`provider`", "must be ycloud, shoc or yutai"))
    });
    let provider = provider.transpose()?;
    // As much of the filter as is a prefix of the key need not be scanned for.
    let mut prefix = tenant.map_or_else(String::new, |tenant| format!("{}/", encoded(tenant)));
    if let (Some(_), Some(provider)) = (tenant, provider) {
        prefix.push_str(&format!("{}/", provider.as_str()));
        if let Some(kind) = kind {
            prefix.push_str(&format!("{}/", encoded(kind)));
        }
    }
    let passes = |subject: &Subject| {
        tenant.is_none_or(|tenant| tenant == subject.tenant)
            && provider.is_none_or(|provider| provider == subject.provider)
            && kind.is_none_or(|kind| kind == subject.kind)
    };
    let after = parameters.after_text()?;
    let view = source.store.read();
    let partitions = each_partition(source, |partition| view.subjects(partition, &prefix, after.as_deref()))?;
    let read = |key: &String, record: crate::store::keys::SubjectRecord| {
        let subject = Subject::from_key(key)?;
        passes(&subject).then(|| record.fold.projection(&subject))
    };
    page(Merged::new(partitions), parameters.limit()?, read, |key| key.as_bytes().to_vec())
}

/// A page of attention entries, the oldest first.
pub(super) fn attention(source: &Source, parameters: &Parameters) -> Result<Page<Attention>, Problem> {
    let kinds = [
        ("conflict", AttentionKind::Conflict),
        ("contested", AttentionKind::Contested),
        ("unordered", AttentionKind::Unordered),
        ("failed", AttentionKind::Failed),
        ("malformed", AttentionKind::Malformed),
    ];
    let kind = match parameters.text("kind") {
        None => None,
        Some(name) => match kinds.iter().find(|(known, _)| *known == name) {
            Some((_, kind)) => Some(*kind),
            None => {
                return Err(invalid(
                    "`kind`",
                    &format!("must be one of {}", kinds.map(|(name, _)| name).join(", ")),
                ));
            }
        },
    };
    let after = parameters.after_attention()?.and_then(|(observation, number)| {
        let (_, kind) = kinds.iter().find(|(_, kind)| *kind as u8 == number)?;
        Some(AttentionKey { observation, kind: *kind })
    });
    let view = source.store.read();
    let partitions = each_partition(source, |partition| view.attention(partition, after))?;
    let read = |key: &AttentionKey, record| {
        let name = kinds.iter().find(|(_, kind)| *kind == key.kind).map_or("", |(name, _)| name);
        kind.is_none_or(|kind| kind == key.kind).then(|| entry(*key, name, record))
    };
    page(Merged::new(partitions), parameters.limit()?, read, |key| {
        [&key.observation.as_bytes()[..], &[key.kind as u8]].concat()
    })
}

fn entry(key: AttentionKey, kind_name: &str, record: AttentionRecord) -> Attention {
    Attention {
        id: format!("{}-{kind_name}", key.observation),
        kind: key.kind,
        subject: record.subject.and_then(|key| Subject::from_key(&key)),
        observation_id: (key.kind != AttentionKind::Malformed).then_some(key.observation),
        event_id: record.event_id,
        reason: record.reason,
        since: record.since,
        acknowledged: None,
    }
}

fn each_partition<'a, I, T>(
    source: &Source,
    scan: impl Fn(u32) -> Result<I, store::Error>,
) -> Result<Vec<Peekable<BoxedScan<'a, T>>>, store::Error>
where
    I: Iterator<Item = Result<T, store::Error>> + 'a,
{
    let partitions = 0..source.store.partitions();
    partitions.map(|partition| Ok((Box::new(scan(partition)?) as BoxedScan<'a, T>).peekable())).collect()
}

type BoxedScan<'a, T> = Box<dyn Iterator<Item = Result<T, store::Error>> + 'a>;

/// Several scans as one, in order of their keys.
struct Merged<'a, K, V> {
    scans: Vec<Peekable<BoxedScan<'a, (K, V)>>>,
}

impl<'a, K: Ord, V> Merged<'a, K, V> {
    fn new(scans: Vec<Peekable<BoxedScan<'a, (K, V)>>>) -> Self {
        Self { scans }
    }
}

impl<K: Ord + Clone, V> Iterator for Merged<'_, K, V> {
    type Item = Result<(K, V), store::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut least: Option<(usize, K)> = None;
        for (index, scan) in self.scans.iter_mut().enumerate() {
            match scan.peek() {
                // An error is handed on at once: a list must not go on without a partition.
                Some(Err(_)) => return scan.next(),
                Some(Ok((key, _))) if least.as_ref().is_none_or(|(_, least)| key < least) => {
                    least = Some((index, key.clone()));
                }
                Some(Ok(_)) | None => {}
            }
        }
        self.scans.get_mut(least?.0)?.next()
    }
}

/// Takes what `read` lets pass until the page is full or [`SCANNED_MAX`] entries were looked at.
fn page<K: Ord + Clone, V, T>(
    merged: Merged<'_, K, V>,
    limit: usize,
    read: impl Fn(&K, V) -> Option<T>,
    place: impl Fn(&K) -> Vec<u8>,
) -> Result<Page<T>, Problem> {
    let mut items = Vec::new();
    let mut last = None;
    for (scanned, item) in merged.enumerate() {
        if items.len() == limit || scanned == SCANNED_MAX {
            return Ok(Page { items, next: last.map(|key| cursor(&place(&key))) });
        }
        let (key, value) = item?;
        items.extend(read(&key, value));
        last = Some(key);
    }
    Ok(Page { items, next: None })
}
