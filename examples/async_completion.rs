//! Completions without spinning: two threaded nodes, and one event loop that sleeps in poll(2) on
//! the descriptors of its completion queues. An async runtime would do the same.
//!
//! poll(2) is that of the crate `rustix`, with its feature `event`.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, Ipv4Addr};
use trunkline::{
    Access, Completion, Cq, Error, Mr, Node, Qp, QpOptions, RecvWr, SendWr, Status, WorkOpcode,
};

const ROUNDS: u64 = 200;

/// An address of the loopback network that other programs hardly use.
fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 31, std::process::id() as u8, last).into()
}

/// One end of the conversation.
struct End {
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(last: u8) -> Result<Self, Error> {
        // Threaded is the default: the node's own thread drives it, and sleeps when it has nothing
        // to do.
        let node = Node::builder().address(address(last)).build()?;
        let pd = node.alloc_pd();
        let cq = node.create_cq(16)?;
        let qp = pd.create_qp(&cq, &cq, &QpOptions::default())?;
        let mr = pd.register(64, Access::LOCAL_WRITE)?;
        Ok(Self { cq, qp, mr })
    }

    fn receive(&self) -> Result<(), Error> {
        self.qp
            .post_recv(&[RecvWr::new().sges(&[self.mr.sge(0, 8)])])
    }

    /// Says a number: inline, so that no buffer has to wait for the completion.
    fn say(&self, number: u64) -> Result<(), Error> {
        self.qp
            .post_send(&[SendWr::send().wr_id(number).inline(&number.to_ne_bytes())])
    }

    fn heard(&self, done: &Completion) -> Result<u64, Error> {
        assert_eq!(
            (done.status, done.opcode),
            (Status::Success, WorkOpcode::Receive)
        );
        let mut bytes = [0; 8];
        self.mr.read(0, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// The next completion, if there is one. Otherwise its descriptor is armed: it becomes readable
    /// when one comes. What came just before arming raises nothing, hence the second look.
    fn next_or_arm(&self) -> Result<Option<Completion>, Error> {
        if let Some(done) = self.cq.poll_one()? {
            return Ok(Some(done));
        }
        self.cq.arm(false);
        Ok(self.cq.poll_one()?)
    }
}

fn main() -> Result<(), Error> {
    let (client, server) = (End::new(1)?, End::new(2)?);
    client.qp.connect(server.qp.address())?;
    server.qp.connect(client.qp.address())?;
    server.receive()?;
    client.receive()?;
    client.say(0)?;
    let (mut answers, mut sleeps) = (0, 0);
    while answers < ROUNDS {
        if let Some(done) = server.next_or_arm()? {
            let question = server.heard(&done)?;
            server.receive()?;
            server.say(question * question)?;
        } else if let Some(done) = client.next_or_arm()? {
            assert_eq!(client.heard(&done)?, answers * answers);
            answers += 1;
            client.receive()?;
            client.say(answers)?;
        } else {
            let queues = [&client.cq, &server.cq];
            let mut fds = queues.map(|cq| PollFd::from_borrowed_fd(cq.fd(), PollFlags::IN));
            let second = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            let ready = poll(&mut fds, Some(&second)).expect("both descriptors are open");
            assert!(ready > 0, "nothing came for a second");
            sleeps += 1;
            for cq in queues {
                cq.take_events();
            }
        }
    }
    println!("{ROUNDS} questions answered, {sleeps} sleeps");
    Ok(())
}
