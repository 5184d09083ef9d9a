//! References to secrets, as configuration writes them, and how they are read. Must never accept a secret
//! itself where a reference belongs, and never repeat in a message what may be one.

use std::fmt;
use std::path::PathBuf;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schema::signature::Secret;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::KeyDocument;

/// Where a secret, or SHOC's key document, is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretReference {
    /// `env:NAME`: an environment variable.
    Environment(String),
    /// `file:/path`: a file, without one final newline.
    File(PathBuf),
}

/// Why a reference cannot be used, or what it names cannot be read. Each message says what to do.
#[derive(Debug, Error)]
pub enum SecretError {
    /// Not a reference. It is not repeated, because it may be the secret itself.
    #[error(
        "a secret is given as `env:NAME` or `file:/path`, never as itself (`aws-secretsmanager:…` is not available in this release)"
    )]
    NotAReference,
    /// A reference to a service that this release cannot ask.
    #[error(
        "`aws-secretsmanager:…` is not available in this release; have the secret written to a file and use `file:/path`, or use `env:NAME`"
    )]
    NotAvailable,
    /// The variable is missing.
    #[error("the environment variable {name} is not set; set it, or correct `env:{name}`")]
    NotSet {
        /// Its name.
        name: String,
    },
    /// The file cannot be read.
    #[error("the file {} cannot be read: {error}; make it readable for this user, or correct `file:{}`", path.display(), path.display())]
    UnreadableFile {
        /// Its path.
        path: PathBuf,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// Nothing is there: an empty secret proves nothing.
    #[error("{reference} is empty; put the secret into it")]
    Empty {
        /// The reference.
        reference: SecretReference,
    },
    /// A key document that is not text.
    #[error("{reference} is not UTF-8 text")]
    NotText {
        /// The reference.
        reference: SecretReference,
    },
}

impl SecretReference {
    /// Reads the reference itself, not what it names.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        match text.split_once(':') {
            Some(("env", name)) if is_variable_name(name) => Ok(Self::Environment(name.to_owned())),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(PathBuf::from(path))),
            Some(("aws-secretsmanager", _)) => Err(SecretError::NotAvailable),
            Some(_) | None => Err(SecretError::NotAReference),
        }
    }

    /// Reads the secret now. Its label is this reference.
    pub fn secret(&self) -> Result<Secret, SecretError> {
        let mut bytes = self.read()?;
        let empty = || SecretError::Empty { reference: self.clone() };
        Secret::new(self.to_string(), std::mem::take(&mut *bytes)).ok_or_else(empty)
    }

    /// Reads the bytes now; never empty.
    fn read(&self) -> Result<Zeroizing<Vec<u8>>, SecretError> {
        let mut bytes = Zeroizing::new(match self {
            Self::Environment(name) => std::env::var_os(name)
                .ok_or_else(|| SecretError::NotSet { name: name.clone() })?
                .into_encoded_bytes(),
            Self::File(path) => std::fs::read(path)
                .map_err(|error| SecretError::UnreadableFile { path: path.clone(), error })?,
        });
        if let Self::File(_) = self {
            let newline = if bytes.ends_with(b"\r\n") { 2 } else { usize::from(bytes.ends_with(b"\n")) };
            let length = bytes.len() - newline;
            bytes.truncate(length);
        }
        if bytes.is_empty() { Err(SecretError::Empty { reference: self.clone() }) } else { Ok(bytes) }
    }
}

impl fmt::Display for SecretReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// Reads the variable or the file anew at every fetch, so that a rotated document is seen.
impl KeyDocument for SecretReference {
    fn fetch(&self) -> BoxFuture<'_, Result<String, String>> {
        let reference = self.clone();
        async move {
            // Files may be on slow disks, and must not hold up a worker that serves others.
            let read = tokio::task::spawn_blocking(move || {
                let bytes = reference.read()?;
                std::str::from_utf8(&bytes)
                    .map(str::to_owned)
                    .map_err(|_| SecretError::NotText { reference: reference.clone() })
            });
            match read.await {
                Ok(Ok(text)) => Ok(text),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("reading the key document was interrupted".to_owned()),
            }
        }
        .boxed()
    }
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8]) -> (tempfile::TempDir, SecretReference) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        std::fs::write(&path, content).expect("written");
        let reference = SecretReference::parse(&format!("file:{}", path.display())).expect("a reference");
        (folder, reference)
    }

    /// Two secrets are the same where they sign alike.
    fn signs_as(reference: &SecretReference, bytes: &[u8]) -> bool {
        let expected = Secret::new("expected", bytes.to_vec()).expect("not empty");
        reference.secret().expect("readable").sign("1784642602", b"{}") == expected.sign("1784642602", b"{}")
    }

    #[test]
    fn a_file_loses_one_final_newline() {
        for (content, secret) in [
            (&b"whsec_one"[..], &b"whsec_one"[..]),
            (b"whsec_one\n", b"whsec_one"),
            (b"whsec_one\r\n", b"whsec_one"),
            (b"whsec_one\n\n", b"whsec_one\n"),
            (b" \xff\n", b" \xff"),
        ] {
            let (_folder, reference) = file(content);
            assert!(signs_as(&reference, secret), "{}", content.escape_ascii());
            assert_eq!(reference.secret().expect("readable").label(), reference.to_string());
        }
    }

    #[test]
    fn nothing_is_no_secret() {
        for content in [&b""[..], b"\n", b"\r\n"] {
            let (_folder, reference) = file(content);
            assert!(matches!(reference.secret(), Err(SecretError::Empty { .. })));
        }
    }

    #[test]
    fn an_environment_variable() {
        // Set by cargo for every test.
        let reference = SecretReference::parse("env:CARGO_PKG_NAME").expect("a reference");
        assert!(signs_as(&reference, b"witness-ingress"));
        let missing = SecretReference::parse("env:WITNESS_NO_SUCH_VARIABLE").expect("a reference").secret();
        let message = missing.expect_err("not set").to_string();
        assert!(message.contains("WITNESS_NO_SUCH_VARIABLE is not set"), "{message}");
    }

    #[test]
    fn an_unreadable_file_is_named() {
        let reference = SecretReference::parse("file:/no/such/file").expect("a reference");
        let message = reference.secret().expect_err("no such file").to_string();
        assert!(message.contains("/no/such/file") && message.contains("correct `file:"), "{message}");
    }

    #[test]
    fn what_is_no_reference_is_not_repeated() {
        for text in ["whsec_plain", "", "env:", "file:", "env:A B", "vault:x", "ENV:NAME", "sk:env:NAME"] {
            let error = SecretReference::parse(text).expect_err("no reference");
            assert!(matches!(error, SecretError::NotAReference), "{text}");
            let message = error.to_string();
            assert!(message.contains("`env:NAME` or `file:/path`") && !message.contains("whsec_plain"));
        }
        let aws = SecretReference::parse("aws-secretsmanager:arn:aws:x").expect_err("not available");
        assert!(aws.to_string().contains("not available in this release"));
    }

    #[tokio::test]
    async fn a_key_document_is_read_anew_at_each_fetch() {
        let (folder, reference) = file(b"{\"keys\":[]}\n");
        assert_eq!(reference.fetch().await, Ok("{\"keys\":[]}".to_owned()));
        std::fs::write(folder.path().join("secret"), b"\xff\xff").expect("written");
        assert!(reference.fetch().await.is_err_and(|reason| reason.contains("not UTF-8")));
        drop(folder);
        assert!(reference.fetch().await.is_err_and(|reason| reason.contains("cannot be read")));
    }
}
