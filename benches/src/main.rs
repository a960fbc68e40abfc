//! `trunkline-benches`: prints measurements as JSON.

use std::time::Duration;
use trunkline_benches::engine;

fn main() {
    let short = Duration::from_millis(400);
    let only = std::env::args().nth(1).unwrap_or_default();
    let show = |m: trunkline_benches::Measurement| println!("{:24} {:>16.0} {:12} {:>16.0} {:.3}", m.name, m.value, m.unit, m.yardstick_value, m.ratio);
    if "engine_send64".contains(&only) { show(engine::engine_send64(short)); }
    if "engine_write1m_l2".contains(&only) { show(engine::engine_write1m("engine_write1m_l2", 128 << 10, short)); }
    if "engine_write1m_64m".contains(&only) { show(engine::engine_write1m("engine_write1m_64m", 64 << 20, short)); }
}
