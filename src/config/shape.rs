//! The shape of the configuration file: which keys there are and of what type. Must never give a value a
//! meaning or a default; that is the checker's. Every key is optional here, because a variable may supply
//! what the file leaves out.

use std::path::Path;

use serde::Deserialize;

use crate::wrong_use::WrongUse;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FileShape {
    pub(super) journal: JournalShape,
    pub(super) ingress: IngressShape,
    pub(super) projector: ProjectorShape,
    pub(super) endpoint: Vec<EndpointShape>,
}

/// `schema_registry`, `schema_registry_auth` and `kafka` are read as any value, so that no message about their type
/// can quote a password that stands in them.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct JournalShape {
    pub(super) kind: Option<String>,
    pub(super) path: Option<String>,
    pub(super) partitions: Option<i64>,
    pub(super) brokers: Option<String>,
    pub(super) replication_factor: Option<i64>,
    pub(super) allow_unsafe_topics: Option<bool>,
    pub(super) schema_registry: Option<toml::Value>,
    pub(super) schema_registry_auth: Option<toml::Value>,
    pub(super) topics: Option<TopicsShape>,
    pub(super) kafka: Option<toml::Value>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TopicsShape {
    pub(super) observations: Option<String>,
    pub(super) projections: Option<String>,
    pub(super) claims: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct IngressShape {
    pub(super) listen: Option<String>,
}

/// `token` is read as any value, so that no message about its type can quote a secret put there by
/// mistake.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ProjectorShape {
    pub(super) listen: Option<String>,
    pub(super) store: Option<String>,
    pub(super) group: Option<String>,
    pub(super) instance_id: Option<String>,
    pub(super) advertise: Option<String>,
    pub(super) epoch: Option<i64>,
    pub(super) token: Option<toml::Value>,
}

/// `secrets` and `keys` are read as any value, as `token` is.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EndpointShape {
    pub(super) id: Option<String>,
    pub(super) provider: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) secrets: Option<toml::Value>,
    pub(super) keys: Option<toml::Value>,
    pub(super) tolerance_seconds: Option<i64>,
    pub(super) max_body_bytes: Option<i64>,
    pub(super) rate: Option<RateShape>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RateShape {
    pub(super) per_second: Option<i64>,
    pub(super) burst: Option<i64>,
}

/// Reads the file's text.
pub(super) fn parse(file: &Path, text: &str) -> Result<FileShape, WrongUse> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let place = error.span().map_or_else(String::new, |span| place(text, span.start));
        WrongUse(format!(
            "{}:{place} {}; witness.example.toml shows every key",
            file.display(),
            problem(error.message())
        ))
    })
}

/// The line of a byte of `text`, and the key before it where there is one.
fn place(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let key = before.rsplit('\n').next().and_then(|start| start.split_once('=')).map(|(key, _)| key.trim());
    key.map_or_else(|| format!(" line {line}:"), |key| format!(" line {line}: `{key}`:"))
}

/// The parser's message in the words of this program.
pub(super) fn problem(message: &str) -> String {
    if message.starts_with("unknown field") {
        message
            .replacen("unknown field", "unknown key", 1)
            .replacen("expected one of", "the allowed keys are", 1)
            .replacen("expected", "the allowed keys are", 1)
    } else {
        message.trim_end().replace("i64", "a whole number").replace('\n', "; ")
    }
}
