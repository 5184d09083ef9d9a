//! How far a copy is: a bar for a person who looks on, a line now and then for a file. Must never write to
//! standard output, which belongs to the result.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Between two lines where nobody looks on.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// One part of the work.
pub(super) struct Progress {
    bar: ProgressBar,
    what: &'static str,
    /// When to write the next line; `None` where a bar is drawn.
    next_line: Option<Mutex<Instant>>,
}

impl Progress {
    /// Begins a part of `total` records.
    pub(super) fn begin(what: &'static str, total: u64) -> Self {
        let is_seen = std::io::stderr().is_terminal();
        let bar = if is_seen { ProgressBar::new(total) } else { ProgressBar::hidden() };
        bar.set_length(total);
        let style = "{msg} [{wide_bar}] {human_pos}/{human_len} records, {per_sec}, {eta} left";
        // A template that does not parse leaves the default bar.
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_message(what);
        let next_line = (!is_seen).then(|| Mutex::new(Instant::now() + LINE_EVERY));
        Self { bar, what, next_line }
    }

    /// So many more are done.
    pub(super) fn advance(&self, records: u64) {
        self.bar.inc(records);
        let Some(next_line) = &self.next_line else { return };
        let Ok(mut next_line) = next_line.lock() else { return };
        let now = Instant::now();
        if now < *next_line {
            return;
        }
        *next_line = now + LINE_EVERY;
        let (done, total) = (self.bar.position(), self.bar.length().unwrap_or(0));
        let rate = self.bar.per_sec();
        let left = self.bar.eta().as_secs();
        tracing::info!("{}: {done} of {total} records, {rate:.0}/s, {left} s left", self.what);
    }

    /// This part is done.
    pub(super) fn end(self) {
        self.bar.finish_and_clear();
    }
}
