//! The file that a log is exported to: its format, written and read. Must never take a damaged or cut file for a
//! whole one, and never allocate what a file only claims to hold.
//!
//! | bytes | what |
//! | --- | --- |
//! | 16 | `witness journal` and a line feed |
//! | 4 | the format's version, 1 |
//! | … | blocks, to the end of the file |
//!
//! A block is its kind (1 byte), the length of its content (4 bytes), the content, and a digest (32 bytes): SHA-256
//! over the digest of the block before, the kind, the length and the content. Before the first block stands the
//! digest of the first 20 bytes. So every digest vouches for all of the file that precedes it, the last one for the
//! whole. All numbers are big-endian.
//!
//! | kind | content |
//! | --- | --- |
//! | 1, the first | [`Header`] as JSON |
//! | 2 | the length of the rest when unpacked (4 bytes), and packed with zstd: topic (1 byte), partition (4 bytes), and per record offset (8 bytes), length of its key (4 bytes), key, length of its value (4 bytes), value |
//! | 3, the last | [`Trailer`] as JSON |
//!
//! A partition's records stand in the order of their offsets; partitions follow each other, and so do topics.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::num::NonZeroU32;
use std::path::Path;

use bytes::{Buf, Bytes};
use journal::{Record, Topic};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const MAGIC: &[u8; 16] = b"witness journal\n";
const VERSION: u32 = 1;

const HEADER: u8 = 1;
const RECORDS: u8 = 2;
const TRAILER: u8 = 3;

/// Bytes that a block's content may have, packed or not: a reading of the log, which ends with at most one record
/// that is too much.
const BLOCK_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Low levels of zstd are faster than the disk and already take most of what repeated JSON has to give.
const ZSTD_LEVEL: i32 = 3;

/// What was to be exported, as measured when the export began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    /// Where the log was, in words.
    pub(super) source: String,
    /// Partitions of every topic there.
    pub(super) partitions: NonZeroU32,
    /// The bounds of every partition of every exported topic, in the order of the file.
    pub(super) logs: Vec<Bounds>,
}

/// One partition's bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bounds {
    #[serde(with = "topic_number")]
    pub(super) topic: Topic,
    pub(super) partition: u32,
    /// The first offset.
    pub(super) start: u64,
    /// One past the last offset.
    pub(super) end: u64,
}

/// What the file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trailer {
    /// Records of all topics together.
    pub(super) records: u64,
}

/// Consecutive records of one partition.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) topic: Topic,
    pub(super) partition: u32,
    pub(super) records: Vec<Record>,
}

/// Why a file cannot be read.
#[derive(Debug)]
pub(super) enum Fault {
    /// The operating system refused.
    Io(io::Error),
    /// It is not one of ours.
    Foreign(String),
    /// What it holds up to here is good, and here it is not.
    Damaged {
        /// Where the first block that is not good begins.
        at: u64,
        /// How it is not good.
        what: String,
    },
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Foreign(what) => f.write_str(what),
            Self::Damaged { at, what } => write!(f, "damaged at byte {at}: {what}"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// How far a file is written or read.
#[derive(Clone, Debug)]
struct Place {
    /// The end of the last good block.
    at: u64,
    /// That block's digest.
    digest: [u8; 32],
    records: u64,
    /// One past the last offset of every partition.
    next: BTreeMap<(Topic, u32), u64>,
}

impl Place {
    fn beginning() -> Self {
        let digest = digest_of(&[MAGIC, &VERSION.to_be_bytes()]);
        Self { at: (MAGIC.len() + 4) as u64, digest, records: 0, next: BTreeMap::new() }
    }

    fn took(&mut self, chunk: &Chunk) {
        self.records += chunk.records.len() as u64;
        if let Some(last) = chunk.records.last() {
            self.next.insert((chunk.topic, chunk.partition), last.offset.saturating_add(1));
        }
    }
}

/// Writes a file from its beginning, or goes on with one.
pub(super) struct Writer {
    output: BufWriter<File>,
    place: Place,
}

impl Writer {
    /// Makes `file` a file with nothing but a header.
    pub(super) fn begin(mut file: File, header: &Header) -> anyhow::Result<Self> {
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        let mut writer = Self { output: BufWriter::new(file), place: Place::beginning() };
        writer.output.write_all(MAGIC)?;
        writer.output.write_all(&VERSION.to_be_bytes())?;
        writer.block(HEADER, &serde_json::to_vec(header)?)?;
        Ok(writer)
    }

    /// Goes on where `reader` found the last good block of `file`; what follows it is cut off.
    pub(super) fn resume(mut file: File, reader: Reader) -> io::Result<Self> {
        let place = reader.place;
        file.set_len(place.at)?;
        file.seek(SeekFrom::Start(place.at))?;
        Ok(Self { output: BufWriter::new(file), place })
    }

    /// Where a partition goes on; `None` where nothing of it is written.
    pub(super) fn next(&self, topic: Topic, partition: u32) -> Option<u64> {
        self.place.next.get(&(topic, partition)).copied()
    }

    /// Records so far.
    pub(super) fn records(&self) -> u64 {
        self.place.records
    }

    pub(super) fn write(&mut self, chunk: &Chunk) -> anyhow::Result<()> {
        let mut plain = vec![chunk.topic as u8];
        plain.extend_from_slice(&chunk.partition.to_be_bytes());
        for record in &chunk.records {
            plain.extend_from_slice(&record.offset.to_be_bytes());
            for part in [&record.key, &record.value] {
                plain.extend_from_slice(&u32::try_from(part.len())?.to_be_bytes());
                plain.extend_from_slice(part);
            }
        }
        let mut content = u32::try_from(plain.len())?.to_be_bytes().to_vec();
        content.extend(zstd::bulk::compress(&plain, ZSTD_LEVEL)?);
        anyhow::ensure!(plain.len().max(content.len()) <= BLOCK_BYTES_MAX, "too much was read at once");
        self.block(RECORDS, &content)?;
        self.place.took(chunk);
        Ok(())
    }

    /// Ends the file, makes it durable, and answers the number of its records and the digest of it all.
    pub(super) fn finish(mut self) -> anyhow::Result<(u64, [u8; 32])> {
        let records = self.place.records;
        self.block(TRAILER, &serde_json::to_vec(&Trailer { records })?)?;
        let file = self.output.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok((records, self.place.digest))
    }

    fn block(&mut self, kind: u8, content: &[u8]) -> anyhow::Result<()> {
        let length = u32::try_from(content.len())?.to_be_bytes();
        let digest = digest_of(&[&self.place.digest, &[kind], &length, content]);
        self.output.write_all(&[kind])?;
        self.output.write_all(&length)?;
        self.output.write_all(content)?;
        self.output.write_all(&digest)?;
        self.place.at += (1 + length.len() + content.len() + digest.len()) as u64;
        self.place.digest = digest;
        Ok(())
    }
}

/// Reads a file, and believes nothing in it before its digest holds.
pub(super) struct Reader {
    input: BufReader<File>,
    place: Place,
    header: Header,
    /// The digest of the whole file, once its end was read. The place stays before the trailer, where a resumed
    /// export goes on.
    whole: Option<[u8; 32]>,
}

impl Reader {
    /// Reads the header.
    pub(super) fn open(path: &Path) -> Result<Self, Fault> {
        let mut input = BufReader::new(File::open(path)?);
        let mut place = Place::beginning();
        let mut first = [0; 20];
        input.read_exact(&mut first).map_err(cut_or_io(0))?;
        let (magic, version) = first.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(Fault::Foreign("it is no export of a Witness journal".to_owned()));
        }
        if version != VERSION.to_be_bytes() {
            let problem = "another release wrote it, in a version of the format that this one does not know";
            return Err(Fault::Foreign(problem.to_owned()));
        }
        let (kind, content) = block(&mut input, &mut place)?;
        let header = if kind == HEADER { serde_json::from_slice(&content).ok() } else { None };
        let header = header.ok_or_else(|| damaged(20, "its header cannot be read"))?;
        Ok(Self { input, place, header, whole: None })
    }

    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    /// The digest that ends the file; `None` before the end was read.
    pub(super) fn digest(&self) -> Option<[u8; 32]> {
        self.whole
    }

    /// The next records; `None` at the end of a whole file.
    pub(super) fn next(&mut self) -> Result<Option<Chunk>, Fault> {
        if self.whole.is_some() {
            return Ok(None);
        }
        let at = self.place.at;
        let mut place = self.place.clone();
        let (kind, content) = block(&mut self.input, &mut place)?;
        match kind {
            RECORDS => {
                let chunk = unpacked(content).ok_or_else(|| damaged(at, "its records cannot be read"))?;
                self.check(&chunk).map_err(|what| damaged(at, what))?;
                place.took(&chunk);
                self.place = place;
                Ok(Some(chunk))
            }
            TRAILER => {
                let trailer: Option<Trailer> = serde_json::from_slice(&content).ok();
                if trailer.is_none_or(|trailer| trailer.records != place.records) {
                    return Err(damaged(at, "it does not hold as many records as it says"));
                }
                if self.input.read(&mut [0])? != 0 {
                    return Err(damaged(place.at, "something follows its end"));
                }
                self.whole = Some(place.digest);
                Ok(None)
            }
            _ => Err(damaged(at, "a block of no known kind")),
        }
    }

    /// Whether the records stand where they may.
    fn check(&self, chunk: &Chunk) -> Result<(), &'static str> {
        let Chunk { topic, partition, records } = chunk;
        let is_log = |bounds: &&Bounds| bounds.topic == *topic && bounds.partition == *partition;
        let bounds =
            self.header.logs.iter().find(is_log).ok_or("records of a partition that it does not have")?;
        let mut next = self.place.next.get(&(*topic, *partition)).copied().unwrap_or(bounds.start);
        for record in records {
            if record.offset < next || record.offset >= bounds.end {
                return Err("records out of their order");
            }
            next = record.offset + 1;
        }
        Ok(())
    }
}

/// The next block, of which the digest holds.
fn block(input: &mut impl Read, place: &mut Place) -> Result<(u8, Vec<u8>), Fault> {
    let at = place.at;
    let mut head = [0; 5];
    input.read_exact(&mut head).map_err(cut_or_io(at))?;
    let [kind, length @ ..] = head;
    let length_bytes = u32::from_be_bytes(length) as usize;
    if length_bytes > BLOCK_BYTES_MAX {
        return Err(damaged(at, "a block of an impossible length"));
    }
    let mut content = Vec::new();
    // Grows with what is there, and not to what the length claims.
    input.take(length_bytes as u64).read_to_end(&mut content)?;
    let mut digest = [0; 32];
    input.read_exact(&mut digest).map_err(cut_or_io(at))?;
    if content.len() != length_bytes || digest != digest_of(&[&place.digest, &[kind], &length, &content]) {
        return Err(damaged(at, "a digest does not hold"));
    }
    place.at += (head.len() + length_bytes + digest.len()) as u64;
    place.digest = digest;
    Ok((kind, content))
}

fn unpacked(content: Vec<u8>) -> Option<Chunk> {
    let (length, packed) = content.split_first_chunk()?;
    let length = u32::from_be_bytes(*length) as usize;
    if length > BLOCK_BYTES_MAX {
        return None;
    }
    let mut plain = Bytes::from(zstd::bulk::decompress(packed, length).ok()?);
    if plain.len() != length {
        return None;
    }
    let topic = topic_of(plain.try_get_u8().ok()?)?;
    let partition = plain.try_get_u32().ok()?;
    let mut records = Vec::new();
    let part = |plain: &mut Bytes| {
        let length = plain.try_get_u32().ok()? as usize;
        (length <= plain.len()).then(|| plain.split_to(length))
    };
    while !plain.is_empty() {
        let offset = plain.try_get_u64().ok()?;
        let (key, value) = (part(&mut plain)?, part(&mut plain)?);
        records.push(Record { offset, key, value });
    }
    Some(Chunk { topic, partition, records })
}

fn digest_of(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

fn topic_of(number: u8) -> Option<Topic> {
    Topic::ALL.into_iter().find(|topic| *topic as u8 == number)
}

fn damaged(at: u64, what: &str) -> Fault {
    Fault::Damaged { at, what: what.to_owned() }
}

fn cut_or_io(at: u64) -> impl FnOnce(io::Error) -> Fault {
    move |error| {
        let is_cut = error.kind() == io::ErrorKind::UnexpectedEof;
        if is_cut { damaged(at, "the file is cut off") } else { Fault::Io(error) }
    }
}

/// A topic as its pinned number.
mod topic_number {
    use journal::Topic;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(topic: &Topic, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(*topic as u8)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Topic, D::Error> {
        let number = u8::deserialize(deserializer)?;
        super::topic_of(number).ok_or_else(|| serde::de::Error::custom("no such topic"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(offset: u64, value: &[u8]) -> Record {
        Record { offset, key: Bytes::from(format!("key {offset}")), value: Bytes::copy_from_slice(value) }
    }

    fn header() -> Header {
        let log = |topic, partition| Bounds { topic, partition, start: 3, end: 100 };
        let logs = vec![log(Topic::Observations, 0), log(Topic::Observations, 1), log(Topic::Claims, 1)];
        Header { source: "a log".to_owned(), partitions: NonZeroU32::new(2).unwrap(), logs }
    }

    fn chunks() -> Vec<Chunk> {
        let chunk = |topic, partition, records| Chunk { topic, partition, records };
        vec![
            chunk(Topic::Observations, 0, vec![record(3, b""), record(5, &[7; 3_000])]),
            chunk(Topic::Observations, 0, vec![record(99, b"last")]),
            chunk(Topic::Claims, 1, vec![record(4, b"claim")]),
        ]
    }

    fn written(path: &Path, chunks: &[Chunk]) -> [u8; 32] {
        let mut writer = Writer::begin(File::create(path).unwrap(), &header()).unwrap();
        chunks.iter().for_each(|chunk| writer.write(chunk).unwrap());
        let (records, digest) = writer.finish().unwrap();
        assert_eq!(records, chunks.iter().map(|chunk| chunk.records.len() as u64).sum::<u64>());
        digest
    }

    /// All that is good, and how it ends.
    fn read(path: &Path) -> (Vec<Record>, Result<[u8; 32], Fault>) {
        let mut found = Vec::new();
        let mut reader = match Reader::open(path) {
            Ok(reader) => reader,
            Err(fault) => return (found, Err(fault)),
        };
        loop {
            match reader.next() {
                Ok(Some(chunk)) => found.extend(chunk.records),
                Ok(None) => return (found, Ok(reader.digest().unwrap())),
                Err(fault) => return (found, Err(fault)),
            }
        }
    }

    fn records(chunks: Vec<Chunk>) -> Vec<Record> {
        chunks.into_iter().flat_map(|chunk| chunk.records).collect()
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let digest = written(&path, &chunks());
        let (found, ended) = read(&path);
        assert_eq!(found, records(chunks()));
        assert_eq!(ended.unwrap(), digest);
        assert_eq!(Reader::open(&path).unwrap().header(), &header());
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_noticed_before_it_is_believed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        written(&path, &chunks());
        let whole = std::fs::read(&path).unwrap();
        let all = records(chunks());
        let is_beginning = |found: &[Record]| all.starts_with(found);
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (found, ended) = read(&path);
            assert!(is_beginning(&found) && ended.is_err(), "cut at {cut}");
            let mut damaged = whole.clone();
            damaged[cut] ^= 1;
            std::fs::write(&path, &damaged).unwrap();
            let (found, ended) = read(&path);
            assert!(is_beginning(&found) && ended.is_err(), "changed at {cut}");
        }
        std::fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(read(&path).1.is_err(), "something follows");
    }

    #[test]
    fn records_where_none_may_be_are_refused() {
        let chunk = |topic, partition, offset| Chunk { topic, partition, records: vec![record(offset, b"")] };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for strange in [
            vec![chunk(Topic::Observations, 0, 2)],
            vec![chunk(Topic::Observations, 0, 100)],
            vec![chunk(Topic::Observations, 2, 5)],
            vec![chunk(Topic::Observations, 0, 5), chunk(Topic::Observations, 0, 5)],
        ] {
            written(&path, &strange);
            assert!(matches!(read(&path).1, Err(Fault::Damaged { .. })), "{strange:?}");
        }
    }

    #[test]
    fn a_file_is_gone_on_with_after_its_last_good_block() {
        let folder = tempfile::tempdir().unwrap();
        let [path, whole] = ["file", "whole"].map(|name| folder.path().join(name));
        let digest = written(&whole, &chunks());
        let bytes = std::fs::read(&whole).unwrap();
        let header_ends = Reader::open(&whole).unwrap().place.at as usize;
        for cut in (header_ends..=bytes.len()).step_by(7) {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let mut reader = Reader::open(&path).unwrap();
            let mut there = 0;
            while let Ok(Some(_)) = reader.next() {
                there += 1;
            }
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let mut writer = Writer::resume(file, reader).unwrap();
            chunks().iter().skip(there).for_each(|chunk| writer.write(chunk).unwrap());
            assert_eq!(writer.next(Topic::Claims, 1), Some(5));
            assert_eq!(writer.next(Topic::Claims, 0), None);
            assert_eq!(writer.finish().unwrap(), (4, digest));
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "cut at {cut}");
        }
    }
}
