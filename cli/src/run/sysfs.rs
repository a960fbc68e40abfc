//! What programs look for under /sys and /dev, in a mount namespace of the program's own.

mod device;
mod folder;
mod namespace;

use anyhow::{Context, Result};
use clap::ValueEnum;
use device::Device;
use folder::Folder;
use rustix::fs::Mode;
use rustix::process::umask;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use trunkline::service::several;

/// What the devices of the library are called; their numbers follow.
const NAME: &str = "trunk";
const VERBS_NAME: &str = "uverbs";
/// Classes of devices.
const CLASSES: &str = "/sys/class";
const CLASS: &str = "/sys/class/infiniband";
const VERBS_CLASS: &str = "/sys/class/infiniband_verbs";
/// Where the nodes of character devices are.
const NODES: &str = "/dev/infiniband";
/// What stands there: nobody talks to the kernel by it, but programs look whether it is there.
const NODE: &str = "/dev/null";

/// Whether the program finds its devices under /sys and /dev.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum Sysfs {
    /// Under /sys, where a mount namespace can be had without a user namespace, as by root.
    Auto,
    /// Under /dev as well, and in a user namespace where needed: the program sees files of other
    /// users as nobody's there.
    Always,
    /// Nothing is prepared.
    Never,
}

impl Sysfs {
    /// Whether there is anything to try.
    pub(super) fn is_wanted(self) -> bool {
        match self {
            Self::Auto => namespace::may_mount(),
            Self::Always => true,
            Self::Never => false,
        }
    }

    /// Prepares files for the services at the sockets of that list, as far as is wanted. There must
    /// be one thread only.
    ///
    /// # Errors
    /// Files are wanted whatever it takes, and cannot be had.
    pub(super) fn prepare(self, sockets: &OsStr) -> Result<()> {
        let prepared = namespace::begin(self == Self::Always).and_then(|()| self.fill(sockets));
        let prepared = prepared.context("cannot prepare files under /sys and /dev");
        match (self, prepared) {
            (Self::Auto, Err(error)) => {
                let why = crate::chain(&error);
                crate::print_line(&format!("trunkline: {why}; --sysfs never does without"));
                Ok(())
            }
            (_, prepared) => prepared,
        }
    }

    /// Asks the services, and makes the files.
    fn fill(self, sockets: &OsStr) -> Result<()> {
        let devices = several(sockets).map(|socket| Device::ask(Path::new(socket)));
        let devices = devices.collect::<Result<Vec<_>>>()?;
        namespace::enter()?;
        // Others may read what the program's own mask would keep from them.
        let before = umask(Mode::WGRP | Mode::WOTH);
        let mut covered = Vec::new();
        let mut made = classes(&devices, &mut covered);
        if made.is_ok() && self == Self::Always {
            made = nodes(devices.len(), &mut covered);
        }
        umask(before);
        if made.is_err() {
            // What is there in part would be worse than nothing.
            for folder in covered.iter().rev() {
                folder.uncover();
            }
        }
        made
    }
}

/// The files under /sys.
fn classes(devices: &[Device], covered: &mut Vec<Folder>) -> Result<()> {
    namespace::keep_apart("/sys")?;
    let is_there = Path::new(CLASS).exists() && Path::new(VERBS_CLASS).exists();
    if !is_there {
        // Nobody can make a folder there, so one with all that is there and ours takes its place.
        let folder = covering(covered, CLASSES)?;
        folder.keep(|_| true)?;
        for class in [CLASS, VERBS_CLASS] {
            folder.make(Path::new(class))?;
        }
        folder.seal()?;
    }
    let folder = covering(covered, CLASS)?;
    folder.keep(|name| !name.starts_with(NAME))?;
    for (number, device) in devices.iter().enumerate() {
        for (file, text) in device.files() {
            folder.write(
                &PathBuf::from(format!("{CLASS}/{NAME}{number}/{file}")),
                &text,
            )?;
        }
    }
    folder.seal()?;
    let folder = covering(covered, VERBS_CLASS)?;
    folder.keep(|name| is_of_others(name, devices.len()) && name != "abi_version")?;
    folder.write(&Path::new(VERBS_CLASS).join("abi_version"), "6")?;
    for number in 0..devices.len() {
        let at = PathBuf::from(format!("{VERBS_CLASS}/{VERBS_NAME}{number}"));
        folder.write(&at.join("ibdev"), &format!("{NAME}{number}"))?;
        folder.write(&at.join("abi_version"), "1")?;
    }
    folder.seal()
}

/// The nodes under /dev. Where the folder is not there and cannot be made there are none: without
/// privilege nobody can make one.
fn nodes(count: usize, covered: &mut Vec<Folder>) -> Result<()> {
    match std::fs::create_dir(NODES) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Ok(()),
        Ok(()) | Err(_) => {}
    }
    namespace::keep_apart("/dev")?;
    let folder = covering(covered, NODES)?;
    folder.keep(|name| is_of_others(name, count))?;
    for number in 0..count {
        folder.bind(
            Path::new(NODE),
            &PathBuf::from(format!("{NODES}/{VERBS_NAME}{number}")),
        )?;
    }
    folder.seal()
}

/// Covers a folder, and notes that.
fn covering<'a>(covered: &'a mut Vec<Folder>, path: &'static str) -> Result<&'a Folder> {
    covered.push(Folder::cover(path)?);
    Ok(&covered[covered.len() - 1])
}

/// Whether a character device is none of this program's first `count` ones.
fn is_of_others(name: &str, count: usize) -> bool {
    let number = name.strip_prefix(VERBS_NAME);
    let number = number.and_then(|number| number.parse::<usize>().ok());
    number.is_none_or(|number| number >= count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_others_are_those_with_other_numbers() {
        let of_others = |name| is_of_others(name, 2);
        assert!(!of_others("uverbs0") && !of_others("uverbs1"));
        assert!(of_others("uverbs2") && of_others("rdma_cm") && of_others("uverbs"));
    }
}
