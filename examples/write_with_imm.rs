//! A ring of slots in the receiver's memory, filled by WRITE with immediate over UDP on loopback:
//! the data goes where the sender says, the immediate tells the receiver which slot is full.

use std::net::{IpAddr, Ipv4Addr};
use trunkline::{Access, Drive, Error, Extra, Node, QpOptions, RecvWr, SendWr, Status, WorkOpcode};

const SLOTS: usize = 8;
const SLOT: usize = 10_000;
const MESSAGES: usize = 100;

/// What message `number` holds.
fn content(number: usize) -> Vec<u8> {
    (0..SLOT).map(|at| (at * 31 + number * 7) as u8).collect()
}

/// An address of the loopback network that other programs hardly use.
fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 30, std::process::id() as u8, last).into()
}

fn main() -> Result<(), Error> {
    let sender = Node::builder()
        .address(address(1))
        .drive(Drive::Inline)
        .build()?;
    let receiver = Node::builder()
        .address(address(2))
        .drive(Drive::Inline)
        .build()?;
    let (pd_s, pd_r) = (sender.alloc_pd(), receiver.alloc_pd());
    let (cq_s, cq_r) = (sender.create_cq(64)?, receiver.create_cq(64)?);
    let source = pd_s.register(SLOTS * SLOT, Access::LOCAL_READ)?;
    let ring = pd_r.register(SLOTS * SLOT, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let from = pd_s.create_qp(&cq_s, &cq_s, &QpOptions::default())?;
    let to = pd_r.create_qp(&cq_r, &cq_r, &QpOptions::default())?;
    from.connect(to.address())?;
    to.connect(from.address())?;

    // A WRITE with immediate takes a receive at the other end, though it puts nothing there: the
    // receives posted are the slots that are free.
    for slot in 0..SLOTS {
        to.post_recv(&[RecvWr::new().wr_id(slot as u64)])?;
    }
    let (mut written, mut acknowledged, mut seen) = (0, 0, 0);
    while seen < MESSAGES || acknowledged < MESSAGES {
        while written < MESSAGES && written < seen + SLOTS && written < acknowledged + SLOTS {
            let slot = written % SLOTS;
            source.write(slot * SLOT, &content(written))?;
            let sges = [source.sge(slot * SLOT, SLOT)];
            let request = SendWr::write_imm(ring.remote(slot * SLOT), written as u32)
                .wr_id(written as u64)
                .sges(&sges)
                .signaled();
            from.post_send(&[request])?;
            written += 1;
        }
        sender.poll()?;
        receiver.poll()?;
        while let Some(done) = cq_r.poll_one()? {
            assert_eq!(
                (done.status, done.opcode),
                (Status::Success, WorkOpcode::ReceiveWriteImm)
            );
            assert_eq!(done.extra, Extra::Immediate(seen as u32));
            let mut found = vec![0; SLOT];
            ring.read(seen % SLOTS * SLOT, &mut found)?;
            assert!(
                found == content(seen),
                "message {seen} is there before it is told"
            );
            to.post_recv(&[RecvWr::new().wr_id(done.wr_id)])?;
            seen += 1;
        }
        while let Some(done) = cq_s.poll_one()? {
            assert_eq!(
                (done.wr_id, done.status),
                (acknowledged as u64, Status::Success)
            );
            acknowledged += 1;
        }
    }
    let sent = sender.counters().sent;
    println!("{MESSAGES} messages of {SLOT} bytes through {SLOTS} slots, {sent} packets sent");
    Ok(())
}
