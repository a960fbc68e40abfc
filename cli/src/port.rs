//! The option that says what carries packets.

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};
use std::ffi::OsStr;
use trunkline::PortKind;

/// Takes the name of a kind of port.
pub(crate) const fn kinds() -> Kinds {
    Kinds { families: true }
}

/// The same of an option whose kinds have one name for both ends.
pub(crate) const fn built_in_kinds() -> Kinds {
    Kinds { families: false }
}

/// Parses names of kinds of ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kinds {
    /// Those of families that were added, too.
    families: bool,
}

impl TypedValueParser for Kinds {
    type Value = PortKind;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<PortKind, Error> {
        let text = value.to_string_lossy();
        let refuse = |why: String| {
            let option = arg.map_or_else(|| "--port".to_owned(), ToString::to_string);
            let said = format!("invalid value {text:?} for '{option}': {why}\n");
            Error::raw(ErrorKind::ValueValidation, said).with_cmd(command)
        };
        match text.parse() {
            Ok(PortKind::Other(_)) if !self.families => Err(refuse(
                "its two ends have different names: measure it by `trunkline bench` at both".into(),
            )),
            Ok(kind) => Ok(kind),
            Err(why) => Err(refuse(why.to_string())),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let built_in =
            PortKind::BUILT_IN.map(|kind| PossibleValue::new(kind.name()).help(kind.about()));
        let others = PortKind::families().into_iter().filter(|_| self.families);
        let others = others.map(|family| PossibleValue::new(family.name()).help(family.about()));
        Some(Box::new(built_in.into_iter().chain(others)))
    }
}
