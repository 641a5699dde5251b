//! How a daemon starts: in the background of its launcher, or in the foreground.
//!
//! "ready" is reported only for a mount that answers. The daemon listens before it opens the
//! archives, so that other processes that ask for them wait on the connection.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;

use crate::cache::Budget;
use crate::error::{Error, Kind, Result};
use crate::formats::{self, Acls, Contents, OpenOptions};
use crate::lifecycle::mount::owned_directory::OwnedDirectory;
use crate::lifecycle::mount::{inherited, mount_point};
use crate::lifecycle::ready::Ready;
use crate::lifecycle::registry::{self, Client, JoinOutcome, Leases, MountLock, Record};
use crate::lifecycle::{Access, ConnectionSource, MountPlan};
use crate::os::heap;
use crate::os::process::{ASK_AGAIN, ProcessId};
use crate::os::processors;
use crate::progress::Progress;
use crate::stats::Stats;
use crate::storage::{self, ArchiveCache};
use crate::sync::Arc;
use crate::vfs::Tree;

use super::archive_cache::ArchiveCachePolicy;
use super::launcher::Launcher;
use super::mounted::Mounted;
use super::opening;
use super::report::Report;
use super::session;
use super::signals::{self, Ignored, WakeSources};
use super::slurm_end::Script;
use super::stage::{self, Archives, Staging};
use super::together::Departure;
use super::{Daemon, wait};

/// Serves in the background of a launcher, with a FUSE connection from `source`. `progress` shows
/// how far opening is; `opened` is called when it is done.
///
/// # Errors
/// Errors of opening and mounting; `Io` if the connection to the kernel broke.
pub fn serve_in_background(
    mut launcher: Launcher,
    plan: &MountPlan,
    source: ConnectionSource,
    progress: &Progress,
    opened: impl FnOnce(),
) -> Result<()> {
    let mount_point = || mount_point::locate(&plan.mount_point);
    let connector = match source {
        ConnectionSource::Mount => {
            let mount_point = mount_point()?;
            let lock = launcher.lock(&mount_point)?;
            Connector::Own(Box::new(Reserved::new(lock, mount_point, plan)?))
        }
        ConnectionSource::Private => Connector::Launcher(&mut launcher, Some(mount_point()?)),
        ConnectionSource::Handed => Connector::Launcher(&mut launcher, None),
    };
    if let Err(error) = set_up_process(plan) {
        connector.give_up();
        return Err(error);
    }
    match start(plan, connector, Ignored::AreHandled, progress, opened)? {
        Some(mut daemon) => {
            daemon.leases.grant_to(launcher.ready()?)?;
            daemon.serve()
        }
        None => Ok(()),
    }
}

/// Opens the archives, mounts, and starts to answer the kernel. `None` if the launcher could not
/// mount, and printed why.
fn start(
    plan: &MountPlan,
    connector: Connector<'_>,
    ignored: Ignored,
    progress: &Progress,
    opened: impl FnOnce(),
) -> Result<Option<Daemon>> {
    if plan.overlay.is_some() && !matches!(connector, Connector::Own(_)) {
        let context = "--overlay: needs a directory as the mount point, at which archfs mounts";
        return Err(Error::new(Kind::CannotMount, context));
    }
    let archive = match open(plan, progress) {
        Ok(archive) => archive,
        Err(error) => {
            connector.give_up();
            return Err(error);
        }
    };
    opened();
    // From here on there is more to clear up than the record.
    let wakes = signals::watch(ignored)?;
    let Some(Connected { mount, connection, listener }) = connector.connect(plan)? else {
        return Ok(None);
    };
    let mut daemon = Daemon::start(plan, archive, Arc::clone(&mount), connection, listener, wakes)?;
    mount.wait_for_overlay(&mut || daemon.take_events() || daemon.policy.is_end_requested())?;
    Ok(Some(daemon))
}

/// How a daemon gets its FUSE connection. Made before the archives are opened, so that other
/// processes that ask for them wait on the connection.
enum Connector<'l> {
    /// It mounts.
    Own(Box<Reserved>),
    /// The launcher mounts, at this mount point in its own namespace, or wherever another program
    /// has mounted.
    Launcher(&'l mut Launcher, Option<PathBuf>),
    /// Another program has mounted, and this process inherited the connection.
    Inherited(OwnedFd),
}

/// A mount and its FUSE connection.
struct Connected {
    mount: Arc<Mounted>,
    connection: OwnedFd,
    /// Where other processes ask for the mount.
    listener: Option<UnixListener>,
}

impl Connector<'_> {
    /// Mounts, or gets the connection of a mount. `None` if the launcher could not mount.
    fn connect(self, plan: &MountPlan) -> Result<Option<Connected>> {
        let (mount, connection, listener) = match self {
            Self::Own(reserved) => {
                let Reserved { mount_point, mut lock, record, listener } = *reserved;
                lock.keep_files();
                let (mount, connection) = Mounted::attach(&mount_point, plan, lock, record)?;
                (mount, connection, Some(listener))
            }
            Self::Launcher(launcher, mount_point) => {
                let (directory, lock) = match mount_point {
                    Some(mount_point) => private_directory(&mount_point, plan)?,
                    None => (None, None),
                };
                let mount = Mounted::by_another_process(plan, directory, lock);
                match launcher.connection() {
                    Ok(Some(connection)) => (mount, connection, None),
                    not_mounted => {
                        mount.clear_up();
                        return not_mounted.map(|_| None);
                    }
                }
            }
            Self::Inherited(connection) => {
                (Mounted::by_another_process(plan, None, None), connection, None)
            }
        };
        Ok(Some(Connected { mount, connection, listener }))
    }

    /// Removes what was made before the archives were opened.
    fn give_up(self) {
        if let Self::Own(reserved) = self {
            reserved.lock.remove();
        }
    }
}

/// A locked mount point, with a socket at which other processes wait until it is mounted.
struct Reserved {
    mount_point: PathBuf,
    lock: MountLock,
    record: Record,
    listener: UnixListener,
}

impl Reserved {
    fn new(lock: MountLock, mount_point: PathBuf, plan: &MountPlan) -> Result<Self> {
        // The process that took the lock has written down what is to be mounted.
        let record = match lock.record() {
            Some(record) => Record { process: ProcessId::own()?, ..record },
            None => registry::first_record(&mount_point, plan)?,
        };
        let listener = lock.listen()?;
        lock.write(&record)?;
        Ok(Self { mount_point, lock, record, listener })
    }
}

/// A prepared directory, and its record.
type PrivateDirectory = (Option<OwnedDirectory>, Option<(MountLock, Record)>);

/// The directory of a private mount, and its record. If the daemon is killed, `gc` finds the
/// directory by the record. If no record can be written, archfs mounts without one.
fn private_directory(mount_point: &Path, plan: &MountPlan) -> Result<PrivateDirectory> {
    let mut record = registry::first_record(mount_point, plan)?;
    registry::remove_ended_records(mount_point);
    let lock = MountLock::acquire_private(&record)
        .inspect_err(|error| {
            log::info!("{}: mounting without a record: {error}", mount_point.display());
        })
        .ok();
    let directory = mount_point::prepare_in_namespace(mount_point, plan.covers_files, &mut || {
        record.creates_directory = true;
        lock.as_ref().map_or(Ok(()), |lock| lock.write(&record))
    });
    match (directory, lock) {
        (Ok(directory), lock) => Ok((directory, lock.map(|lock| (lock, record)))),
        (Err(error), lock) => {
            // No other process knows of the record and would remove it.
            if let Some(lock) = lock {
                lock.remove();
            }
            Err(error)
        }
    }
}

/// Serves in this process until a signal, an unmount, or the end of `holder`, if there is one. If
/// the same archives are already mounted there, holds that mount instead. `progress` shows how far
/// opening is; `opened` is called when it is done.
pub fn serve_in_foreground(
    plan: &MountPlan,
    holder: Option<ProcessId>,
    ready: &mut Ready,
    progress: &Progress,
    opened: impl FnOnce(),
) -> Result<()> {
    set_up_process(plan)?;
    let clean_up = |mount_point: &Path| {
        let _ = registry::clean_up_after_exit(mount_point, registry::EXIT_TIMEOUT);
    };
    let (connector, own) = match inherited::number(&plan.mount_point) {
        Some(number) => (Connector::Inherited(inherited::connection(number)?), None),
        None => {
            let mount_point = mount_point::locate(&plan.mount_point)?;
            let lock = match registry::join_or_lock(&mount_point, plan)? {
                JoinOutcome::Locked(lock) => lock,
                JoinOutcome::Joined(client, _) => {
                    opened();
                    let (wakes, _session_end) = signals::watch(Ignored::Stay)?;
                    ready.announce()?;
                    return hold_shared_mount(client, wakes, holder);
                }
            };
            let reserved = Reserved::new(lock, mount_point.clone(), plan)
                .inspect_err(|_| clean_up(&mount_point))?;
            (Connector::Own(Box::new(reserved)), Some(mount_point))
        }
    };
    let started = start(plan, connector, Ignored::Stay, progress, opened).and_then(|daemon| {
        let Some(mut daemon) = daemon else { return Ok(None) };
        daemon.hold_for(holder)?;
        crate::log::keep_messages(true);
        ready.announce()?;
        Ok(Some(daemon))
    });
    if let (Err(_), Some(mount_point)) = (&started, &own) {
        clean_up(mount_point);
    }
    started?.map_or(Ok(()), Daemon::serve)
}

/// Holds a lease on the mount of another daemon until a signal, the end of that daemon, or of
/// `holder`.
fn hold_shared_mount(
    client: Client,
    mut wakes: WakeSources,
    holder: Option<ProcessId>,
) -> Result<()> {
    // Leases without a listener: only to wait for the end of `holder`.
    let mut leases = Leases::new(None)?;
    if let Some(holder) = holder {
        leases.watch_process(holder)?;
    }
    loop {
        let mut watched = leases.watched();
        watched.extend(wakes.watched());
        watched.push(PollFd::new(&client, PollFlags::IN));
        let limit = leases.needs_timer().then_some(ASK_AGAIN);
        wait(&mut watched, limit)?;
        let has_ended = watched.last().is_some_and(|daemon| !daemon.revents().is_empty());
        leases.serve_requests(false, &mut ());
        let events = wakes.take(Script::of(holder));
        if has_ended {
            return Ok(());
        }
        if events.end_requests > 0 || events.end_now || (holder.is_some() && !leases.has_lease()) {
            return client.leave().map(|_| ());
        }
    }
}

/// An opened archive and its statistics.
pub(super) struct Opened {
    pub(super) tree: Arc<dyn Tree>,
    pub(super) stats: Arc<Stats>,
    pub(super) report: Report,
    /// Budget of its caches at the start, bytes, and the handle that changes it.
    pub(super) cache_bytes: u64,
    pub(super) budget: Budget,
    pub(super) archive_cache: ArchiveCachePolicy,
    /// The copy that is filled while they are served.
    pub(super) staging: Option<Staging>,
    /// The part that it takes among the nodes of the job.
    pub(super) departure: Option<Departure>,
}

fn open(plan: &MountPlan, progress: &Progress) -> Result<Opened> {
    if session::has_limited_address_space() {
        heap::use_one_heap();
    }
    heap::map_large_buffers();
    let stats = Arc::new(Stats::default());
    let options = OpenOptions {
        acls: match plan.access {
            Access::Owner => Acls::Shown,
            Access::Everybody => Acls::Masked,
        },
        stats: Arc::clone(&stats),
        notes_slow_reads: true,
        ..opening::options(plan)
    };
    let Archives { files, staging, nodes } = stage::archives(plan, options.cache_bytes, progress)?;
    // Before the archives are read, because all nodes read their tables at the same time.
    let departure = nodes.map(|nodes| nodes.join(plan, &files, &stats)).transpose()?.flatten();
    stage::wait_if_asked(plan, staging.as_ref(), progress)?;
    if let Some(staging) = &staging {
        staging.count_in(&stats);
    }
    stage::warn_of_memory(plan, &files, options.cache_bytes);
    let tree = formats::open_files(&files, &options, progress)?;
    report_contents(plan, tree.as_ref());
    let tree = opening::view(plan, tree)?;
    opening::check_root(plan, tree.as_ref())?;
    let report = Report::begin(plan, Arc::clone(&stats));
    let copy = staging.as_ref().map(Staging::copy);
    let OpenOptions { cache_bytes, budget, .. } = options;
    let switch = Arc::new(ArchiveCache::default());
    let copies = storage::serve(&files, &switch, plan.fill_scope(), cache_bytes)?;
    stats.readahead.watch(Box::new(move || copies.iter().map(|copy| copy.readahead()).sum()));
    let archive_cache = ArchiveCachePolicy::new(plan, &files, switch, copy, Arc::clone(&stats));
    Ok(Opened { tree, stats, report, cache_bytes, budget, archive_cache, staging, departure })
}

/// Inner archives that are looked into to tell whether there is nothing else.
const INNER_ARCHIVES_READ: usize = 4;

/// Says what is unusual about the files of the archives. An error is reported when they are read.
fn report_contents(plan: &MountPlan, tree: &dyn Tree) {
    let name = plan.mount_point.display();
    match formats::contents(tree, INNER_ARCHIVES_READ) {
        Ok(Contents::NoFiles) => log::warn!("{name}: there is no file in the archive"),
        Ok(Contents::OnlyArchives) if !plan.recursive => {
            crate::log::note(format_args!(
                "{name}: all files are archives; --nested shows their files"
            ));
        }
        Ok(_) | Err(_) => {}
    }
}

/// Starts the log in the file that the user named, or on standard error, and chooses CPU cores for
/// the threads that are started later.
fn set_up_process(plan: &MountPlan) -> Result<()> {
    let file = plan.log_file.as_deref().map(crate::log::open).transpose()?;
    crate::log::start(plan.verbosity, file);
    plan.cpus.as_ref().map_or(Ok(()), processors::run_on)
}
