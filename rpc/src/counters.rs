//! What an endpoint counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What an endpoint has counted since it was made, for all its connections.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        /// The same while it counts.
        #[derive(Debug, Default)]
        pub(crate) struct Counting {
            $(pub(crate) $name: Counter,)+
        }

        impl Counters {
            /// Adds what a lane has counted.
            pub(crate) fn add(&mut self, counting: &Counting) {
                $(self.$name += counting.$name.get();)+
            }

            /// Returns all of them with their names.
            pub const fn all(&self) -> [(&'static str, u64); [$(stringify!($name)),+].len()] {
                [$((stringify!($name), self.$name)),+]
            }
        }
    };
}

counters! {
    /// Connections that were opened, by either end.
    connections_opened,
    /// Those that have ended.
    connections_closed,
    /// Peers that wanted a connection and got none: there was no room for one more, or they did not
    /// speak of requests.
    connections_refused,
    /// Requests that clients here have sent.
    requests_sent,
    /// Responses, and refusals, that they got.
    responses_received,
    /// Requests that nobody waited for any more: dropped, or past their deadline.
    requests_abandoned,
    /// Requests that services here were handed.
    requests_received,
    /// Responses, and refusals, that went out.
    responses_sent,
    /// Requests that were refused by the service.
    requests_refused,
    /// Requests that were refused as there was no room for their bytes.
    requests_overloaded,
    /// Requests whose service was dropped: they were cancelled, or their deadline has passed.
    requests_cancelled,
    /// Messages that went out, each with any number of requests and responses.
    messages_sent,
    /// Messages that came.
    messages_received,
    /// Bytes that went by READ or WRITE.
    bytes_transferred,
    /// Connections that were ended as their peer had said what no end says.
    violations,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
