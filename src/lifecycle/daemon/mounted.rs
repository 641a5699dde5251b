//! A mount that is served, and everything that was made for it.
//!
//! Owns making and undoing it in order: directory, mount, record; and how a fault in archfs itself
//! ends it. Leaves when that is to `daemon`. Invariant: each part is undone once, the mount first.

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;

use crate::error::Result;
use crate::lifecycle::MountPlan;
use crate::lifecycle::mount::attach::Attached;
use crate::lifecycle::mount::detach::Detach;
use crate::lifecycle::mount::mount_point::{Mountpoint, taken};
use crate::lifecycle::share::{self, MountLock, Peers, Record};
use crate::mountinfo::MountId;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, Weak};

/// The mount of this process.
pub(in crate::lifecycle) struct Mounted {
    mount_point: PathBuf,
    /// Guards what is left to undo, so that it is undone once. No other lock is taken within.
    parts: Mutex<Option<Parts>>,
}

/// Descriptors kept for the end of the mount: the mount table, or fusermount with its pipes.
const RESERVE: usize = 8;

/// How long a panic waits for other threads to release the mount.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Undone in this order.
struct Parts {
    /// Closed first: undoing the rest opens files, also when holders or archives took all
    /// descriptors that this process may have.
    reserve: Vec<File>,
    /// `None` where another process mounted, which unmounts as well.
    attached: Option<Attached>,
    mountpoint: Option<Mountpoint>,
    /// `None` where no other process can use the mount.
    lock: Option<(MountLock, Record)>,
}

impl Mounted {
    /// Mounts at `mount_point`, whose lock is `lock`, and writes that to `record`.
    pub(in crate::lifecycle) fn attach(
        mount_point: &Path,
        plan: &MountPlan,
        lock: MountLock,
        mut record: Record,
    ) -> Result<(Arc<Self>, OwnedFd)> {
        if let Some(entry) = share::clear_locked(mount_point)? {
            return Err(taken(mount_point, &entry));
        }
        let mountpoint = Mountpoint::prepare(mount_point, &mut || {
            record.creates = true;
            lock.write(&record)
        })?;
        let source = source(&record.archives);
        let attached = Attached::new(mount_point, &source, plan.access, &lock);
        if attached.is_err() {
            // A helper that was killed may have mounted before.
            share::clear_locked(mount_point)?;
        }
        let (attached, connection) = attached?;
        record.mount = Some(MountId::of(attached.entry()));
        lock.write(&record)?;
        let (attached, mountpoint) = (Some(attached), Some(mountpoint));
        let lock = Some((lock, record));
        let parts = Parts { reserve: reserve(), attached, mountpoint, lock };
        let mount_point = mount_point.to_owned();
        Ok((Arc::new(Self { mount_point, parts: Mutex::new(Some(parts)) }), connection))
    }

    /// A mount that another process made, on `mountpoint` if that is ours to remove; `lock` holds
    /// what is known of that.
    pub(in crate::lifecycle) fn elsewhere(
        plan: &MountPlan,
        mountpoint: Option<Mountpoint>,
        lock: Option<(MountLock, Record)>,
    ) -> Arc<Self> {
        let parts = Parts { reserve: reserve(), attached: None, mountpoint, lock };
        Arc::new(Self { mount_point: plan.mountpoint.clone(), parts: Mutex::new(Some(parts)) })
    }

    /// Where it is.
    pub(in crate::lifecycle) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// The daemons that share a cache budget with this one.
    pub(in crate::lifecycle) fn peers(&self) -> Option<Peers> {
        let parts = self.parts.lock();
        let (lock, _) = parts.as_ref()?.lock.as_ref()?;
        let peers = lock.peers();
        peers.unwrap_or_else(|error| {
            log::info!("{error}: it is not shared");
            None
        })
    }

    /// Keeps the record from being removed for its age, and replaces one that was removed; returns
    /// the socket where that has to be replaced as well.
    pub(in crate::lifecycle) fn keep_fresh(&self) -> Option<UnixListener> {
        match &mut *self.parts.lock() {
            Some(Parts { attached: Some(_), lock: Some((lock, record)), .. }) => {
                lock.keep_fresh(record).then(|| lock.listen().ok()).flatten()
            }
            _ => None,
        }
    }

    /// Whether another process unmounted it; files may still be open.
    pub(in crate::lifecycle) fn was_taken_away(&self) -> bool {
        match &*self.parts.lock() {
            Some(Parts { attached: Some(attached), .. }) => !attached.is_there().unwrap_or(true),
            _ => false,
        }
    }

    /// Whether something is mounted over it, so that it cannot be unmounted yet.
    pub(in crate::lifecycle) fn is_covered(&self) -> bool {
        match &*self.parts.lock() {
            Some(Parts { attached: Some(attached), .. }) => attached.is_covered().unwrap_or(false),
            _ => false,
        }
    }

    /// Unmounts and clears up, unless the mount is in use.
    pub(in crate::lifecycle) fn unmount_if_idle(&self) -> Result<()> {
        if let Some(parts) = &mut *self.parts.lock() {
            parts.note_ending(true);
            if let Some(attached) = &parts.attached
                && let Err(error) = attached.detach(Detach::IfIdle)
            {
                parts.note_ending(false);
                return Err(error);
            }
        }
        self.clear_up();
        Ok(())
    }

    /// Whether this process mounted it.
    pub(in crate::lifecycle) fn is_attached(&self) -> bool {
        self.parts.lock().as_ref().is_some_and(|parts| parts.attached.is_some())
    }

    /// Unmounts, lazily if the mount is in use, and undoes whatever else was done; does nothing the
    /// second time. What another process mounted, that process unmounts.
    pub(in crate::lifecycle) fn clear_up(&self) {
        let parts = self.parts.lock().take();
        if let Some(parts) = parts {
            parts.undo();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.clear_up();
    }
}

impl Parts {
    /// Lets others know that the daemon may not answer for a while.
    fn note_ending(&mut self, is_ending: bool) {
        if let Some((lock, record)) = &mut self.lock
            && self.attached.is_some()
        {
            record.is_ending = is_ending;
            // It delays no more than a write to memory, and others wait less long without it.
            let _ = lock.write(record);
        }
    }

    fn undo(mut self) {
        self.note_ending(true);
        let Self { reserve, attached, mountpoint, lock } = self;
        drop(reserve);
        // First of all: the rest of this process may not get to run.
        drop(attached);
        drop(mountpoint);
        // Last, since it shows others that the mount point is free.
        if let Some((lock, _)) = lock {
            lock.remove();
        }
    }
}

fn reserve() -> Vec<File> {
    (0..RESERVE).map_while(|_| File::open("/dev/null").ok()).collect()
}

/// What mount(8) shows as mounted: the archive, or the first one and how many more.
fn source(archives: &[PathBuf]) -> PathBuf {
    let Some((first, more)) = archives.split_first() else {
        return PathBuf::new();
    };
    let mut source = first.clone().into_os_string();
    if !more.is_empty() {
        source.push(format!(" (+{})", more.len()));
    }
    source.into()
}

/// A panic in one event loop would leave a mount that answers less and less; end it loudly instead.
/// The hook lives as long as the process, so it must not keep the mount from being dropped. It is
/// used instead of the usual one, which takes a lock to show the calls: without memory for them it
/// panics again, and waits for that lock for ever.
pub(in crate::lifecycle) fn unmount_on_panic(mount: Weak<Mounted>) {
    let has_begun = AtomicBool::new(false);
    std::panic::set_hook(Box::new(move |panic| {
        // What one thread runs into, others often do as well. The first unmounts, and to end this
        // process meanwhile would leave the mount dead.
        if has_begun.swap(true, Ordering::Relaxed) {
            loop {
                thread::park();
            }
        }
        let mount_point = mount.upgrade().map(|mount| {
            // Before anything is said, which takes memory. Whoever holds the lock looks at the
            // mount table and lets go soon; but it may be the thread that panicked, so that to wait
            // without end would hang.
            let deadline = Instant::now() + LOCK_PATIENCE;
            while Instant::now() < deadline {
                if let Some(mut parts) = mount.parts.try_lock() {
                    if let Some(parts) = parts.take() {
                        parts.undo();
                    }
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            mount.mount_point.clone()
        });
        let what = panic.to_string().replace('\n', " ");
        match mount_point.as_deref().map(Path::display) {
            Some(mount_point) => {
                log::error!("{mount_point}: a fault in archfs itself, unmounted: {what}");
            }
            None => log::error!("a fault in archfs itself: {what}"),
        }
        std::process::exit(101);
    }));
}
