//! What a message gets from the list of its fields, and a side from the list of its messages.

use super::ControlError;

/// The fields of a message, all that is behind its header.
pub(super) trait Fields: Sized {
    /// Judges them.
    fn read(bytes: &[u8]) -> Result<Self, ControlError>;

    /// Appends them.
    fn write(&self, out: &mut Vec<u8>);
}

/// A message: its type, its name in errors, its fields in their order.
macro_rules! layout {
    (
        $(#[$outer:meta])*
        pub struct $name:ident = $text:literal {
            $($(#[$inner:meta])* pub $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub struct $name {
            $($(#[$inner])* pub $field: $type,)*
        }

        impl $name {
            /// Bytes of the message behind its header.
            pub const LEN: usize = 0 $(+ <$type as $crate::control::field::Field>::LEN)*;
        }

        impl $crate::control::layout::Fields for $name {
            fn read(bytes: &[u8]) -> Result<Self, $crate::control::ControlError> {
                if bytes.len() != Self::LEN {
                    return Err($crate::control::ControlError::BadLength {
                        message: $text,
                        need: Self::LEN,
                        got: bytes.len(),
                    });
                }
                #[allow(unused_mut, unused_variables, reason = "some messages have no fields")]
                let mut rest = bytes;
                Ok(Self {
                    $($field: $crate::control::part($text, stringify!($field), &mut rest)?,)*
                })
            }

            #[allow(unused_variables, reason = "some messages have no fields")]
            fn write(&self, out: &mut Vec<u8>) {
                $($crate::control::field::Field::write(&self.$field, out);)*
            }
        }

        const _: () = assert!($crate::control::HEADER + $name::LEN <= $crate::control::MAX_MESSAGE);

        #[cfg(test)]
        impl $crate::control::tests::Any for $name {
            #[allow(unused_variables, reason = "some messages have no fields")]
            fn any(draw: &mut $crate::control::tests::Draw<'_>) -> Self {
                Self { $($field: $crate::control::tests::Any::any(draw),)* }
            }
        }
    };
}

/// All messages of a side with their kinds.
macro_rules! messages {
    (
        $(#[$outer:meta])*
        pub enum $side:ident {
            $($(#[$inner:meta])* $name:ident = $kind:literal,)*
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[allow(missing_docs, reason = "the types of the messages say what they are")]
        pub enum $side {
            $($(#[$inner])* $name($name),)*
        }

        impl $side {
            /// Judges a datagram, and gives the number of the request with the message.
            ///
            /// # Errors
            /// The kind is unknown, the length is not that of the kind, a reserved field is not
            /// zero, or a field holds what it must not.
            pub fn parse(message: &[u8]) -> Result<(u32, Self), $crate::control::ControlError> {
                use $crate::control::layout::Fields;
                let (header, fields) = $crate::control::Header::split(message)?;
                let kind = header.kind;
                let parsed = match kind {
                    $($kind => Self::$name($name::read(fields)?),)*
                    _ => return Err($crate::control::ControlError::UnknownKind { kind }),
                };
                Ok((header.number, parsed))
            }

            /// The message as a datagram, with the number of the request.
            pub fn to_bytes(&self, number: u32) -> Vec<u8> {
                use $crate::control::layout::Fields;
                match self {
                    $(Self::$name(fields) => {
                        let header = $crate::control::Header { kind: $kind, number };
                        let mut out = header.begin($name::LEN);
                        fields.write(&mut out);
                        out
                    })*
                }
            }
        }

        $(impl From<$name> for $side {
            fn from(message: $name) -> Self {
                Self::$name(message)
            }
        }

        impl TryFrom<$side> for $name {
            type Error = $side;

            fn try_from(message: $side) -> Result<Self, $side> {
                match message {
                    $side::$name(fields) => Ok(fields),
                    other => Err(other),
                }
            }
        })*

        #[cfg(test)]
        impl $crate::control::tests::Side for $side {
            const KINDS: &'static [u16] = &[$($kind),*];

            fn draw(kind: u16, draw: &mut $crate::control::tests::Draw<'_>) -> Self {
                use $crate::control::tests::Any;
                match kind {
                    $($kind => Self::$name($name::any(draw)),)*
                    _ => unreachable!("tests draw the kinds that there are"),
                }
            }

            fn read(message: &[u8]) -> Result<(u32, Self), $crate::control::ControlError> {
                Self::parse(message)
            }

            fn bytes(&self, number: u32) -> Vec<u8> {
                self.to_bytes(number)
            }
        }
    };
}

pub(super) use {layout, messages};
