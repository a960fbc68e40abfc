//! `trunkline-benches`: prints measurements as JSON.

use std::time::Duration;
use trunkline_benches::engine;

fn main() {
    let short = Duration::from_millis(400);
    let list = vec![
        engine::engine_send64(short),
        engine::engine_write1m("engine_write1m_l2", 128 << 10, short),
        engine::engine_write1m("engine_write1m_64m", 64 << 20, short),
    ];
    for m in &list {
        println!("{:24} {:>16.0} {:12} {:>16.0} {:.3}", m.name, m.value, m.unit, m.yardstick_value, m.ratio);
    }
}
