//! What has to hold for any bytes whatever: they are refused, or the message that was made of them
//! gives the same bytes again.
//!
//! Each function returns whether the bytes were a message, and panics when the law is broken. They
//! are for property tests and fuzz targets.

use super::{Answer, Request};

/// The law of [`Request`].
///
/// # Panics
/// It is broken.
pub fn request(bytes: &[u8]) -> bool {
    let Ok((number, message)) = Request::parse(bytes) else {
        return false;
    };
    assert_eq!(message.to_bytes(number), bytes, "{message:?}");
    true
}

/// The law of [`Answer`].
///
/// # Panics
/// It is broken.
pub fn answer(bytes: &[u8]) -> bool {
    let Ok((number, message)) = Answer::parse(bytes) else {
        return false;
    };
    assert_eq!(message.to_bytes(number), bytes, "{message:?}");
    true
}
