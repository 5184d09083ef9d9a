//! Pages of lists: how long one may be, and the cursors between them. Must never cut an item, nor promise
//! a next page that has none.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schema::projection::Page;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use service::problem::Problem;

/// Bytes of items after which a page ends, although fewer than its limit: bodies and values can be large.
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The lists, each with the first byte of its cursors, so that none takes another's.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum List {
    Attention = b'a',
    Facts = b'f',
    History = b'h',
    Subjects = b's',
}

impl List {
    /// An opaque cursor: the place of a page's last item, so that new data before or after it changes
    /// nothing.
    fn cursor(self, place: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode([&[self as u8], place].concat())
    }

    /// The place in a cursor; `None` for what is no cursor of this list.
    pub(super) fn place(self, cursor: &str) -> Option<Vec<u8>> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        bytes.strip_prefix(&[self as u8]).map(<[u8]>::to_vec)
    }
}

/// Takes items, each with its place in the list, until `limit` or [`PAGE_BYTES_MAX`] is reached.
pub(super) fn page<T: Serialize>(
    list: List,
    limit: usize,
    items: impl Iterator<Item = Result<(Vec<u8>, T), Problem>>,
) -> Result<Page<Box<RawValue>>, Problem> {
    let mut page = Page { items: Vec::new(), next: None };
    let (mut bytes, mut last) = (0, Vec::new());
    for item in items {
        let (place, item) = item?;
        if page.items.len() == limit || bytes >= PAGE_BYTES_MAX {
            page.next = Some(list.cursor(&last));
            break;
        }
        let text = to_raw_value(&item).map_err(|error| super::unwritable(&error))?;
        bytes += text.get().len();
        page.items.push(text);
        last = place;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(items: &[String], limit: usize) -> Vec<usize> {
        let mut pages = Vec::new();
        let mut from = 0;
        loop {
            let rest =
                (from..).zip(&items[from..]).map(|(place, item): (usize, _)| Ok((vec![place as u8], item)));
            let page = page(List::Facts, limit, rest).expect("a page");
            pages.push(page.items.len());
            let Some(next) = page.next else { return pages };
            let place = List::Facts.place(&next).expect("its own cursor");
            assert!(List::History.place(&next).is_none(), "another list's cursor");
            from = usize::from(place[0]) + 1;
        }
    }

    #[test]
    fn a_page_ends_at_its_limit_or_its_bytes() {
        let small = vec!["x".to_owned(); 6];
        assert_eq!(pages(&small, 4), [4, 2]);
        assert_eq!(pages(&small, 3), [3, 3]);
        assert_eq!(pages(&small, 6), [6]);
        assert_eq!(pages(&[], 6), [0]);
        let large = vec!["x".repeat(PAGE_BYTES_MAX / 3 + 1); 7];
        assert_eq!(pages(&large, 500), [3, 3, 1]);
    }
}
