//! `WITNESS__SECTION__KEY` and `WITNESS__ENDPOINT__<id>__KEY`: single values of the configuration, set
//! from the environment. Must never let a variable that names nothing pass unnoticed.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::shape::{
    EndpointShape, FileShape, IngressShape, JournalShape, ProjectorShape, TopicsShape, problem,
};
use crate::wrong_use::WrongUse;

const PREFIX: &str = "WITNESS__";
const ENDPOINT: &str = "ENDPOINT__";

/// Lets every `WITNESS__…` variable of `environment` replace its value.
pub(super) fn apply(
    shape: &mut FileShape,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<(), WrongUse> {
    for (variable, text) in environment {
        let Some(name) = variable.strip_prefix(PREFIX) else { continue };
        let set = Override { variable: &variable, text: &text };
        match name.strip_prefix(ENDPOINT) {
            Some(rest) => {
                let (id, key) = rest.rsplit_once("__").ok_or_else(|| {
                    set.refuse("must be WITNESS__ENDPOINT__<id>__<KEY>, as in WITNESS__ENDPOINT__ycloud-main__TENANT")
                })?;
                set.endpoint(find(&mut shape.endpoint, id, &set)?, key)?;
            }
            None => set.section(shape, name)?,
        }
    }
    Ok(())
}

/// The endpoint of that id. Most shells allow no `-` and `.` in a variable's name, so an id may also be
/// spelled in capitals with `_` for them, as long as that means one endpoint.
fn find<'a>(
    endpoints: &'a mut [EndpointShape],
    name: &str,
    set: &Override<'_>,
) -> Result<&'a mut EndpointShape, WrongUse> {
    let id = |endpoint: &EndpointShape| endpoint.id.clone().unwrap_or_default();
    let exact = |endpoint: &EndpointShape| id(endpoint) == name;
    let spelled = |endpoint: &EndpointShape| capitals(&id(endpoint)) == name;
    let known: Vec<String> = endpoints.iter().map(id).collect();
    let is_ambiguous = endpoints.iter().filter(|endpoint| spelled(endpoint)).count() > 1;
    let index = match endpoints.iter().position(exact) {
        Some(index) => Some(index),
        None if is_ambiguous => {
            return Err(set.refuse(&format!("could mean several of the endpoints {}", known.join(", "))));
        }
        None => endpoints.iter().position(spelled),
    };
    index
        .and_then(|index| endpoints.get_mut(index))
        .ok_or_else(|| set.refuse(&format!("names no endpoint; the endpoints are: {}", known.join(", "))))
}

fn capitals(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

struct Override<'a> {
    variable: &'a str,
    text: &'a str,
}

impl Override<'_> {
    fn refuse(&self, problem: &str) -> WrongUse {
        WrongUse(format!("the environment variable {}: {problem}", self.variable))
    }

    fn section(&self, shape: &mut FileShape, name: &str) -> Result<(), WrongUse> {
        let (section, key) = name.split_once("__").unwrap_or((name, ""));
        match section {
            "JOURNAL" => {
                let JournalShape {
                    kind,
                    path,
                    partitions,
                    brokers,
                    replication_factor,
                    allow_unsafe_topics,
                    schema_registry,
                    schema_registry_auth,
                    topics,
                    kafka,
                } = self.read(key)?;
                let journal = &mut shape.journal;
                replace(&mut journal.kind, kind);
                replace(&mut journal.path, path);
                replace(&mut journal.partitions, partitions);
                replace(&mut journal.brokers, brokers);
                replace(&mut journal.replication_factor, replication_factor);
                replace(&mut journal.allow_unsafe_topics, allow_unsafe_topics);
                replace(&mut journal.schema_registry, schema_registry);
                replace(&mut journal.schema_registry_auth, schema_registry_auth);
                if let Some(TopicsShape { observations, projections, claims }) = topics {
                    let topics = journal.topics.get_or_insert_default();
                    replace(&mut topics.observations, observations);
                    replace(&mut topics.projections, projections);
                    replace(&mut topics.claims, claims);
                }
                merge(&mut journal.kafka, kafka);
            }
            "INGRESS" => {
                let IngressShape { listen } = self.read(key)?;
                replace(&mut shape.ingress.listen, listen);
            }
            "PROJECTOR" => {
                let ProjectorShape { listen, store, group, instance_id, advertise, epoch, token } =
                    self.read(key)?;
                let projector = &mut shape.projector;
                replace(&mut projector.listen, listen);
                replace(&mut projector.store, store);
                replace(&mut projector.group, group);
                replace(&mut projector.instance_id, instance_id);
                replace(&mut projector.advertise, advertise);
                replace(&mut projector.epoch, epoch);
                replace(&mut projector.token, token);
            }
            _ => {
                return Err(
                    self.refuse("names no section; the sections are: JOURNAL, INGRESS, PROJECTOR, ENDPOINT")
                );
            }
        }
        Ok(())
    }

    fn endpoint(&self, endpoint: &mut EndpointShape, key: &str) -> Result<(), WrongUse> {
        let EndpointShape { id, provider, tenant, secrets, keys, tolerance_seconds, max_body_bytes, rate } =
            self.read(key)?;
        replace(&mut endpoint.id, id);
        replace(&mut endpoint.provider, provider);
        replace(&mut endpoint.tenant, tenant);
        replace(&mut endpoint.secrets, secrets);
        replace(&mut endpoint.keys, keys);
        replace(&mut endpoint.tolerance_seconds, tolerance_seconds);
        replace(&mut endpoint.max_body_bytes, max_body_bytes);
        replace(&mut endpoint.rate, rate);
        Ok(())
    }

    /// A section that holds this one key. The text is read as a TOML value where the key takes one; where
    /// it takes text, it stays the text it is.
    fn read<T: DeserializeOwned>(&self, key: &str) -> Result<T, WrongUse> {
        let key = key.to_ascii_lowercase();
        let section = |value: Value| T::deserialize(Table::from_iter([(key.clone(), value)]));
        let text = section(Value::String(self.text.to_owned()));
        let value = self.text.parse::<Value>().ok().filter(|value| !value.is_str()).map(section);
        match (value, text) {
            (Some(Ok(section)), _) | (Some(Err(_)) | None, Ok(section)) => Ok(section),
            (Some(Err(error)), Err(_)) | (None, Err(error)) => Err(self.refuse(&problem(error.message()))),
        }
    }
}

fn replace<T>(place: &mut Option<T>, value: Option<T>) {
    if value.is_some() {
        *place = value;
    }
}

/// What a table names is set in the table that is there; the rest of it stays.
fn merge(place: &mut Option<Value>, value: Option<Value>) {
    if let (Some(Value::Table(table)), Some(Value::Table(more))) = (place.as_mut(), &value) {
        table.extend(more.clone());
    } else {
        replace(place, value);
    }
}
