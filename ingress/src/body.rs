//! Reading a body: cut off at the endpoint's limit while it arrives, whatever its framing. Must never
//! hand on a body that was cut, and never hold more than the limit.

use std::time::Duration;

use axum::body::{BodyDataStream, HttpBody};
use bytes::Bytes;
use futures_util::StreamExt;

use crate::error::Refusal;

/// Bytes a refused request may still send until its connection is closed.
const DISCARDED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Reads the whole body. One that announces more than `bytes_max` is refused unread.
pub(crate) async fn read(
    body: &mut BodyDataStream,
    bytes_max: usize,
    read_timeout: Duration,
) -> Result<Bytes, Refusal> {
    let too_large = || Refusal::BodyTooLarge { bytes_max };
    if HttpBody::size_hint(body).lower() > bytes_max as u64 {
        return Err(too_large());
    }
    let read = async {
        // Copied, because the chunks of a body sent in tiny ones would hold many times its size.
        let mut bytes = Vec::new();
        while let Some(data) = body.next().await {
            let data = data.map_err(|_| Refusal::BodyIncomplete)?;
            if bytes.len() + data.len() > bytes_max {
                return Err(too_large());
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Bytes::from(bytes))
    };
    tokio::time::timeout(read_timeout, read).await.unwrap_or(Err(Refusal::BodyTimedOut))
}

/// Lets a client that is still sending finish, within bounds, so that it reads our refusal: closing a
/// connection with unread bytes resets it, and most clients look for no answer on a broken connection.
pub(crate) fn discard(mut body: BodyDataStream, read_timeout: Duration) {
    if body.is_end_stream() {
        return;
    }
    tokio::spawn(async move {
        let discard = async {
            let mut bytes = 0;
            while let Some(Ok(data)) = body.next().await {
                bytes += data.len();
                if bytes > DISCARDED_BYTES_MAX {
                    break;
                }
            }
        };
        // Whether it ended or ran out of time, the body is dropped here.
        drop(tokio::time::timeout(read_timeout, discard).await);
    });
}
