//! Which subjects a list asks for, and where in the order of keys the next of them can be. Must never make
//! a list read the subjects that it passes over.

use schema::Provider;
use schema::subject::encoded;

/// Wanted parts of a subject; `None` takes any.
#[derive(Clone, Debug, Default)]
pub struct SubjectFilter {
    /// Tenant, provider and kind, as they stand in a key.
    parts: [Option<String>; 3],
}

/// Where a subject's key stands, seen from a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is wanted.
    Wanted,
    /// It is not, and nothing is before this key, which is greater.
    NotBefore(String),
    /// It is not, and nothing after it is.
    PastAll,
}

impl SubjectFilter {
    /// Wants subjects of a tenant, a provider and a kind, where these are given.
    pub fn new(tenant: Option<&str>, provider: Option<Provider>, kind: Option<&str>) -> Self {
        Self {
            parts: [tenant.map(encoded), provider.map(|name| name.as_str().to_owned()), kind.map(encoded)],
        }
    }

    /// Compares part by part: at the first that differs, all keys with the same parts before it and the
    /// wanted one in its place stand together, either after this key or before it.
    pub(super) fn place(&self, key: &str) -> Place {
        let mut prefix = String::new();
        for (part, wanted) in key.split('/').zip(&self.parts) {
            match wanted {
                Some(wanted) if wanted != part => {
                    let first = format!("{prefix}{wanted}/");
                    return if first.as_str() > key { Place::NotBefore(first) } else { past(prefix) };
                }
                Some(_) | None => {
                    prefix.push_str(part);
                    prefix.push('/');
                }
            }
        }
        Place::Wanted
    }
}

/// The place after all keys that begin with `prefix`, which is empty or ends with `/`.
fn past(mut prefix: String) -> Place {
    match prefix.pop() {
        Some(_) => {
            // The character after `/`.
            prefix.push('0');
            Place::NotBefore(prefix)
        }
        None => Place::PastAll,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use schema::Subject;

    use super::*;

    #[test]
    fn seeks_to_where_the_next_can_be() {
        let filter = SubjectFilter::new(None, Some(Provider::Shoc), Some("work_order"));
        let not_before = |key: &str| Place::NotBefore(key.to_owned());
        assert_eq!(filter.place("acme/shoc/work_order/7"), Place::Wanted);
        assert_eq!(filter.place("acme/shoc/event/7"), not_before("acme/shoc/work_order/"));
        assert_eq!(filter.place("acme/shoc/zebra/7"), not_before("acme/shoc0"));
        assert_eq!(filter.place("acme/ycloud/message/7"), not_before("acme0"));
        let filter = SubjectFilter::new(Some("acme"), None, None);
        assert_eq!(filter.place("aaaa/ycloud/message/7"), not_before("acme/"));
        assert_eq!(filter.place("bcme/ycloud/message/7"), Place::PastAll);
    }

    proptest! {
        /// Following the filter finds what looking at every key would.
        #[test]
        fn finds_exactly_the_wanted(
            subjects in prop::collection::vec(("[a-c/-]{1,2}", 0_usize..3, "[x-z/-]{1,2}", "[0-9]{1,2}"), 0..60),
            tenant in prop::option::of("[a-c/-]{1,2}"),
            provider in prop::option::of(0_usize..3),
            kind in prop::option::of("[x-z/-]{1,2}"),
        ) {
            let subjects: BTreeSet<String> = subjects.into_iter().map(|(tenant, provider, kind, id)| {
                Subject { tenant, provider: Provider::ALL[provider], kind, id }.key()
            }).collect();
            let provider = provider.map(|index| Provider::ALL[index]);
            let wanted: Vec<_> = subjects.iter().filter(|key| {
                let subject = Subject::from_key(key).expect("a key");
                tenant.as_ref().is_none_or(|tenant| *tenant == subject.tenant)
                    && provider.is_none_or(|provider| provider == subject.provider)
                    && kind.as_ref().is_none_or(|kind| *kind == subject.kind)
            }).collect();
            let filter = SubjectFilter::new(tenant.as_deref(), provider, kind.as_deref());
            let (mut found, mut from) = (Vec::new(), String::new());
            while let Some(key) = subjects.range(from.clone()..).next() {
                match filter.place(key) {
                    Place::Wanted => {
                        found.push(key);
                        from = format!("{key}\0");
                    }
                    Place::NotBefore(next) => {
                        prop_assert!(next > *key, "a seek goes forward");
                        from = next;
                    }
                    Place::PastAll => break,
                }
            }
            prop_assert_eq!(found, wanted);
        }
    }
}
