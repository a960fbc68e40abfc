//! What a program calls the objects that errors are about.

use super::Desk;
use trunkline_host::Handle;
use trunkline_host::control::Request;
use trunkline_qpmap::VerbsError;

impl Desk<'_> {
    /// The error of a request as the program hears it: by its own names, not by those of the node.
    pub(in crate::service) fn renamed(&self, error: VerbsError, request: &Request) -> VerbsError {
        let own = match error {
            VerbsError::CqInError { cq } => {
                let own = self.owners.cq_named(cq);
                own.map(|cq| VerbsError::CqInError { cq: cq.index })
            }
            VerbsError::SrqInError { .. } => {
                let own = self.srq_of(request);
                own.map(|srq| VerbsError::SrqInError { srq: srq.index })
            }
            other => Some(other),
        };
        // There is none for what is gone.
        own.unwrap_or(VerbsError::InvalidArgument { what: "object" })
    }

    /// The only SRQ that an error of the request can be about.
    fn srq_of(&self, request: &Request) -> Option<Handle> {
        match request {
            Request::CreateQp(request) => request.srq,
            Request::ModifySrq(request) => Some(request.srq),
            Request::ModifyQp(request) => {
                let srq = self.qp(request.qp).ok()?.qp.srq()?.id();
                let (_, handle) = self.owners.srqs.get(&srq)?;
                Some(*handle)
            }
            _ => None,
        }
    }
}
