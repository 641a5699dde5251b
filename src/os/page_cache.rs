//! Which bytes of a file are in the page cache.
//!
//! There are two ways to ask. cachestat(2) (Linux 6.5) requires that the user owns the file or can
//! write to it. Otherwise archfs tries a non-blocking read. cachestat never loads a page. The read
//! may, and a page that it loaded may then count as cached.
#![expect(unsafe_code, reason = "no crate offers cachestat(2) as a safe call")]

use std::fs::File;
use std::io::IoSliceMut;

use rustix::fd::AsRawFd;
use rustix::fs::{Advice, fadvise};
use rustix::io::{ReadWriteFlags, preadv2};

/// The number of cachestat(2) on all supported architectures and most others (scripts/syscall.tbl
/// of Linux). libc defines it for only some of them.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range` of linux/mman.h, in bytes.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// `struct cachestat` of linux/mman.h, in pages.
#[derive(Default)]
#[repr(C)]
struct Pages {
    cached: u64,
    dirty: u64,
    in_writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether the byte at each of `offsets` is in the page cache. `false` if the system cannot say.
pub fn holds(file: &File, offsets: impl Iterator<Item = u64> + Clone) -> Vec<bool> {
    if let Some(cached) = offsets.clone().map(|offset| ask_cachestat(file, offset)).collect() {
        return cached;
    }
    // A non-blocking read of an uncached byte fails, but still starts loading its page. By default
    // the kernel also reads the following pages, which would then count as cached. Random advice
    // prevents that.
    let _ = fadvise(file, 0, None, Advice::Random);
    let cached = offsets.map(|offset| try_read(file, offset)).collect();
    let _ = fadvise(file, 0, None, Advice::Normal);
    cached
}

/// Asks cachestat(2). `None` if the kernel has no such call or refuses it for this user and file.
fn ask_cachestat(file: &File, offset: u64) -> Option<bool> {
    let range = Range { offset, len: 1 };
    let mut pages = Pages::default();
    // SAFETY: the kernel reads a `Range` and writes a `Pages`, laid out as in linux/mman.h. Both
    // pointers stay valid during the call.
    let status = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut pages, 0_u32)
    };
    (status == 0).then_some(pages.cached > 0)
}

/// Tries a non-blocking read (preadv2, RWF_NOWAIT).
fn try_read(file: &File, offset: u64) -> bool {
    let mut byte = [0];
    let bytes = &mut [IoSliceMut::new(&mut byte)];
    preadv2(file, bytes, offset, ReadWriteFlags::NOWAIT) == Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_tell_cached_pages_from_others() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("file");
        std::fs::write(&path, vec![1; 3 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let offsets = [0, 1 << 20, 2 << 20];
        match ask_cachestat(&file, 0) {
            Some(false) => {}
            Some(true) => return eprintln!("SKIPPED: files here stay in memory"),
            None => return eprintln!("SKIPPED: a kernel without cachestat(2)"),
        }
        assert_eq!(holds(&file, offsets.into_iter()), [false; 3]);
        // Asking has loaded nothing, and a read loads only its own page.
        fadvise(&file, 0, None, Advice::Random).unwrap();
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, 1 << 20).unwrap();
        if ask_cachestat(&file, 1 << 20) == Some(false) {
            return eprintln!(
                "SKIPPED: files here have their pages elsewhere, as those of overlayfs"
            );
        }
        assert_eq!(holds(&file, offsets.into_iter()), [false, true, false]);
        assert!(try_read(&file, 1 << 20));
    }

    #[test]
    fn a_pipe_has_no_cached_pages() {
        let pipe = File::from(rustix::pipe::pipe().unwrap().0);
        assert_eq!(holds(&pipe, [0, 4096].into_iter()), [false; 2]);
    }
}
