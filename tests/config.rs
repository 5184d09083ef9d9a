//! Every way a configuration can be wrong, tried on the built program: it must exit with 2 before anything
//! starts, and name the key, the file and the fix. Must never need a port or leave a folder behind.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test may stop at the first surprise")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A good configuration, of which each case spoils one thing.
const GOOD: &str = r#"[journal]
kind = "embedded"
path = "data/journal"
partitions = 4
[ingress]
listen = "127.0.0.1:0"
[projector]
listen = "127.0.0.1:0"
store = "data/store"
[[endpoint]]
id = "ycloud-main"
provider = "ycloud"
tenant = "acme"
secrets = ["file:good.secret"]
[[endpoint]]
id = "shoc-main"
provider = "shoc"
tenant = "acme"
keys = "file:good.keys"
"#;

/// A secret that must never be seen in a message.
const SECRET: &str = "whsec_never_show_this";

fn folder() -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let write = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).expect("written");
    write("good.secret", SECRET.as_bytes());
    write("empty.secret", b"\n");
    write("good.keys", format!(r#"{{"keys":[{{"kid":"k1","secret":"{SECRET}"}}]}}"#).as_bytes());
    write("bad.keys", format!(r#"{{"keys":[{{"kid":"k1","secret":"{SECRET}","#).as_bytes());
    write("no.keys", br#"{"keys":[]}"#);
    write("binary.keys", b"\xff\xfe");
    folder
}

fn up(folder: &Path, environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_witness"))
        .args(["up", "--config", "witness.toml"])
        .current_dir(folder)
        .envs(environment.iter().copied())
        .output()
        .expect("witness runs")
}

/// Demands exit code 2 and a message that has every part of `expected`.
fn assert_refused(output: &Output, expected: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{expected:?}: {message}");
    assert!(output.stdout.is_empty(), "nothing was up");
    for part in expected {
        assert!(message.contains(part), "{part:?} is missing in: {message}");
    }
    assert!(!message.contains(SECRET), "a secret was shown: {message}");
    assert!(!message.contains("panicked"), "{message}");
}

/// Replaces `from` in the good configuration, and demands the refusal.
fn assert_spoiled(from: &str, to: &str, expected: &[&str]) {
    assert!(GOOD.contains(from), "{from}");
    let folder = folder();
    fs::write(folder.path().join("witness.toml"), GOOD.replacen(from, to, 1)).expect("written");
    let output = up(folder.path(), &[]);
    assert_refused(&output, &[&["witness.toml"], expected].concat());
    assert!(!folder.path().join("data").exists(), "nothing may be made for {to}");
}

#[test]
fn no_file_says_how_to_make_one() {
    let folder = TempDir::new().expect("a folder");
    let fix = ["there is no configuration file witness.toml", "copy witness.example.toml to witness.toml"];
    assert_refused(&up(folder.path(), &[]), &fix);
    let unnamed = Command::new(env!("CARGO_BIN_EXE_witness")).arg("up").current_dir(folder.path()).output();
    assert_refused(&unnamed.expect("witness runs"), &fix);
    fs::create_dir(folder.path().join("witness.toml")).expect("a folder in the place of the file");
    assert_refused(&up(folder.path(), &[]), &["cannot read the configuration file witness.toml"]);
}

#[test]
fn text_that_is_no_toml() {
    assert_spoiled("partitions = 4", "partitions = ", &["line 4"]);
    assert_spoiled("[ingress]", "[ingress", &["line 5"]);
    let folder = folder();
    fs::write(folder.path().join("witness.toml"), b"\xff\xfe").expect("written");
    assert_refused(&up(folder.path(), &[]), &["witness.toml", "it must be a readable UTF-8 text file"]);
}

#[test]
fn unknown_keys_are_refused_by_name() {
    assert_spoiled("[ingress]", "[ingres]", &["line 5", "unknown key `ingres`", "`ingress`", "`endpoint`"]);
    assert_spoiled("partitions = 4", "partition = 4", &["line 4", "unknown key `partition`", "`partitions`"]);
    assert_spoiled("listen =", "port =", &["line 6", "unknown key `port`, the allowed keys are `listen`"]);
    assert_spoiled("store =", "stores =", &["line 9", "unknown key `stores`", "`store`"]);
    let secret = format!("secret = \"{SECRET}\"");
    assert_spoiled(
        "secrets = [\"file:good.secret\"]",
        &secret,
        &["line 14", "unknown key `secret`", "`secrets`"],
    );
    assert_spoiled(
        "tenant = \"acme\"",
        "tenant = \"acme\"\nrate = { per_minute = 5 }",
        &["line 14", "unknown key `per_minute`", "`per_second`"],
    );
}

#[test]
fn values_of_the_wrong_type() {
    assert_spoiled(
        "partitions = 4",
        "partitions = \"four\"",
        &["line 4", "`partitions`", "expected a whole number"],
    );
    assert_spoiled("path = \"data/journal\"", "path = 4", &["line 3", "`path`", "expected a string"]);
    assert_spoiled("[[endpoint]]\nid = \"shoc-main\"", "[endpoint]\nid = \"shoc-main\"", &["line"]);
}

#[test]
fn the_journal() {
    assert_spoiled(
        "kind = \"embedded\"",
        "kind = \"redis\"",
        &["`journal.kind` is \"redis\"", "\"embedded\" or \"kafka\""],
    );
    for number in ["0", "-1", "1025", "9223372036854775807"] {
        assert_spoiled(
            "partitions = 4",
            &format!("partitions = {number}"),
            &["`journal.partitions` is", number, "a whole number from 1 to 1024"],
        );
    }
    assert_spoiled("path = \"data/journal\"", "path = \"\"", &["`journal.path` is empty"]);
    assert_spoiled(
        "store = \"data/store\"",
        "store = \"data/journal\"",
        &["`projector.store` is the folder of `journal.path`"],
    );
}

#[test]
fn kafka() {
    let spoiled = |rest: &str, expected: &[&str]| {
        assert_spoiled("kind = \"embedded\"", &format!("kind = \"kafka\"\n{rest}"), expected);
    };
    let brokers = |rest: &str| format!("brokers = \"localhost:9092\"\n{rest}");
    spoiled("", &["`journal.brokers` is missing", "brokers = \"kafka-1:9092,kafka-2:9092\""]);
    for text in ["", " ", "a:9092,", ","] {
        spoiled(&format!("brokers = \"{text}\""), &["`journal.brokers` is", "host:port"]);
    }
    for (number, expected) in [
        ("0", "a whole number from 1 to 32"),
        ("33", "a whole number from 1 to 32"),
        ("2", "it must be 3 or more, unless allow_unsafe_topics = true"),
    ] {
        let rest = brokers(&format!("replication_factor = {number}"));
        spoiled(&rest, &["`journal.replication_factor` is", number, expected]);
    }
    spoiled(&brokers("allow_unsafe_topics = 1"), &["line 4", "`allow_unsafe_topics`", "expected a boolean"]);
    spoiled(&brokers("topics = { subjects = \"x\" }"), &["unknown key `subjects`", "`observations`"]);
    for name in ["", "a b", "..", "ä"] {
        let rest = brokers(&format!("topics = {{ claims = \"{name}\" }}"));
        spoiled(&rest, &["`journal.topics.claims` is", "1 to 249 characters of A-Z a-z 0-9 . _ -"]);
    }
    spoiled(
        &brokers("topics = { claims = \"witness.projections\" }"),
        &["`journal.topics.projections` is \"witness.projections\"", "a name of its own"],
    );
}

#[test]
fn a_schema_registry() {
    let spoiled = |rest: &str, expected: &[&str]| {
        let to = format!("kind = \"kafka\"\nbrokers = \"localhost:9092\"\n{rest}");
        assert_spoiled("kind = \"embedded\"", &to, expected);
    };
    let place = "`journal.schema_registry` must be http://host:port";
    spoiled("schema_registry = \"registry:8081\"", &[place]);
    spoiled("schema_registry = 7", &[place]);
    spoiled(
        &format!("schema_registry = \"http://user:{SECRET}@registry\""),
        &["`journal.schema_registry` must not hold a user or password", "`journal.schema_registry_auth`"],
    );
    let auth = "schema_registry = \"http://registry\"\nschema_registry_auth";
    spoiled(
        &format!("{auth} = \"user:{SECRET}\""),
        &["`journal.schema_registry_auth`", "given as `env:NAME` or `file:/path`"],
    );
    spoiled("schema_registry_auth = \"env:X\"", &["is of no use without `journal.schema_registry`"]);
}

#[test]
fn properties_of_librdkafka() {
    let spoiled = |kafka: &str, expected: &[&str]| {
        let to = format!("kind = \"kafka\"\nbrokers = \"localhost:9092\"\nkafka = {kafka}");
        assert_spoiled("kind = \"embedded\"", &to, &[&["`journal.kafka"], expected].concat());
    };
    spoiled(&format!("\"{SECRET}\""), &["`journal.kafka` must be a table of librdkafka properties"]);
    spoiled(&format!("[\"{SECRET}\"]"), &["`journal.kafka` must be a table of librdkafka properties"]);
    spoiled(
        "{ security.protocol = \"SSL\" }",
        &["`journal.kafka.security` must be text", "in quotes, as in \"security.protocol\" = \"SSL\""],
    );
    spoiled("{ \"acks\" = 1 }", &["\"acks\" cannot be set", "on every in-sync replica"]);
    spoiled("{ \"group.id\" = \"x\" }", &["\"group.id\" cannot be set", "a key of its own"]);
    spoiled("{ \"no.such.property\" = \"x\" }", &["\"no.such.property\" is refused"]);
    spoiled(&format!("{{ \"security.protocol\" = \"{SECRET}\" }}"), &["\"security.protocol\" is refused"]);
    spoiled("{ \"group.id\" = \"env:GROUP\" }", &["\"group.id\" cannot be set", "a key of its own"]);
    spoiled(
        "{ \"sasl.password\" = \"env:WITNESS_TEST_NO_SUCH\" }",
        &["`journal.kafka.sasl.password`", "WITNESS_TEST_NO_SUCH"],
    );
    spoiled(
        "{ \"sasl.password\" = \"file:/no/such/file\" }",
        &["`journal.kafka.sasl.password`", "/no/such/file"],
    );
}

/// What is somewhere else is read before anybody connects.
#[test]
fn properties_that_are_somewhere_else() {
    let folder = folder();
    fs::write(folder.path().join("protocol"), format!("{SECRET}\n")).expect("written");
    let place = folder.path().join("protocol");
    let text = format!(
        "kind = \"kafka\"\nbrokers = \"localhost:9092\"\nkafka = {{ \"security.protocol\" = \"file:{}\" }}",
        place.display()
    );
    let text = GOOD.replacen("kind = \"embedded\"", &text, 1);
    fs::write(folder.path().join("witness.toml"), text).expect("written");
    let refused = up(folder.path(), &[]);
    assert_refused(&refused, &["`journal.kafka`", "\"security.protocol\" is refused"]);
}

/// Some properties are only refused when a client is made of all of them.
#[test]
fn properties_that_do_not_go_together() {
    let folder = folder();
    let text = "kind = \"kafka\"\nbrokers = \"localhost:9092\"\nkafka = { \"security.protocol\" = \"SASL_PLAINTEXT\", \"sasl.mechanism\" = \"PLAIN\" }";
    let text = GOOD.replacen("kind = \"embedded\"", text, 1);
    fs::write(folder.path().join("witness.toml"), text).expect("written");
    let expected = ["`journal.kafka`", "sasl.username and sasl.password must be set"];
    assert_refused(&up(folder.path(), &[]), &expected);
    assert!(!folder.path().join("data").exists(), "nothing may be made");
}

#[test]
fn a_member_of_the_group() {
    let spoiled = |key: &str, value: &str, expected: &[&str]| {
        let to = format!("store = \"data/store\"\n{key} = \"{value}\"");
        let key = format!("`projector.{key}` is");
        assert_spoiled("store = \"data/store\"", &to, &[&[key.as_str()], expected].concat());
    };
    spoiled("group", "", &["give the consumer group a name"]);
    spoiled("instance_id", "", &["1 to 64 characters"]);
    spoiled("instance_id", "a/b", &["1 to 64 characters"]);
    for url in [
        "projector-1:8081",
        "https://projector-1:8081",
        "http://projector-1",
        "http://:8081",
        "http://projector-1:0",
        "http://projector-1:8081/",
        "http://someone@projector-1:8081",
    ] {
        spoiled("advertise", url, &[url, "http://host:port"]);
    }
}

#[test]
fn one_service_alone_needs_kafka() {
    let folder = folder();
    fs::write(folder.path().join("witness.toml"), GOOD).expect("written");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_witness"));
        command.args(arguments).current_dir(folder.path()).output().expect("witness runs")
    };
    for service in ["ingress", "projector"] {
        let expected = ["`journal.kind` is \"embedded\"", "`witness up`", "kind = \"kafka\""];
        assert_refused(&run(&[service]), &expected);
    }
    for action in ["create", "check"] {
        let expected = ["`journal.kind` is \"embedded\", which has no topics", "kind = \"kafka\""];
        assert_refused(&run(&["topics", action]), &expected);
    }
    assert!(!folder.path().join("data").exists(), "nothing may be made");
}

#[test]
fn addresses() {
    assert_spoiled(
        "listen = \"127.0.0.1:0\"",
        "listen = \"localhost\"",
        &["`ingress.listen` is \"localhost\"", "an IP address and a port, as in \"127.0.0.1:8080\""],
    );
    assert_spoiled(
        "listen = \"127.0.0.1:0\"\nstore",
        "listen = \"0.0.0.0:0\"\nstore",
        &["`projector.listen` is 0.0.0.0:0", "set `projector.token`", "listen on 127.0.0.1"],
    );
    assert_spoiled(
        "listen = \"127.0.0.1:0\"\n[projector]\nlisten = \"127.0.0.1:0\"",
        "listen = \"127.0.0.1:4711\"\n[projector]\nlisten = \"127.0.0.1:4711\"",
        &["`projector.listen` is the address of `ingress.listen`"],
    );
}

#[test]
fn the_token() {
    let token = |reference: &str| format!("store = \"data/store\"\ntoken = {reference}");
    let spoiled = |reference: &str, expected: &[&str]| {
        assert_spoiled(
            "store = \"data/store\"",
            &token(reference),
            &[&["`projector.token`"], expected].concat(),
        );
    };
    spoiled(&format!("\"{SECRET}\""), &["`env:NAME` or `file:/path`"]);
    spoiled("\"env:WITNESS_TEST_NOT_SET\"", &["WITNESS_TEST_NOT_SET is not set"]);
    spoiled("\"file:empty.secret\"", &["file:empty.secret is empty"]);
    spoiled("5", &["\"env:NAME\" or \"file:/path\""]);
}

#[test]
fn endpoints() {
    let from = GOOD.find("[[endpoint]]").expect("endpoints");
    assert_spoiled(&GOOD[from..], "", &["there is no endpoint; add an [[endpoint]]"]);
    assert_spoiled("id = \"shoc-main\"", "id = \"ycloud-main\"", &["`endpoint.ycloud-main.id` stands twice"]);
    assert_spoiled("id = \"ycloud-main\"\n", "", &["`endpoint.1.id` is missing"]);
    let long = "x".repeat(65);
    for id in ["", "a b", "a/b", "ä", "..", long.as_str()] {
        let spoiled = format!("id = \"{id}\"");
        assert_spoiled(
            "id = \"ycloud-main\"",
            &spoiled,
            &["`endpoint.1.id` is", "1 to 64 characters of A-Z a-z 0-9 . _ -"],
        );
    }
    assert_spoiled("provider = \"ycloud\"\n", "", &["`endpoint.ycloud-main.provider` is missing"]);
    assert_spoiled(
        "provider = \"ycloud\"",
        "provider = \"YCloud\"",
        &["`endpoint.ycloud-main.provider` is \"YCloud\"", "\"ycloud\", \"shoc\", \"yutai\""],
    );
    assert_spoiled("tenant = \"acme\"\n", "", &["`endpoint.ycloud-main.tenant` is missing"]);
    assert_spoiled("tenant = \"acme\"", "tenant = \"a b\"", &["`endpoint.ycloud-main.tenant` is \"a b\""]);
}

#[test]
fn limits() {
    for (key, number, range) in [
        ("tolerance_seconds", "0", "from 1 to 604800"),
        ("tolerance_seconds", "-300", "from 1 to 604800"),
        ("max_body_bytes", "0", "from 1 to 8388608"),
        ("max_body_bytes", "8388609", "from 1 to 8388608"),
    ] {
        let key_name = format!("`endpoint.ycloud-main.{key}` is {number}");
        let spoiled = format!("tenant = \"acme\"\n{key} = {number}");
        assert_spoiled("tenant = \"acme\"", &spoiled, &[&key_name, range]);
    }
    let rate = |rate: &str, expected: &[&str]| {
        assert_spoiled("tenant = \"acme\"", &format!("tenant = \"acme\"\nrate = {rate}"), expected);
    };
    rate("{ per_second = 0 }", &["`endpoint.ycloud-main.rate.per_second` is 0"]);
    rate("{ per_second = 5, burst = 0 }", &["`endpoint.ycloud-main.rate.burst` is 0"]);
    rate("{ burst = 5 }", &["`endpoint.ycloud-main.rate.per_second` is missing"]);
}

#[test]
fn secrets() {
    let list = "secrets = [\"file:good.secret\"]";
    let key = "`endpoint.ycloud-main.secrets`";
    assert_spoiled(&format!("{list}\n"), "", &[key, "is missing", "[\"env:NAME\", \"file:/path\"]"]);
    assert_spoiled(list, "secrets = []", &[key, "must be a list"]);
    assert_spoiled(list, &format!("secrets = \"{SECRET}\""), &[key, "must be a list"]);
    assert_spoiled(list, &format!("secrets = [\"{SECRET}\"]"), &[key, "`env:NAME` or `file:/path`"]);
    assert_spoiled(list, "secrets = [4]", &[key, "\"env:NAME\" or \"file:/path\""]);
    assert_spoiled(
        list,
        "secrets = [\"env:WITNESS_TEST_NOT_SET\"]",
        &[key, "WITNESS_TEST_NOT_SET is not set"],
    );
    assert_spoiled(
        list,
        "secrets = [\"file:no.secret\"]",
        &[key, "no.secret cannot be read", "make it readable"],
    );
    assert_spoiled(
        list,
        "secrets = [\"file:good.secret\", \"file:empty.secret\"]",
        &[key, "empty.secret is empty"],
    );
    assert_spoiled(list, "secrets = [\"aws-secretsmanager:x\"]", &[key, "not available in this release"]);
    assert_spoiled(
        list,
        &format!("{list}\nkeys = \"file:good.keys\""),
        &["`endpoint.ycloud-main.keys` is for shoc alone"],
    );
}

#[test]
fn the_key_document() {
    let document = "keys = \"file:good.keys\"";
    let key = "`endpoint.shoc-main.keys`";
    assert_spoiled(document, "", &[key, "is missing", "keys = \"file:/path\""]);
    assert_spoiled(
        document,
        "secrets = [\"file:good.secret\"]",
        &["`endpoint.shoc-main.secrets` is not for shoc"],
    );
    assert_spoiled(document, "keys = \"file:missing.keys\"", &[key, "missing.keys cannot be read"]);
    assert_spoiled(document, "keys = \"file:empty.secret\"", &[key, "empty.secret is empty"]);
    assert_spoiled(document, "keys = \"file:bad.keys\"", &[key, "file:bad.keys", "the key document is not"]);
    assert_spoiled(document, "keys = \"file:no.keys\"", &[key, "lists no key"]);
    assert_spoiled(document, "keys = \"file:binary.keys\"", &[key, "not UTF-8"]);
    assert_spoiled(document, "keys = [\"file:good.keys\"]", &[key, "must be text"]);
    assert_spoiled(document, "keys = \"aws-secretsmanager:x\"", &[key, "not available in this release"]);
}

#[test]
fn variables() {
    let folder = folder();
    fs::write(folder.path().join("witness.toml"), GOOD).expect("written");
    for (variable, value, expected) in [
        ("WITNESS__JOURNAL__KIND", "kafka", "`journal.brokers` is missing"),
        ("WITNESS__JOURNAL__PARTITION", "4", "WITNESS__JOURNAL__PARTITION: unknown key `partition`"),
        ("WITNESS__ENDPOINT__other__TENANT", "x", "the endpoints are: ycloud-main, shoc-main"),
        (
            "WITNESS__ENDPOINT__ycloud-main__SECRETS",
            "[\"env:WITNESS_TEST_NOT_SET\"]",
            "WITNESS_TEST_NOT_SET is not set",
        ),
    ] {
        assert_refused(&up(folder.path(), &[(variable, value)]), &[expected]);
    }
}

#[test]
fn send_refuses_what_it_cannot_mean() {
    let folder = folder();
    fs::write(folder.path().join("witness.toml"), GOOD).expect("written");
    let send = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_witness"));
        command.arg("send").args(arguments).current_dir(folder.path()).output().expect("witness runs")
    };
    assert_refused(
        &send(&["--endpoint", "other", "x.json"]),
        &["no endpoint \"other\"", "ycloud-main, shoc-main"],
    );
    assert_refused(&send(&["--endpoint", "ycloud-main", "x.json"]), &["cannot read x.json"]);
    assert_refused(
        &send(&["--endpoint", "ycloud-main", "--url", "ftp://x", "good.keys"]),
        &["--url is \"ftp://x\""],
    );
    assert_refused(&send(&["--endpoint", "ycloud-main"]), &["<FILE>"]);
    assert_refused(&send(&["good.keys"]), &["--endpoint"]);
}

#[test]
fn an_unknown_subcommand_is_wrong_use() {
    for arguments in [&["frobnicate"][..], &[], &["up", "--colour"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_witness")).args(arguments).output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
