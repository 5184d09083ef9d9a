//! Query parameters: which there are, and what they may be. Must never ignore a parameter that it does
//! not know.

use axum::http::StatusCode;
use schema::Micros;
use service::problem::Problem;

use super::page::List;
use crate::derive::Moment;

/// Items a page has unless asked otherwise.
const LIMIT_DEFAULT: usize = 50;
/// Items a page may have.
const LIMIT_MAX: usize = 500;

/// The parameters of one request, each known and at most once.
#[derive(Debug)]
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub(super) fn read(raw: Vec<(String, String)>, allowed: &[&str]) -> Result<Self, Problem> {
        for (index, (name, _)) in raw.iter().enumerate() {
            if !allowed.contains(&name.as_str()) {
                let known = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
                return Err(invalid(
                    &format!("`{name}`"),
                    &format!("is no parameter here; these are: {known}"),
                ));
            }
            if raw.iter().take(index).any(|(earlier, _)| earlier == name) {
                return Err(invalid(&format!("`{name}`"), "stands twice"));
            }
        }
        Ok(Self(raw))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn limit(&self) -> Result<usize, Problem> {
        match self.text("limit").map(str::parse) {
            None => Ok(LIMIT_DEFAULT),
            Some(Ok(limit)) if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
            Some(_) => Err(invalid("`limit`", &format!("must be a number from 1 to {LIMIT_MAX}"))),
        }
    }

    pub(super) fn boolean(&self, name: &str) -> Result<bool, Problem> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(invalid(&format!("`{name}`"), "must be true or false")),
        }
    }

    /// The moment that is asked about.
    pub(super) fn moment(&self) -> Result<Moment, Problem> {
        let time = |name: &str| {
            let time = self.text(name).map(|text| {
                Micros::parse(text).ok_or_else(|| {
                    invalid(&format!("`{name}`"), "must be a time with an offset, as 2026-01-31T12:00:00Z")
                })
            });
            time.transpose()
        };
        Ok(Moment { as_of: time("as_of")?, known_at: time("known_at")? })
    }

    /// The place that a cursor of `list` names, as `read` reads it.
    pub(super) fn after<T>(
        &self,
        list: List,
        read: impl FnOnce(Vec<u8>) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.text("after") else { return Ok(None) };
        let place = list.place(text).and_then(read);
        place
            .map(Some)
            .ok_or_else(|| invalid("`after`", "must be the `next` of an earlier page of this list"))
    }

    /// The place where it is a text.
    pub(super) fn after_text(
        &self,
        list: List,
        is_place: impl FnOnce(&str) -> bool,
    ) -> Result<Option<String>, Problem> {
        self.after(list, |bytes| String::from_utf8(bytes).ok().filter(|text| is_place(text)))
    }
}

/// The problem of a parameter that is not what it must be.
pub(super) fn invalid(name: &str, problem: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "invalid_parameter", "A parameter is not what it must be")
        .detail(format!("{name} {problem}"))
}
