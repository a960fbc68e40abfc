//! Links what stands in place of libibverbs.so.1.
//!
//! Cargo's own shared libraries cannot have the versions that programs import: rustc passes a
//! version script of its own, and linkers take one or drop both. So cargo builds a static library,
//! and the C compiler links that.

use crate::cargo;
use anyhow::{Context, Result};
use clap::Args;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// What programs load, and what others are linked with or load by that name (NCCL does).
const LIBRARY: &str = "libibverbs.so.1";
const LINK: &str = "libibverbs.so";
/// Names and versions.
const MAP: &str = "verbs/libibverbs.map";

/// What is behind the archive: the systems's libraries that Rust's standard library needs, and the
/// ways of the linker. A panic is caught at each entry, so the unwinder is needed. The library
/// stays loaded for good (`nodelete`), as its threads run its code.
const REST: [&str; 12] = [
    "-Wl,--no-undefined-version",
    "-Wl,--gc-sections",
    "-Wl,-z,relro",
    "-Wl,-z,now",
    "-Wl,-z,defs",
    "-Wl,-z,nodelete",
    "-Wl,--as-needed",
    "-lgcc_s",
    "-lc",
    "-lm",
    "-lpthread",
    "-ldl",
];

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Profile of cargo to build with.
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
}

impl Options {
    /// With optimization.
    pub(crate) fn release() -> Self {
        Self {
            profile: "release".to_owned(),
        }
    }
}

/// Builds the library; gives the folder that it is in, which `LD_LIBRARY_PATH` takes.
///
/// # Errors
/// It cannot be built; a name of the map is in no object.
pub(crate) fn build(options: &Options) -> Result<PathBuf> {
    let profile = options.profile.as_str();
    // What else is built with this profile has the same dependencies then.
    let mut command = cargo::cargo(&["build", "--quiet", "--lib", "--profile", profile]);
    match profile {
        "release" => command.args(cargo::CHOOSE_RELEASED),
        // Tests ask for more of dependencies than libraries do; these are the ones that run it.
        "dev" => command.args(["--workspace", "--test", "programs"]),
        _ => command.arg("--workspace"),
    };
    cargo::run(command, None)?;
    let target = cargo::target_dir()?;
    let built = if profile == "dev" { "debug" } else { profile };
    let archive = target.join(built).join("libtrunkline_verbs.a");
    let folder = target.join("verbs");
    let folder = if profile == "release" {
        folder
    } else {
        folder.join(built)
    };
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut link = cargo::command("cc", &["-shared"]);
    // A program that runs keeps the file that it has: the new one takes its name when it is whole.
    let [library, fresh] = [LIBRARY, "libibverbs.so.new"].map(|name| folder.join(name));
    link.arg("-o").arg(&fresh);
    link.arg(format!("-Wl,-soname,{LIBRARY}"));
    link.arg(format!("-Wl,--version-script={MAP}"));
    link.arg("-Wl,--whole-archive").arg(archive);
    link.arg("-Wl,--no-whole-archive").args(REST);
    cargo::output(link)?;
    fs::rename(&fresh, &library).with_context(|| library.display().to_string())?;
    let name = folder.join(LINK);
    if fs::read_link(&name).is_err() {
        symlink(LIBRARY, &name).with_context(|| name.display().to_string())?;
    }
    Ok(folder)
}
