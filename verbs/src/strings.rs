//! Words for values, and conversions of rates.

use std::ffi::{CStr, c_char, c_int, c_uint};

/// The word for `value` in a table that begins with the word for 0.
fn word(words: &[&'static CStr], value: c_int) -> *const c_char {
    let found = usize::try_from(value)
        .ok()
        .and_then(|value| words.get(value));
    found.copied().unwrap_or(c"unknown").as_ptr()
}

/// `ibv_node_type_str(3)`
#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    const WORDS: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    word(&WORDS, node_type)
}

/// `ibv_port_state_str(3)`
#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    const WORDS: [&CStr; 6] = [
        c"no state change (NOP)",
        c"down",
        c"init",
        c"armed",
        c"active",
        c"active defer",
    ];
    word(&WORDS, state)
}

/// `ibv_event_type_str(3)`
#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    const WORDS: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"subnet manager change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    word(&WORDS, event)
}

/// `ibv_wc_status_str(3)`
#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    const WORDS: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    word(&WORDS, status)
}

/// `IBV_RATE_MAX`, which stands for no rate that is known.
const RATE_MAX: c_uint = 0;

/// Values of `enum ibv_rate`, each with its multiple of 2.5 Gb/s and its Mb/s. From 14 Gb/s on
/// lanes have another coding, and the multiple is that of the data, rounded.
const RATES: [(c_uint, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 6, 14_062),
    (12, 22, 56_250),
    (13, 45, 112_500),
    (14, 67, 168_750),
    (15, 10, 25_781),
    (16, 40, 103_125),
    (17, 80, 206_250),
    (18, 120, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// `ibv_rate_to_mult(3)`
#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    let found = RATES.iter().find(|(known, ..)| *known == rate);
    found.map_or(-1, |(_, mult, _)| *mult)
}

/// `mult_to_ibv_rate(3)`
#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_uint {
    let found = RATES.iter().find(|(_, known, _)| *known == mult);
    found.map_or(RATE_MAX, |(rate, ..)| *rate)
}

/// `ibv_rate_to_mbps(3)`
#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    let found = RATES.iter().find(|(known, ..)| *known == rate);
    found.map_or(-1, |(.., mbps)| *mbps)
}

/// `mbps_to_ibv_rate(3)`
#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    let found = RATES.iter().find(|(.., known)| *known == mbps);
    found.map_or(RATE_MAX, |(rate, ..)| *rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(word: *const c_char) -> &'static str {
        // SAFETY: all words are constants that end with a zero.
        unsafe { CStr::from_ptr(word) }
            .to_str()
            .expect("they are ASCII")
    }

    #[test]
    fn each_value_has_a_word_of_its_own_and_others_are_unknown() {
        let tables: [(extern "C" fn(c_int) -> *const c_char, c_int); 3] = [
            (ibv_port_state_str, 6),
            (ibv_event_type_str, 20),
            (ibv_wc_status_str, 24),
        ];
        for (of, count) in tables {
            let words: Vec<_> = (0..count).map(|value| text(of(value))).collect();
            for (n, word) in words.iter().enumerate() {
                assert!(!words[..n].contains(word), "{word}");
            }
            assert_eq!(text(of(count)), "unknown");
            assert_eq!(text(of(-1)), "unknown");
        }
        // IBV_WC_RETRY_EXC_ERR is 12, IBV_EVENT_QP_LAST_WQE_REACHED 16.
        assert_eq!(
            text(ibv_wc_status_str(12)),
            "transport retry counter exceeded"
        );
        assert_eq!(text(ibv_event_type_str(16)), "last WQE reached");
    }

    #[test]
    fn rates_come_back_from_both_units() {
        for (rate, mult, mbps) in RATES {
            assert_eq!(
                (ibv_rate_to_mult(rate), mult_to_ibv_rate(mult)),
                (mult, rate)
            );
            assert_eq!(
                (ibv_rate_to_mbps(rate), mbps_to_ibv_rate(mbps)),
                (mbps, rate)
            );
            // A rate is at most 7 % beside its multiple, that of the coding, and half of a step.
            let by_mult = mult * 2_500;
            assert!((mbps - by_mult).abs() <= mbps * 7 / 100 + 1_250, "{rate}");
        }
        assert_eq!((ibv_rate_to_mult(0), ibv_rate_to_mbps(99)), (-1, -1));
        assert_eq!(
            (mult_to_ibv_rate(3), mbps_to_ibv_rate(1)),
            (RATE_MAX, RATE_MAX)
        );
    }
}
