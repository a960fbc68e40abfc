//! The ports that need no other libraries.

use trunkline_conformance::{PACKET, Suite, UDP, XDP, conformance_tests};

conformance_tests!(Suite {
    pairs: &[
        [UDP, UDP],
        [PACKET, PACKET],
        [PACKET, UDP],
        [UDP, PACKET],
        [XDP, XDP],
        [XDP, UDP],
        [UDP, XDP],
        [PACKET, XDP],
    ],
    alike: &[UDP, PACKET, XDP],
});
