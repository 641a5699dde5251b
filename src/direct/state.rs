//! The pages that the daemon and the processes that read directly share: one that only the daemon
//! can write, and one with the counters of the processes.
//!
//! The first word of the first page says whether the daemon still serves the mount. The library
//! checks it on each read: the kernel gives the device number of an ended mount to the next one at
//! once, so device and inode number alone may mean a file of another archive. The word is the
//! thread number of a thread of the daemon, in a robust list (get_robust_list(2)). If the daemon is
//! killed, the kernel marks the word.
//!
//! Invariants: the word is zero or marked before the mount ends. A process gets that page for
//! reading only, because a child that gives up its rights still has it.
#![expect(unsafe_code, reason = "a mapping that other processes write, and set_robust_list(2)")]

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;

use memmap2::{MmapOptions, MmapRaw};

use super::table::read_only;
use crate::os::memory_file;
use crate::stats::DirectCounts;
use crate::sync::{Arc, Mutex, thread};

/// Bytes of the page of the word, and of that of the counters.
const PAGE: usize = 4096;

/// Groups of counters, and bytes of one. There are several, so that CPU cores do not wait for one
/// cache line.
const SHARDS: usize = 64;
const SHARD: usize = 64;

/// The shared pages of one mount.
pub struct State {
    alive: Page,
    counters: Page,
    /// The lock is held for a store to the word, so that the word follows this.
    service: Mutex<Service>,
}

/// Whether the mount is served.
#[derive(Clone, Copy, Debug, Default)]
struct Service {
    /// The number of the thread that stands for the daemon, after `show_alive`.
    thread: Option<u32>,
    is_suspended: bool,
    has_ended: bool,
}

/// A page and the file that holds it.
struct Page {
    file: File,
    map: MmapRaw,
}

impl Page {
    fn new(seal: fn(&File) -> io::Result<()>) -> io::Result<Self> {
        let file = memory_file::create()?;
        file.set_len(PAGE as u64)?;
        let map = MmapOptions::new().len(PAGE).map_raw(&file)?;
        seal(&file)?;
        Ok(Self { file, map })
    }
}

impl State {
    /// A page that says that the mount is not served.
    pub fn new() -> io::Result<Arc<Self>> {
        let mut alive = Page::new(memory_file::seal_for_others)?;
        // Before Linux 5.1, only that keeps others from writing.
        alive.file = read_only(&alive.file)?;
        let counters = Page::new(memory_file::seal_length)?;
        Ok(Arc::new(Self { alive, counters, service: Mutex::default() }))
    }

    /// The files for a process that reads directly: the word, for reading only, and the counters.
    pub fn files(&self) -> [&File; 2] {
        [&self.alive.file, &self.counters.file]
    }

    /// Says that the mount is served, until `suspend` or the end of this process. Does nothing
    /// after `end`.
    pub fn show_alive(self: &Arc<Self>) -> io::Result<()> {
        let number = watch_over(Arc::clone(self))?;
        self.change(|service| service.thread = Some(number));
        Ok(())
    }

    /// Says that the mount is not served, before an attempt to unmount it.
    pub fn suspend(&self) {
        self.change(|service| service.is_suspended = true);
    }

    /// Says again that the mount is served, after an attempt to unmount it has failed.
    pub fn resume(&self) {
        self.change(|service| service.is_suspended = false);
    }

    /// Says that the mount is not served, for good.
    pub fn end(&self) {
        self.change(|service| service.has_ended = true);
    }

    fn change(&self, change: impl FnOnce(&mut Service)) {
        let mut service = self.service.lock();
        change(&mut service);
        let is_served = !service.is_suspended && !service.has_ended;
        let word = service.thread.filter(|_| is_served).unwrap_or_default();
        self.word().store(word, Ordering::SeqCst);
    }

    /// The sum of the counters.
    pub fn counts(&self) -> DirectCounts {
        let mut sum = DirectCounts::default();
        for shard in 0..SHARDS {
            let [reads, bytes] = [0, 8].map(|offset| self.counter(shard * SHARD + offset));
            sum.reads = sum.reads.wrapping_add(reads);
            sum.bytes = sum.bytes.wrapping_add(bytes);
        }
        sum
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the map is a page, and the length of its file is sealed. All processes access
        // this word only atomically.
        unsafe { AtomicU32::from_ptr(self.alive.map.as_mut_ptr().cast()) }
    }

    fn counter(&self, offset: usize) -> u64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= PAGE);
        let map = self.counters.map.as_mut_ptr();
        // SAFETY: as for `word`; `offset` is a multiple of 8 within the map.
        let counter = unsafe { AtomicU64::from_ptr(map.add(offset).cast()) };
        counter.load(Ordering::Relaxed)
    }
}

/// `struct robust_list_head` of linux/futex.h, with one entry.
#[repr(C)]
struct RobustList {
    first: *const RobustEntry,
    futex_offset: libc::c_long,
    pending: *const RobustEntry,
    entry: RobustEntry,
}

/// `struct robust_list`. The last entry points back to the head.
#[repr(C)]
struct RobustEntry {
    next: *const RobustEntry,
}

/// Starts the thread whose end marks the word of `state`; returns its number. The thread never
/// returns, so it ends with the process.
fn watch_over(state: Arc<State>) -> io::Result<u32> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("direct".into()).spawn(move || {
        let registered = register(state.word());
        let _ = sender.send(registered);
        // The list is of this thread, and `state` keeps the word mapped.
        loop {
            thread::park();
        }
    })?;
    receiver.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

/// Makes the kernel mark `word` at the end of this thread, if the word has the number of the
/// thread then. Returns the number.
fn register(word: &AtomicU32) -> io::Result<u32> {
    // In a shared mapping: before Linux 5.18 the OOM killer may free private memory of the process
    // before the kernel goes through the list.
    let file = memory_file::create()?;
    file.set_len(PAGE as u64)?;
    let map = MmapOptions::new().len(PAGE).map_raw(&file)?;
    let list: *mut RobustList = map.as_mut_ptr().cast();
    std::mem::forget(map);
    // SAFETY: the map is page-aligned and long enough, no other process has it, and it is never
    // unmapped. The list is laid out as in linux/futex.h. It replaces the list of the C library,
    // which only robust mutexes use; this thread has none.
    let status = unsafe {
        let entry = &raw const (*list).entry;
        list.write(RobustList {
            first: entry,
            futex_offset: (word.as_ptr() as libc::c_long).wrapping_sub(entry as libc::c_long),
            pending: std::ptr::null(),
            entry: RobustEntry { next: list.cast_const().cast() },
        });
        libc::syscall(libc::SYS_set_robust_list, list, 3 * size_of::<usize>())
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it takes no arguments and cannot fail.
    let number = unsafe { libc::syscall(libc::SYS_gettid) };
    u32::try_from(number).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER_DIED: u32 = 1 << 30;

    #[test]
    fn the_kernel_marks_the_word_when_its_thread_ends() {
        let state = State::new().unwrap();
        let watched = Arc::clone(&state);
        let ended = thread::spawn(move || {
            let number = register(watched.word()).unwrap();
            watched.word().store(number, Ordering::SeqCst);
            number
        });
        assert_ne!(ended.join().unwrap(), 0);
        assert_eq!(state.word().load(Ordering::SeqCst) & OWNER_DIED, OWNER_DIED);
    }

    #[test]
    fn is_served_between_the_start_and_the_end() {
        let state = State::new().unwrap();
        let is_alive = || state.word().load(Ordering::SeqCst) != 0;
        state.resume();
        assert!(!is_alive(), "not yet");
        state.show_alive().unwrap();
        assert!(is_alive());
        state.suspend();
        assert!(!is_alive());
        state.resume();
        assert!(is_alive());
        state.end();
        state.resume();
        state.show_alive().unwrap();
        assert!(!is_alive(), "for good");
    }

    #[test]
    fn sums_the_counters_of_all_shards_and_cannot_be_resized() {
        use std::os::unix::fs::FileExt;
        let state = State::new().unwrap();
        let [_, counters] = state.files();
        for (shard, reads, bytes) in [(0, 1_u64, 10_u64), (63, 2, 20)] {
            let offset = (shard * SHARD) as u64;
            counters.write_all_at(&reads.to_ne_bytes(), offset).unwrap();
            counters.write_all_at(&bytes.to_ne_bytes(), offset + 8).unwrap();
        }
        assert_eq!(state.counts(), DirectCounts { reads: 3, bytes: 30 });
        assert!(counters.set_len(0).is_err());
    }

    #[test]
    fn only_the_daemon_can_write_the_word() {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::FileExt;
        let state = State::new().unwrap();
        state.show_alive().unwrap();
        let [alive, _] = state.files();
        assert!(alive.write_all_at(&[0], 0).is_err());
        assert!(MmapOptions::new().len(PAGE).map_raw(alive).is_err());
        assert!(MmapOptions::new().len(PAGE).map_raw_read_only(alive).is_ok());
        // Opened for writing, it cannot be written either, from Linux 5.1 on.
        let path = format!("/proc/self/fd/{}", alive.as_raw_fd());
        if let Ok(writable) = File::options().read(true).write(true).open(path) {
            assert!(writable.write_all_at(&[0], 0).is_err());
            assert!(MmapOptions::new().len(PAGE).map_raw(&writable).is_err());
        }
        assert_ne!(state.word().load(Ordering::SeqCst), 0);
    }
}
