//! Out of a log and into a file. Must never leave a file under its final name that is not whole and durable, and
//! never go on with one that was begun from another log.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use journal::{LogReader, Topic};

use super::file::{Bounds, Chunk, Fault, Header, Reader, Writer};
use super::progress::Progress;
use super::{READ_TIME_MAX, TOPICS};
use crate::opened::Opened;
use crate::wrong_use::WrongUse;

/// What an export came to.
pub(super) struct Exported {
    /// Records in the file.
    pub(super) records: u64,
    /// Of them, those that an export before this one had written.
    pub(super) resumed: u64,
    /// The digest that ends the file.
    pub(super) digest: [u8; 32],
    /// What was measured.
    pub(super) header: Header,
}

/// Writes all of the log as it is now to `to`, by way of `to` with `.partial` at its end.
pub(super) fn export(
    source: &Opened,
    name: &str,
    partitions: std::num::NonZeroU32,
    to: &Path,
) -> anyhow::Result<Exported> {
    if to.exists() {
        return Err(WrongUse(format!("{} is there already; name another file", to.display())).into());
    }
    let mut readers = TOPICS
        .into_iter()
        .map(|topic| Ok((topic, source.log_reader(topic)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let partial = partial_of(to);
    let (header, mut writer) = match begun(&partial)? {
        Some(mut reader) => {
            let header = reader.header().clone();
            if header.source != name || header.partitions != partitions {
                return Err(another_log(&partial, &header));
            }
            let last = read_on(&mut reader).with_context(|| partial.display().to_string())?;
            if let Some(last) = last
                && !is_in_log(&mut readers, &last)?
            {
                return Err(another_log(&partial, &header));
            }
            (header, Writer::resume(open(&partial)?, reader)?)
        }
        None => {
            let header = Header {
                source: name.to_owned(),
                partitions,
                logs: measure(&mut readers, partitions.get())?,
            };
            let writer = Writer::begin(open(&partial)?, &header);
            (header, writer.with_context(|| partial.display().to_string())?)
        }
    };
    warn_of_what_is_missing(&header);
    let resumed = writer.records();
    let offsets = header.logs.iter().map(|log| log.end - log.start).sum();
    let progress = Progress::begin("exporting", offsets);
    for (topic, reader) in &mut readers {
        for log in header.logs.iter().filter(|log| log.topic == *topic) {
            let context = || format!("partition {} of {topic}", log.partition);
            export_log(&mut **reader, log, &mut writer, &progress).with_context(context)?;
        }
    }
    let (records, digest) = writer.finish().with_context(|| partial.display().to_string())?;
    fs::rename(&partial, to).with_context(|| to.display().to_string())?;
    sync_folder_of(to).with_context(|| to.display().to_string())?;
    progress.end();
    Ok(Exported { records, resumed, digest, header })
}

fn export_log(
    reader: &mut dyn LogReader,
    log: &Bounds,
    writer: &mut Writer,
    progress: &Progress,
) -> anyhow::Result<()> {
    let Bounds { topic, partition, start, end } = *log;
    let mut next = writer.next(topic, partition).unwrap_or(start);
    progress.advance(next - start);
    while next < end {
        let mut records = reader.read(partition, next, READ_TIME_MAX)?;
        records.retain(|record| record.offset < end);
        let before = next;
        // Where nothing more is, the last offsets are markers of transactions.
        next = records.last().map_or(end, |record| record.offset + 1);
        progress.advance(next - before);
        if !records.is_empty() {
            writer.write(&Chunk { topic, partition, records })?;
        }
    }
    Ok(())
}

fn measure(readers: &mut [(Topic, Box<dyn LogReader>)], partitions: u32) -> anyhow::Result<Vec<Bounds>> {
    let mut logs = Vec::new();
    for (topic, reader) in readers {
        for partition in 0..partitions {
            let (start, end) =
                reader.bounds(partition).with_context(|| format!("partition {partition} of {topic}"))?;
            logs.push(Bounds { topic: *topic, partition, start, end });
        }
    }
    Ok(logs)
}

/// An export that was begun, if there is one.
fn begun(partial: &Path) -> anyhow::Result<Option<Reader>> {
    match Reader::open(partial) {
        Ok(reader) => Ok(Some(reader)),
        Err(Fault::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        // It was cut off in its header, so there is nothing in it.
        Err(Fault::Damaged { .. }) => Ok(None),
        Err(Fault::Foreign(what)) => {
            Err(WrongUse(format!("{}: {what}; delete it, or name another file", partial.display())).into())
        }
        Err(Fault::Io(error)) => Err(error).context(partial.display().to_string()),
    }
}

/// Reads to the end of the last good block, and answers the last record with where it belongs.
fn read_on(reader: &mut Reader) -> Result<Option<Chunk>, Fault> {
    let mut last = None;
    loop {
        match reader.next() {
            Ok(Some(mut chunk)) => {
                let record = chunk.records.pop();
                chunk.records = record.into_iter().collect();
                last = Some(chunk);
            }
            // What follows the last good block is written again.
            Ok(None) | Err(Fault::Damaged { .. }) => return Ok(last),
            Err(fault @ (Fault::Io(_) | Fault::Foreign(_))) => return Err(fault),
        }
    }
}

/// Whether the one record of a chunk stands in the log.
fn is_in_log(readers: &mut [(Topic, Box<dyn LogReader>)], last: &Chunk) -> anyhow::Result<bool> {
    let Some(wanted) = last.records.first() else { return Ok(true) };
    let Some((_, reader)) = readers.iter_mut().find(|(topic, _)| *topic == last.topic) else {
        return Ok(false);
    };
    if wanted.offset >= reader.bounds(last.partition)?.1 {
        return Ok(false);
    }
    let found = reader.read(last.partition, wanted.offset, READ_TIME_MAX)?;
    Ok(found.first() == Some(wanted))
}

fn another_log(partial: &Path, header: &Header) -> anyhow::Error {
    let (partial, Header { source, partitions, .. }) = (partial.display(), header);
    WrongUse(format!(
        "{partial} was begun from another log ({source}, {partitions} partitions); delete it, or name another file"
    ))
    .into()
}

/// A log that expires is still worth what is left of it.
fn warn_of_what_is_missing(header: &Header) {
    for Bounds { topic, partition, start, .. } in header.logs.iter().filter(|log| log.start > 0) {
        tracing::warn!(
            "partition {partition} of {topic} begins at offset {start}: what stood before it is no longer in the log, and not in the file"
        );
    }
}

fn partial_of(to: &Path) -> PathBuf {
    let mut name = OsString::from(to);
    name.push(".partial");
    name.into()
}

fn open(path: &Path) -> anyhow::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.with_context(|| path.display().to_string())?;
    // Two exports to one file would write over each other.
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(_) => bail!("{} is being written by another process", path.display()),
    }
}

/// The name is durable when the folder is.
fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}
