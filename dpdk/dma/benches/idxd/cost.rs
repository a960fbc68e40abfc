//! The measurement.

#[path = "../../tests/portal/player.rs"]
mod player;
#[path = "../../tests/portal/queues.rs"]
mod queues;
#[path = "../../tests/portal/trap.rs"]
mod trap;

use player::Player;
use std::time::{Duration, Instant};
use trunkline_dataplane::copy::Bounds;
use trunkline_dma::{CopyEngine, Dmadev, Job, Offload, Ticket};

/// Prints what a copy costs in batches of some sizes.
pub(crate) fn print() {
    let device = Dmadev::open(queues::set_up(), queues::NAME).unwrap();
    let player = Player::start(0, 0);
    let mut engine = Offload::new(device);
    for batch in [1, 8, 31] {
        match cost(&mut engine, batch) {
            Some(cost) => println!("batches of {batch}: {cost:.0} ns a copy"),
            None => println!("batches of {batch}: no other core was free in time"),
        }
    }
    // The engine waits for the player.
    drop((engine, player));
}

/// Median of some hundred batches: submits and the poll, without the kick and what it waits for.
/// `None`: the player never was as quick as that waits.
fn cost(engine: &mut Offload<Dmadev>, batch: usize) -> Option<f64> {
    const BLOCK: usize = 4096;
    const WAIT: Duration = Duration::from_micros(300);
    let mut data = vec![1_u8; batch * BLOCK];
    let mut memory = vec![0_u8; batch * BLOCK];
    let (from, to) = (data.as_mut_ptr(), memory.as_mut_ptr());
    let within = Bounds::of(to, batch * BLOCK);
    let mut done = [Ticket(0); 32];
    let mut costs = Vec::new();
    for _ in 0..500 {
        let start = Instant::now();
        for at in 0..batch {
            let at = |base: *mut u8| base.wrapping_add(at * BLOCK);
            let job = Job::place(at(from), at(to), BLOCK, within);
            // SAFETY: blocks that do not overlap, in memory that outlives their tickets.
            unsafe { engine.submit(Ticket(0), &job) }.unwrap();
        }
        let submitted = start.elapsed();
        engine.kick();
        let waiting = Instant::now();
        while waiting.elapsed() < WAIT {
            std::hint::spin_loop();
        }
        let polling = Instant::now();
        let mut heard_of = engine.poll(&mut done);
        if heard_of == batch {
            costs.push((submitted + polling.elapsed()).as_nanos() as f64 / batch as f64);
        }
        while heard_of < batch {
            std::thread::yield_now();
            heard_of += engine.poll(&mut done);
        }
    }
    costs.sort_by(f64::total_cmp);
    costs.get(costs.len() / 2).copied()
}
