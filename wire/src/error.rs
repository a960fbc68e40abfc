//! What can be wrong with bytes.

/// Why bytes are not the header they should be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The buffer ends before the header does.
    #[error("{header}: {got} bytes where {need} are needed")]
    Truncated {
        /// Header that was being read.
        header: &'static str,
        /// Bytes it takes.
        need: usize,
        /// Bytes there were.
        got: usize,
    },
    /// A field holds a value its header does not allow.
    #[error("{header}: {field} is {value:#x}")]
    Invalid {
        /// Header that was being read.
        header: &'static str,
        /// Field at fault.
        field: &'static str,
        /// What it held.
        value: u32,
    },
}
