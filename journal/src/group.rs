//! A consumer's group as those see it who answer from its partitions. Must never wait for the thread that polls.

/// Who has a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This instance.
    Ourselves,
    /// Another one, which says that it is reached at this `host:port`.
    At(String),
    /// No one now.
    Nobody,
}

/// The group of a [`Consumer`](crate::Consumer), asked from any thread.
pub trait Group: Send + Sync {
    /// `Err` with why our partitions may be another's by now, although nothing was revoked yet. An answer that was
    /// made before this said `Ok` was true when it was made.
    fn confirmed(&self) -> Result<(), String>;

    /// Who has a partition, as the group says; it may be wrong by now. Blocking.
    fn owner(&self, partition: u32) -> Result<Owner, String>;
}

/// The group of one.
#[derive(Clone, Copy, Debug)]
pub struct Alone;

impl Group for Alone {
    fn confirmed(&self) -> Result<(), String> {
        Ok(())
    }

    fn owner(&self, _: u32) -> Result<Owner, String> {
        Ok(Owner::Ourselves)
    }
}
