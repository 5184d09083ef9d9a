# Everything a person repeats. Each recipe is a plain command that works without just.

# What there is
default:
    @just --list

# The story of what Witness does, in a minute, without any set-up
demo *arguments:
    cargo run --release -- demo {{arguments}}

# Both services on this machine, as witness.toml says
up *arguments:
    cargo run --release -- up {{arguments}}

# All tests; `just test -p witness-schema` for some
test *arguments="--workspace":
    cargo test {{arguments}}

# What the CI demands of the text: format, lints, docs
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Formats in place
format:
    cargo fmt --all

# Kills `witness up` with requests in flight; `WITNESS_SEED=7 just crash` repeats a run
crash:
    cargo test --test crash -- --nocapture

# System calls between a delivery and its 200 (needs strace)
durability:
    cargo test --test durability

# Everything simulated from one seed after the other until stopped; `WITNESS_SEED=7 just simulate` repeats a run
simulate:
    WITNESS_SIMULATE=1 cargo test -p witness --test simulation fixed_and_random_seeds -- --nocapture

# Whether the tests notice faults put in on purpose
mutants:
    tests/mutants/run

# Figures, as ratios within one run (see BENCHMARKS.md)
bench *arguments:
    cargo bench -p witness --bench engine -- {{arguments}}

# What Witness costs on a real Kafka beside Kafka alone (needs java, and mvn the first time)
bench-kafka *arguments:
    cargo bench -p witness --bench kafka -- {{arguments}}

# Licences, advisories, bans (needs: cargo install cargo-deny --locked)
deny:
    cargo deny check

# All that the CI runs
ci:
    .ci/run

# Everything on a real Kafka, the proofs under failure too (needs java, and mvn the first time).
kafka:
    WITNESS_REQUIRE_ALL=1 cargo test -p witness-journal --test kafka
    WITNESS_REQUIRE_ALL=1 cargo test -p witness --test kafka
