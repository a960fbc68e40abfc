//! The turn of a program: a message of it is judged, and answered.

use super::client::{Client, Stage};
use super::events::Owners;
use super::greeting::{self, Judges, TurnedAway};
use super::limits::Limits;
use super::reply::Reply;
use super::requests::Desk;
use super::shortage::REMEDY;
use crate::node::Node;
use crate::observe::log;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use trunkline_host::control::answers::Done;
use trunkline_host::control::attributes::Reason;
use trunkline_host::control::requests::Hello;
use trunkline_host::control::{Answer, MAX_MESSAGE, Request};
use trunkline_host::socket::{MAX_DESCRIPTORS, Received, SocketError, try_recv_leaving};

/// Why a program is parted with.
pub(super) struct Parting {
    pub(super) reason: Reason,
    pub(super) text: String,
    /// The request that was the reason.
    pub(super) number: u32,
    /// The program, or the service, ends in order: peers hear that the program's QPs have left, and
    /// else of an error.
    pub(super) in_order: bool,
}

impl Parting {
    pub(super) fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self {
            reason,
            text: text.into(),
            number: 0,
            in_order: false,
        }
    }

    pub(super) fn in_order(reason: Reason, text: impl Into<String>) -> Self {
        Self {
            in_order: true,
            ..Self::new(reason, text)
        }
    }

    /// Whether it is for what the program did, which no library does or which held others up.
    pub(super) const fn is_violation(&self) -> bool {
        matches!(
            self.reason,
            Reason::BadMessage | Reason::TooManyRequests | Reason::TooSlow
        )
    }
}

/// What the answers to one program need.
pub(super) struct Turn<'a> {
    pub(super) node: &'a Node,
    pub(super) limits: &'a Limits,
    pub(super) owners: &'a mut Owners,
    pub(super) judges: &'a mut Judges,
    pub(super) client: &'a mut Client,
    pub(super) token: u64,
}

/// What a request is answered with.
pub(super) struct Answered {
    pub(super) number: u32,
    pub(super) reply: Reply,
    /// Events may follow from the request.
    pub(super) tells: bool,
}

impl Turn<'_> {
    /// Attends to a message; `None`: it is answered later.
    pub(super) fn attend(
        &mut self,
        message: &[u8],
        descriptors: [Option<OwnedFd>; MAX_DESCRIPTORS],
    ) -> Result<Option<Answered>, Parting> {
        let [first, second] = descriptors;
        if let Err(parting) = close(self.client, second) {
            self.client.belongings.graves.bury(first);
            return Err(parting);
        }
        let (number, request) = match Request::parse(message) {
            Ok(parsed) => parsed,
            Err(error) => {
                close(self.client, first)?;
                return Err(Parting::new(Reason::BadMessage, error.to_string()));
            }
        };
        let answered = match (&self.client.stage, &request) {
            (Stage::Silent, Request::Hello(hello)) => self.greet(number, hello, first),
            (Stage::Silent, Request::Hold(hold)) => {
                close(self.client, first)?;
                self.be_held(hold.version).map(Some)
            }
            (stage, request) => {
                let is_attached = *stage == Stage::Attached;
                close(self.client, first)?;
                match is_attached {
                    true => self.answer(request).map(Some),
                    false => Err(Parting::new(Reason::BadMessage, "it was not let in yet")),
                }
            }
        };
        let reply = answered.map_err(|parting| Parting { number, ..parting })?;
        let tells = matches!(request, Request::ModifyQp(_) | Request::ModifySrq(_));
        Ok(reply.map(|reply| Answered {
            number,
            reply,
            tells,
        }))
    }

    fn greet(
        &mut self,
        number: u32,
        hello: &Hello,
        memory: Option<OwnedFd>,
    ) -> Result<Option<Reply>, Parting> {
        self.client.name = hello.name.as_str().to_owned();
        let turned_away = |(reason, text): TurnedAway| Parting::new(reason, text);
        if let Err(why) = greeting::understand(hello.version) {
            close(self.client, memory)?;
            return Err(turned_away(why));
        }
        match memory {
            None => attach(self.client, self.node, self.limits).map(Some),
            Some(memory) => {
                let name = (self.token, number);
                let trusted = self.limits.trusted;
                let judged = self.judges.judge(self.client, name, memory, trusted);
                judged.map(|()| None).map_err(turned_away)
            }
        }
    }

    fn be_held(&mut self, version: u32) -> Result<Reply, Parting> {
        greeting::understand(version).map_err(|(reason, text)| Parting::new(reason, text))?;
        self.client.stage = Stage::Holding;
        Ok(Answer::from(Done {}).into())
    }

    fn answer(&mut self, request: &Request) -> Result<Reply, Parting> {
        if let Request::Detach(_) = request {
            return Err(Parting::in_order(Reason::Asked, "it asked for it"));
        }
        let mut desk = Desk {
            node: self.node,
            limits: self.limits,
            owners: self.owners,
            client: self.client,
            token: self.token,
        };
        let answer = desk.answer(request);
        let answer =
            answer.ok_or_else(|| Parting::new(Reason::BadMessage, "it is attached already"))?;
        Ok(answer.unwrap_or_else(|refusal| {
            let renamed = |error| desk.renamed(error, request);
            Reply {
                is_beyond_limit: refusal.is_for_limit(),
                ..refusal.to_answer(renamed).into()
            }
        }))
    }
}

/// Lets a program in.
pub(super) fn attach(client: &mut Client, node: &Node, limits: &Limits) -> Result<Reply, Parting> {
    let weight = limits.weight(client.peer.uid);
    let tenants = node.shared.on_all(|core| core.engine.add_tenant(weight));
    let tenants = tenants.map_err(|error| Parting::new(Reason::Failed, error.to_string()))?;
    // The service alone adds and removes them, in all workers alike.
    assert!(
        tenants.iter().all(|tenant| *tenant == tenants[0]),
        "workers differ"
    );
    client.belongings.tenant = tenants[0];
    client.stage = Stage::Attached;
    log::attached(&client.status());
    Ok(greeting::welcome(node, limits).into())
}

/// Sends an answer.
pub(super) fn deliver(client: &Client, number: u32, reply: &Reply) -> Result<(), Parting> {
    client.send(number, reply).map_err(|error| match error {
        SocketError::System(error)
            if matches!(
                error.kind(),
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
            ) =>
        {
            Parting::new(Reason::Asked, "it closed its end")
        }
        _ => Parting::new(Reason::TooManyRequests, "it does not read its answers"),
    })
}

/// The next message of a program, if there is one.
pub(super) fn hear(
    client: &mut Client,
    buffer: &mut [u8; MAX_MESSAGE],
) -> Result<Option<Received>, Parting> {
    let mut left = Vec::new();
    let heard = try_recv_leaving(client.socket(), buffer, &mut left);
    // What came with no message is closed once the program is gone, which it is now.
    client.belongings.graves.bury(left);
    match heard {
        Ok(Some(received)) => Ok(Some(received)),
        Ok(None) => Err(Parting::new(Reason::Asked, "it closed its end")),
        Err(SocketError::System(error)) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::OutOfMemory => Ok(None),
            _ => Err(Parting::new(Reason::Asked, error.to_string())),
        },
        // It did nothing wrong: this process has as many open as it may.
        Err(SocketError::DescriptorsLost) => Err(Parting::new(Reason::NoDescriptor, REMEDY)),
        Err(error) => Err(Parting::new(Reason::BadMessage, error.to_string())),
    }
}

/// Has a descriptor closed that nobody wants.
fn close(client: &mut Client, descriptor: Option<OwnedFd>) -> Result<(), Parting> {
    let left = descriptor.and_then(|descriptor| client.closer.try_close(descriptor).err());
    match left {
        None => Ok(()),
        Some(left) => {
            // It is closed with all that the program leaves.
            client.belongings.graves.bury([left]);
            let text = "it sends descriptors faster than they can be closed";
            Err(Parting::new(Reason::BadMessage, text))
        }
    }
}
