//! The library that stands in place of the distribution's libibverbs: where it is, and how it is
//! told from others.

use crate::environment;
use anyhow::{Context, Result, bail, ensure};
use object::elf::{FileHeader64, SHT_NOTE};
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, ReadCache};
use std::fs::File;
use std::path::{Path, PathBuf};

/// What programs load.
pub(crate) const NAME: &str = "libibverbs.so.1";
/// Where it is below the folder of an installation.
pub(crate) const INSTALLED: &str = "lib/trunkline";
/// The variable that names its file.
const VARIABLE: &str = "TRUNKLINE_LIBRARY";
/// The name of the note that this library alone has (verbs/src/note.rs).
const NOTE: &[u8] = b"Trunkline";

/// Finds the library: the file that is named, or that the environment names; else beside this
/// program, in the installation that this program is of, or where cargo has built it.
///
/// # Errors
/// It is nowhere, or what is named is another one.
pub(crate) fn find(named: Option<&Path>) -> Result<PathBuf> {
    let set = environment::get(VARIABLE).map(PathBuf::from);
    if let Some(file) = named.map(Path::to_owned).or(set) {
        check(&file)?;
        return std::path::absolute(&file).context("no folder");
    }
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let places = places(&program);
    let found = places.into_iter().find(|place| is_ours(place));
    found.with_context(|| {
        format!(
            "there is no {NAME} of Trunkline beside {}: build one with `cargo xtask verbs`, or \
             name it with --library",
            program.display()
        )
    })
}

/// Where it may be, for a program at that path.
fn places(program: &Path) -> Vec<PathBuf> {
    let Some(folder) = program.parent() else {
        return Vec::new();
    };
    let mut folders = vec![folder.to_owned()];
    if let (Some(above), Some(profile)) = (folder.parent(), folder.file_name()) {
        // `cargo xtask verbs` leaves those of other profiles than release in folders of their own.
        let built = above.join("verbs");
        folders.extend([above.join(INSTALLED), built.join(profile), built]);
    }
    folders.iter().map(|folder| folder.join(NAME)).collect()
}

/// Checks that a file is the library.
///
/// # Errors
/// It is not there, has another name than programs look for, or is another library.
pub(crate) fn check(file: &Path) -> Result<()> {
    let shown = file.display();
    if let Err(error) = File::open(file) {
        bail!("cannot open {shown}: {error}");
    }
    ensure!(
        file.file_name().is_some_and(|name| name == NAME),
        "{shown} is not called {NAME}, as programs call it"
    );
    ensure!(is_ours(file), "{shown} is not Trunkline's library");
    Ok(())
}

/// Whether a file is a library of Trunkline.
pub(crate) fn is_ours(file: &Path) -> bool {
    File::open(file).is_ok_and(|file| has_note(file).unwrap_or(false))
}

fn has_note(file: File) -> object::Result<bool> {
    let file = &ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    for section in header.sections(endian, file)?.iter() {
        if section.sh_type(endian) != SHT_NOTE {
            continue;
        }
        let Some(mut notes) = section.notes(endian, file)? else {
            continue;
        };
        while let Some(note) = notes.next()? {
            if note.name() == NOTE {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn it_is_beside_the_program_in_its_installation_or_built_by_cargo() {
        let of = |program: &str| -> Vec<String> {
            let places = places(Path::new(program)).into_iter();
            places.map(|place| place.display().to_string()).collect()
        };
        assert_eq!(
            of("/opt/t/bin/trunkline"),
            [
                "/opt/t/bin/libibverbs.so.1",
                "/opt/t/lib/trunkline/libibverbs.so.1",
                "/opt/t/verbs/bin/libibverbs.so.1",
                "/opt/t/verbs/libibverbs.so.1",
            ]
        );
        let built = of("/src/target/debug/trunkline");
        assert!(built.contains(&"/src/target/verbs/debug/libibverbs.so.1".into()));
    }

    #[test]
    fn other_files_are_not_taken_for_it() {
        let folder = std::env::temp_dir().join(format!("trunkline-library-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join(NAME);
        let why = |file: &Path| check(file).unwrap_err().to_string();
        assert!(why(&file).contains("No such file"), "{}", why(&file));
        std::fs::copy(std::env::current_exe().unwrap(), &file).unwrap();
        assert!(why(&file).ends_with("is not Trunkline's library"));
        std::fs::write(&file, "\x7fELF, but no more").unwrap();
        assert!(why(&file).ends_with("is not Trunkline's library"));
        let other = folder.join("libother.so");
        assert!(why(&other).contains("No such file"), "{}", why(&other));
        std::fs::copy(&file, &other).unwrap();
        assert!(why(&other).ends_with("as programs call it"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
