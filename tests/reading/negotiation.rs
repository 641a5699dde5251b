//! How archfs works with kernels that offer fewer features in INIT than the running one.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use archfs::formats::{self, OpenOptions};
use archfs::progress::Progress;
use archfs::vfs::Tree;
use rustix::io::Errno;

use crate::support;
use crate::support::kernel::{
    ACCESS, FLUSH, Kernel, OPEN, OPENDIR, READ, READDIR, RELEASE, RELEASEDIR, ROOT, words,
};
use crate::support::relay::Relay;

/// Flags of INIT and of an open reply (include/uapi/linux/fuse.h).
const NO_OPEN: u32 = 1 << 17;
const NO_OPENDIR: u32 = 1 << 24;
const KEEP_CACHE: u32 = 1 << 1;
const CACHE_DIR: u32 = 1 << 3;

/// All 32-bit flags of INIT except FUSE_INIT_EXT, which would announce more flags.
const ALL: u32 = !(1 << 30);

fn tree(work: &Path) -> Arc<dyn Tree> {
    let image = support::image::small(work);
    formats::open(&[image], &OpenOptions::default(), &Progress::default()).unwrap()
}

/// Lists the root and reads a file as a program does, with handles if the kernel has any.
fn assert_serves(kernel: &mut Kernel, directory: Option<u64>, file: Option<u64>) {
    let mut names = kernel.names(ROOT, directory.unwrap_or(0));
    names.sort();
    assert_eq!(names, ["folder", "hello"]);
    let hello = kernel.lookup(ROOT, "hello");
    assert_eq!(kernel.read(READ, hello, file.unwrap_or(0)), b"hello, world\n");
    // The kernel treats ENOSYS as success and sends no more such requests.
    let flush = [words(&[0; 4]), words(&[0; 2])].concat();
    assert_eq!(kernel.ask(FLUSH, hello, &flush), Err(Errno::NOSYS));
    // R_OK and X_OK of a file that is not executable.
    assert_eq!(kernel.ask(ACCESS, hello, &words(&[4, 0])), Ok(Vec::new()));
    assert_eq!(kernel.ask(ACCESS, hello, &words(&[1, 0])), Err(Errno::ACCESS));
}

#[test]
fn an_old_kernel_opens_by_request_and_keeps_its_caches() {
    let work = support::work_directory();
    let tree = tree(work.path());
    // 7.22 is Linux 3.10, 7.27 is 4.18, 7.31 is 5.4.
    for minor in [22, 26, 27, 31] {
        let mut kernel = Kernel::new(Arc::clone(&tree), minor, 0);
        assert_eq!(kernel.agreed, 0);
        let hello = kernel.lookup(ROOT, "hello");
        // Every open gets this answer, not only the first.
        for _ in 0..2 {
            let directory = kernel.open(OPENDIR, ROOT);
            assert_eq!(directory, Ok((0, KEEP_CACHE | CACHE_DIR)), "7.{minor}");
            let file = kernel.open(OPEN, hello);
            assert_eq!(file, Ok((0, KEEP_CACHE)), "7.{minor}");
            assert_serves(&mut kernel, Some(0), Some(0));
            assert_eq!(kernel.release(RELEASE, hello, 0), Ok(Vec::new()));
            assert_eq!(kernel.release(RELEASEDIR, ROOT, 0), Ok(Vec::new()));
        }
        kernel.unmount();
    }
}

#[test]
fn a_kernel_before_5_1_opens_directories_by_request_and_files_without() {
    let work = support::work_directory();
    let mut kernel = Kernel::new(tree(work.path()), 27, ALL & !NO_OPENDIR);
    assert_eq!(kernel.agreed & (NO_OPEN | NO_OPENDIR), NO_OPEN);
    assert_eq!(kernel.open(OPENDIR, ROOT), Ok((0, KEEP_CACHE | CACHE_DIR)));
    let hello = kernel.lookup(ROOT, "hello");
    assert_eq!(kernel.open(OPEN, hello), Err(Errno::NOSYS));
    assert_serves(&mut kernel, Some(0), None);
    assert_eq!(kernel.release(RELEASEDIR, ROOT, 0), Ok(Vec::new()));
    kernel.unmount();
}

#[test]
fn a_kernel_that_offers_everything_opens_without_a_request() {
    let work = support::work_directory();
    let mut kernel = Kernel::new(tree(work.path()), 31, ALL);
    assert_eq!(kernel.agreed & (NO_OPEN | NO_OPENDIR), NO_OPEN | NO_OPENDIR);
    let hello = kernel.lookup(ROOT, "hello");
    assert_eq!(kernel.open(OPENDIR, ROOT), Err(Errno::NOSYS));
    assert_eq!(kernel.open(OPEN, hello), Err(Errno::NOSYS));
    assert_serves(&mut kernel, None, None);
    kernel.unmount();
}

/// Lists all directories and reads all files, like one epoch.
fn epoch(directory: &Path) -> usize {
    let mut bytes = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        bytes += if path.is_dir() { epoch(&path) } else { fs::read(&path).unwrap().len() };
    }
    bytes
}

/// > On kernels where each open takes a request, a second epoch still sends no request to read or
/// > list (see [Older kernels](#older-kernels)).
#[test]
fn the_second_epoch_reads_nothing_if_opening_takes_a_request() {
    if support::skip_without_mounts() {
        return;
    }
    let work = support::work_directory();
    let mount_point = work.path().join("mount");
    let relay = Relay::new(tree(work.path()), &mount_point);
    assert_eq!(epoch(&mount_point), 300_013);
    let first = relay.requests();
    assert!(first[&READ] >= 2 && first[&READDIR] >= 2, "{first:?}");
    assert_eq!((first[&OPEN], first[&OPENDIR]), (2, 2), "{first:?}");
    assert_eq!(epoch(&mount_point), 300_013);
    let mut second = relay.requests();
    // The kernel does not wait for the replies to these.
    for operation in [RELEASE, RELEASEDIR] {
        second.remove(&operation);
    }
    for (operation, count) in second {
        let expected = if [OPEN, OPENDIR].contains(&operation) { 2 } else { 0 };
        assert_eq!(count - first.get(&operation).unwrap_or(&0), expected, "operation {operation}");
    }
}
