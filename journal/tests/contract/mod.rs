//! What every journal promises, as tests over the traits alone; each adapter's test file runs them. Must
//! never know which adapter it runs on.

#![allow(unreachable_pub, reason = "a module of several test binaries")]

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use journal::{
    AppendError, Appender, Assigned, Committed, Consumer, LogReader, NewRecord, PartitionOwner, Polled,
    Publication, ReadError, Record, Topic,
};

/// Partitions the journals under test have.
pub const PARTITIONS: NonZeroU32 = NonZeroU32::new(3).unwrap();

/// A journal under test.
pub trait Journal {
    /// The writing half.
    fn appender(&self) -> &dyn Appender;
    /// A new reader of the observations, independent of all others.
    fn consumer(&self) -> Box<dyn Consumer>;
    /// A reader of `topic` in the one group of publishers.
    fn publisher(&self, topic: Topic) -> Box<dyn Consumer>;
    /// A reader of `topic` in no group.
    fn log_reader(&self, topic: Topic) -> Box<dyn LogReader>;
}

/// Owns every partition, from the given offset; refuses those named.
#[derive(Default)]
pub struct Owner {
    pub from: u64,
    pub refused: Vec<u32>,
    pub assigned: Vec<Assigned>,
}

impl PartitionOwner for Owner {
    fn assigned(&mut self, assigned: Assigned) -> Result<u64, String> {
        let is_refused = self.refused.contains(&assigned.partition);
        self.assigned.push(assigned);
        if is_refused { Err("refused".to_owned()) } else { Ok(self.from) }
    }

    fn revoked(&mut self, _partition: u32) {}
}

pub fn record(partition: u32, key: &str, value: impl Into<Bytes>) -> NewRecord {
    NewRecord { partition, key: Bytes::copy_from_slice(key.as_bytes()), value: value.into() }
}

/// Reads until `count` records have come; by partition, in the order they came.
pub fn read(consumer: &mut dyn Consumer, owner: &mut Owner, count: usize) -> Vec<Vec<Record>> {
    let mut found = vec![Vec::new(); PARTITIONS.get() as usize];
    let started = Instant::now();
    while found.iter().map(Vec::len).sum::<usize>() < count {
        match consumer.poll(owner, Duration::from_millis(200)).expect("readable") {
            Polled::Records { partition, records } => found[partition as usize].extend(records),
            Polled::Nothing => assert!(started.elapsed() < Duration::from_secs(30), "only {found:?}"),
        }
    }
    found
}

/// Every acknowledged record is there, once, byte for byte, in the order of its partition's offsets.
pub async fn appends_are_read_back_in_order(journal: &dyn Journal) {
    let sizes = [0, 1, 5 * 1024 - 1, 5 * 1024, 5 * 1024 + 1, 100_000, 1024 * 1024, 1_900_000];
    let mut wanted = vec![Vec::new(); PARTITIONS.get() as usize];
    for (index, size) in sizes.into_iter().enumerate() {
        let partition = index as u32 % PARTITIONS.get();
        let record = record(partition, &format!("key {index}"), vec![index as u8; size]);
        let position = journal.appender().append(Topic::Observations, record.clone()).await.expect("durable");
        assert_eq!(position.partition, partition);
        wanted[partition as usize].push(Record {
            offset: position.offset,
            key: record.key,
            value: record.value,
        });
    }
    let found = read(&mut *journal.consumer(), &mut Owner::default(), sizes.len());
    assert!(found == wanted, "records differ");
    assert!(found.iter().all(|records| records.windows(2).all(|pair| pair[0].offset < pair[1].offset)));
}

/// What was acknowledged is visible to a reader at once, and appends at the same time do not mix up.
pub async fn many_appends_at_once(journal: &dyn Journal) {
    let appends = (0..600_u32).map(|number| async move {
        let record = record(number % PARTITIONS.get(), "key", number.to_be_bytes().to_vec());
        (number, journal.appender().append(Topic::Observations, record).await.expect("durable"))
    });
    let acknowledged = join_all(appends).await;
    let found = read(&mut *journal.consumer(), &mut Owner::default(), acknowledged.len());
    for (number, position) in acknowledged {
        let records = &found[position.partition as usize];
        let matching: Vec<_> =
            records.iter().filter(|record| record.value[..] == number.to_be_bytes()).collect();
        assert_eq!(matching.len(), 1, "{number} is there once");
        assert_eq!(matching[0].offset, position.offset);
    }
}

/// Readers are independent, resume where they are told, and a refused partition stops only itself.
pub async fn readers_own_their_place(journal: &dyn Journal) {
    for number in 0..12_u32 {
        let record = record(number % PARTITIONS.get(), "key", number.to_be_bytes().to_vec());
        journal.appender().append(Topic::Observations, record).await.expect("durable");
    }
    let all = read(&mut *journal.consumer(), &mut Owner::default(), 12);
    let mut owner = Owner { from: all[0][2].offset, refused: vec![1], ..Owner::default() };
    let mut consumer = journal.consumer();
    let rest = read(&mut *consumer, &mut owner, 4);
    assert_eq!(rest[0], all[0][2..]);
    assert_eq!(rest[1], []);
    assert_eq!(rest[2], all[2][2..]);
    assert!(matches!(consumer.poll(&mut owner, Duration::from_millis(50)), Ok(Polled::Nothing)));
    let bounds: Vec<_> =
        owner.assigned.iter().map(|assigned| (assigned.log_start, assigned.log_end)).collect();
    assert_eq!(bounds, [(0, 4), (0, 4), (0, 4)]);
}

/// Dropping the future of an append does not undo it; what can never be written is refused at once.
pub async fn odd_appends(journal: &dyn Journal) {
    drop(journal.appender().append(Topic::Observations, record(0, "key", "dropped")));
    let found = read(&mut *journal.consumer(), &mut Owner::default(), 1);
    assert_eq!(found[0][0].value, "dropped");
    let nowhere = journal.appender().append(Topic::Observations, record(PARTITIONS.get(), "key", "x")).await;
    assert!(matches!(nowhere, Err(AppendError::Unavailable(_))), "{nowhere:?}");
    let huge = vec![0; schema::limits::RECORD_BYTES_MAX + 1];
    let huge = journal.appender().append(Topic::Observations, record(0, "key", huge)).await;
    assert!(matches!(huge, Err(AppendError::TooLarge { .. })), "{huge:?}");
    assert_eq!(journal.appender().health(), Ok(()));
    assert_eq!(journal.appender().partitions(), PARTITIONS);
}

/// Publications and offsets come together, and a later owner is told how far the group is.
pub fn publications_are_remembered(journal: &dyn Journal) {
    let publication = |partition: u32, offset: u64, text: &str| Publication {
        partition,
        offset,
        metadata: text.to_owned(),
        projections: vec![record(partition, "a", text.to_owned()), record(partition, "b", text.to_owned())],
        claims: vec![record(2, "c", text.to_owned())],
    };
    let assigned = |publisher: &mut dyn Consumer| {
        let mut owner = Owner::default();
        let started = Instant::now();
        while owner.assigned.len() < PARTITIONS.get() as usize {
            assert!(started.elapsed() < Duration::from_secs(30), "only {:?}", owner.assigned);
            drop(publisher.poll(&mut owner, Duration::from_millis(50)));
        }
        owner.assigned.sort_by_key(|assigned| assigned.partition);
        owner.assigned.into_iter().map(|assigned| assigned.committed).collect::<Vec<_>>()
    };
    let mut first = journal.publisher(Topic::Observations);
    assert_eq!(assigned(&mut *first), [None, None, None]);
    first.publish(vec![publication(0, 3, "one"), publication(1, 0, "")]).expect("published");
    first.publish(vec![publication(0, 5, "two")]).expect("published");
    drop(first);
    let committed = |offset, metadata: &str| Some(Committed { offset, metadata: metadata.to_owned() });
    let mut second = journal.publisher(Topic::Observations);
    assert_eq!(assigned(&mut *second), [committed(5, "two"), committed(0, ""), None]);
    drop(second);

    let mut owner = Owner::default();
    let found = read(&mut *journal.publisher(Topic::Projections), &mut owner, 6);
    let texts =
        |partition: usize| found[partition].iter().map(|record| record.value.to_vec()).collect::<Vec<_>>();
    assert_eq!(texts(0), [b"one", b"one", b"two", b"two"]);
    assert_eq!(texts(1), [b"", b""]);
    let found = read(&mut *journal.publisher(Topic::Claims), &mut Owner::default(), 3);
    assert_eq!(
        found[2].iter().map(|record| record.value.to_vec()).collect::<Vec<_>>(),
        [&b"one"[..], b"", b"two"]
    );
}

/// Longer than any broker takes to say that there is no more.
const LOG_READER_PATIENCE: Duration = Duration::from_secs(30);

/// A partition from `from` to the end that was measured before.
fn read_log(reader: &mut dyn LogReader, partition: u32, from: u64) -> Vec<Record> {
    let (_, end) = reader.bounds(partition).expect("measured");
    let (mut found, mut next) = (Vec::new(), from);
    while next < end {
        let records = reader.read(partition, next, LOG_READER_PATIENCE).expect("readable");
        next = records.last().map_or(end, |record| record.offset + 1);
        found.extend(records);
    }
    found
}

/// A reader outside any group reads every partition from any place, as often as it is asked, and sees what was
/// appended meanwhile; it is told of an end, and of places that are not there.
pub async fn a_log_reader_reads_the_log_as_it_stands(journal: &dyn Journal) {
    let mut reader = journal.log_reader(Topic::Observations);
    assert_eq!(reader.bounds(1), Ok((0, 0)));
    assert_eq!(reader.read(1, 0, LOG_READER_PATIENCE), Ok(Vec::new()), "nothing is there yet");
    for number in 0..2_500_u32 {
        let size = if number % 1_000 == 0 { 1_000_000 } else { 4 };
        let mut value = number.to_be_bytes().to_vec();
        value.resize(size, 0);
        let partition = if number % 5 == 0 { 2 } else { 0 };
        let append = journal.appender().append(Topic::Observations, record(partition, "key", value));
        if number % 100 == 99 {
            append.await.expect("durable");
        } else {
            drop(append);
        }
    }
    for partition in [0, 1, 2] {
        // The latest appends were not waited for.
        let position = journal.appender().append(Topic::Observations, record(partition, "last", "value"));
        position.await.expect("durable");
    }
    let all = [0, 1, 2].map(|partition| read_log(&mut *reader, partition, 0));
    assert_eq!(all.each_ref().map(Vec::len), [2_001, 1, 501]);
    for (partition, records) in all.iter().enumerate() {
        assert!(records.windows(2).all(|pair| pair[0].offset < pair[1].offset));
        let end = records.last().map_or(0, |record| record.offset + 1);
        assert_eq!(reader.bounds(partition as u32), Ok((0, end)));
    }
    let numbers: Vec<u32> = all[0][..2_000]
        .iter()
        .map(|record| u32::from_be_bytes(*record.value.first_chunk().expect("four bytes")))
        .collect();
    assert_eq!(numbers, (0..2_500).filter(|number| number % 5 != 0).collect::<Vec<_>>());
    for from in [0, 1, 499, 500] {
        assert!(read_log(&mut *reader, 2, all[2][from].offset) == all[2][from..], "from {from}");
    }
    let end = all[2][500].offset + 1;
    for _ in 0..2 {
        assert_eq!(reader.read(2, end, LOG_READER_PATIENCE), Ok(Vec::new()), "the end");
    }
    let later = journal.appender().append(Topic::Observations, record(2, "later", "value"));
    let later = later.await.expect("durable").offset;
    let found = reader.read(2, end, LOG_READER_PATIENCE).expect("readable");
    assert_eq!(
        found.iter().map(|record| (record.offset, &record.key[..])).collect::<Vec<_>>(),
        [(later, &b"later"[..])]
    );
    let nowhere = PARTITIONS.get();
    for problem in [reader.bounds(nowhere).err(), reader.read(nowhere, 0, LOG_READER_PATIENCE).err()] {
        assert!(matches!(problem, Some(ReadError::Unavailable(_))), "{problem:?}");
    }
}

/// Offsets that hold no record, the last ones of the log too, do not keep a reader from its end.
pub fn a_log_reader_gets_over_transactions(journal: &dyn Journal) {
    let mut publisher = journal.publisher(Topic::Observations);
    let mut owner = Owner::default();
    let started = Instant::now();
    while owner.assigned.len() < PARTITIONS.get() as usize {
        assert!(started.elapsed() < Duration::from_secs(30), "only {:?}", owner.assigned);
        drop(publisher.poll(&mut owner, Duration::from_millis(50)));
    }
    for offset in 0..3 {
        let claims = vec![record(2, "claim", format!("{offset}"))];
        let publication =
            Publication { partition: 0, offset, metadata: String::new(), projections: Vec::new(), claims };
        publisher.publish(vec![publication]).expect("published");
    }
    let mut reader = journal.log_reader(Topic::Claims);
    let found = read_log(&mut *reader, 2, 0);
    assert_eq!(found.iter().map(|record| &record.value[..]).collect::<Vec<_>>(), [b"0", b"1", b"2"]);
    let after = found[2].offset + 1;
    assert_eq!(read_log(&mut *reader, 2, after), []);
    assert_eq!(reader.read(2, after, LOG_READER_PATIENCE), Ok(Vec::new()));
}
