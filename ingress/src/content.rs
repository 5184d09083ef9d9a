//! What a request says its body is: `Content-Type` and `Content-Encoding`. Must never accept a body whose
//! bytes on the wire are not the bytes that were signed.

use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};

use crate::error::Refusal;

/// Space that may stand around the parts of a header.
const WHITE_SPACE: [char; 2] = [' ', '\t'];

/// Accepts `application/json`, once, whose `charset`, if any, is utf-8, and no encoding but identity.
/// Answers the content type as it was written.
pub(crate) fn check(headers: &HeaderMap, type_is_optional: bool) -> Result<Option<String>, Refusal> {
    let mut lines = headers.get_all(CONTENT_TYPE).iter();
    let content_type = match (lines.next(), lines.next()) {
        (None, _) if type_is_optional => None,
        (Some(line), None) => {
            let text = line.to_str().map_err(|_| Refusal::UnsupportedContentType)?;
            let charsets = json_charsets(text).ok_or(Refusal::UnsupportedContentType)?;
            if charsets.iter().any(|charset| !charset.eq_ignore_ascii_case("utf-8")) {
                return Err(Refusal::UnsupportedCharset);
            }
            Some(text.to_owned())
        }
        (None, _) | (Some(_), Some(_)) => return Err(Refusal::UnsupportedContentType),
    };
    let encodings = headers.get_all(CONTENT_ENCODING);
    if encodings.iter().any(|line| !line.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(Refusal::UnsupportedContentEncoding);
    }
    Ok(content_type)
}

/// The charsets an `application/json` media type (RFC 9110 §8.3.1) names; `None` for any other type, and
/// for parameters that are not well formed.
fn json_charsets(media_type: &str) -> Option<Vec<String>> {
    let (essence, mut rest) = media_type.split_at(media_type.find(';').unwrap_or(media_type.len()));
    if !essence.trim_matches(WHITE_SPACE).eq_ignore_ascii_case("application/json") {
        return None;
    }
    let mut charsets = Vec::new();
    loop {
        rest = rest.trim_start_matches(WHITE_SPACE);
        if rest.is_empty() {
            return Some(charsets);
        }
        rest = rest.strip_prefix(';')?.trim_start_matches(WHITE_SPACE);
        if rest.is_empty() || rest.starts_with(';') {
            continue;
        }
        let (name, after_name) = token(rest)?;
        let after_name = after_name.strip_prefix('=')?;
        let (value, after) = match after_name.strip_prefix('"') {
            Some(quoted) => quoted_text(quoted)?,
            None => token(after_name).map(|(value, after)| (value.to_owned(), after))?,
        };
        if name.eq_ignore_ascii_case("charset") {
            charsets.push(value);
        }
        rest = after;
    }
}

/// The token (RFC 9110 §5.6.2) at the start of `text`, and what follows it.
fn token(text: &str) -> Option<(&str, &str)> {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let end = text.find(|c| !is_token(c)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// The rest of a quoted string (RFC 9110 §5.6.4) after its opening quote, and what follows it.
fn quoted_text(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return text.get(at + 1..).map(|after| (value, after)),
            '\\' => value.push(characters.next()?.1),
            _ => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().expect("a header value"));
        }
        headers
    }

    fn checked(content_type: &str) -> Result<Option<String>, Refusal> {
        check(&headers(&[("content-type", content_type)]), false)
    }

    #[test]
    fn json_with_or_without_utf_8() {
        for text in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=UTF-8",
            "application/json ; Charset=\"Utf-8\"",
            "application/json; charset=\"ut\\f-8\"",
            "application/json; v=\"a;charset=latin1\"; charset=utf-8",
            "application/json;",
            "application/json; ; profile=x",
        ] {
            assert_eq!(checked(text), Ok(Some(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "text/json",
            "application/jsonp",
            "application/json+x",
            "application/vnd.api+json",
            "application/x-www-form-urlencoded",
            "json",
            "application/json charset=utf-8",
            "application/json; charset",
            "application/json; charset=",
            "application/json; =utf-8",
            "application/json; charset=\"utf-8",
            "application/json, application/json",
            "application/json; charset = utf-8",
        ] {
            assert_eq!(checked(text), Err(Refusal::UnsupportedContentType), "{text}");
        }
        for text in ["iso-8859-1", "utf8", "utf-16", "\"\"", "utf-8; charset=latin1"] {
            let text = format!("application/json; charset={text}");
            assert_eq!(checked(&text), Err(Refusal::UnsupportedCharset), "{text}");
        }
    }

    #[test]
    fn the_type_is_there_once_unless_the_contract_lets_it_be_absent() {
        let json = ("content-type", "application/json");
        assert_eq!(check(&headers(&[]), false), Err(Refusal::UnsupportedContentType));
        assert_eq!(check(&headers(&[]), true), Ok(None));
        assert_eq!(check(&headers(&[json, json]), true), Err(Refusal::UnsupportedContentType));
    }

    #[test]
    fn identity_is_the_only_encoding() {
        let encoded = |encoding| {
            check(&headers(&[("content-type", "application/json"), ("content-encoding", encoding)]), false)
        };
        assert!(encoded("Identity").is_ok());
        for encoding in ["gzip", "br", "identity, gzip", ""] {
            assert_eq!(encoded(encoding), Err(Refusal::UnsupportedContentEncoding), "{encoding}");
        }
    }
}
