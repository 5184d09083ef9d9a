//! The folder around the stores: one is live, another may be derived anew beside it, old ones are kept until they
//! are told to go. Must never lose the live one: which one that is changes in one rename.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use super::{Error, Store};

/// Names the live store.
const LIVE: &str = "live";
/// Names the store that is derived anew.
const REBUILDING: &str = "rebuilding";
/// Before the number of a store's own folder.
const PREFIX: &str = "store-";

/// The folder of all stores of this instance.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    partitions: NonZeroU32,
    epoch: u32,
}

impl Folder {
    /// Opens the folder and its live store. One that another release or another epoch wrote is left where it is,
    /// and a new one, which is derived from the beginning of the log, takes its place.
    pub fn open(path: &Path, partitions: NonZeroU32, epoch: u32) -> Result<(Self, Store), Error> {
        let folder = Self { path: path.to_owned(), partitions, epoch };
        fs::create_dir_all(path).map_err(|error| folder.problem(path, &error))?;
        if path.join("db").exists() {
            let problem = "a store of an older release lies in it; delete the folder and start again: the store is derived anew from the journal";
            return Err(folder.failed(problem.to_owned()));
        }
        let number = match folder.named(LIVE)? {
            Some(number) => number,
            None => folder.first_free()?,
        };
        let opened = folder.store(number);
        let store = match opened {
            Ok(store) => {
                folder.name(LIVE, number)?;
                store
            }
            Err(Error::Other { what, found, wanted, .. }) => {
                let next = folder.first_free()?;
                tracing::warn!(
                    what,
                    found,
                    wanted,
                    "the store is of another kind: a new one is derived from the log; the old one is kept"
                );
                let store = folder.store(next)?;
                folder.name(LIVE, next)?;
                // Whatever was being derived anew was of the old kind, too.
                folder.forget(REBUILDING)?;
                store
            }
            Err(error) => return Err(error),
        };
        Ok((folder, store))
    }

    /// The store that is derived anew: begun before, or empty.
    pub fn rebuilding(&self) -> Result<Store, Error> {
        let number = match self.named(REBUILDING)? {
            Some(number) => number,
            None => {
                let number = self.first_free()?;
                self.name(REBUILDING, number)?;
                number
            }
        };
        self.store(number)
    }

    /// Whether a store was begun to be derived anew.
    pub fn is_rebuilding(&self) -> Result<bool, Error> {
        Ok(self.named(REBUILDING)?.is_some())
    }

    /// Makes the store that was derived anew the live one.
    pub fn swap(&self) -> Result<(), Error> {
        if let Some(number) = self.named(REBUILDING)? {
            self.name(LIVE, number)?;
            self.forget(REBUILDING)?;
        }
        Ok(())
    }

    /// The folders of stores that are neither live nor being derived.
    pub fn old(&self) -> Result<Vec<PathBuf>, Error> {
        let kept = [self.named(LIVE)?, self.named(REBUILDING)?];
        let numbers = self.numbers()?.into_iter().filter(|number| !kept.contains(&Some(*number)));
        Ok(numbers.map(|number| self.of(number)).collect())
    }

    /// Deletes the old stores; answers which.
    pub fn discard_old(&self) -> Result<Vec<PathBuf>, Error> {
        let old = self.old()?;
        for path in &old {
            fs::remove_dir_all(path).map_err(|error| self.problem(path, &error))?;
        }
        Ok(old)
    }

    fn store(&self, number: u64) -> Result<Store, Error> {
        Store::open(&self.of(number), self.partitions, self.epoch)
    }

    fn of(&self, number: u64) -> PathBuf {
        self.path.join(format!("{PREFIX}{number}"))
    }

    fn numbers(&self) -> Result<Vec<u64>, Error> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(|error| self.problem(&self.path, &error))? {
            let entry = entry.map_err(|error| self.problem(&self.path, &error))?;
            let name = entry.file_name();
            let number: Option<u64> = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
            numbers.extend(number);
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn first_free(&self) -> Result<u64, Error> {
        Ok(self.numbers()?.last().map_or(1, |last| last + 1))
    }

    /// The store that a name stands for.
    fn named(&self, name: &str) -> Result<Option<u64>, Error> {
        let path = self.path.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => match text.trim().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(self.failed(format!("{} must hold the number of a store", path.display()))),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.problem(&path, &error)),
        }
    }

    /// Lets a name stand for a store, whole or not at all.
    fn name(&self, name: &str, number: u64) -> Result<(), Error> {
        let (path, temporary) = (self.path.join(name), self.path.join(format!("{name}.new")));
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&temporary)?;
            writeln!(file, "{number}")?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|error| self.problem(&path, &error))
    }

    fn forget(&self, name: &str) -> Result<(), Error> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(self.problem(&path, &error)),
        }
    }

    fn problem(&self, path: &Path, error: &std::io::Error) -> Error {
        self.failed(format!("{}: {error}", path.display()))
    }

    fn failed(&self, problem: String) -> Error {
        Error::Folder { path: self.path.clone(), problem }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: NonZeroU32 = NonZeroU32::MIN;

    #[test]
    fn the_live_store_changes_in_one_step_and_the_old_one_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let (stores, live) = Folder::open(folder.path(), ONE, 1).expect("opens");
        let fresh = stores.rebuilding().expect("begins");
        assert_eq!(stores.old().expect("readable"), Vec::<PathBuf>::new());
        drop(fresh);
        // Resumed, not begun again.
        drop(stores.rebuilding().expect("goes on"));
        stores.swap().expect("swapped");
        assert!(!stores.is_rebuilding().expect("readable"));
        drop(live);
        assert_eq!(stores.old().expect("readable"), [folder.path().join("store-1")]);
        drop(Folder::open(folder.path(), ONE, 1).expect("opens the new one"));
        assert_eq!(stores.discard_old().expect("discards"), [folder.path().join("store-1")]);
        assert_eq!(stores.numbers().expect("readable"), [2]);
    }

    #[test]
    fn a_store_of_another_epoch_makes_place_for_a_new_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let (_, live) = Folder::open(folder.path(), ONE, 1).expect("opens");
        let meta = Some(live.read().meta(0).expect("readable"));
        let changes = crate::store::Changes { meta, ..Default::default() };
        live.commit(0, changes).expect("durable");
        drop(live);
        let (stores, live) = Folder::open(folder.path(), ONE, 2).expect("opens");
        assert_eq!((live.epoch(), stores.old().expect("readable").len()), (2, 1));
    }
}
