//! sled, used safely: opening, real durability, and values of any size. Everything that is to be known
//! about sled 0.34's sharp edges stands here and nowhere else. Must never call a write durable before
//! `fdatasync` returned, and never hand sled a value that it would put into a file of its own.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thiserror::Error;

/// Bytes one physical value may have. sled puts a page of more than 128 KiB into a file of its own in
/// `blobs/`, which it never syncs. A leaf splits at 16 values, so 17 of these with keys of up to 2.5 KiB
/// stay below that (measured: with 24 KiB, 100 values of 1 MiB left 400 files there; with 7 KiB none, at
/// the same speed). Keys are not split: with keys of 10 KB files appear, with 6 KB none did.
pub const VALUE_BYTES_MAX: usize = 5 * 1024;

/// How long an open waits for another process's lock: sled's lock can outlive its process for a moment.
const LOCK_WAIT: Duration = Duration::from_secs(3);

/// Bytes of cache a disk may use; sled takes up to twice that.
const CACHE_BYTES: u64 = 64 * 1024 * 1024;

/// First byte of the physical keys that hold continuation chunks. No logical key begins with it.
const CONTINUATION: u8 = 0xff;
/// Tag of a value that is whole.
const WHOLE: u8 = 0;
/// Tag of a value whose rest is in continuation chunks; their number follows as `u32` big-endian.
const CHUNKED: u8 = 1;

/// A failure of the disk, or of what is on it. None of them goes away by trying again.
#[derive(Debug, Error)]
pub enum Error {
    /// Another process has the folder open.
    #[error("{path} is in use by another process; stop that one, or configure another folder")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{path}: {error}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
    /// sled failed. Its errors are sticky: after one, every write fails until the folder is opened anew.
    #[error("{path}: the database failed and must be opened anew: {error}")]
    Database {
        /// The folder.
        path: PathBuf,
        /// What sled said.
        error: sled::Error,
    },
    /// What is on the disk is not what was written.
    #[error("{path}: damaged data: {what}")]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// Which record, and how.
        what: String,
    },
}

/// One sled database in one folder.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    database: sled::Db,
    file: File,
}

impl Disk {
    /// Opens the folder, making it where it is missing.
    pub fn open(path: &Path) -> Result<Self, Error> {
        fs::create_dir_all(path).map_err(io_error(path))?;
        let config = sled::Config::new().path(path).cache_capacity(CACHE_BYTES).flush_every_ms(Some(500));
        let started = Instant::now();
        let database = loop {
            match open_unless_locked(path, &config)? {
                Some(database) => break database,
                None if started.elapsed() > LOCK_WAIT => {
                    return Err(Error::InUse { path: path.to_owned() });
                }
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        sync_folders(path);
        let file_path = path.join("db");
        let file = File::open(&file_path).map_err(io_error(&file_path))?;
        let disk = Self { path: path.to_owned(), database, file };
        let files = disk.blob_files()?;
        if files > 0 {
            tracing::error!(path = %path.display(), files, "data lies in files that the database does not sync");
        }
        Ok(disk)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A tree, made where it is missing.
    pub fn tree(&self, name: &str) -> Result<Tree, Error> {
        let tree = self.database.open_tree(name).map_err(|error| self.database_error(error))?;
        Ok(Tree { tree, path: self.path.clone() })
    }

    /// Returns once everything applied before is on the disk. sled's own flush only starts the writing
    /// on Linux (`sync_file_range`), so the file is synced after it.
    pub fn sync(&self) -> Result<(), Error> {
        #[cfg(feature = "simulation")]
        simulation::write(&self.path, simulation::Write::Sync)?;
        #[expect(clippy::disallowed_methods, reason = "the one place that knows what flush does not do")]
        self.database.flush().map_err(|error| self.database_error(error))?;
        self.file.sync_data().map_err(|error| Error::Io { path: self.path.join("db"), error })
    }

    /// Bytes on the disk.
    pub fn size_bytes(&self) -> Result<u64, Error> {
        self.database.size_on_disk().map_err(|error| self.database_error(error))
    }

    /// Files outside the database's own, which it does not sync: none, unless keys are far too long.
    pub fn blob_files(&self) -> Result<usize, Error> {
        let path = self.path.join("blobs");
        Ok(fs::read_dir(&path).map_err(io_error(&path))?.count())
    }

    fn database_error(&self, error: sled::Error) -> Error {
        Error::Database { path: self.path.clone(), error }
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |error| Error::Io { path, error }
}

/// Opens the database; `None` while another process has it.
fn open_unless_locked(path: &Path, config: &sled::Config) -> Result<Option<sled::Db>, Error> {
    let file_path = path.join("db");
    match OpenOptions::new().read(true).write(true).open(&file_path) {
        // sled holds the same lock while it writes a snapshot, so what is removed here is nobody's.
        Ok(file) => match file.try_lock() {
            Ok(()) => remove_unfinished_snapshots(path).map_err(io_error(path))?,
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(io_error(&file_path)(error)),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_error(&file_path)(error)),
    }
    match config.open() {
        Ok(database) => Ok(Some(database)),
        Err(error) if is_lock_contention(&error) => Ok(None),
        Err(error) => Err(Error::Database { path: path.to_owned(), error }),
    }
}

/// A file that was just made is found again after a loss of power only if its folder was synced too, and
/// that one's folder. Some file systems cannot sync a folder, and not every folder above is ours to read.
fn sync_folders(path: &Path) {
    for folder in path.canonicalize().iter().flat_map(|path| path.ancestors()) {
        if let Err(error) = File::open(folder).and_then(|folder| folder.sync_all()) {
            tracing::debug!(folder = %folder.display(), %error, "the folder cannot be synced");
        }
    }
}

/// A crash while sled writes a snapshot leaves `snap.*.generating`, which the next open would take for a
/// snapshot and call corruption. The data is all in the log, so the leftover can go.
fn remove_unfinished_snapshots(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            tracing::warn!(file = %entry.path().display(), "removed an unfinished snapshot left by a crash");
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn is_lock_contention(error: &sled::Error) -> bool {
    match error {
        sled::Error::Io(error) => {
            error.kind() == io::ErrorKind::WouldBlock || error.to_string().contains("could not acquire lock")
        }
        sled::Error::CollectionNotFound(_)
        | sled::Error::Unsupported(_)
        | sled::Error::ReportableBug(_)
        | sled::Error::Corruption { .. } => false,
    }
}

/// An ordered map whose values may be of any size. A value is stored under its key with a tag before it;
/// what does not fit follows in chunks under `FF key number`, outside of every range of keys. No key may
/// begin with `FF` itself.
///
/// A batch happens at once, but a value in chunks is read in several steps: whoever replaces values keeps
/// readers out while a batch is applied.
#[derive(Clone, Debug)]
pub struct Tree {
    tree: sled::Tree,
    path: PathBuf,
}

/// Changes to one [`Tree`] that happen together or not at all.
#[derive(Debug, Default)]
pub struct Batch {
    batch: sled::Batch,
}

impl Tree {
    /// The value under `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self.tree.get(key).map_err(|error| self.database_error(error))? {
            Some(first) => self.whole(key, &first).map(Some),
            None => Ok(None),
        }
    }

    /// Whether there is a value under `key`.
    pub fn contains(&self, key: &[u8]) -> Result<bool, Error> {
        self.tree.contains_key(key).map_err(|error| self.database_error(error))
    }

    /// Keys and values from `from` (inclusive) up to `to` (exclusive), in order, from either end.
    pub fn range(
        &self,
        from: &[u8],
        to: &[u8],
    ) -> impl DoubleEndedIterator<Item = Result<(Vec<u8>, Vec<u8>), Error>> + use<'_> {
        self.first_chunks(from, to).map(|item| {
            let (key, first) = item?;
            let value = self.whole(&key, &first)?;
            Ok((key.to_vec(), value))
        })
    }

    /// The keys alone of [`Tree::range`].
    pub fn keys(
        &self,
        from: &[u8],
        to: &[u8],
    ) -> impl DoubleEndedIterator<Item = Result<Vec<u8>, Error>> + use<'_> {
        self.first_chunks(from, to).map(|item| Ok(item?.0.to_vec()))
    }

    fn first_chunks(
        &self,
        from: &[u8],
        to: &[u8],
    ) -> impl DoubleEndedIterator<Item = Result<(sled::IVec, sled::IVec), Error>> + use<'_> {
        let to = to.min(&[CONTINUATION]).to_vec();
        // sled panics on a range that ends before it begins.
        let from = from.to_vec().min(to.clone());
        self.tree.range(from..to).map(|item| item.map_err(|error| self.database_error(error)))
    }

    /// Applies all of `batch`, or nothing. Durable after the next [`Disk::sync`].
    pub fn apply(&self, batch: Batch) -> Result<(), Error> {
        #[cfg(feature = "simulation")]
        simulation::write(&self.path, simulation::Write::Apply)?;
        self.tree.apply_batch(batch.batch).map_err(|error| self.database_error(error))
    }

    /// Puts the chunks of a value together.
    fn whole(&self, key: &[u8], first: &[u8]) -> Result<Vec<u8>, Error> {
        let (chunks, rest) = self.header(key, first)?;
        let mut value = rest.to_vec();
        for number in 0..chunks {
            let chunk =
                self.tree.get(continuation(key, number)).map_err(|error| self.database_error(error))?;
            value.extend_from_slice(&chunk.ok_or_else(|| self.damaged(key, "a chunk is missing"))?);
        }
        Ok(value)
    }

    /// How many chunks follow a first value, and what of the value stands in it.
    fn header<'a>(&self, key: &[u8], first: &'a [u8]) -> Result<(u32, &'a [u8]), Error> {
        match first.split_first() {
            Some((&WHOLE, rest)) => Ok((0, rest)),
            Some((&CHUNKED, rest)) => match rest.split_first_chunk() {
                Some((number, rest)) => Ok((u32::from_be_bytes(*number), rest)),
                None => Err(self.damaged(key, "its header is cut")),
            },
            Some((tag, _)) => Err(self.damaged(key, &format!("it has the unknown tag {tag}"))),
            None => Err(self.damaged(key, "it is empty")),
        }
    }

    /// An error that names the record under `key`.
    pub fn damaged(&self, key: &[u8], problem: &str) -> Error {
        Error::Damaged { path: self.path.clone(), what: format!("record {}: {problem}", key.escape_ascii()) }
    }

    fn database_error(&self, error: sled::Error) -> Error {
        Error::Database { path: self.path.clone(), error }
    }
}

impl Batch {
    /// Inserts a value under a key that holds none.
    pub fn insert_new(&mut self, key: &[u8], value: &[u8]) {
        let whole = value.len() < VALUE_BYTES_MAX;
        if whole {
            let mut first = Vec::with_capacity(value.len() + 1);
            first.push(WHOLE);
            first.extend_from_slice(value);
            self.batch.insert(key, first);
            return;
        }
        let mut chunks = value.chunks(VALUE_BYTES_MAX - 5);
        let mut first = vec![CHUNKED];
        first.extend_from_slice(&(chunks.len().saturating_sub(1) as u32).to_be_bytes());
        first.extend_from_slice(chunks.next().unwrap_or_default());
        self.batch.insert(key, first);
        for (number, chunk) in (0..).zip(chunks) {
            self.batch.insert(continuation(key, number), chunk);
        }
    }

    /// Inserts a value whether or not `tree` holds one under that key. At most once a key and batch.
    pub fn replace(&mut self, tree: &Tree, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.remove(tree, key)?;
        self.insert_new(key, value);
        Ok(())
    }

    /// Removes what `tree` holds under that key. At most once a key and batch.
    pub fn remove(&mut self, tree: &Tree, key: &[u8]) -> Result<(), Error> {
        if let Some(first) = tree.tree.get(key).map_err(|error| tree.database_error(error))? {
            let (chunks, _) = tree.header(key, &first)?;
            (0..chunks).for_each(|number| self.batch.remove(continuation(key, number)));
            self.batch.remove(key);
        }
        Ok(())
    }
}

fn continuation(key: &[u8], number: u32) -> Vec<u8> {
    let mut physical = Vec::with_capacity(key.len() + 5);
    physical.push(CONTINUATION);
    physical.extend_from_slice(key);
    physical.extend_from_slice(&number.to_be_bytes());
    physical
}

/// Crashes at any write, for simulations: a thread's writes fail from one of them on, as if the process had ended
/// there. What was applied before stays, whether or not it was synced.
#[cfg(feature = "simulation")]
pub mod simulation {
    use std::cell::Cell;
    use std::io;
    use std::path::Path;

    use super::{Error, io_error};

    thread_local! {
        static WRITES_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
        static UNSYNCED: Cell<u32> = const { Cell::new(0) };
    }

    #[derive(Clone, Copy)]
    pub(super) enum Write {
        Apply,
        Sync,
    }

    /// Lets this thread write so many times more, or as often as it likes, and counts unsynced batches from here.
    pub fn writes_left(writes: Option<u32>) {
        WRITES_LEFT.set(writes);
        UNSYNCED.set(0);
    }

    /// Batches this thread has applied and not synced: none of them may be relied on.
    pub fn unsynced() -> u32 {
        UNSYNCED.get()
    }

    pub(super) fn write(path: &Path, write: Write) -> Result<(), Error> {
        match WRITES_LEFT.get() {
            Some(0) => return Err(io_error(path)(io::Error::other("the simulated process has ended"))),
            Some(left) => WRITES_LEFT.set(Some(left - 1)),
            None => {}
        }
        UNSYNCED.set(match write {
            Write::Apply => UNSYNCED.get() + 1,
            Write::Sync => 0,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_leftover_snapshot_does_not_stop_the_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |value: &[u8]| {
            let disk = Disk::open(folder.path()).expect("opens");
            let tree = disk.tree("t").expect("a tree");
            let mut batch = Batch::default();
            batch.insert_new(value, value);
            tree.apply(batch).expect("applies");
            disk.sync().expect("syncs");
        };
        write(b"one");
        fs::write(folder.path().join("snap.00000000000000AB.generating"), b"half a snap").expect("written");
        write(b"two");
        let disk = Disk::open(folder.path()).expect("opens");
        let tree = disk.tree("t").expect("a tree");
        assert_eq!(tree.get(b"one").expect("readable"), Some(b"one".to_vec()));
        assert_eq!(tree.get(b"two").expect("readable"), Some(b"two".to_vec()));
    }

    #[test]
    fn a_folder_in_use_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let _first = Disk::open(folder.path()).expect("opens");
        let unfinished = folder.path().join("snap.00000000000000AB.generating");
        fs::write(&unfinished, b"half a snap").expect("written");
        let error = Disk::open(folder.path()).expect_err("in use").to_string();
        assert!(
            error.contains(&folder.path().display().to_string()) && error.contains("another process"),
            "{error}"
        );
        assert!(unfinished.exists(), "it may be the other process's, which is still writing it");
    }

    #[test]
    fn large_values_stay_in_the_database_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = Disk::open(folder.path()).expect("opens");
        let tree = disk.tree("t").expect("a tree");
        for number in 0..40_u8 {
            let mut batch = Batch::default();
            batch.insert_new(&[number], &vec![number; 1024 * 1024 + usize::from(number)]);
            tree.apply(batch).expect("applies");
        }
        for number in 0..400_u32 {
            let mut batch = Batch::default();
            let key = format!("{:010}{}", number.wrapping_mul(2_654_435_761), "%".repeat(2_500));
            batch.insert_new(key.as_bytes(), &vec![0; VALUE_BYTES_MAX - 1]);
            tree.apply(batch).expect("applies");
        }
        disk.sync().expect("syncs");
        assert_eq!(disk.blob_files().expect("readable"), 0);
        assert_eq!(tree.get(&[7]).expect("readable"), Some(vec![7; 1024 * 1024 + 7]));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Replace(Vec<u8>, usize),
        Remove(Vec<u8>),
        Reopen,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let key = prop::collection::vec(0_u8..3, 1..4);
        let length = prop_oneof![
            0_usize..40,
            VALUE_BYTES_MAX - 8..VALUE_BYTES_MAX + 8,
            2 * VALUE_BYTES_MAX - 20..2 * VALUE_BYTES_MAX,
            Just(100_000_usize)
        ];
        let step = prop_oneof![
            6 => (key.clone(), length).prop_map(|(key, length)| Step::Replace(key, length)),
            2 => key.prop_map(Step::Remove),
            1 => Just(Step::Reopen),
        ];
        prop::collection::vec(step, 1..25)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// The tree is an ordered map, whatever the sizes of its values.
        #[test]
        fn behaves_as_an_ordered_map(steps in steps()) {
            let folder = tempfile::tempdir().expect("a folder");
            let mut model = BTreeMap::new();
            let mut disk = Disk::open(folder.path()).expect("opens");
            let mut tree = disk.tree("t").expect("a tree");
            for (number, step) in steps.into_iter().enumerate() {
                let mut batch = Batch::default();
                match step {
                    Step::Replace(key, length) => {
                        let value = vec![number as u8; length];
                        batch.replace(&tree, &key, &value).expect("replaces");
                        model.insert(key, value);
                    }
                    Step::Remove(key) => {
                        batch.remove(&tree, &key).expect("removes");
                        model.remove(&key);
                    }
                    Step::Reopen => {
                        disk.sync().expect("syncs");
                        drop((tree, disk));
                        disk = Disk::open(folder.path()).expect("opens again");
                        tree = disk.tree("t").expect("a tree");
                    }
                }
                tree.apply(batch).expect("applies");
                let found: Vec<_> = tree.range(&[0], &[255]).collect::<Result<_, _>>().expect("readable");
                let wanted: Vec<_> = model.clone().into_iter().collect();
                prop_assert!(found == wanted);
                let backwards: Vec<_> = tree.range(&[1], &[2]).rev().map(|item| item.expect("readable").0).collect();
                let wanted: Vec<_> = model.range(vec![1]..vec![2]).rev().map(|(key, _)| key.clone()).collect();
                prop_assert_eq!(backwards, wanted);
            }
            let physical = tree.tree.iter().count();
            let wanted: usize = model.values().map(|value| if value.len() < VALUE_BYTES_MAX { 1 } else { value.len().div_ceil(VALUE_BYTES_MAX - 5) }).sum();
            prop_assert_eq!(physical, wanted, "no chunk is left over");
        }
    }
}
