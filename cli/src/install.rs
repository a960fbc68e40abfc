//! `trunkline install`: the command, the library for verbs and a unit for systemd, for good.

mod files;
mod manifest;

use super::library;
use super::output;
use crate::usage::wrong;
use anyhow::{Context, Result};
use clap::Args;
use files::Wanted;
use manifest::{Installed, Manifest};
use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The socket of the service that the unit starts.
const SOCKET: &str = "/run/trunkline/socket";
/// Characters that systemd or the loader of libraries takes for something else in a path.
const SPECIAL: [char; 8] = [':', ';', '"', '\'', '\\', '$', '%', '`'];

/// Options of `trunkline install`.
#[derive(Args, Debug)]
#[command(
    after_help = "Installs DIR/bin/trunkline, DIR/lib/systemd/system/trunkline.service, and in \
    DIR/lib/trunkline the library (libibverbs.so.1, and libibverbs.so, which leads there) and the \
    list of all this (installed.json), and says what makes the system use them: nothing \
    else is changed. --uninstall removes what is as it was installed, and nothing else."
)]
pub(crate) struct InstallArgs {
    /// Folder to install below, such as /usr/local.
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
    /// File of the library [default: as trunkline run finds it].
    #[arg(long, value_name = "FILE", conflicts_with = "uninstall")]
    library: Option<PathBuf>,
    /// Remove what was installed there.
    #[arg(long)]
    uninstall: bool,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What becomes of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Action {
    Installed,
    /// There was one of that name.
    Replaced,
    Removed,
    /// It is not as it was installed.
    Kept,
    /// Somebody has removed it.
    Gone,
}

impl Action {
    /// In words: what was done, or would be.
    const fn words(self, dry: bool) -> &'static str {
        match (self, dry) {
            (Self::Installed, false) => "installed",
            (Self::Installed, true) => "would install",
            (Self::Replaced, false) => "replaced",
            (Self::Replaced, true) => "would replace",
            (Self::Removed, false) => "removed",
            (Self::Removed, true) => "would remove",
            (Self::Kept, _) => "kept, as it has changed since it was installed:",
            (Self::Gone, _) => "not there any more:",
        }
    }
}

/// A file, and what becomes of it.
#[derive(Debug, Serialize)]
struct Step {
    path: PathBuf,
    action: Action,
}

/// What is printed.
#[derive(Debug, Serialize)]
struct Report {
    prefix: PathBuf,
    dry_run: bool,
    files: Vec<Step>,
    /// What makes the system use it, a line each.
    next: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// The prefix or the library is none, or something cannot be written.
pub(crate) fn run(args: &InstallArgs) -> Result<()> {
    output::check()?;
    let prefix = prefix(&args.prefix)?;
    let report = match args.uninstall {
        true => uninstall(prefix, args.dry_run)?,
        false => install(prefix, args)?,
    };
    if args.json {
        return output::print_json(&report);
    }
    let mut out = output::out();
    for Step { path, action } in &report.files {
        writeln!(out, "{} {}", action.words(report.dry_run), path.display())?;
    }
    for line in &report.next {
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}

/// The prefix, for whoever is in another folder.
fn prefix(given: &Path) -> Result<PathBuf> {
    let shown = render(given);
    let prefix = std::path::absolute(given);
    let prefix = prefix.map_err(|error| wrong(format!("--prefix '{shown}': {error}")))?;
    let text = prefix.to_str().unwrap_or(":");
    match text.contains(|c: char| c.is_control() || SPECIAL.contains(&c)) {
        true => Err(wrong(format!(
            "--prefix {shown}: a path for systemd and for the loader of libraries has none of {}",
            String::from_iter(SPECIAL)
        ))),
        false => Ok(prefix),
    }
}

fn install(prefix: PathBuf, args: &InstallArgs) -> Result<Report> {
    let library = library::find(args.library.as_deref())?;
    let wanted = files::all(&prefix, library)?;
    let step = |wanted: &Wanted| -> Result<Step> {
        let action = match wanted.is_there(&prefix)? {
            true => Action::Replaced,
            false => Action::Installed,
        };
        let path = prefix.join(&wanted.path);
        Ok(Step { path, action })
    };
    // All of it is looked at before any of it is changed.
    let files = wanted.iter().map(step).collect::<Result<Vec<_>>>()?;
    let mut manifest = Manifest::read(&prefix)?.unwrap_or_default();
    if !args.dry_run {
        let done = wanted
            .iter()
            .try_for_each(|wanted| put(wanted, &prefix, &mut manifest));
        // What was put there before something went wrong can be removed, too.
        let noted = manifest.write(&prefix);
        done.and(noted)?;
    }
    Ok(Report {
        next: next(&prefix),
        prefix,
        dry_run: args.dry_run,
        files,
    })
}

fn put(wanted: &Wanted, prefix: &Path, manifest: &mut Manifest) -> Result<()> {
    let path = prefix.join(&wanted.path);
    if let Some(folder) = path.parent() {
        files::make_folder(folder, prefix, manifest)?;
    }
    wanted.put(prefix)?;
    let look = Installed::look(prefix, &wanted.path);
    manifest.add(look.with_context(|| format!("cannot look at {}", render(&path)))?);
    Ok(())
}

/// What makes the system use it.
fn next(prefix: &Path) -> Vec<String> {
    let [program, library, unit] = ["bin/trunkline", library::INSTALLED, files::UNIT_PATH]
        .map(|path| for_shell(&prefix.join(path)));
    vec![
        "one program runs on Trunkline by".to_owned(),
        format!("  {program} run PROGRAM ARGS..."),
        "all programs of a shell do by".to_owned(),
        format!("  export LD_LIBRARY_PATH={library} TRUNKLINE_SOCKET={SOCKET}"),
        "all of this host do by these two, and TRUNKLINE_SOCKET in /etc/environment".to_owned(),
        format!("  echo {library} > /etc/ld.so.conf.d/00-trunkline.conf"),
        "  ldconfig".to_owned(),
        format!("the service at {SOCKET} starts with the system by"),
        "  echo 'address = \"ADDRESS OF THIS HOST\"' > /etc/trunkline.toml".to_owned(),
        format!("  systemctl enable --now {unit}"),
    ]
}

/// A path as shells take it: none has a quote.
fn for_shell(path: &Path) -> String {
    let path = render(path);
    match path.contains(' ') {
        true => format!("'{path}'"),
        false => path,
    }
}

fn uninstall(prefix: PathBuf, dry_run: bool) -> Result<Report> {
    let manifest = Manifest::read(&prefix)?;
    let manifest =
        manifest.with_context(|| format!("nothing is installed below {}", render(&prefix)))?;
    let mut files = Vec::new();
    for file in &manifest.files {
        let path = prefix.join(&file.path);
        let action = match Installed::look(&prefix, &file.path) {
            Ok(now) if now == *file => Action::Removed,
            Err(error) if error.kind() == ErrorKind::NotFound => Action::Gone,
            Ok(_) | Err(_) => Action::Kept,
        };
        if action == Action::Removed && !dry_run {
            remove(&path)?;
        }
        files.push(Step { path, action });
    }
    if !dry_run {
        remove(&Manifest::path(&prefix))?;
        for folder in manifest.folders.iter().rev() {
            // One that somebody has put something into stays.
            let _ = std::fs::remove_dir(prefix.join(folder));
        }
    }
    Ok(Report {
        prefix,
        dry_run,
        files,
        next: Vec::new(),
    })
}

fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path).with_context(|| format!("cannot remove {}", render(path)))
}

/// A path for people.
fn render(path: &Path) -> String {
    path.display().to_string()
}
