//! A work queue of a Data Streaming Accelerator, as the kernel shows one that is there.

use super::trap;
use std::fs;
use std::path::{Path, PathBuf};
use trunkline_dpdk_eal::Eal;

/// The queue, by which DPDK calls the device.
pub(crate) const NAME: &str = "wq0.0";
/// Most batches that the driver has under way.
const BATCHES: u32 = 16;
/// The longest batch.
const BATCH: u32 = 32;

/// What the kernel shows of a work queue, in a folder that goes with this.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        let root = std::env::temp_dir().join(format!("trunkline-dsa-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        // A page of an empty file is one that nobody can write: a store there is a signal.
        write("dev/wq0.0", "");
        write("sys/wq0.0/type", "user\n");
        write("sys/wq0.0/name", "dpdk_test\n");
        write("sys/wq0.0/size", &BATCHES.to_string());
        write("sys/wq0.0/max_batch_size", &BATCH.to_string());
        write("sys/dsa0/numa_node", "-1\n");
        Self(root)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn set(name: &str, path: &Path) {
    // SAFETY: a process does this once and first, with no other thread that asks for variables.
    unsafe { std::env::set_var(name, path) };
}

/// DPDK with the queue, whose portal takes descriptors for the player. Once in a process.
pub(crate) fn set_up() -> Eal {
    // DPDK reads all of it while it starts.
    let tree = Tree::new();
    set("DSA_DEV_PATH", &tree.path("dev"));
    set("DSA_SYSFS_PATH", &tree.path("sys"));
    trap::install();
    trunkline_dma::set_up(&[]).unwrap()
}
