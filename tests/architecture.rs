//! The lines of ARCHITECTURE.md that begin with **Never**, as far as the text of the repository and its
//! dependencies can show them, and the document's own honesty. Must never pass because it looked at nothing.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines a source file may have, its tests left out: more is two concepts.
const FILE_LINES_MAX: usize = 600;
/// Source files the repository had when this was written: fewer means that the search went wrong.
const SOURCES_MIN: usize = 30;

/// A Rust file of the repository.
struct Source {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
}

impl Source {
    /// Every file of the workspace.
    fn all() -> Vec<Self> {
        let mut found = Vec::new();
        let mut folders = vec![root()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("the folder is readable") {
                let path = entry.expect("an entry").path();
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                if path.is_dir() && name != "target" && !name.starts_with('.') {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = fs::read_to_string(&path).expect("the file is text");
                    found.push(Self { path: relative(&path), text });
                }
            }
        }
        assert!(found.len() >= SOURCES_MIN, "only {} files were found", found.len());
        found
    }

    /// The program itself: neither tests nor benchmarks.
    fn all_of_the_program() -> Vec<Self> {
        let mut sources = Self::all();
        sources.retain(|source| source.path.starts_with("src/") || source.path.contains("/src/"));
        sources
    }

    /// The text before the unit tests.
    fn without_tests(&self) -> &str {
        self.text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or_default()
    }

    /// The lines of code before the unit tests, with their numbers.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = (1..).zip(self.without_tests().lines());
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// Where the code names one of `words`.
    fn naming(&self, words: &[&str]) -> Vec<String> {
        let named = self.code().filter(|(_, line)| words.iter().any(|word| line.contains(word)));
        named.map(|(number, line)| format!("{}:{number}: {}", self.path, line.trim())).collect()
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("inside the repository").to_string_lossy().replace('\\', "/")
}

fn named_in_any(sources: &[Source], words: &[&str]) -> Vec<String> {
    sources.iter().flat_map(|source| source.naming(words)).collect()
}

/// The packages that `package` is built from, its tests' included where `edges` say so.
fn dependencies(package: &str, edges: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--prefix",
            "none",
            "--format",
            "{p}",
            "--edges",
            edges,
            "--package",
            package,
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let names = text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned);
    let mut names = names.collect::<BTreeSet<_>>();
    assert!(names.remove(package), "cargo tree does not name {package}");
    names
}

#[test]
fn every_file_says_what_it_owns_and_must_never_do() {
    let is_silent = |source: &Source| {
        let document = source.text.lines().take_while(|line| line.starts_with("//!"));
        let document = document.collect::<Vec<_>>().join(" ").to_lowercase();
        !document.contains('.') || !(document.contains("never") || document.contains("must"))
    };
    let silent = Source::all().into_iter().filter(is_silent).map(|source| source.path).collect::<Vec<_>>();
    assert_eq!(silent, Vec::<String>::new(), "files that do not open with what they own and must never do");
}

#[test]
fn no_file_holds_more_than_one_concept() {
    let lines = |source: &Source| source.without_tests().lines().count();
    let mut sources = Source::all_of_the_program();
    sources.retain(|source| lines(source) > FILE_LINES_MAX);
    let long = sources.iter().map(|source| format!("{}: {} lines", source.path, lines(source)));
    assert_eq!(
        long.collect::<Vec<_>>(),
        Vec::<String>::new(),
        "files over {FILE_LINES_MAX} lines without tests"
    );
}

#[test]
fn the_schema_is_pure() {
    let dependencies = dependencies("witness-schema", "normal,build");
    let machinery = ["tokio", "axum", "hyper", "rdkafka", "sled", "ureq", "metrics", "tracing"];
    let impure =
        dependencies.iter().filter(|name| machinery.contains(&name.as_str()) || name.starts_with("witness"));
    assert_eq!(impure.collect::<Vec<_>>(), Vec::<&String>::new(), "the schema depends on machinery");

    let mut sources = Source::all_of_the_program();
    sources.retain(|source| source.path.starts_with("schema/"));
    assert!(!sources.is_empty(), "the schema has no files");
    let effects =
        ["std::env", "std::fs", "std::net", "std::process", "std::thread", "SystemTime", "Instant::"];
    assert_eq!(named_in_any(&sources, &effects), Vec::<String>::new(), "the schema has effects");
}

#[test]
fn the_crates_stand_on_each_other_in_one_direction() {
    let ours = |package: &str| {
        let mut names = dependencies(package, "normal,build,dev");
        names.retain(|name| name.starts_with("witness"));
        names.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(ours("witness-schema"), Vec::<String>::new());
    assert_eq!(ours("witness-journal"), ["witness-schema"]);
    assert_eq!(ours("witness-service"), ["witness-schema"]);
    assert_eq!(ours("witness-ingress"), ["witness-journal", "witness-schema", "witness-service"]);
    assert_eq!(ours("witness-projector"), ["witness-journal", "witness-schema", "witness-service"]);
}

#[test]
fn the_derivation_sees_the_schema_alone() {
    let mut sources = Source::all_of_the_program();
    sources.retain(|source| source.path.starts_with("projector/src/derive/"));
    assert!(!sources.is_empty(), "there is no derivation");
    let modules = sources.iter().flat_map(|source| {
        source.code().filter_map(|(_, line)| line.trim_start().strip_prefix("mod ")?.strip_suffix(';'))
    });
    let mut allowed = modules.collect::<Vec<_>>();
    allowed.extend(["schema", "serde", "std", "super", "crate::derive"]);
    let used = sources.iter().flat_map(|source| {
        let uses = source.code().filter_map(|(_, line)| {
            let line = line.trim_start();
            line.strip_prefix("use ").or_else(|| line.strip_prefix("pub use "))
        });
        uses.map(|path| (source.path.as_str(), path))
    });
    let is_allowed = |path: &str| {
        allowed
            .iter()
            .any(|allowed| path.strip_prefix(allowed).is_some_and(|rest| rest.starts_with([':', ';'])))
    };
    let strange = used.filter(|(_, path)| !is_allowed(path)).collect::<Vec<_>>();
    assert_eq!(strange, Vec::<(&str, &str)>::new(), "the derivation uses more than the schema");
    // What needs no `use`.
    let words = [
        "std::env",
        "std::fs",
        "std::net",
        "std::thread",
        "std::time",
        "std::io",
        "SystemTime",
        "Instant::",
        "journal::",
        "service::",
        "sled::",
        "tokio::",
        "tracing::",
        "metrics::",
        "crate::store",
        "crate::query",
    ];
    assert_eq!(named_in_any(&sources, &words), Vec::<String>::new(), "the derivation sees the world");
}

#[test]
fn sled_is_named_only_where_its_pitfalls_are_known() {
    let this_file = "tests/architecture.rs";
    let (inside, outside): (Vec<_>, Vec<_>) = Source::all()
        .into_iter()
        .filter(|source| source.path != this_file)
        .partition(|source| source.path == "journal/src/disk.rs");
    let words = ["sled::", "use sled"];
    assert!(!named_in_any(&inside, &words).is_empty(), "nothing uses sled any more: drop this test");
    assert_eq!(named_in_any(&outside, &words), Vec::<String>::new());
}

#[test]
fn time_and_ids_are_made_in_one_place_each() {
    for (place, words) in [
        ("service/src/clock.rs", &["SystemTime::now", "OffsetDateTime::now"][..]),
        ("service/src/ids.rs", &["Uuid::new_v", "Uuid::now_v7"]),
    ] {
        let (inside, outside): (Vec<_>, Vec<_>) =
            Source::all_of_the_program().into_iter().partition(|source| source.path == place);
        assert_eq!(named_in_any(&outside, words), Vec::<String>::new(), "only {place} may");
        assert!(
            !named_in_any(&inside, words).is_empty(),
            "{place} does not: this test looks for the wrong words"
        );
    }
}

#[test]
fn every_never_names_a_check_that_exists() {
    let document = architecture().replace("\n  ", " ");
    let items = document.split("\n- ").filter(|item| item.starts_with("**Never**")).collect::<Vec<_>>();
    assert!(items.len() >= 10, "only {} lines begin with Never", items.len());
    for item in items {
        let item = item.split("\n\n").next().unwrap_or_default();
        let (_, checks) = item.split_once("Checked by").unwrap_or_else(|| panic!("no check: {item}"));
        let quoted = checks.split('`').skip(1).step_by(2).collect::<Vec<_>>();
        assert!(!quoted.is_empty() && quoted.len() % 2 == 0, "not pairs of file and name: {item}");
        for pair in quoted.chunks(2) {
            let (path, name) = (pair[0], pair[1]);
            let text = fs::read_to_string(root().join(path));
            let text = text.unwrap_or_else(|error| panic!("{path} ({error}) should check: {item}"));
            assert!(text.contains(name), "{path} has no {name}, which should check: {item}");
        }
    }
}

#[test]
fn the_code_map_is_the_code() {
    let document = architecture();
    let map = document.split("\n## ").find(|section| section.starts_with("Code map"));
    let map = map.expect("a code map");
    let places =
        map.split('`').skip(1).step_by(2).filter(|place| place.contains('/')).collect::<BTreeSet<_>>();
    assert!(places.len() >= 15, "the code map names only {} places", places.len());
    let missing = places.iter().filter(|place| !root().join(place).exists()).collect::<Vec<_>>();
    assert_eq!(missing, Vec::<&&str>::new(), "the code map names what is not there");
    let is_unnamed = |source: &&Source| !places.iter().any(|place| source.path.starts_with(place));
    let sources = Source::all_of_the_program();
    let unnamed = sources.iter().filter(is_unnamed).map(|source| &source.path).collect::<Vec<_>>();
    assert_eq!(unnamed, Vec::<&String>::new(), "the code map does not lead to these files");
}

fn architecture() -> String {
    fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md is there")
}
