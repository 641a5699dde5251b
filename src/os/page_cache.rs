//! Which bytes of a file are in the page cache.
//!
//! There are two ways to ask. cachestat(2) (Linux 6.5) requires that the user owns the file or can
//! write to it. Otherwise archfs tries a non-blocking read. cachestat never loads a page. The read
//! may, and a page that it loaded may then count as cached.
#![expect(
    unsafe_code,
    reason = "no crate offers cachestat(2), or preadv(2) into one buffer, as a safe call"
)]

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fd::AsRawFd;
use rustix::fs::{Advice, fadvise, major, minor};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::os::kernel_file;

/// The number of cachestat(2) on all supported architectures and most others (scripts/syscall.tbl
/// of Linux). libc defines it for only some of them.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range` of linux/mman.h, in bytes.
#[repr(C)]
struct Asked {
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

/// Whether the page cache has a byte of `file` that was just read. `None` if the system cannot say.
pub fn keeps_reads_of(file: &File) -> Option<bool> {
    file.read_at(&mut [0], 0).ok().filter(|read| *read == 1)?;
    ask_cachestat(file, 0).or_else(|| {
        let byte = &mut [0];
        match preadv2(file, &mut [IoSliceMut::new(byte)], 0, ReadWriteFlags::NOWAIT) {
            Ok(read) => Some(read == 1),
            Err(Errno::AGAIN) => Some(false),
            Err(_) => None,
        }
    })
}

/// How far the kernel reads ahead, in KiB, in files of the file system with this device number
/// (st_dev). `None` if the system does not say: some network file systems use other names.
pub fn readahead_kib(device: u64) -> Option<u64> {
    let setting = format!("/sys/class/bdi/{}:{}/read_ahead_kb", major(device), minor(device));
    kernel_file::read_text(setting).ok()?.trim().parse().ok()
}

/// Reads `range` of `file` into the page cache, as one request if the file system can do that, and
/// nowhere else: all parts of it go into the same small buffer, which stays in the cache of the
/// CPU. A range beyond the end of the file ends there.
pub fn load(file: &File, range: &Range<u64>) -> io::Result<()> {
    /// Bytes of the buffer, and the most of them in a read (IOV_MAX in limits.h of Linux).
    const BUFFER: usize = 64 << 10;
    const PARTS_MAX: usize = 1024;
    let mut buffer = vec![0_u8; BUFFER];
    let mut next = range.start;
    while next < range.end {
        let left = usize::try_from(range.end - next).unwrap_or(usize::MAX);
        let mut parts = Vec::with_capacity(left.div_ceil(BUFFER).min(PARTS_MAX));
        for nth in 0..left.div_ceil(BUFFER).min(PARTS_MAX) {
            let len = BUFFER.min(left - nth * BUFFER);
            parts.push(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: len });
        }
        let count = parts.len() as libc::c_int;
        let offset = libc::off_t::try_from(next).map_err(io::Error::other)?;
        // SAFETY: each part is within `buffer`, which outlives the call. That the kernel writes to
        // it several times does not matter, because nothing reads it.
        let read = unsafe { libc::preadv(file.as_raw_fd(), parts.as_ptr(), count, offset) };
        match read {
            0 => return Ok(()),
            1.. => next += read.cast_unsigned() as u64,
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// How often this thread has slept so far. A read of cached bytes never sleeps, even if another
/// process takes the CPU core meanwhile; one that waits for storage does.
pub fn sleeps_of_thread() -> i64 {
    // SAFETY: the kernel fills the structure, for which zeros are valid.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nvcsw
    }
}

/// Asks cachestat(2). `None` if the kernel has no such call or refuses it for this user and file.
fn ask_cachestat(file: &File, offset: u64) -> Option<bool> {
    let asked = Asked { offset, len: 1 };
    let mut pages = Pages::default();
    // SAFETY: the kernel reads an `Asked` and writes a `Pages`, laid out as in linux/mman.h. Both
    // pointers stay valid during the call.
    let status = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const asked, &raw mut pages, 0_u32)
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
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_readahead_of_a_file_system_is_found_if_it_has_one() {
        assert_eq!(readahead_kib(u64::MAX), None);
        let root = std::fs::metadata("/").unwrap().dev();
        let name = format!("/sys/class/bdi/{}:{}", major(root), minor(root));
        let Ok(expected) = std::fs::read_to_string(format!("{name}/read_ahead_kb")) else {
            return eprintln!("SKIPPED: {name} does not exist");
        };
        assert_eq!(readahead_kib(root).map(|kib| kib.to_string()), Some(expected.trim().into()));
    }

    #[test]
    fn a_range_is_loaded_and_nothing_behind_it() {
        let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        io::Write::write_all(&mut file, &vec![1; 8 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        fadvise(file.as_file(), 0, None, Advice::DontNeed).unwrap();
        let pages = |start: u64, end: u64| {
            let offsets = (start..end).step_by(4096);
            holds(file.as_file(), offsets).into_iter().filter(|is_cached| *is_cached).count()
        };
        if pages(0, 8 << 20) > 0 {
            return eprintln!("SKIPPED: /var/tmp keeps dropped pages");
        }
        let random = File::open(file.path()).unwrap();
        fadvise(&random, 0, None, Advice::Random).unwrap();
        load(&random, &((1 << 20)..(3 << 20) + 5)).unwrap();
        assert_eq!(pages(1 << 20, (3 << 20) + 5), 513);
        assert_eq!(pages(0, 1 << 20) + pages((3 << 20) + 4096, 8 << 20), 0);
        load(&random, &((8 << 20) - 5..u64::MAX >> 1)).unwrap();
        load(&random, &(0..0)).unwrap();
    }

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
        file.read_exact_at(&mut byte, 1 << 20).unwrap();
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
