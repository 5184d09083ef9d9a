//! Tells the demo's story in words. Must never say anything of an outcome that does not stand in the
//! answers it is given.

use std::io::{self, Write};
use std::net::SocketAddr;

use anstyle::{AnsiColor, Style};
use serde_json::Value;

use super::play::{Attention, Delivered, Seen, text};
use super::story::Chapter;

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const DOUBT: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default();
const NAME: Style = AnsiColor::Cyan.on_default();

/// Columns that running text may take.
const COLUMNS: usize = 92;

/// Writes the story. Styles are written always; the stream takes them out where they do not belong.
pub(super) struct Teller<W> {
    out: W,
    chapters: usize,
    last_observation_id: Option<String>,
}

impl<W: Write> Teller<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, chapters: 0, last_observation_id: None }
    }

    pub(super) fn title(&mut self, ingress: SocketAddr, projector: SocketAddr) -> io::Result<()> {
        writeln!(
            self.out,
            "\n{BOLD}Witness{BOLD:#} receives signed webhooks, writes each one down for ever, and answers honestly."
        )?;
        self.paragraph(
            "Everything below happens now, on this machine: a real journal in a temporary folder, real \
             signatures, real HTTP. What Witness answered is printed as it came back.",
        )?;
        writeln!(self.out, "\n  deliveries  {NAME}http://{ingress}/webhooks/…{NAME:#}")?;
        writeln!(self.out, "  questions   {NAME}http://{projector}/v1/…{NAME:#}")
    }

    pub(super) fn chapter(&mut self, chapter: &Chapter) -> io::Result<()> {
        self.chapters += 1;
        writeln!(self.out, "\n\n{BOLD}{}. {}{BOLD:#}", self.chapters, chapter.title)?;
        self.paragraph(chapter.opening)?;
        writeln!(self.out)
    }

    pub(super) fn delivered(&mut self, words: &str, delivered: &Delivered) -> io::Result<()> {
        let answer = &delivered.answer;
        let style = if answer.status < 300 { GOOD } else { BAD };
        let code = answer.text("code").unwrap_or_default();
        writeln!(self.out, "  → {words:<78} {style}{}{style:#}", answer.status)?;
        if !code.is_empty() {
            let title = answer.text("title").unwrap_or_default();
            writeln!(self.out, "    {DIM}{title} ({code}){DIM:#}")?;
        }
        if let Some(id) = answer.text("observation_id") {
            if self.last_observation_id.as_deref() == Some(id) {
                writeln!(
                    self.out,
                    "    {DIM}the observation id of the answer before: nothing was written{DIM:#}"
                )?;
            }
            self.last_observation_id = Some(id.to_owned());
        }
        self.wrong(&delivered.wrong)
    }

    /// What a subject became, and why.
    pub(super) fn seen(&mut self, seen: &Seen) -> io::Result<()> {
        let name = format!("{} {}", seen.subject.kind, seen.subject.id);
        let projection = &seen.projection;
        if projection.status != 200 {
            let code = projection.text("code").unwrap_or("no code");
            writeln!(self.out, "\n  {NAME}{name}{NAME:#}: {} ({code}).", projection.status)?;
            if projection.status == 404 {
                writeln!(self.out, "  Witness has never heard of it: nothing of those requests was kept.")?;
            }
            return self.wrong(&seen.wrong);
        }
        let (style, verdict) = verdict(projection.text("certainty").unwrap_or_default(), &projection.body);
        writeln!(
            self.out,
            "\n  {NAME}{name}{NAME:#} {verdict} ({style}{}{style:#}).",
            text(&projection.body, "certainty")
        )?;
        for sentence in reasons(&projection.body, seen.facts.len()) {
            self.paragraph(&sentence)?;
        }
        self.history(&seen.history)?;
        self.wrong(&seen.wrong)
    }

    fn history(&mut self, history: &[Value]) -> io::Result<()> {
        for entry in history {
            let (event, inbox, outcome) =
                (text(entry, "event_id"), text(entry, "inbox"), text(entry, "outcome"));
            let time = clock_time(text(entry, "provider_time"));
            let style = match outcome {
                "applied" | "no_change" => GOOD,
                "contested" | "unordered" | "failed" => DOUBT,
                _ if inbox == "conflict" => BAD,
                _ => DIM,
            };
            write!(
                self.out,
                "    {event:<7} {DIM}{time:<9}{DIM:#} {inbox:<10} {style}{outcome:<13}{style:#} "
            )?;
            // Before the explanation stand 47 columns.
            for (index, line) in wrapped(explanation(entry), COLUMNS - 47).iter().enumerate() {
                let indent = if index == 0 { 0 } else { 47 };
                writeln!(self.out, "{:indent$}{DIM}{line}{DIM:#}", "")?;
            }
        }
        Ok(())
    }

    pub(super) fn attention(&mut self, attention: &Attention) -> io::Result<()> {
        writeln!(self.out, "\n\n{BOLD}What a person should look at{BOLD:#}")?;
        self.paragraph(
            "Everything Witness could not settle by itself stands in one list, GET /v1/attention:",
        )?;
        for item in &attention.items {
            let id = item.get("subject").map(|subject| text(subject, "id")).unwrap_or_default();
            let kind = item.get("subject").map(|subject| text(subject, "kind")).unwrap_or_default();
            writeln!(self.out, "\n  {DOUBT}{:<10}{DOUBT:#} {NAME}{kind} {id}{NAME:#}", text(item, "kind"))?;
            self.indented("             ", text(item, "reason"))?;
        }
        self.wrong(&attention.wrong)
    }

    pub(super) fn end(&mut self, wrong: usize) -> io::Result<()> {
        writeln!(self.out)?;
        if wrong == 0 {
            writeln!(self.out, "\n{GOOD}Every answer was what the providers' contracts demand.{GOOD:#}")
        } else {
            writeln!(
                self.out,
                "\n{BAD}{wrong} answers were not what the providers' contracts demand; see ✗ above.{BAD:#}"
            )
        }
    }

    /// Lines as they are.
    pub(super) fn lines(&mut self, lines: &[String]) -> io::Result<()> {
        for line in lines {
            writeln!(self.out, "{line}")?;
        }
        self.out.flush()
    }

    fn wrong(&mut self, wrong: &[String]) -> io::Result<()> {
        for problem in wrong {
            writeln!(self.out, "    {BAD}✗ {problem}{BAD:#}")?;
        }
        self.out.flush()
    }

    fn paragraph(&mut self, words: &str) -> io::Result<()> {
        self.indented("  ", words)
    }

    fn indented(&mut self, indent: &str, words: &str) -> io::Result<()> {
        for line in wrapped(words, COLUMNS - indent.len()) {
            writeln!(self.out, "{indent}{line}")?;
        }
        Ok(())
    }
}

/// Words in lines of at most `columns`; at least one line. A longer word has a line to itself.
fn wrapped(words: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in words.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// What can be said of the subject in half a sentence.
fn verdict(certainty: &str, projection: &Value) -> (Style, String) {
    let status = text(projection, "status");
    match certainty {
        _ if !status.is_empty() => {
            let style = if certainty == "settled" { GOOD } else { DOUBT };
            (style, format!("is {BOLD}{status}{BOLD:#}"))
        }
        "skeleton" => (DOUBT, "is known to exist, and no more".to_owned()),
        "contested" => (DOUBT, format!("has {BOLD}no answer{BOLD:#}")),
        _ => (GOOD, "is kept, and claims no state".to_owned()),
    }
}

/// Why, read from the projection.
fn reasons(projection: &Value, facts: usize) -> Vec<String> {
    let mut sentences = Vec::new();
    let raw_status = projection.pointer("/value/wo_status").and_then(Value::as_str);
    let status = text(projection, "status");
    if let Some(raw) = raw_status.filter(|raw| *raw != status) {
        sentences.push(format!("The provider's own word for it is \"{raw}\", kept as it came."));
    }
    let basis = projection.get("basis").filter(|basis| !basis.is_null());
    if let Some(basis) = basis {
        let (event, as_of) = (text(basis, "event_id"), text(projection, "as_of"));
        sentences.push(match text(basis, "ordered_by") {
            "object_time" => format!("{event} says so, and carries the greatest provider time: {as_of}."),
            "event_time" => {
                format!("{event} says so; its own creation time, {as_of}, is all there is to order by.")
            }
            "journal_order" => format!("{event} says so; of several at {as_of}, it was committed last."),
            "nothing" => {
                format!("{event} says so, but carries no time: whether it is the last word, nobody can tell.")
            }
            other => format!("{event} says so ({other})."),
        });
    }
    let contenders = projection.pointer("/contenders/items").and_then(Value::as_array);
    let contenders: Vec<&str> = contenders.into_iter().flatten().map(|item| text(item, "status")).collect();
    if !contenders.is_empty() {
        sentences.push(format!(
            "The provider said both {}, and gave nothing to order them by.",
            contenders.join(" and ")
        ));
    }
    if projection.get("needs_refresh").and_then(Value::as_bool) == Some(true) {
        sentences.push("It is marked needs_refresh: ask the provider which one holds.".to_owned());
    }
    match facts {
        0 => {}
        1 => sentences.push("One fact is kept beside it.".to_owned()),
        several => sentences.push(format!("{several} facts are kept beside it.")),
    }
    sentences
}

/// What one line of the history means.
fn explanation(entry: &Value) -> &str {
    match (text(entry, "inbox"), text(entry, "outcome")) {
        ("duplicate", _) if text(entry, "reason").is_empty() => "known already: changes nothing",
        ("duplicate", _) => text(entry, "reason"),
        ("conflict", _) => "same event id, other payload: set aside",
        (_, "applied") => "news",
        (_, "no_change") => "says what was known",
        (_, "out_of_order") => "older than what was known: kept, no step back",
        (_, "contested") => "contradicts what is known at the same time",
        (_, "unordered") => "differs, and has no time to place it by",
        (_, "unsupported") => "no reading for this type: kept as it came",
        _ => text(entry, "reason"),
    }
}

/// `09:00:04Z` of an RFC 3339 time; words where there is none.
fn clock_time(time: &str) -> String {
    time.get(11..19).map_or_else(|| "no time".to_owned(), |clock| format!("{clock}Z"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The words follow the answer, whatever it is.
    #[test]
    fn another_answer_is_told_in_other_words() {
        let contested = json!({
            "status": null, "needs_refresh": true,
            "contenders": { "total": 2, "items": [{ "status": "sent" }, { "status": "failed" }] },
        });
        assert!(verdict("contested", &contested).1.contains("no answer"));
        assert_eq!(
            reasons(&contested, 2),
            [
                "The provider said both sent and failed, and gave nothing to order them by.",
                "It is marked needs_refresh: ask the provider which one holds.",
                "2 facts are kept beside it.",
            ]
        );
        let tie = json!({
            "status": "on_hold", "as_of": "2026-01-01T00:00:00.000000Z", "value": { "wo_status": "on_hold" },
            "basis": { "event_id": "d-9", "ordered_by": "journal_order" },
        });
        assert!(verdict("settled", &tie).1.contains("on_hold"));
        assert_eq!(
            reasons(&tie, 0),
            ["d-9 says so; of several at 2026-01-01T00:00:00.000000Z, it was committed last."]
        );
        let failed = json!({ "inbox": "new", "outcome": "failed", "reason": "`x` is missing" });
        assert_eq!(explanation(&failed), "`x` is missing");
    }

    #[test]
    fn lines_keep_their_width() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("", 7), [""]);
        assert_eq!(wrapped("a incomprehensible b", 7), ["a", "incomprehensible", "b"]);
        assert_eq!(clock_time("2026-07-16T09:00:04.000000Z"), "09:00:04Z");
        assert_eq!(clock_time(""), "no time");
    }
}
