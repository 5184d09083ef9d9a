//! Who else is in the group, which partition each of them has, and where each says that it can be reached. Must never
//! join the group, and never invent an owner: what the group does not say is unknown.
//!
//! A member tells its address in the only thing of its own that the group shows to everybody: its client id. So an
//! address is as trustworthy as the right to join the group.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::groups::GroupInfo;

use super::KafkaConfig;
use super::context::KafkaContext;
use crate::{Owner, Topic};

/// How long what the group said is good for. A partition that has moved since is refused by whoever had it.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// How long each of two questions to the brokers may take.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(2);

/// What stands before the instance id in a client id.
const CLIENT: &str = "witness-";

/// The client id of an instance, with the address that it advertises.
pub(super) fn client_id(instance_id: &str, advertise: Option<&str>) -> String {
    match advertise {
        Some(address) => format!("{CLIENT}{instance_id}@{address}"),
        None => format!("{CLIENT}{instance_id}"),
    }
}

/// The address in a client id, if it is one that a request can be sent to.
fn address(client_id: &str) -> Option<&str> {
    let (_, address) = client_id.strip_prefix(CLIENT)?.rsplit_once('@')?;
    let (host, port) = address.rsplit_once(':')?;
    let is_host = !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte));
    (is_host && port.parse::<u16>().is_ok_and(|port| port != 0)).then_some(address)
}

/// The members as they were last seen.
pub(super) struct Members {
    config: KafkaConfig,
    topic: Topic,
    /// Held while the brokers are asked, so that many who want to know ask once.
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    client: Option<BaseConsumer<KafkaContext>>,
    /// The client id of each partition's owner, as of the last time that the group was not being rebalanced.
    owners: BTreeMap<u32, String>,
    /// When, and how it went.
    asked: Option<(Instant, Result<(), String>)>,
}

impl Members {
    pub(super) fn new(config: KafkaConfig, topic: Topic) -> Self {
        Self { config, topic, seen: Mutex::default() }
    }

    /// Who has a partition. Blocking.
    pub(super) fn owner(&self, partition: u32) -> Result<Owner, String> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match seen.asked.take() {
            Some((asked, answer)) if asked.elapsed() < GOOD_FOR => {
                seen.asked = Some((asked, answer.clone()));
                answer
            }
            Some(_) | None => {
                let answer = self.ask(&mut seen);
                seen.asked = Some((Instant::now(), answer.clone()));
                answer
            }
        };
        answer?;
        let Some(client_id) = seen.owners.get(&partition) else { return Ok(Owner::Nobody) };
        if *client_id == self.config.member_client_id() {
            return Ok(Owner::Ourselves);
        }
        let unknown = || format!("the owner of partition {partition} does not say where it can be reached");
        Ok(Owner::At(address(client_id).ok_or_else(unknown)?.to_owned()))
    }

    fn ask(&self, seen: &mut Seen) -> Result<(), String> {
        let stranded = seen.client.as_ref().and_then(|client| client.context().stranded());
        let client = match seen.client.take().filter(|_| stranded.is_none()) {
            Some(client) => client,
            None => {
                BaseConsumer::from_config_and_context(&self.config.onlooker(), KafkaContext::new("members"))
                    .map_err(|error| error.to_string())?
            }
        };
        let client = seen.client.insert(client);
        // Statistics, which nobody reads here, and errors wait to be taken.
        while client.poll(Duration::ZERO).is_some() {}
        let topic = self.config.topics.of(self.topic);
        // Every broker is asked for its groups; so it is asked first which of them are there. A dead one is left
        // out as soon as the others have noticed.
        client.fetch_metadata(Some(topic), QUESTION_TIME_MAX).map_err(|error| error.to_string())?;
        let groups = client.fetch_group_list(Some(&self.config.group), QUESTION_TIME_MAX);
        let groups = groups.map_err(|error| error.to_string())?;
        let group = groups.groups().iter().find(|group| group.name() == self.config.group);
        match group {
            Some(group) if group.state() == "Stable" => {
                seen.owners = owners(group, topic);
                Ok(())
            }
            // While the group is being rebalanced most partitions stay where they are.
            Some(_) => Ok(()),
            None => {
                seen.owners.clear();
                Ok(())
            }
        }
    }
}

fn owners(group: &GroupInfo, topic: &str) -> BTreeMap<u32, String> {
    let mut owners = BTreeMap::new();
    for member in group.members() {
        let partitions = member.assignment().and_then(|bytes| partitions(bytes, topic)).unwrap_or_default();
        owners.extend(partitions.into_iter().map(|partition| (partition, member.client_id().to_owned())));
    }
    owners
}

/// The partitions of `topic` in an assignment as the consumer protocol writes it; `None` where it is malformed.
fn partitions(assignment: &[u8], topic: &str) -> Option<Vec<u32>> {
    let mut bytes = assignment;
    let _version = i16::from_be_bytes(take(&mut bytes)?);
    let mut found = Vec::new();
    for _ in 0..i32::from_be_bytes(take(&mut bytes)?) {
        let length = usize::try_from(i16::from_be_bytes(take(&mut bytes)?)).ok()?;
        let (name, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        for _ in 0..i32::from_be_bytes(take(&mut bytes)?) {
            let partition = i32::from_be_bytes(take(&mut bytes)?);
            if name == topic.as_bytes() {
                found.push(u32::try_from(partition).ok()?);
            }
        }
    }
    Some(found)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_client_id() {
        for at in ["projector-1:8081", "10.0.0.1:1", "[::1]:8081"] {
            assert_eq!(address(&client_id("a.b-c_d", Some(at))), Some(at));
        }
        assert_eq!(address(&client_id("one", None)), None);
        for foreign in
            ["rdkafka", "witness-one@host", "witness-one@host:0", "witness-one@:1", "witness-one@a/b:1"]
        {
            assert_eq!(address(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn assignments_are_read_and_malformed_ones_are_not() {
        let mut bytes = vec![0, 3, 0, 0, 0, 2];
        for (topic, numbers) in [("other", &[9][..]), ("mine", &[0, 7])] {
            bytes.extend((topic.len() as i16).to_be_bytes());
            bytes.extend(topic.as_bytes());
            bytes.extend((numbers.len() as i32).to_be_bytes());
            bytes.extend(numbers.iter().flat_map(|number: &i32| number.to_be_bytes()));
        }
        assert_eq!(partitions(&bytes, "mine"), Some(vec![0, 7]));
        assert_eq!(partitions(&bytes, "nobody's"), Some(vec![]));
        for length in 0..bytes.len() {
            assert_eq!(partitions(&bytes[..length], "mine"), None, "{length} bytes");
        }
        bytes.extend((-1_i32).to_be_bytes());
        assert_eq!(partitions(&bytes, "mine"), Some(vec![0, 7]), "user data follows");
    }
}
