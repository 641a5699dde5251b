//! What the page cache holds of a file.
//!
//! Owns the two ways to ask: cachestat(2) (Linux 6.5, for the owner of a file and who may write to
//! it), and before that a read that shall not wait. Invariant: the first brings nothing in; the
//! second may, and what it brought in may then count as there.
#![expect(unsafe_code, reason = "no crate offers cachestat(2) as a safe call")]

use std::fs::File;
use std::io::IoSliceMut;

use rustix::fd::AsRawFd;
use rustix::fs::{Advice, fadvise};
use rustix::io::{ReadWriteFlags, preadv2};

/// The number of cachestat(2) where archfs is built for, and on most other machines
/// (scripts/syscall.tbl of Linux); libc knows it for some of them only.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range` of linux/mman.h, bytes.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// `struct cachestat` of linux/mman.h, pages.
#[derive(Default)]
#[repr(C)]
struct Pages {
    cached: u64,
    dirty: u64,
    in_writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether the byte at each of `offsets` of `file` is in the page cache; `false` where the system
/// does not tell.
pub(super) fn holds(file: &File, offsets: impl Iterator<Item = u64> + Clone) -> Vec<bool> {
    if let Some(told) = offsets.clone().map(|offset| ask(file, offset)).collect() {
        return told;
    }
    // Asked for a byte that is not there, the kernel says so and brings it in all the same: by
    // itself if reads are random, else with what may come next, which would be asked for then.
    let _ = fadvise(file, 0, None, Advice::Random);
    let told = offsets.map(|offset| try_read(file, offset)).collect();
    let _ = fadvise(file, 0, None, Advice::Normal);
    told
}

/// By cachestat(2); `None` where there is none, or not for this user and file.
fn ask(file: &File, offset: u64) -> Option<bool> {
    let range = Range { offset, len: 1 };
    let mut pages = Pages::default();
    // SAFETY: the kernel reads a `Range` and writes a `Pages`, laid out as in linux/mman.h, through
    // pointers to such that live longer than the call.
    let status = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut pages, 0_u32)
    };
    (status == 0).then_some(pages.cached > 0)
}

/// By reading without waiting (preadv2, RWF_NOWAIT).
fn try_read(file: &File, offset: u64) -> bool {
    let mut byte = [0];
    let bytes = &mut [IoSliceMut::new(&mut byte)];
    preadv2(file, bytes, offset, ReadWriteFlags::NOWAIT) == Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_tell_what_was_read_from_what_was_not() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("file");
        std::fs::write(&path, vec![1; 3 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let offsets = [0, 1 << 20, 2 << 20];
        match ask(&file, 0) {
            Some(false) => {}
            Some(true) => return eprintln!("SKIPPED: files here stay in memory"),
            None => return eprintln!("SKIPPED: a kernel without cachestat(2)"),
        }
        assert_eq!(holds(&file, offsets.into_iter()), [false; 3]);
        // Asking has brought nothing in, and a read brings in what it is for.
        fadvise(&file, 0, None, Advice::Random).unwrap();
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, 1 << 20).unwrap();
        if ask(&file, 1 << 20) == Some(false) {
            return eprintln!(
                "SKIPPED: files here have their pages elsewhere, as those of overlayfs"
            );
        }
        assert_eq!(holds(&file, offsets.into_iter()), [false, true, false]);
        assert!(try_read(&file, 1 << 20));
    }

    #[test]
    fn what_has_no_pages_holds_nothing() {
        let pipe = File::from(rustix::pipe::pipe().unwrap().0);
        assert_eq!(holds(&pipe, [0, 4096].into_iter()), [false; 2]);
    }
}
