//! Directories of tests.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of a test, which goes with it.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("trunkline-cli-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).into_os_string().into_string().unwrap()
    }

    /// A file with this text.
    pub(crate) fn written(&self, text: &str) -> String {
        let path = self.file("config.toml");
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What is left of it is in a directory for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
