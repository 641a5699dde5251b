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

use super::attach::{Attached, Detach};
use super::mountpoint::Mountpoint;
use super::process::ProcessId;
use super::registry::{Key, MountId, PlaceLock, Record, Registered, Registry};
use super::{MountPlan, join, unmount};
use crate::error::{Error, Result};
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, Weak};

/// The mount of this process.
pub(super) struct Mounted {
    place: PathBuf,
    /// Guards what is left to undo, so that it is undone once. No other lock is taken within.
    parts: Mutex<Option<Parts>>,
}

/// Descriptors kept for the end of the mount: a look at the mount table, a lock and a record, or
/// fusermount with its pipes.
const RESERVE: usize = 8;

/// How long a panic waits for others to let go of the mount.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Undone in this order.
struct Parts {
    /// Closed first: undoing the rest opens files, also when holders or archives took all
    /// descriptors that this process may have.
    reserve: Vec<File>,
    /// `None` where somebody else mounted, who unmounts, too.
    attached: Option<Attached>,
    mountpoint: Option<Mountpoint>,
    /// `None` where nobody else can see the mount.
    registered: Option<Registered>,
}

impl Mounted {
    /// Mounts at `place`, whose lock is `lock`, and registers that.
    pub(super) fn attach(
        place: &Path,
        plan: &MountPlan,
        lock: &PlaceLock,
    ) -> Result<(Arc<Self>, OwnedFd)> {
        let mountpoint = Mountpoint::prepare(place)?;
        let archives = join::real_paths(plan);
        let source = source(&archives);
        let attached = Attached::new(mountpoint.place(), &source, plan.access, lock);
        if attached.is_err() {
            // A helper that was killed may have mounted before.
            unmount::clear_all_dead(place)?;
        }
        let (attached, connection) = attached?;
        let record = Record {
            daemon: ProcessId::own()?,
            mount: MountId::of(attached.entry()),
            identity: join::identity(plan),
            archives,
            place: place.to_owned(),
        };
        let registered = Some(record.write()?);
        let (attached, mountpoint) = (Some(attached), Some(mountpoint));
        let parts = Parts { reserve: reserve(), attached, mountpoint, registered };
        let place = place.to_owned();
        Ok((Arc::new(Self { place, parts: Mutex::new(Some(parts)) }), connection))
    }

    /// A mount that somebody else made, on `mountpoint` if that is ours to remove.
    pub(super) fn elsewhere(plan: &MountPlan, mountpoint: Option<Mountpoint>) -> Arc<Self> {
        let parts = Parts { reserve: reserve(), attached: None, mountpoint, registered: None };
        Arc::new(Self { place: plan.mountpoint.clone(), parts: Mutex::new(Some(parts)) })
    }

    /// Where it is.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// Where others ask for leases; `None` where nobody else can see the mount.
    pub(super) fn listen(&self) -> Result<Option<UnixListener>> {
        if self.parts.lock().as_ref().is_none_or(|parts| parts.registered.is_none()) {
            return Ok(None);
        }
        let (registry, key) = (Registry::open()?, Key::of(&self.place));
        registry.listen(&key).map(Some).map_err(|error| {
            Error::io(format!("{}: can not listen", registry.socket(&key).display()), error)
        })
    }

    /// Whether somebody else unmounted it; files may still be open.
    pub(super) fn was_taken_away(&self) -> bool {
        match &*self.parts.lock() {
            Some(Parts { attached: Some(attached), .. }) => !attached.is_there().unwrap_or(true),
            _ => false,
        }
    }

    /// Whether something is mounted over it, so that it can not be unmounted yet.
    pub(super) fn is_covered(&self) -> bool {
        match &*self.parts.lock() {
            Some(Parts { attached: Some(attached), .. }) => attached.is_covered().unwrap_or(false),
            _ => false,
        }
    }

    /// Unmounts and clears up, unless somebody uses the mount.
    pub(super) fn unmount_if_idle(&self) -> Result<()> {
        if let Some(Parts { attached: Some(attached), .. }) = &*self.parts.lock() {
            attached.detach(Detach::IfIdle)?;
        }
        self.clear_up();
        Ok(())
    }

    /// Whether this process mounted it.
    pub(super) fn is_attached(&self) -> bool {
        self.parts.lock().as_ref().is_some_and(|parts| parts.attached.is_some())
    }

    /// Unmounts, lazily if somebody uses the mount, and undoes whatever else was done; does nothing
    /// the second time. What somebody else mounted, that one unmounts.
    pub(super) fn clear_up(&self) {
        let Some(Parts { reserve, attached, mountpoint, registered }) = self.parts.lock().take()
        else {
            return;
        };
        drop(reserve);
        // First of all: the rest of this process may not get to run.
        drop(attached);
        drop(mountpoint);
        let is_registered = registered.is_some();
        // Last, since it tells others that the place is free.
        drop(registered);
        if is_registered && let Ok(Some(lock)) = PlaceLock::try_acquire(&self.place) {
            let _ = unmount::forget(&self.place, lock);
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
/// in the place of the usual one, which takes a lock to show the calls: without memory for them it
/// panics again, and waits for that lock for ever.
pub(super) fn unmount_on_panic(mount: Weak<Mounted>) {
    let has_begun = AtomicBool::new(false);
    std::panic::set_hook(Box::new(move |panic| {
        // What one thread runs into, others often do as well. The first unmounts, and to end this
        // process meanwhile would leave the mount dead.
        if has_begun.swap(true, Ordering::Relaxed) {
            loop {
                thread::park();
            }
        }
        let place = mount.upgrade().map(|mount| {
            // Before anything is said, which takes memory. Whoever holds the lock looks at the
            // mount table and lets go soon; but it may be the thread that panicked, so that to wait
            // without end would hang.
            let deadline = Instant::now() + LOCK_PATIENCE;
            while Instant::now() < deadline {
                if let Some(mut parts) = mount.parts.try_lock() {
                    drop(parts.take());
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            mount.place.clone()
        });
        let what = panic.to_string().replace('\n', " ");
        match place.as_deref().map(Path::display) {
            Some(place) => log::error!("{place}: a fault in archfs itself, unmounted: {what}"),
            None => log::error!("a fault in archfs itself: {what}"),
        }
        std::process::exit(101);
    }));
}
