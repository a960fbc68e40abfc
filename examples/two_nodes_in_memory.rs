//! Two nodes in one program, joined by a pair of memory ports: no socket, no privileges, no
//! threads. One SENDs to the other, then READs what the other has.
//!
//! The memory ports come from the crate `trunkline-dataplane`, beside `trunkline`.

use trunkline::{Access, Cq, Drive, Error, Node, QpOptions, RecvWr, SendWr, Status};
use trunkline_dataplane::{MemoryConfig, MemoryPort};

/// Drives both nodes until `cq` has a completion; gives the bytes it is about.
fn finish(nodes: [&Node; 2], cq: &Cq) -> Result<u32, Error> {
    loop {
        for node in nodes {
            node.poll()?;
        }
        if let Some(done) = cq.poll_one()? {
            assert_eq!(done.status, Status::Success);
            return Ok(done.byte_len);
        }
    }
}

fn main() -> Result<(), Error> {
    let (port_a, port_b) = MemoryPort::pair(MemoryConfig::default());
    let node = |last| {
        Node::builder()
            .address([10, 0, 0, last].into())
            .drive(Drive::Inline)
    };
    let (a, b) = (
        node(1).build_on(Box::new(port_a))?,
        node(2).build_on(Box::new(port_b))?,
    );
    let (pd_a, pd_b) = (a.alloc_pd(), b.alloc_pd());
    let (cq_a, cq_b) = (a.create_cq(16)?, b.create_cq(16)?);
    let (mr_a, mr_b) = (
        pd_a.register(4096, Access::ALL)?,
        pd_b.register(4096, Access::ALL)?,
    );
    let qp_a = pd_a.create_qp(&cq_a, &cq_a, &QpOptions::default())?;
    let qp_b = pd_b.create_qp(&cq_b, &cq_b, &QpOptions::default())?;
    qp_a.connect(qp_b.address())?;
    qp_b.connect(qp_a.address())?;

    mr_a.write(0, b"hello")?;
    qp_b.post_recv(&[RecvWr::new().wr_id(1).sges(&[mr_b.sge(0, 64)])])?;
    let from = [mr_a.sge(0, 5)];
    let send = SendWr::send().wr_id(2).sges(&from).signaled();
    qp_a.post_send(&[send])?;
    let received = finish([&a, &b], &cq_b)?;
    finish([&a, &b], &cq_a)?;
    let mut text = vec![0; received as usize];
    mr_b.read(0, &mut text)?;
    assert_eq!(text, b"hello");
    println!("SEND: node b received {:?}", String::from_utf8_lossy(&text));

    mr_b.write(1000, b"read without b's program")?;
    let into = [mr_a.sge(100, 24)];
    let read = SendWr::read(mr_b.remote(1000))
        .wr_id(3)
        .sges(&into)
        .signaled();
    qp_a.post_send(&[read])?;
    let mut text = vec![0; finish([&a, &b], &cq_a)? as usize];
    mr_a.read(100, &mut text)?;
    assert_eq!(text, b"read without b's program");
    println!("READ: node a fetched {:?}", String::from_utf8_lossy(&text));
    Ok(())
}
