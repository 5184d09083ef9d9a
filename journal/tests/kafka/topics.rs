//! Creating and checking topics. Must never touch a topic of another test.

use journal::kafka::topics::{Finding, Weight, check, create};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

use crate::finder::Cluster;
use crate::support::{block_on, names};

fn summary(findings: &[Finding], topic: &str) -> Vec<(&'static str, String, Weight)> {
    findings
        .iter()
        .filter(|finding| finding.topic == topic)
        .map(|finding| (finding.setting, finding.found.clone(), finding.weight))
        .collect()
}

pub(crate) fn are_created_and_checked(cluster: &Cluster) {
    let mut config = names(&cluster.servers, 3);
    let missing = block_on(check(&config)).unwrap();
    assert_eq!(missing.len(), 3);
    assert!(missing.iter().all(|finding| finding.weight == Weight::Refused));
    let text = missing[0].to_string();
    assert!(text.contains(&config.topics.observations) && text.contains("witness topics create"), "{text}");

    // One that somebody made by hand, with the defaults of the broker.
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &config.brokers).create().unwrap();
    let by_hand = NewTopic::new(&config.topics.claims, 3, TopicReplication::Fixed(1))
        .set("retention.ms", "604800000")
        .set("cleanup.policy", "compact")
        .set("max.message.bytes", "1000000")
        .set("unclean.leader.election.enable", "true");
    block_on(admin.create_topics([&by_hand], &AdminOptions::new())).unwrap();
    let created = block_on(create(&config, 1)).unwrap();
    assert_eq!(created, [config.topics.observations.clone(), config.topics.projections.clone()]);
    assert_eq!(block_on(create(&config, 1)).unwrap(), Vec::<String>::new());

    let findings = block_on(check(&config)).unwrap();
    let single = vec![
        ("replication factor", "1".to_owned(), Weight::Unsafe),
        ("min.insync.replicas", "1".to_owned(), Weight::Unsafe),
    ];
    assert_eq!(summary(&findings, &config.topics.observations), single);
    assert_eq!(summary(&findings, &config.topics.projections), single);
    assert_eq!(
        summary(&findings, &config.topics.claims),
        [
            ("replication factor", "1".to_owned(), Weight::Unsafe),
            ("cleanup.policy", "compact".to_owned(), Weight::Unsafe),
            ("max.message.bytes", "1000000".to_owned(), Weight::Unsafe),
            ("min.insync.replicas", "1".to_owned(), Weight::Unsafe),
            ("unclean.leader.election.enable", "true".to_owned(), Weight::Unsafe),
            ("retention.ms", "604800000".to_owned(), Weight::Unsafe),
        ]
    );

    config.partitions = std::num::NonZeroU32::new(4).unwrap();
    let findings = block_on(check(&config)).unwrap();
    let counts: Vec<_> = findings.iter().filter(|finding| finding.weight == Weight::Refused).collect();
    assert_eq!(counts.len(), 3);
    let text = counts[0].to_string();
    for part in ["partitions is 3, wanted 4", "export", "import"] {
        assert!(text.contains(part), "{text}");
    }
}

pub(crate) fn on_three_brokers_are_safe(cluster: &Cluster) {
    let config = names(&cluster.servers, 3);
    block_on(create(&config, 3)).unwrap();
    assert_eq!(block_on(check(&config)).unwrap(), []);
}
