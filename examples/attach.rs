//! A program whose QPs a service carries, so that it shares connections with the others of its
//! host: `cargo run --example attach -- @trunkline` beside `trunkline serve`. Without the name of a
//! socket it begins a service of its own.

use std::net::Ipv4Addr;
use std::time::Duration;
use trunkline::service::{Limits, Service};
use trunkline::{Access, Drive, Error, Node, QpOptions, RecvWr, SendWr, Status};

const PATIENCE: Duration = Duration::from_secs(5);

/// What `trunkline serve --address ADDRESS --socket SOCKET` does.
fn serve(socket: &str) -> Result<Service, Error> {
    let address = Ipv4Addr::new(127, 31, std::process::id() as u8, 1);
    let node = Node::builder()
        .address(address.into())
        .drive(Drive::Threaded)
        .build()?;
    Service::start(node, socket, &Limits::default())
}

fn main() -> Result<(), Error> {
    let own = format!("@trunkline-example/{}", std::process::id());
    let (_service, socket) = match std::env::args().nth(1) {
        Some(named) => (None, named),
        None => (Some(serve(&own)?), own),
    };
    // From here on it is a node like any other.
    let node = Node::attach(&socket)?;
    let (pd, cq) = (node.alloc_pd(), node.create_cq(16)?);
    // Memory that the node allocates is shared with the service.
    let mr = pd.register(4096, Access::ALL)?;
    let [from, to] = [(); 2].map(|()| pd.create_qp(&cq, &cq, &QpOptions::default()));
    let (from, to) = (from?, to?);
    from.connect(to.address())?;
    to.connect(from.address())?;
    mr.write(0, b"hello")?;
    to.post_recv(&[RecvWr::new().wr_id(1).sges(&[mr.sge(2048, 64)])])?;
    from.post_send(&[SendWr::send().wr_id(2).sges(&[mr.sge(0, 5)]).signaled()])?;
    for _ in 0..2 {
        let done = cq.wait(PATIENCE)?.expect("both ends are here");
        assert_eq!(done.status, Status::Success);
    }
    let mut heard = [0; 5];
    mr.read(2048, &mut heard)?;
    assert_eq!(&heard, b"hello");
    println!("one QP said hello to the other by the service at {socket}");
    Ok(())
}
