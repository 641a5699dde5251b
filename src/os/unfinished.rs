//! Files that are removed if a signal ends this process.
//!
//! A process that creates such files first holds the signals that ask archfs to end, if their
//! action is the default one. Once it has created the files, a handler removes them and ends the
//! process. A mask would not hold them, because `signal::receive_in_one_thread` starts a thread
//! that handles them although the others have them blocked.
//! Invariants: the handler interrupts any thread at any point, so it only exchanges atomics and
//! makes system calls. Whoever takes the files out of `FILES` owns them.

#![expect(unsafe_code, reason = "a signal handler can take the files only from an atomic pointer")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr};
use std::thread;

use rustix::fs::{rmdir, unlink};

use super::signal::{self, ENDING};

/// Whether an `Unfinished` exists.
static EXISTS: AtomicBool = AtomicBool::new(false);

/// The files to remove; null while signals are held.
static FILES: AtomicPtr<Files> = AtomicPtr::new(ptr::null_mut());

/// The last signal that came; 0 if none did.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

struct Files {
    files: [CString; 2],
    /// Removed if it is empty.
    directory: CString,
}

/// A time in which this process has unfinished files. Dropping this keeps the files and ends the
/// time: a signal that was held ends the process.
#[derive(Debug)]
pub struct Unfinished {
    /// Whether `FILES` were set and not taken back.
    has_files: AtomicBool,
}

impl Unfinished {
    /// Holds the signals that ask archfs to end. `None` if there is an `Unfinished` already.
    pub fn begin() -> Option<Self> {
        if EXISTS.swap(true, SeqCst) {
            return None;
        }
        signal::replace_default(&ENDING, end);
        Some(Self { has_files: AtomicBool::new(false) })
    }

    /// From now on a signal removes `files`, and `directory` if it is empty, and ends the process.
    /// So does one that was held.
    pub(crate) fn remove_on_signal(&self, files: [&Path; 2], directory: &Path) {
        let terminated = |path: &Path| CString::new(path.as_os_str().as_bytes()).ok();
        let [Some(first), Some(second)] = files.map(terminated) else { return };
        let Some(directory) = terminated(directory) else { return };
        self.hold();
        let files = Box::new(Files { files: [first, second], directory });
        self.has_files.store(true, SeqCst);
        FILES.store(Box::into_raw(files), SeqCst);
        // The handler first stores the signal and then takes the files, so one of the two sees the
        // other.
        let signal = SIGNAL.load(SeqCst);
        if signal != 0 {
            remove_and_end(signal);
        }
    }

    /// Holds signals again, for example to remove the files. Does not return if another thread is
    /// about to remove them and to end the process: it has to finish, and the names may then belong
    /// to another process.
    pub(crate) fn hold(&self) {
        let files = FILES.swap(ptr::null_mut(), SeqCst);
        let had_files = self.has_files.swap(false, SeqCst);
        if !files.is_null() {
            // SAFETY: the pointer is from `Box::into_raw`, and no one else has taken it.
            drop(unsafe { Box::from_raw(files) });
        } else if had_files {
            loop {
                thread::park();
            }
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.hold();
        EXISTS.store(false, SeqCst);
        signal::restore_default_of(&ENDING, end);
        // Last, so that either this sees a signal or `end` sees the default action.
        let signal = SIGNAL.swap(0, SeqCst);
        if signal != 0 {
            signal::end_process(signal);
        }
    }
}

/// Handles `signal`. Handlers that signal-hook installs later call this one first.
extern "C" fn end(signal: i32) {
    SIGNAL.store(signal, SeqCst);
    if EXISTS.load(SeqCst) {
        remove_and_end(signal);
    } else if signal::has_default_action(signal) {
        // The `Unfinished` was dropped after the signal came.
        signal::end_process(signal);
    }
}

/// Removes the files and ends the process. Returns if there are none, or if another thread is about
/// to end the process.
fn remove_and_end(signal: i32) {
    let files = FILES.swap(ptr::null_mut(), SeqCst);
    // SAFETY: the pointer is null or from `Box::into_raw`, and no one else has taken it. It is not
    // freed, because a handler cannot free memory.
    let Some(Files { files, directory }) = (unsafe { files.as_ref() }) else { return };
    for file in files {
        let _ = unlink(file.as_c_str());
    }
    let _ = rmdir(directory.as_c_str());
    signal::end_process(signal);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::low_level::{raise, register};

    use super::*;

    /// Which steps a process of its own takes, and in which directory.
    const STEPS: &str = "ARCHFS_TEST_STEPS";

    /// What the steps of `ends` do: `b`egin, `f`iles, `h`old, `d`rop, another handler (`o`), and
    /// the signals `T`, `H`, `I`.
    fn take(steps: &str, directory: &Path) {
        let files = ["record", "socket"].map(|name| directory.join(name));
        let mut unfinished = None;
        for step in steps.chars() {
            match step {
                'b' => unfinished = Unfinished::begin(),
                'f' => {
                    fs::create_dir(directory).unwrap();
                    files.iter().for_each(|file| fs::write(file, "").unwrap());
                    let held: &Unfinished = unfinished.as_ref().unwrap();
                    held.remove_on_signal([&files[0], &files[1]], directory);
                }
                'h' => unfinished.as_ref().unwrap().hold(),
                'd' => drop(unfinished.take()),
                // SAFETY: the handler does nothing.
                'o' => drop(unsafe { register(SIGTERM, || ()) }.unwrap()),
                'T' => raise(SIGTERM).unwrap(),
                'H' => raise(SIGHUP).unwrap(),
                _ => raise(SIGINT).unwrap(),
            }
        }
        std::mem::forget(unfinished);
    }

    /// Which signal ends a process that takes `steps`, if one does, and whether the files are left.
    fn ends(steps: &str) -> (Option<i32>, bool) {
        let work = tempfile::tempdir().unwrap();
        let directory = work.path().join("records");
        let test = "os::unfinished::tests::a_signal_removes_the_files_and_ends_the_process";
        let mut command = Command::new("nohup");
        command.args(["env", "--default-signal=TERM,INT"]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]);
        command.env(STEPS, format!("{steps} {}", directory.display()));
        let status = command.output().unwrap().status;
        assert!(status.success() || status.signal().is_some(), "{steps}: {status}");
        (status.signal(), directory.exists())
    }

    #[test]
    fn a_signal_removes_the_files_and_ends_the_process() {
        if let Ok(steps) = std::env::var(STEPS) {
            let (steps, directory) = steps.split_once(' ').unwrap();
            return take(steps, directory.as_ref());
        }
        for (signal, number) in [('T', SIGTERM), ('I', SIGINT)] {
            for (steps, expected) in [
                ("bf!", (Some(number), false)),
                // It is held until the files are there, or until the time is over.
                ("b!f", (Some(number), false)),
                ("bfh!d", (Some(number), true)),
                ("bfh!", (None, true)),
                // The default action is back, and another time can begin.
                ("bfd!", (Some(number), true)),
                ("bdbf!", (Some(number), false)),
            ] {
                let steps = steps.replace('!', &signal.to_string());
                assert_eq!(ends(&steps), expected, "{steps}");
            }
        }
        // Started to be ignored.
        assert_eq!(ends("bfH"), (None, true));
        // A handler that was installed meanwhile stays when the time is over.
        assert_eq!(ends("bfoT"), (Some(SIGTERM), false));
        assert_eq!(ends("bfodT"), (None, true));
    }
}
