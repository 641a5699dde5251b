//! A mount that is served, and everything created for it: directory, mount and record.
//!
//! Also unmounts if archfs itself panics. `daemon` decides when a mount ends.
//! Invariant: each part is removed once, the mount first.

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;

use super::Service;
use crate::direct::State;
use crate::error::Result;
use crate::lifecycle::MountPlan;
use crate::lifecycle::mount::attach::Attached;
use crate::lifecycle::mount::owned_directory::OwnedDirectory;
use crate::lifecycle::mount::shared_overlay::{OverlayServer, Prepared};
use crate::lifecycle::mount::{Detach, mount_point};
use crate::lifecycle::registry::{self, MountLock, Peers, Record};
use crate::os::mountinfo::MountId;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, Weak};

pub(crate) struct Mounted {
    mount_point: PathBuf,
    /// Guards the parts to remove, so that each is removed once. Only the lock of a `State` is
    /// taken while it is held.
    parts: Mutex<Option<Parts>>,
    /// Guards the record of the mount after it was removed. Held only to move it.
    removed: Mutex<Option<Record>>,
    /// Guards the lock of the file that records the mount as still served. Held only to move it.
    detached: Mutex<Option<MountLock>>,
    /// Guards the program that serves the mount point, if that has a layer over the archives. Held
    /// while the mount starts and when it has ended.
    overlay: Mutex<Option<OverlayServer>>,
}

/// Descriptors kept for unmounting: the mount table, or fusermount with its pipes.
const RESERVE: usize = 8;

/// How long after the unmount the mount counts as still served. Usually the kernel ends the
/// connection at once.
const DETACHED_AFTER: Duration = Duration::from_millis(300);

/// How long a panic waits until other threads release the lock of the parts.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Removed in this order.
struct Parts {
    /// Closed first. Removing the rest opens files, even if holders or archives have used up all
    /// descriptors that this process may have.
    reserve: Vec<File>,
    /// `None` if another process mounted. That process also unmounts.
    attached: Option<Attached>,
    /// `None` if another program prepared it, or if a private mount covers another mount.
    directory: Option<OwnedDirectory>,
    /// `None` if no other process can use the mount.
    lock: Option<(MountLock, Record)>,
    /// Tells processes that read directly that the mount has ended.
    direct: Option<Arc<State>>,
}

impl Mounted {
    /// Mounts at `mount_point`, whose lock is `lock`, and writes that to `record`.
    pub(crate) fn attach(
        mount_point: &Path,
        plan: &MountPlan,
        lock: MountLock,
        mut record: Record,
    ) -> Result<(Arc<Self>, OwnedFd)> {
        let made = match Made::new(mount_point, plan, &lock, &mut record) {
            Ok(made) => made,
            Err(error) => {
                // No other process may be left to do it.
                lock.remove();
                return Err(error);
            }
        };
        let Made { directory, layered, attached, connection } = made;
        let (attached, directory) = (Some(attached), Some(directory));
        let lock = Some((lock, record));
        let parts = Parts { reserve: reserve(), attached, directory, lock, direct: None };
        let mount = Self::new(mount_point.to_owned(), parts);
        // From here on, dropping `mount` unmounts.
        let connection = match layered {
            Some((prepared, archives)) => {
                *mount.overlay.lock() = Some(prepared.serve(connection)?);
                archives
            }
            None => connection,
        };
        Ok((Arc::new(mount), connection))
    }

    /// A mount that another process made. `directory` is the directory to remove, if this process
    /// created it, and `lock` holds its record.
    pub(crate) fn by_another_process(
        plan: &MountPlan,
        directory: Option<OwnedDirectory>,
        lock: Option<(MountLock, Record)>,
    ) -> Arc<Self> {
        let parts = Parts { reserve: reserve(), attached: None, directory, lock, direct: None };
        Arc::new(Self::new(plan.mount_point.clone(), parts))
    }

    fn new(mount_point: PathBuf, parts: Parts) -> Self {
        let (removed, detached, overlay) = Default::default();
        Self { mount_point, parts: Mutex::new(Some(parts)), removed, detached, overlay }
    }

    pub(crate) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// The daemons that share a cache budget with this one.
    pub(crate) fn peers(&self) -> Option<Peers> {
        let parts = self.parts.lock();
        let (lock, _) = parts.as_ref()?.lock.as_ref()?;
        Peers::of(lock).unwrap_or_else(|error| {
            log::info!("{error}; using a cache budget of its own");
            None
        })
    }

    /// Touches the record so that it is not removed for its age, and creates it again if it was
    /// removed. Returns a new socket if the old one was removed as well.
    pub(crate) fn keep_fresh(&self) -> Option<UnixListener> {
        match &mut *self.parts.lock() {
            Some(Parts { attached: Some(attached), lock: Some((lock, record)), .. }) => {
                let is_removed = lock.keep_fresh(record);
                // It may be a new file.
                attached.note_lock(lock);
                is_removed.then(|| lock.listen().ok()).flatten()
            }
            _ => None,
        }
    }

    pub(crate) fn archives(&self) -> Option<Vec<PathBuf>> {
        let parts = self.parts.lock();
        let (_, record) = parts.as_ref()?.lock.as_ref()?;
        Some(record.archives.clone())
    }

    pub(crate) fn record_directory(&self) -> Option<PathBuf> {
        let parts = self.parts.lock();
        let (lock, _) = parts.as_ref()?.lock.as_ref()?;
        Some(lock.record_directory().to_owned())
    }

    /// If another program serves the mount point, waits until it answers, or `is_ending` returns
    /// that this process was asked to end.
    pub(crate) fn wait_for_overlay(&self, is_ending: &mut dyn FnMut() -> bool) -> Result<()> {
        match &mut *self.overlay.lock() {
            Some(server) => server.wait_until_answers(&self.mount_point, is_ending),
            None => Ok(()),
        }
    }

    /// Waits until the program that serves the mount point has exited, after the mount has ended.
    pub(crate) fn finish_overlay(&self) -> Result<()> {
        let overlay = self.overlay.lock().take();
        overlay.map_or(Ok(()), OverlayServer::finish)
    }

    /// The number of the device that this process serves; `None` if this process did not mount it,
    /// or another program serves the mount point.
    pub(crate) fn device_number(&self) -> Option<u64> {
        if self.overlay.lock().is_some() {
            return None;
        }
        self.parts.lock().as_ref()?.attached.as_ref()?.entry().device_number()
    }

    pub(crate) fn end_direct_reads(&self) {
        if let Some(parts) = &*self.parts.lock() {
            parts.direct.as_deref().map(State::end);
        }
    }

    /// Ends direct reads by `state` before the mount ends.
    pub(crate) fn end_with_it(&self, state: &Arc<State>) {
        match &mut *self.parts.lock() {
            Some(parts) => parts.direct = Some(Arc::clone(state)),
            None => state.end(),
        }
    }

    /// Whether another process unmounted it. Files may still be open.
    pub(crate) fn was_unmounted_by_others(&self) -> bool {
        match &*self.parts.lock() {
            Some(Parts { attached: Some(attached), .. }) => !attached.is_there().unwrap_or(true),
            _ => false,
        }
    }

    /// Whether something is mounted over it, so that it cannot be unmounted yet.
    pub(crate) fn is_covered(&self) -> bool {
        match &*self.parts.lock() {
            Some(Parts { attached: Some(attached), .. }) => attached.is_covered().unwrap_or(false),
            _ => false,
        }
    }

    /// Unmounts and clears up, unless the mount is in use.
    pub(crate) fn unmount_if_idle(&self) -> Result<()> {
        if let Some(parts) = &mut *self.parts.lock() {
            parts.note_ending(true);
            let direct = parts.direct.as_deref();
            // Before the kernel can give the device number to another mount.
            direct.map(State::suspend);
            if let Some(attached) = &parts.attached
                && let Err(error) = attached.detach(Detach::IfIdle)
            {
                direct.map(State::resume);
                parts.note_ending(false);
                return Err(error);
            }
        }
        self.clear_up();
        Ok(())
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.parts.lock().as_ref().is_some_and(|parts| parts.attached.is_some())
    }

    /// Unmounts, lazily if the mount is in use, and removes everything else that was created. Does
    /// nothing the second time. If another process mounted, that process unmounts.
    pub(crate) fn clear_up(&self) {
        let parts = self.parts.lock().take();
        if let Some(record) = parts.and_then(Parts::remove_all) {
            *self.removed.lock() = Some(record);
        }
    }

    /// Records that the mount is still served although this process has unmounted it, so that
    /// `archfs list` shows it. Does nothing the second time.
    fn record_as_detached(&self) {
        let Some(record) = self.removed.lock().take() else { return };
        // The directory is removed, and a mount in another namespace takes no part of a budget.
        let record = Record { creates_directory: false, job: None, ..record };
        match MountLock::acquire_private(&record) {
            Ok(lock) => *self.detached.lock() = Some(lock),
            Err(error) => log::info!("{}: {error}", self.mount_point.display()),
        }
    }
}

/// What a daemon made to mount.
struct Made {
    attached: Attached,
    connection: OwnedFd,
    layered: Option<(Prepared, OwnedFd)>,
    directory: OwnedDirectory,
}

impl Made {
    /// Mounts at `mount_point`, whose lock is `lock`, and writes that to `record`.
    fn new(
        mount_point: &Path,
        plan: &MountPlan,
        lock: &MountLock,
        record: &mut Record,
    ) -> Result<Self> {
        if let Some(entry) = lock.detach_stale(mount_point)? {
            return Err(mount_point::taken(mount_point, &entry));
        }
        let directory = mount_point::prepare(mount_point, plan.covers_files, &mut || {
            record.creates_directory = true;
            lock.write(record)
        })?;
        let source = source(&record.archives);
        let layered = match &plan.overlay {
            Some(layer) => {
                let archives = MountPlan { overlay: None, ..plan.clone() };
                let identity = registry::identity_on_all_nodes(&archives);
                Some(Prepared::new(mount_point, layer, &identity)?)
            }
            None => None,
        };
        let attached = Attached::new(mount_point, &source, plan.restrictions(), lock);
        if attached.is_err() {
            // A helper may have mounted before it was killed.
            lock.detach_stale(mount_point)?;
        }
        let (attached, connection) = attached?;
        record.mount = Some(MountId::of(attached.entry()));
        lock.write(record)?;
        Ok(Self { attached, connection, layered, directory })
    }
}

/// Records, a moment after the unmount, that a mount is still served.
pub(super) struct DetachedRecord {
    mount: Arc<Mounted>,
    /// When to write the record; `None` before the unmount, and after it was written.
    due: Option<Instant>,
}

impl DetachedRecord {
    pub(super) fn new(mount: Arc<Mounted>) -> Self {
        Self { mount, due: None }
    }

    pub(super) fn note_unmounted(&mut self) {
        self.due = Some(Instant::now() + DETACHED_AFTER);
    }
}

impl Service for DetachedRecord {
    fn update(&mut self, now: Instant) -> Option<Instant> {
        if self.due.is_some_and(|due| now >= due) {
            self.due = None;
            self.mount.record_as_detached();
        }
        self.due
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.clear_up();
        let detached = self.detached.lock().take();
        if let Some(lock) = detached {
            lock.remove();
        }
    }
}

impl Parts {
    /// Notes in the record whether the mount is ending. Until it has ended, the daemon may not
    /// answer.
    fn note_ending(&mut self, is_ending: bool) {
        if let Some((lock, record)) = &mut self.lock
            && self.attached.is_some()
        {
            record.is_ending = is_ending;
            // This takes no longer than a write to memory. If it fails, others only wait less long.
            let _ = lock.write(record);
        }
    }

    /// Returns the record, if other processes could use the mount.
    fn remove_all(mut self) -> Option<Record> {
        // First: if another process has unmounted, the device number may be in use again.
        self.direct.as_deref().map(State::end);
        self.note_ending(true);
        let Self { reserve, attached, directory, lock, direct: _ } = self;
        let is_own = attached.is_some();
        drop(reserve);
        // First: this process may be killed before it can do the rest.
        drop(attached);
        drop(directory);
        // Last, because it shows other processes that the mount point is free.
        let (lock, record) = lock?;
        lock.remove();
        is_own.then_some(record)
    }
}

fn reserve() -> Vec<File> {
    (0..RESERVE).map_while(|_| File::open("/dev/null").ok()).collect()
}

/// The source that mount(8) shows: the archive, or the first one and how many more.
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

/// Makes a panic unmount and exit. A panic in one event loop would otherwise leave a mount that
/// answers fewer and fewer requests.
///
/// The hook lives as long as the process, so it must not keep the mount from being dropped. It
/// replaces the default hook, which takes a lock to print the backtrace. Without memory for the
/// backtrace that hook panics again, and waits for its lock for ever.
pub(crate) fn unmount_on_panic(mount: Weak<Mounted>) {
    let is_unmounting = AtomicBool::new(false);
    std::panic::set_hook(Box::new(move |panic| {
        // Other threads often panic for the same reason. The first one unmounts. If another thread
        // exited in the meantime, the mount would become stale.
        if is_unmounting.swap(true, Ordering::Relaxed) {
            loop {
                thread::park();
            }
        }
        let mount_point = mount.upgrade().map(|mount| {
            // Unmount before logging, because logging needs memory. A thread that holds the lock
            // only reads the mount table and releases it soon. But it may be the thread that
            // panicked, so waiting without a limit could hang.
            let deadline = Instant::now() + LOCK_PATIENCE;
            while Instant::now() < deadline {
                if let Some(mut parts) = mount.parts.try_lock() {
                    let _ = parts.take().and_then(Parts::remove_all);
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            mount.mount_point.clone()
        });
        let panic = panic.to_string().replace('\n', " ");
        match mount_point.as_deref().map(Path::display) {
            Some(mount_point) => {
                log::error!("{mount_point}: internal error in archfs, unmounted: {panic}");
            }
            None => log::error!("internal error: {panic}"),
        }
        std::process::exit(101);
    }));
}
