//! Reading JSON strictly: the envelope of a body, the fields of an object, and the form in which two
//! values are compared. Must never change a text it hands on, and never show content in an error.
//!
//! The grammar is serde_json's. Values are kept as slices of the body ([`RawValue`]), so that numbers
//! beyond 2^53, odd numbers such as `1e999` and lone surrogates survive where nobody needs their meaning.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::limits::NESTING_LEVELS_MAX;
use crate::provider::EnvelopeError;
use crate::reading::Value;
use crate::{Digest, Unreadable};

/// One JSON object: its text, and its fields in their order as slices of that text. No key stands twice.
/// The first comes from [`envelope`], every further one from [`Object::object`], so none nests deeper
/// than [`NESTING_LEVELS_MAX`] and recursion over one is bounded.
#[derive(Debug)]
pub struct Object<'a> {
    text: &'a str,
    fields: Vec<Field<'a>>,
}

/// A key as bytes, because it may hold a lone surrogate, and its value.
type Field<'a> = (Cow<'a, [u8]>, &'a RawValue);

/// Reads a body strictly: UTF-8 without a byte-order mark, at most
/// [`NESTING_LEVELS_MAX`] levels, one JSON object, no key of it twice.
pub fn envelope(body: &[u8]) -> Result<Object<'_>, EnvelopeError> {
    let text = std::str::from_utf8(body).map_err(|_| EnvelopeError::InvalidUtf8)?;
    if text.starts_with('\u{feff}') {
        return Err(EnvelopeError::ByteOrderMark);
    }
    if nesting_levels(body) > NESTING_LEVELS_MAX {
        return Err(EnvelopeError::NestedTooDeeply);
    }
    // The grammar is checked on its own: `fields` reads keys as bytes, and then serde_json lets control
    // characters through that JSON forbids.
    serde_json::from_str::<IgnoredAny>(text).map_err(|_| EnvelopeError::InvalidJson)?;
    if !text.trim_start_matches([' ', '\t', '\n', '\r']).starts_with('{') {
        return Err(EnvelopeError::NotAnObject);
    }
    let fields = fields(text).ok_or(EnvelopeError::InvalidJson)?;
    if has_duplicate_key(&fields) { Err(EnvelopeError::DuplicateKey) } else { Ok(Object { text, fields }) }
}

impl<'a> Object<'a> {
    /// The object in the field of that name. Unreadable when it is missing, no object, or holds a key
    /// twice at any depth: such an object has no one meaning.
    pub fn object(&self, name: &str) -> Result<Self, Unreadable> {
        let unreadable = |problem: &str| Unreadable { reason: format!("`{name}` {problem}") };
        let raw = self.get(name).ok_or_else(|| unreadable("is missing"))?;
        let text = raw.get();
        let fields = fields(text).ok_or_else(|| unreadable("is not an object"))?;
        if holds_duplicate_key(raw) {
            return Err(unreadable("holds a key that stands twice"));
        }
        Ok(Self { text, fields })
    }

    /// This object with its status, and the digest by which it is compared: of the status and of all
    /// fields but the `time_fields` at its top.
    pub fn value(&self, status: String, time_fields: &[&str]) -> Value {
        let mut form = Vec::with_capacity(self.text.len() + 64);
        push_bytes(&mut form, b's', status.as_bytes());
        push_fields(
            &mut form,
            self.fields
                .iter()
                .filter(|(key, _)| !time_fields.iter().any(|name| name.as_bytes() == key.as_ref())),
        );
        Value { status, json: self.text.to_owned(), digest: Digest::of(&form) }
    }

    /// The field of that name, unless it is missing or null.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        let (_, raw) = self.fields.iter().find(|(key, _)| key.as_ref() == name.as_bytes())?;
        (raw.get() != "null").then_some(*raw)
    }

    /// The field of that name where it is a string of Unicode text.
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name).and_then(text)
    }

    /// The names (as bytes: a name may hold a lone surrogate) and values of all fields.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &'a RawValue)> {
        self.fields.iter().map(|(key, raw)| (key.as_ref(), *raw))
    }
}

/// A JSON string's text; `None` for anything else, and for a string with a lone surrogate, which stands
/// for no text.
pub fn text(raw: &RawValue) -> Option<String> {
    raw.get().starts_with('"').then(|| serde_json::from_str(raw.get()).ok()).flatten()
}

/// Levels of `{` and `[`, counted without recursion and without trusting the text to be JSON.
fn nesting_levels(body: &[u8]) -> usize {
    let (mut levels, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                levels += 1;
                deepest = deepest.max(levels);
            }
            b'}' | b']' if !in_string => levels = levels.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Appends the canonical form of `raw`: every part tagged and with its length before it, so that two
/// different values never share a form; keys sorted, strings decoded, numbers as exact decimals.
fn push_canonical(form: &mut Vec<u8>, raw: &RawValue) {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'{') => push_fields(form, fields(text).unwrap_or_default().iter()),
        Some(b'[') => {
            let items = items(text);
            push_length(form, b'[', items.len());
            for item in items {
                push_canonical(form, item);
            }
        }
        Some(b'"') => {
            let bytes = serde_json::Deserializer::from_str(text).deserialize_bytes(BytesVisitor);
            push_bytes(form, b'"', &bytes.unwrap_or_default());
        }
        Some(b'-' | b'0'..=b'9') => push_bytes(form, b'0', &exact_decimal(text)),
        Some(_) | None => push_bytes(form, b'w', text.as_bytes()),
    }
}

fn push_fields<'a, 'b: 'a>(form: &mut Vec<u8>, fields: impl Iterator<Item = &'a Field<'b>>) {
    let mut fields: Vec<&Field<'b>> = fields.collect();
    fields.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
    push_length(form, b'{', fields.len());
    for (key, value) in fields {
        push_bytes(form, b'"', key);
        push_canonical(form, value);
    }
}

fn push_length(form: &mut Vec<u8>, tag: u8, length: usize) {
    form.push(tag);
    form.extend_from_slice(&(length as u64).to_be_bytes());
}

fn push_bytes(form: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    push_length(form, tag, bytes.len());
    form.extend_from_slice(bytes);
}

/// A JSON number as `[-]digits e exponent` without leading or trailing zeros, so that `1`, `1.0` and
/// `10e-1` are equal and 2^53 and 2^53 + 1 are not. An exponent that no `i64` holds leaves it as written.
fn exact_decimal(number: &str) -> Cow<'_, [u8]> {
    let (sign, rest) = number.strip_prefix('-').map_or(("", number), |rest| ("-", rest));
    let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let Ok(exponent) = exponent.parse::<i64>() else { return Cow::Borrowed(number.as_bytes()) };
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Cow::Borrowed(b"0");
    }
    let shift = (digits.len() - significant.len()) as i64 - fraction.len() as i64;
    match exponent.checked_add(shift) {
        Some(exponent) => Cow::Owned(format!("{sign}{significant}e{exponent}").into_bytes()),
        None => Cow::Borrowed(number.as_bytes()),
    }
}

/// Whether an object in `raw`, at any depth, has a key twice.
fn holds_duplicate_key(raw: &RawValue) -> bool {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            let fields = fields(text).unwrap_or_default();
            has_duplicate_key(&fields) || fields.iter().any(|(_, value)| holds_duplicate_key(value))
        }
        Some(b'[') => items(text).into_iter().any(holds_duplicate_key),
        Some(_) | None => false,
    }
}

fn has_duplicate_key(fields: &[Field<'_>]) -> bool {
    let mut keys: Vec<&[u8]> = fields.iter().map(|(key, _)| key.as_ref()).collect();
    keys.sort_unstable();
    keys.windows(2).any(|pair| pair.first() == pair.last())
}

/// The items of a text that is known to be an array.
fn items(text: &str) -> Vec<&RawValue> {
    serde_json::from_str(text).unwrap_or_default()
}

/// The fields of an object's text; `None` when it is not an object.
fn fields(text: &str) -> Option<Vec<Field<'_>>> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let fields = deserializer.deserialize_map(FieldsVisitor).ok()?;
    deserializer.end().ok()?;
    Some(fields)
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Vec<Field<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = map.next_key_seed(BytesVisitor)? {
            fields.push((key, map.next_value()?));
        }
        Ok(fields)
    }
}

/// Reads a JSON string as bytes: the one way serde_json offers that takes lone surrogates.
struct BytesVisitor;

impl<'de> DeserializeSeed<'de> for BytesVisitor {
    type Value = Cow<'de, [u8]>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = Cow<'de, [u8]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(bytes))
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        Ok(Cow::Owned(bytes.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The digest of an object that stands in a body as the field `object`.
    fn digest(text: &str) -> Result<Digest, Unreadable> {
        let body = format!("{{\"object\":{text}}}");
        let object = envelope(body.as_bytes())?.object("object")?;
        Ok(object.value("sent".to_owned(), &["updateTime"]).digest)
    }

    /// The digest of any value, as that of an object with this one field.
    fn digest_of_field(text: &str) -> Result<Digest, Unreadable> {
        digest(&format!("{{\"a\":{text}}}"))
    }

    #[test]
    fn spelling_does_not_make_another_value() {
        let plain = digest(r#"{"a":1,"b":"é/","c":[true,null]}"#);
        for same in [
            r#"{"b":"é/","c":[true,null],"a":1}"#,
            " { \"a\" : 1.0 ,\n\"b\":\"\\u00e9\\/\",\"c\":[ true , null ] } ",
            r#"{"a":10e-1,"b":"é/","c":[true,null],"updateTime":"later"}"#,
        ] {
            assert_eq!(digest(same.trim()), plain, "{same}");
        }
        for other in [
            r#"{"a":2,"b":"é/","c":[true,null]}"#,
            r#"{"a":"1","b":"é/","c":[true,null]}"#,
            r#"{"a":1,"b":"é/","c":[null,true]}"#,
            r#"{"a":1,"b":"é/","c":[true,null],"d":null}"#,
            r#"{"a":1,"b":"é/","c":[true,{"updateTime":1}]}"#,
        ] {
            assert_ne!(digest(other), plain, "{other}");
        }
    }

    #[test]
    fn numbers_are_compared_exactly() {
        assert_eq!(digest_of_field("[9007199254740992]"), digest_of_field("[9007199254740992.0]"));
        assert_ne!(digest_of_field("[9007199254740992]"), digest_of_field("[9007199254740993]"));
        assert_eq!(digest_of_field("[0]"), digest_of_field("[-0.00e7]"));
        assert_ne!(digest_of_field("[1e99999999999999999999]"), digest_of_field("[1e99999999999999999998]"));
        assert_ne!(digest_of_field("[1]"), digest_of_field("[-1]"));
    }

    #[test]
    fn lone_surrogates_are_kept_apart() {
        assert_ne!(digest_of_field(r#"["\ud800"]"#), digest_of_field(r#"["\ud801"]"#));
        assert_eq!(digest_of_field(r#"["\ud83d\ude00"]"#), digest_of_field("[\"😀\"]"));
        let body = br#"{"id":"e","\ud800":1,"text":"\udfff"}"#;
        let object = envelope(body).expect("an unknown field may hold anything");
        assert_eq!(object.text("id").as_deref(), Some("e"));
        assert_eq!(object.text("text"), None, "a lone surrogate stands for no text");
    }

    #[test]
    fn a_key_twice_has_no_one_meaning() {
        assert_eq!(envelope(br#"{"id":1,"\u0069d":2}"#).map(|_| ()), Err(EnvelopeError::DuplicateKey));
        assert_eq!(envelope(br#"{"\ud800":1,"\uD800":2}"#).map(|_| ()), Err(EnvelopeError::DuplicateKey));
        assert!(digest(r#"{"a":{"b":[{"c":1,"c":1}]}}"#).is_err());
    }

    #[test]
    fn envelopes_are_refused_by_name() {
        let deep = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
        for (body, expected) in [
            (b"\xff{}".to_vec(), EnvelopeError::InvalidUtf8),
            ("\u{feff}{}".into(), EnvelopeError::ByteOrderMark),
            (deep(128).into_bytes(), EnvelopeError::NestedTooDeeply),
            ("[".repeat(100_000).into_bytes(), EnvelopeError::NestedTooDeeply),
            (deep(100_000).into_bytes(), EnvelopeError::NestedTooDeeply),
            (b"".to_vec(), EnvelopeError::InvalidJson),
            (b"{} {}".to_vec(), EnvelopeError::InvalidJson),
            (b"{\"a\":}".to_vec(), EnvelopeError::InvalidJson),
            (b"{'a':1}".to_vec(), EnvelopeError::InvalidJson),
            (b"{\"a\nb\":1}".to_vec(), EnvelopeError::InvalidJson),
            (b"{\"a\":\"\x00\"}".to_vec(), EnvelopeError::InvalidJson),
            (b"{\"a\":01}".to_vec(), EnvelopeError::InvalidJson),
            (b"{\"a\":1,}".to_vec(), EnvelopeError::InvalidJson),
            (b"{\"a\":NaN}".to_vec(), EnvelopeError::InvalidJson),
            (b"[1]".to_vec(), EnvelopeError::NotAnObject),
            (b"\"x\"".to_vec(), EnvelopeError::NotAnObject),
            (b"null".to_vec(), EnvelopeError::NotAnObject),
        ] {
            assert_eq!(envelope(&body).map(|_| ()), Err(expected));
        }
        assert!(envelope(deep(127).as_bytes()).is_ok());
        assert!(envelope(b" {\"a\":1e999}\n").is_ok());
        assert!(envelope(br#"{"a":"[[[[\"{{{{"}"#).is_ok(), "brackets in a string are no nesting");
    }

    /// Any JSON value, as serde_json's own type.
    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<String>().prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(serde_json::Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..5)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Writes a value another way than serde_json would: fields in another order, white space between,
    /// characters escaped, numbers moved by powers of ten. `choices` says how; it is never used up.
    fn respelled(value: &serde_json::Value, choices: &mut impl Iterator<Item = u8>) -> String {
        let mut choice = |below: u8| choices.next().map_or(0, |byte| byte % below);
        let space = [" ", "\n", "\t\r", ""][usize::from(choice(4))];
        let inner = match value {
            serde_json::Value::Object(map) => {
                let mut fields: Vec<_> = map.iter().collect();
                let length = fields.len().max(1);
                fields.rotate_left(usize::from(choice(8)) % length);
                let fields = fields.into_iter().map(|(key, value)| {
                    let key = respelled(&serde_json::Value::from(key.as_str()), choices);
                    format!("{key}:{}", respelled(value, choices))
                });
                format!("{{{space}{}}}", fields.collect::<Vec<_>>().join(","))
            }
            serde_json::Value::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| respelled(item, choices)).collect();
                format!("[{space}{}]", items.join(","))
            }
            serde_json::Value::String(text) => {
                let mut units = [0; 2];
                let characters = text.chars().map(|character| match choice(3) {
                    0 if character >= ' ' && !matches!(character, '"' | '\\') => character.to_string(),
                    1 => character
                        .encode_utf16(&mut units)
                        .iter()
                        .map(|unit| format!("\\u{unit:04x}"))
                        .collect(),
                    _ => character
                        .encode_utf16(&mut units)
                        .iter()
                        .map(|unit| format!("\\u{unit:04X}"))
                        .collect(),
                });
                format!("\"{}\"", characters.collect::<String>())
            }
            serde_json::Value::Number(number) => match choice(4) {
                0 => number.to_string(),
                1 => format!("{number}.00"),
                2 => format!("{number}00E-2"),
                _ => format!("{number}.0e+0"),
            },
            serde_json::Value::Bool(_) | serde_json::Value::Null => value.to_string(),
        };
        format!("{space}{inner}{space}")
    }

    /// Changes the leaf (or empty collection) that `countdown` arrives at; false when there are too few.
    fn change_leaf(value: &mut serde_json::Value, countdown: &mut usize) -> bool {
        let children: Vec<&mut serde_json::Value> = match value {
            serde_json::Value::Object(map) => map.values_mut().collect(),
            serde_json::Value::Array(items) => items.iter_mut().collect(),
            serde_json::Value::Null
            | serde_json::Value::Bool(_)
            | serde_json::Value::Number(_)
            | serde_json::Value::String(_) => Vec::new(),
        };
        if !children.is_empty() {
            return children.into_iter().any(|child| change_leaf(child, countdown));
        }
        if *countdown > 0 {
            *countdown -= 1;
            return false;
        }
        *value = match &*value {
            serde_json::Value::Bool(truth) => (!truth).into(),
            serde_json::Value::Number(number) => number.as_i64().map(|number| number ^ 1).into(),
            serde_json::Value::String(text) => format!("{text}.").into(),
            serde_json::Value::Null | serde_json::Value::Array(_) | serde_json::Value::Object(_) => {
                "was empty".into()
            }
        };
        true
    }

    proptest! {
        #[test]
        fn no_spelling_changes_the_digest(value in any_json(), choices in prop::collection::vec(any::<u8>(), 1..64)) {
            let other = respelled(&value, &mut choices.iter().copied().cycle());
            prop_assert_eq!(digest_of_field(&other)?, digest_of_field(&value.to_string())?, "{}", other);
        }

        #[test]
        fn any_changed_leaf_changes_the_digest(value in any_json()) {
            let digest = digest_of_field(&value.to_string())?;
            for leaf in 0.. {
                let mut changed = value.clone();
                if !change_leaf(&mut changed, &mut leaf.clone()) {
                    prop_assert!(leaf > 0, "every value has a leaf");
                    break;
                }
                prop_assert_ne!(digest_of_field(&changed.to_string())?, digest, "{}", changed);
            }
        }

        #[test]
        fn equal_digests_mean_equal_values(left in any_json(), right in any_json()) {
            let same = digest_of_field(&left.to_string())? == digest_of_field(&right.to_string())?;
            prop_assert_eq!(same, left == right);
        }

        #[test]
        fn any_bytes_are_answered(body in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(envelope(&body));
        }

        #[test]
        fn any_brackets_are_answered(body in r#"[\[\]{}",:\\a1 ]{0,60}"#) {
            drop(envelope(body.as_bytes()));
        }
    }
}
