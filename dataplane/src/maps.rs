//! What the memory of this process is made of (proc_pid_maps(5)).

use std::io;
use std::ops::Range;

/// Pages of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FilePlace {
    /// Major and minor number of the device that the file is on.
    pub device: (u32, u32),
    /// Its inode there.
    pub inode: u64,
    /// Bytes from the start of the file.
    pub offset: u64,
}

impl FilePlace {
    /// The place so many bytes further on.
    #[must_use]
    pub const fn after(self, bytes: usize) -> Self {
        Self {
            offset: self.offset.wrapping_add(bytes as u64),
            ..self
        }
    }

    /// Whether both are places in the same file.
    pub const fn is_beside(&self, other: &Self) -> bool {
        self.device.0 == other.device.0
            && self.device.1 == other.device.1
            && self.inode == other.inode
    }
}

/// Addresses side by side that are mapped in one way.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Area {
    /// The addresses.
    pub addresses: Range<usize>,
    /// The program may read there.
    pub readable: bool,
    /// The program may write there.
    pub writable: bool,
    /// The program may run code there.
    pub executable: bool,
    /// What is written there others see that have it mapped.
    pub shared: bool,
    /// Where in a file its first byte is, if it is of a file: hugepages are, too.
    pub file: Option<FilePlace>,
    /// It has a name that the kernel gives to memory of a purpose of its own, as `[stack]`.
    pub special: bool,
}

impl Area {
    /// Whether it is private memory that the program reads and writes, and that is no file, no
    /// stack of the process, no hugepages and no code.
    pub const fn is_plain(&self) -> bool {
        let rights = self.readable && self.writable && !self.executable;
        rights && !self.shared && self.file.is_none() && !self.special
    }

    /// The place in a file that is mapped at `address`, which is in the area.
    pub fn file_at(&self, address: usize) -> Option<FilePlace> {
        let offset = address.checked_sub(self.addresses.start)?;
        Some(self.file?.after(offset))
    }

    /// The rights as mprotect(2) takes them.
    pub fn protection(&self) -> libc::c_int {
        let of = |has, flag| if has { flag } else { libc::PROT_NONE };
        of(self.readable, libc::PROT_READ)
            | of(self.writable, libc::PROT_WRITE)
            | of(self.executable, libc::PROT_EXEC)
    }

    /// What a line of the list says.
    fn parsed(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let mut field = || std::str::from_utf8(fields.next()?).ok();
        let (from, to) = field()?.split_once('-')?;
        let rights = field()?.as_bytes();
        let offset = field()?;
        let (major, minor) = field()?.split_once(':')?;
        let inode = field()?.parse().ok()?;
        let name = fields.next().unwrap_or_default().trim_ascii_start();
        let address = |text| usize::from_str_radix(text, 16).ok();
        let number = |text| u32::from_str_radix(text, 16).ok();
        let file = FilePlace {
            device: (number(major)?, number(minor)?),
            inode,
            offset: u64::from_str_radix(offset, 16).ok()?,
        };
        let ordinary = name.is_empty() || name == b"[heap]" || name.starts_with(b"[anon:");
        Some(Self {
            addresses: address(from)?..address(to)?,
            readable: *rights.first()? == b'r',
            writable: *rights.get(1)? == b'w',
            executable: *rights.get(2)? == b'x',
            shared: *rights.get(3)? == b's',
            file: (inode != 0).then_some(file),
            special: inode == 0 && !ordinary,
        })
    }
}

/// All areas of this process, in the order of their addresses.
#[derive(Clone, Debug, Default)]
pub struct Maps(Vec<Area>);

impl Maps {
    /// Those that there are now.
    ///
    /// # Errors
    /// The kernel does not tell: proc(5) is not mounted, or there is no descriptor left.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parsed(&std::fs::read("/proc/self/maps")?))
    }

    fn parsed(list: &[u8]) -> Self {
        Self(
            list.split(|byte| *byte == b'\n')
                .filter_map(Area::parsed)
                .collect(),
        )
    }

    /// All areas.
    pub fn all(&self) -> &[Area] {
        &self.0
    }

    /// The place in a file that is mapped at `address`.
    pub fn file_at(&self, address: usize) -> Option<FilePlace> {
        let area = self.within(&(address..address + 1)).first()?;
        area.file_at(address)
    }

    /// The areas that have some of these addresses.
    pub fn within(&self, addresses: &Range<usize>) -> &[Area] {
        let first = self
            .0
            .partition_point(|area| area.addresses.end <= addresses.start);
        let end = self
            .0
            .partition_point(|area| area.addresses.start < addresses.end);
        self.0.get(first..end).unwrap_or_default()
    }

    /// Whether each of these addresses is in an area that `is_so`. For no addresses: whether their
    /// start is.
    pub fn all_within(&self, addresses: &Range<usize>, is_so: impl Fn(&Area) -> bool) -> bool {
        let end = addresses.end.max(addresses.start.saturating_add(1));
        let mut covered = addresses.start;
        for area in self.within(&(addresses.start..end)) {
            if area.addresses.start > covered || !is_so(area) {
                return false;
            }
            covered = area.addresses.end;
        }
        covered >= end
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    const LIST: &[u8] = b"\
1000-3000 r-xp 00002000 fd:01 42                         /lib/with blanks.so
3000-5000 rw-p 00000000 00:00 0
5000-6000 rw-p 00000000 00:00 0                          [heap]
6000-7000 rw-s 00000000 00:01 7                          /memfd:x (deleted)
8000-9000 rw-p 00000000 00:00 0                          [anon: with blanks]
9000-a000 ---p 00000000 00:00 0
a000-b000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn an_area_is_plain_where_it_is_private_memory_of_no_file_and_no_purpose() {
        let maps = Maps::parsed(LIST);
        let plain: Vec<_> = maps.all().iter().map(Area::is_plain).collect();
        assert_eq!(plain, [false, true, true, false, true, false, false]);
        let code = &maps.all()[0];
        let place = FilePlace {
            device: (0xfd, 1),
            inode: 42,
            offset: 0x2010,
        };
        assert_eq!(code.file_at(0x1010), Some(place));
        assert!(code.readable && code.executable && !code.writable && !code.shared);
        assert_eq!(code.file_at(0xfff), None);
        assert!(maps.all()[3].shared);
    }

    #[test]
    fn addresses_are_found_where_all_of_them_are() {
        let maps = Maps::parsed(LIST);
        let plain = |from, to| maps.all_within(&(from..to), Area::is_plain);
        assert!(plain(0x3000, 0x6000) && plain(0x3fff, 0x5001) && plain(0x8010, 0x8011));
        assert!(!plain(0x3000, 0x6001), "the next area is of a file");
        assert!(!plain(0x2fff, 0x4000), "the area before is code");
        assert!(!plain(0x6fff, 0x9000), "there is a gap");
        assert!(!plain(0xb000, 0xb001), "behind the last area");
        assert!(plain(0x3000, 0x3000) && !plain(0x7000, 0x7000), "no bytes");
        assert_eq!(maps.within(&(0x4000..0x7800)).len(), 3);
        assert!(maps.within(&(0x7000..0x8000)).is_empty());
    }

    #[test]
    fn the_memory_of_this_process_is_found() {
        let maps = Maps::read().unwrap();
        let (heap, stack) = (Box::new(7_u8), 7_u8);
        let at = |byte: &u8| {
            let address = std::ptr::from_ref(byte).addr();
            address..address + 1
        };
        assert!(maps.all_within(&at(&heap), Area::is_plain));
        assert!(maps.all_within(&at(&stack), |area| area.writable));
        assert!(!maps.all_within(&(8..9), |_| true));
    }
}
