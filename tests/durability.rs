//! What a kill cannot show: that a delivery's bytes had reached the disk before its 200 left. Each delivery is
//! followed through the system calls of a real `witness up`: read from the socket, written to the journal's
//! file, that file synced with success, and only then the answer. Must never take a call for done before it
//! returned, nor a sync of another file for this one.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use common::{Delivery, ENDPOINTS, Installation};
use libtest_mimic::{Arguments, Failed, Trial};
use schema::Provider;
use serde_json::json;

const DELIVERIES: usize = 12;
/// Bytes of a call's data that the trace keeps: more than any delivery here has, so that none hides.
const TRACED_BYTES_MAX: &str = "4000000";
const TRACED_CALLS: &str = "trace=read,readv,recvfrom,recvmsg,write,writev,pwrite64,pwritev,pwritev2,\
                            sendto,sendmsg,sync_file_range,fsync,fdatasync";
const WAIT_FOR_TRACE_MAX: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = checks_of_the_check();
    let name = "every_200_follows_a_sync_of_its_bytes";
    trials.push(match (reason_not_to_trace(), std::env::var_os("WITNESS_REQUIRE_ALL").is_some()) {
        (None, _) => Trial::test(name, every_200_follows_a_sync_of_its_bytes),
        (Some(reason), true) => Trial::test(name, move || Err(reason.into())),
        (Some(reason), false) => {
            let kind = format!("skipped: {reason}");
            Trial::test(name, || Ok(())).with_kind(kind).with_ignored_flag(true)
        }
    });
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Why system calls cannot be traced here, if they cannot.
fn reason_not_to_trace() -> Option<String> {
    match Command::new("strace").args(["-D", "-f", "-o", "/dev/null", "true"]).output() {
        Err(error) => Some(format!("strace does not start ({error}); install the package strace")),
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            Some(format!("strace may not trace: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
    }
}

fn every_200_follows_a_sync_of_its_bytes() -> Result<(), Failed> {
    let installation = Installation::new();
    let file = installation.path().join("trace");
    let file_text = file.display().to_string();
    // -D: our child is `witness`, not strace. -y: descriptors with their paths.
    let wrapper =
        ["strace", "-D", "-f", "-y", "-ttt", "-s", TRACED_BYTES_MAX, "-e", TRACED_CALLS, "-o", &file_text];
    let service = installation.start_under(&wrapper, "store");
    let markers = (0..DELIVERIES).map(|number| format!("marker-{number:04}-of-this-run")).collect::<Vec<_>>();
    for (number, marker) in markers.iter().enumerate() {
        let answer = service.client.post(&delivery(number, marker))?;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    let process = service.id();
    service.stop();

    let text = whole_trace(&file, process);
    let trace = Trace::parse(&text);
    let journal = installation.journal_file().display().to_string();
    for marker in &markers {
        trace.check(&journal, marker)?;
    }
    // The same trace without its syncs must not pass, or the check proves nothing.
    let without_syncs = text.lines().filter(|line| !line.contains("fdatasync(") && !line.contains("fsync("));
    let without_syncs = Trace::parse(&without_syncs.collect::<Vec<_>>().join("\n"));
    for marker in &markers {
        let error = without_syncs.check(&journal, marker).expect_err("a trace without a sync passed");
        assert!(error.contains("no successful sync"), "{error}");
    }
    Ok(())
}

/// A delivery with the marker at both ends of its body, of every provider and of every size class: every
/// third has more bytes than the journal keeps in one piece.
fn delivery(number: usize, marker: &str) -> Delivery {
    let endpoint = number % ENDPOINTS.len();
    let padding = "x".repeat(if number / ENDPOINTS.len() % 2 == 1 { 200_000 } else { 10 });
    let event_id = format!("{marker}-first");
    let last = format!("{marker}-last");
    let body = match ENDPOINTS[endpoint].1 {
        Provider::YCloud => json!({"id": event_id, "type": "unheard.of", "x": padding, "z": last}),
        Provider::Shoc => {
            json!({"delivery_id": event_id, "event_type": "unheard.of", "schema_version": 1, "x": padding, "z": last})
        }
        Provider::Yutai => json!({"eventId": event_id, "kind": "unheard_of", "x": padding, "z": last}),
    };
    Delivery { endpoint, event_id, body: body.to_string().into_bytes() }
}

/// The trace, once the tracer has written the process's end. It writes beside us, so that is waited for.
fn whole_trace(file: &Path, process: u32) -> String {
    let started = Instant::now();
    loop {
        let text = String::from_utf8_lossy(&fs::read(file).expect("the trace is readable")).into_owned();
        let is_end = |line: &str| line.starts_with(&format!("{process} ")) && line.ends_with("+++");
        if text.lines().rev().take(50).any(is_end) {
            return text;
        }
        assert!(started.elapsed() < WAIT_FOR_TRACE_MAX, "the trace does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// System calls in the order in which they began.
#[derive(Debug)]
struct Trace {
    calls: Vec<Call>,
}

/// One system call, from the line on which it began to the line on which it returned.
#[derive(Debug)]
struct Call {
    thread: String,
    name: String,
    /// The first argument where it is a descriptor: its number and what it stands for.
    descriptor: String,
    arguments: String,
    began: usize,
    /// The line of the return and what was returned; `None` where it never did.
    returned: Option<(usize, i64)>,
}

impl Trace {
    /// Reads what `strace -f -y -ttt` writes: `thread time call(arguments) = result`, or, where another
    /// thread's call comes between, `call(arguments <unfinished ...>` and `<... call resumed>rest) = result`.
    fn parse(text: &str) -> Self {
        let mut calls = Vec::<Call>::new();
        for (number, line) in text.lines().enumerate() {
            // Short thread ids are padded.
            let Some((thread, rest)) = line.split_once(' ') else { continue };
            let Some((_time, rest)) = rest.trim_start().split_once(' ') else { continue };
            if let Some(resumed) = rest.strip_prefix("<... ") {
                let open =
                    calls.iter_mut().rev().find(|call| call.thread == thread && call.returned.is_none());
                if let (Some(call), Some((_, rest))) = (open, resumed.split_once(" resumed>")) {
                    call.arguments.push_str(rest);
                    call.returned = result_of(rest).map(|result| (number, result));
                }
            } else if let Some((name, arguments)) = rest.split_once('(') {
                let descriptor = arguments.split_once('>').map_or("", |(descriptor, _)| descriptor);
                calls.push(Call {
                    thread: thread.to_owned(),
                    name: name.to_owned(),
                    descriptor: descriptor.to_owned(),
                    arguments: arguments.to_owned(),
                    began: number,
                    returned: result_of(arguments).map(|result| (number, result)),
                });
            }
        }
        Self { calls }
    }

    /// Follows the delivery whose body has `marker` from the socket to the disk and back.
    fn check(&self, journal_file: &str, marker: &str) -> Result<(), String> {
        let with_marker = || self.calls.iter().filter(|call| call.arguments.contains(marker));
        let read = with_marker()
            .filter(|call| call.is_of(&["read", "readv", "recvfrom", "recvmsg"]) && call.is_of_socket())
            .find_map(|call| Some((call, call.returned?.0)));
        let (request, read_at) = read.ok_or_else(|| format!("{marker}: never read from a socket"))?;
        let answered_at = self
            .calls
            .iter()
            .filter(|call| call.is_of(&["write", "writev", "sendto", "sendmsg"]) && call.began > read_at)
            .find(|call| call.descriptor == request.descriptor && call.arguments.contains("HTTP/1.1 200"))
            .map(|call| call.began)
            .ok_or_else(|| format!("{marker}: no 200 on the socket it came from"))?;
        let writes = with_marker()
            .filter(|call| call.is_of(&["write", "writev", "pwrite64", "pwritev", "pwritev2"]))
            .filter(|call| call.is_of_file(journal_file) && call.began < answered_at)
            .map(|call| call.returned.filter(|(_, written)| *written > 0).map(|(line, _)| line))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| format!("{marker}: a write to the journal did not succeed"))?;
        let written_at = writes.into_iter().max();
        let written_at =
            written_at.ok_or_else(|| format!("{marker}: not written to the journal before its 200"))?;
        let synced = self.calls.iter().any(|call| {
            call.is_of(&["fdatasync", "fsync"])
                && call.is_of_file(journal_file)
                && call.began > written_at
                && call.returned.is_some_and(|(line, result)| result == 0 && line < answered_at)
        });
        if synced {
            Ok(())
        } else {
            Err(format!("{marker}: no successful sync of the journal between its write and its 200"))
        }
    }
}

impl Call {
    fn is_of(&self, names: &[&str]) -> bool {
        names.contains(&self.name.as_str())
    }

    fn is_of_file(&self, path: &str) -> bool {
        self.descriptor.split_once('<').is_some_and(|(_, target)| target == path)
    }

    fn is_of_socket(&self) -> bool {
        self.descriptor.split_once('<').is_some_and(|(_, target)| target.starts_with("socket:"))
    }
}

/// The number after the last ` = `; text such as an error's name may follow it.
fn result_of(text: &str) -> Option<i64> {
    let (_, result) = text.rsplit_once(" = ")?;
    result.split(' ').next()?.parse().ok()
}

/// The check is only worth something where it fails on what must not pass.
fn checks_of_the_check() -> Vec<Trial> {
    const GOOD: &str = "\
7 1.1 recvfrom(9<socket:[55]>, \"POST /webhooks/e HTTP/1.1\\r\\n\\r\\n{m-1}\", 8192, 0, NULL, NULL) = 60
8 1.2 pwrite64(4</d/journal/db>, \"..{m-1}..\", 40, 0 <unfinished ...>
9 1.3 futex(0x1, FUTEX_WAKE) = 1
8 1.4 <... pwrite64 resumed>) = 40
8 1.5 sync_file_range(4</d/journal/db>, 0, 40, SYNC_FILE_RANGE_WRITE) = 0
8 1.6 fdatasync(5</d/journal/db> <unfinished ...>
9 1.7 recvfrom(11<socket:[56]>, 0x1, 8192, 0, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)
8 1.8 <... fdatasync resumed>) = 0
7 1.9 sendto(9<socket:[55]>, \"HTTP/1.1 200 OK\\r\\n\", 17, MSG_NOSIGNAL, NULL, 0) = 17
7 2.0 +++ exited with 0 +++";
    let fdatasync = "8 1.6 fdatasync(5</d/journal/db> <unfinished ...>\n";
    let resumed = "8 1.8 <... fdatasync resumed>) = 0\n";
    let sendto = "7 1.9 sendto(9<socket:[55]>, \"HTTP/1.1 200 OK\\r\\n\", 17, MSG_NOSIGNAL, NULL, 0) = 17\n";
    let changed = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "the good trace has no {from}");
        GOOD.replace(from, to)
    };
    let no_sync = Err("m-1: no successful sync of the journal between its write and its 200");
    let cases = [
        ("a_sync_in_between_passes", GOOD.to_owned(), Ok(())),
        ("short_thread_ids_are_padded", GOOD.replace("\n7 ", "\n7     ").replace("\n8 ", "\n8     "), Ok(())),
        ("no_sync_fails", changed(fdatasync, "").replace(resumed, ""), no_sync),
        (
            "a_failed_sync_fails",
            changed(resumed, "8 1.8 <... fdatasync resumed>) = -1 EIO (Input/output error)\n"),
            no_sync,
        ),
        (
            "a_sync_of_another_file_fails",
            changed("fdatasync(5</d/journal/db>", "fdatasync(5</d/store/db>"),
            no_sync,
        ),
        (
            "a_sync_that_returns_after_the_200_fails",
            changed(resumed, "").replace(sendto, &format!("{sendto}{resumed}")),
            no_sync,
        ),
        ("a_sync_that_never_returns_fails", changed(resumed, ""), no_sync),
        (
            "a_sync_that_began_before_the_write_returned_fails",
            changed(fdatasync, "")
                .replace("8 1.2 pwrite64", &format!("{}8 1.2 pwrite64", fdatasync.replace("8 1.6", "6 1.15")))
                .replace("8 1.8", "6 1.8"),
            no_sync,
        ),
        (
            "no_write_fails",
            changed("..{m-1}..", "....."),
            Err("m-1: not written to the journal before its 200"),
        ),
        (
            "a_failed_write_fails",
            changed("pwrite64 resumed>) = 40", "pwrite64 resumed>) = -1 ENOSPC (No space left on device)"),
            Err("m-1: a write to the journal did not succeed"),
        ),
        ("no_request_fails", changed("{m-1}\", 8192", "\", 8192"), Err("m-1: never read from a socket")),
        (
            "no_200_fails",
            changed("HTTP/1.1 200", "HTTP/1.1 503"),
            Err("m-1: no 200 on the socket it came from"),
        ),
    ];
    let trial = |(name, text, expected): (&str, String, Result<(), &str>)| {
        let expected = expected.map_err(str::to_owned);
        Trial::test(name, move || {
            assert_eq!(Trace::parse(&text).check("/d/journal/db", "m-1"), expected, "{text}");
            Ok(())
        })
    };
    cases.into_iter().map(trial).collect()
}
