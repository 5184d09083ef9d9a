//! The command line. Parses, runs one subcommand, and turns its end into an exit code: 0 done, 1 failed,
//! 2 wrong use. Must never do a subcommand's work.

mod client;
mod config;
mod demo;
mod journal;
mod opened;
mod operate;
mod send;
mod serve;
mod telemetry;
mod topics;
mod up;
mod wrong_use;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use config::Config;
use serve::Which;
use wrong_use::WrongUse;

/// Signed webhooks in, one immutable log, honest answers out.
#[derive(Parser)]
#[command(name = "witness", version, about)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show everything Witness does, on this machine, needing nothing.
    Demo(demo::Arguments),
    /// Receive deliveries, keep them, and answer questions about them, in one process.
    Up(up::Arguments),
    /// Receive deliveries and keep them, on Kafka.
    Ingress(up::Arguments),
    /// Derive what was received and answer questions about it, on Kafka.
    Projector(up::Arguments),
    /// Create the topics on Kafka, or check those that exist.
    Topics(topics::Arguments),
    /// Print a digest of everything each partition of a projector's store holds.
    Verify(operate::Verify),
    /// Derive a projector's store anew from the log, beside the live one, and put it in its place.
    Rebuild(operate::Rebuild),
    /// Move the log: to a file, and from there into an empty journal of either kind.
    Journal(journal::Arguments),
    /// Sign files as an endpoint's provider would, and post them.
    Send(send::Arguments),
}

fn main() -> ExitCode {
    // clap itself exits with 2 where the command line is wrong.
    let ended = match CommandLine::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Up(arguments) => up::run(&arguments, Which::Both).map(|()| true),
        Command::Ingress(arguments) => up::run(&arguments, Which::Ingress).map(|()| true),
        Command::Projector(arguments) => up::run(&arguments, Which::Projector).map(|()| true),
        Command::Topics(arguments) => topics::run(&arguments),
        Command::Verify(arguments) => operate::verify(&arguments),
        Command::Rebuild(arguments) => operate::rebuild(&arguments),
        Command::Journal(arguments) => journal::run(&arguments).map(|()| true),
        Command::Send(arguments) => send::run(&arguments),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to be told when standard error is gone, too.
            drop(writeln!(std::io::stderr(), "witness: {error:#}"));
            ExitCode::from(if error.is::<WrongUse>() { 2 } else { 1 })
        }
    }
}

/// Whether whoever read our output went away, as `head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

/// The configuration in `file`, or in ./witness.toml, with this process's environment over it.
fn configuration(file: Option<&Path>) -> Result<Config, WrongUse> {
    let file = file.unwrap_or(Path::new(config::FILE_DEFAULT));
    let mut environment = Vec::new();
    for (name, value) in std::env::vars_os() {
        // A variable that is not UTF-8 is ours only where its name says so.
        let name = name.to_string_lossy().into_owned();
        match value.into_string() {
            Ok(value) => environment.push((name, value)),
            Err(_) if name.starts_with("WITNESS__") => {
                return Err(WrongUse(format!("the environment variable {name}: is not UTF-8")));
            }
            Err(_) => {}
        }
    }
    Config::load(file, environment)
}
