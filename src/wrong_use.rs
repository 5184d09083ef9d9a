//! The one error that means "used wrongly": exit code 2 instead of 1. Must never hold a secret, and
//! always says how to put the thing right.

use std::fmt;

/// What is wrong with the command line or the configuration: the place, the problem and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrongUse(pub(crate) String);

impl fmt::Display for WrongUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongUse {}
