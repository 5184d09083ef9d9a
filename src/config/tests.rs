//! What a good configuration means, and what variables make of it. Must never stand in for the refusals,
//! which are tried on the built program.

use super::journal::Embedded;
use super::*;

const SMALLEST: &str = r#"
[[endpoint]]
id = "ycloud-main"
provider = "ycloud"
tenant = "acme"
secrets = ["env:CARGO_PKG_NAME"]
"#;

fn parse(text: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::parse(Path::new("witness.toml"), text, environment).map_err(|error| error.to_string())
}

fn good(text: &str, environment: &[(&str, &str)]) -> Config {
    parse(text, environment).expect("a good configuration")
}

fn embedded(config: &Config) -> &Embedded {
    match &config.journal {
        Journal::Embedded(embedded) => embedded,
        Journal::Kafka(_) => panic!("not the embedded journal"),
    }
}

fn kafka(config: &Config) -> &Kafka {
    match &config.journal {
        Journal::Embedded(_) => panic!("not Kafka"),
        Journal::Kafka(kafka) => kafka,
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

#[test]
fn what_is_left_out_has_a_default() {
    let config = good(SMALLEST, &[]);
    assert_eq!(embedded(&config).path, Path::new("witness-data/journal"));
    assert_eq!(config.journal.partitions().get(), 4);
    assert_eq!(config.ingress_listen, address("127.0.0.1:8080"));
    assert_eq!(config.projector.listen, address("127.0.0.1:8081"));
    assert_eq!(config.projector.store, Path::new("witness-data/store"));
    assert_eq!(config.projector.token, None);
    let endpoint = config.endpoint("ycloud-main").expect("the endpoint");
    assert_eq!((endpoint.provider, endpoint.tenant.as_str()), (Provider::YCloud, "acme"));
    assert_eq!(endpoint.tolerance_seconds, 300);
    assert_eq!(endpoint.body_bytes_max, 1_048_576);
    assert_eq!(endpoint.rate, None);
}

#[test]
fn the_example_is_a_good_configuration() {
    let config = good(include_str!("../../witness.example.toml"), &[]);
    let ids: Vec<&str> = config.endpoints.iter().map(|endpoint| endpoint.id.as_str()).collect();
    assert_eq!(ids, ["ycloud-main"]);
}

/// Every line of the example that is commented out and holds a key is one the program knows.
#[test]
fn what_the_example_comments_out_is_good_too() {
    let example = include_str!("../../witness.example.toml");
    let uncommented: String =
        example.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line).to_owned() + "\n").collect();
    let config = good(&uncommented, &[]);
    let ids: Vec<&str> = config.endpoints.iter().map(|endpoint| endpoint.id.as_str()).collect();
    assert_eq!(ids, ["ycloud-main", "shoc-main", "yutai-main"]);
    assert_eq!(config.endpoint("shoc-main").expect("shoc").body_bytes_max, 262_144);
    assert!(config.projector.token.is_some());
    assert!(config.endpoint("ycloud-main").expect("ycloud").rate.is_some());

    let config = good(&uncommented.replacen("kind = \"embedded\"", "kind = \"kafka\"", 1), &[]);
    let kafka = kafka(&config);
    assert_eq!(kafka.client.brokers, "kafka-1:9092,kafka-2:9092");
    assert_eq!((kafka.replicas, kafka.allow_unsafe_topics), (3, false));
    assert_eq!(kafka.client.topics.claims, "witness.claims");
    assert_eq!(kafka.client.instance_id, "projector-1");
    assert_eq!(kafka.advertise, "http://projector-1:8081");
    assert_eq!(kafka.client.advertise.as_deref(), Some("projector-1:8081"));
    assert_eq!(kafka.client.properties["security.protocol"], "SASL_SSL");
}

#[test]
fn kafka_is_told_how_to_be_reached() {
    let text = r#"
[journal]
kind = "kafka"
brokers = "localhost:9092"
partitions = 12
replication_factor = 1
allow_unsafe_topics = true
[journal.topics]
claims = "other.claims"
[journal.kafka]
"security.protocol" = "SASL_PLAINTEXT"
"sasl.username" = "witness"
"linger.ms" = 1
"socket.keepalive.enable" = true
[projector]
listen = "0.0.0.0:8081"
token = "env:TOKEN"
group = "projectors"
"#;
    let config = good(
        &format!("{text}{SMALLEST}max_body_bytes = 8388608"),
        &[
            ("WITNESS__JOURNAL__KAFKA", "{ \"sasl.password\" = \"hush\", \"linger.ms\" = 2 }"),
            ("WITNESS__JOURNAL__TOPICS", "{ projections = \"other.projections\" }"),
            ("WITNESS__PROJECTOR__INSTANCE_ID", "7"),
        ],
    );
    assert_eq!(config.journal.partitions().get(), 12);
    let Kafka { client, replicas, allow_unsafe_topics, registry: _, advertise, .. } = kafka(&config);
    assert_eq!((*replicas, *allow_unsafe_topics), (1, true));
    assert_eq!((client.brokers.as_str(), client.group.as_str()), ("localhost:9092", "projectors"));
    assert_eq!(client.instance_id, "7");
    let topics = ["witness.observations", "other.projections", "other.claims"];
    assert_eq!(topics, [&client.topics.observations, &client.topics.projections, &client.topics.claims]);
    let properties: Vec<(&str, &str)> =
        client.properties.iter().map(|(property, value)| (property.as_str(), value.as_str())).collect();
    assert_eq!(
        properties,
        [
            ("linger.ms", "2"),
            ("sasl.password", "hush"),
            ("sasl.username", "witness"),
            ("security.protocol", "SASL_PLAINTEXT"),
            ("socket.keepalive.enable", "true"),
        ]
    );
    assert_eq!(client.record_bytes_max, 9 * 1024 * 1024, "the largest body must go into a record");
    assert!(advertise.starts_with("http://") && advertise.ends_with(":8081"), "{advertise}");
    assert!(!advertise.contains("0.0.0.0"), "{advertise} reaches nobody");
    assert!(!format!("{config:?}").contains("hush"));
}

#[tokio::test]
async fn a_schema_registry_has_credentials_of_its_own() {
    let text = format!(
        "[journal]\nkind = \"kafka\"\nbrokers = \"localhost\"\nschema_registry = \"https://registry:8081/\"\n{SMALLEST}"
    );
    let instance = ("WITNESS__PROJECTOR__INSTANCE_ID", "one");
    let open = good(&text, &[instance]);
    let place = kafka(&open).registry.as_ref().expect("a registry").resolve().await.expect("no credentials");
    assert_eq!(place.url(), "https://registry:8081");
    let auth = |value| good(&text, &[instance, ("WITNESS__JOURNAL__SCHEMA_REGISTRY_AUTH", value)]);
    let no_credentials = auth("env:CARGO_PKG_NAME");
    let registry = kafka(&no_credentials).registry.as_ref().expect("a registry");
    let refused = registry.resolve().await.expect_err("a name alone").to_string();
    assert!(refused.contains("`journal.schema_registry_auth` (env:CARGO_PKG_NAME) must be user:password"));
    let credentials = auth("env:CARGO_PKG_REPOSITORY_OF_NOBODY");
    assert!(kafka(&credentials).registry.as_ref().expect("a registry").resolve().await.is_err());
}

#[test]
fn kafka_has_defaults_too() {
    let text = format!("[journal]\nkind = \"kafka\"\nbrokers = \"localhost\"\n{SMALLEST}");
    let config = good(&text, &[("WITNESS__PROJECTOR__INSTANCE_ID", "one")]);
    let Kafka { client, replicas, allow_unsafe_topics, registry: _, advertise, .. } = kafka(&config);
    assert_eq!((*replicas, *allow_unsafe_topics), (3, false));
    assert_eq!((client.group.as_str(), client.partitions.get()), ("witness-projector", 4));
    assert_eq!(client.record_bytes_max, 2 * 1024 * 1024);
    assert_eq!(advertise, "http://127.0.0.1:8081");
}

#[test]
fn a_variable_overrides_any_value() {
    let config = good(
        SMALLEST,
        &[
            ("WITNESS__JOURNAL__PARTITIONS", "7"),
            ("WITNESS__JOURNAL__PATH", "2026-07-16"),
            ("WITNESS__INGRESS__LISTEN", "0.0.0.0:9000"),
            ("WITNESS__PROJECTOR__STORE", "7"),
            ("WITNESS__PROJECTOR__TOKEN", "env:TOKEN"),
            ("WITNESS__PROJECTOR__LISTEN", "[::]:9001"),
            ("WITNESS__ENDPOINT__ycloud-main__TENANT", "true"),
            ("WITNESS__ENDPOINT__YCLOUD_MAIN__TOLERANCE_SECONDS", "60"),
            ("WITNESS__ENDPOINT__ycloud-main__SECRETS", "[\"file:/a\", \"env:B\"]"),
            ("WITNESS__ENDPOINT__ycloud-main__RATE", "{ per_second = 5 }"),
            ("WITNESS_LOG_FORMAT", "json"),
        ],
    );
    assert_eq!(config.journal.partitions().get(), 7);
    assert_eq!(embedded(&config).path, Path::new("2026-07-16"), "text stays text");
    assert_eq!(config.projector.store, Path::new("7"), "text stays text");
    assert_eq!(config.ingress_listen, address("0.0.0.0:9000"));
    assert_eq!(config.projector.listen, address("[::]:9001"));
    let endpoint = config.endpoint("ycloud-main").expect("the endpoint");
    assert_eq!((endpoint.tenant.as_str(), endpoint.tolerance_seconds), ("true", 60));
    let Secrets::Listed(secrets) = &endpoint.secrets else { panic!("a list") };
    let secrets: Vec<String> = secrets.iter().map(ToString::to_string).collect();
    assert_eq!(secrets, ["file:/a", "env:B"]);
    let rate = endpoint.rate.expect("a rate");
    assert_eq!((rate.per_second.get(), rate.burst.get()), (5, 5));
}

#[test]
fn a_variable_may_supply_what_the_file_leaves_out() {
    let text = SMALLEST.replace("tenant = \"acme\"", "");
    assert!(parse(&text, &[]).is_err_and(|error| error.contains("`endpoint.ycloud-main.tenant` is missing")));
    let config = good(&text, &[("WITNESS__ENDPOINT__ycloud-main__TENANT", "acme")]);
    assert_eq!(config.endpoint("ycloud-main").expect("the endpoint").tenant, "acme");
}

#[test]
fn a_variable_that_names_nothing_is_refused() {
    for (variable, value, expected) in [
        ("WITNESS__JOURNAL__PARTITION", "4", "unknown key `partition`, the allowed keys are `kind`, `path`"),
        (
            "WITNESS__JURNAL__PATH",
            "x",
            "names no section; the sections are: JOURNAL, INGRESS, PROJECTOR, ENDPOINT",
        ),
        ("WITNESS__JOURNAL", "x", "unknown key ``"),
        ("WITNESS__JOURNAL__PARTITIONS", "four", "invalid type: string \"four\", expected a whole number"),
        ("WITNESS__ENDPOINT__other__TENANT", "x", "names no endpoint; the endpoints are: ycloud-main"),
        ("WITNESS__ENDPOINT__ycloud-main", "x", "must be WITNESS__ENDPOINT__<id>__<KEY>"),
        ("WITNESS__ENDPOINT__ycloud-main__COLOUR", "x", "unknown key `colour`"),
    ] {
        let error = parse(SMALLEST, &[(variable, value)]).expect_err(variable);
        assert!(error.contains(variable), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    let two = format!("{SMALLEST}{}", SMALLEST.replace("ycloud-main", "ycloud.main"));
    let error = parse(&two, &[("WITNESS__ENDPOINT__YCLOUD_MAIN__TENANT", "x")]).expect_err("ambiguous");
    assert!(error.contains("could mean several of the endpoints ycloud-main, ycloud.main"), "{error}");
}

#[test]
fn a_variable_that_is_wrong_by_value_is_refused_by_key() {
    let error = parse(SMALLEST, &[("WITNESS__JOURNAL__PARTITIONS", "0")]).expect_err("zero");
    assert_eq!(error, "witness.toml: `journal.partitions` is 0; it must be a whole number from 1 to 1024");
}

#[tokio::test]
async fn secrets_are_read_when_they_are_wanted() {
    let config = good(SMALLEST, &[]);
    let endpoint = config.endpoint("ycloud-main").expect("the endpoint");
    assert_eq!(endpoint.signing_secret().await.expect("a secret").label(), "env:CARGO_PKG_NAME");
    assert!(
        matches!(endpoint.resolve().await.expect("ready").secrets, ingress::Secrets::Fixed(list) if list.len() == 1)
    );
    assert_eq!(config.token().await, Ok(None));
}
