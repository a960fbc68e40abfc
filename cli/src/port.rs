//! The option that says what carries packets.

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};
use std::ffi::OsStr;
use trunkline::PortKind;

/// Takes the name of a kind of port.
pub(crate) const fn kinds() -> Kinds {
    Kinds
}

/// Parses names of kinds of ports, those of families that were added among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kinds;

impl TypedValueParser for Kinds {
    type Value = PortKind;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<PortKind, Error> {
        let text = value.to_string_lossy();
        text.parse().map_err(|why| {
            let option = arg.map_or_else(|| "--port".to_owned(), ToString::to_string);
            let said = format!("invalid value {text:?} for '{option}': {why}\n");
            Error::raw(ErrorKind::ValueValidation, said).with_cmd(command)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let built_in =
            PortKind::BUILT_IN.map(|kind| PossibleValue::new(kind.name()).help(kind.about()));
        let others = PortKind::families().into_iter();
        let others = others.map(|family| PossibleValue::new(family.name()).help(family.about()));
        Some(Box::new(built_in.into_iter().chain(others)))
    }
}
