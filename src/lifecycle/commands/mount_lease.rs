//! The lease of `run` on its mount: how it is obtained and given back.
//!
//! Without fusermount, or if nothing else works, this process mounts in a namespace that only the
//! command sees.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::direct;
use crate::error::{Error, Kind, Result};
use crate::lifecycle::commands::daemon_messages::DaemonMessages;
use crate::lifecycle::commands::mount;
use crate::lifecycle::daemon::launcher::Launched;
use crate::lifecycle::mount::fusermount::Helper;
use crate::lifecycle::mount::{attach, device, mount_point, namespace, owned_directory};
use crate::lifecycle::registry::{self, Client, MountFate, MountState, Prepared, RecordSnapshot};
use crate::lifecycle::{Background, ConnectionSource, MountPlan};
use crate::os::mountinfo;
use crate::os::process::ProcessId;
use crate::os::record_directory::RecordDirectory;
use crate::progress::Show;

/// How long to wait for the table of direct reads before the command starts, so that `run` can say
/// that no file can be read directly. The command reads through the mount until the table is made.
const TABLE_WAIT: Duration = Duration::from_millis(300);
/// How long the daemon may take to release a copy that it leaves. With open files it takes longer.
const COPY_RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

const TABLE_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A daemon that is not allowed to mount has printed why (docs/CLI.md).
pub(super) const CANNOT_MOUNT: Kind = Kind::Reported(4);

/// Variables for the environment of the command.
pub(super) type Environment = Vec<(&'static str, OsString)>;

pub(crate) type Chart<'d> = &'d dyn Fn(&str);

/// Which processes see the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// All processes of the user. Only the command, if archfs cannot mount in another way.
    Default,
    /// Only the command.
    Private,
}

pub(super) struct MountLease {
    client: Client,
    pub(super) mount_point: PathBuf,
    /// Whether this process mounted it, in its own mount namespace.
    is_private: bool,
    /// Whether it was mounted before.
    is_shared: bool,
    /// Whether the summary of the mount is printed.
    is_summarized: bool,
    /// Whether the daemon leaves a copy of the archives for the next mount.
    leaves_copy: bool,
}

/// A lease on the mount of `plan`, which is mounted or shared.
pub(super) fn obtain(plan: &MountPlan, privacy: Privacy, show: Show<'_>) -> Result<MountLease> {
    let mount_point = &mount_point::locate(&plan.mount_point)?;
    if privacy == Privacy::Private {
        return mount_privately(mount_point, plan);
    }
    if !attach::may_mount_directly()
        && let Err(error) = Helper::find()
    {
        let path = mount_point.display();
        log::warn!("{path}: {error}; mounting in a namespace that only the command sees");
        return mount_privately(mount_point, plan);
    }
    let has_fallback = device::check().is_ok();
    match mount::obtain(plan, has_fallback, show) {
        Ok((client, shared)) => {
            let lease = MountLease::new(client, mount_point, false, plan);
            Ok(MountLease { is_shared: shared.is_some(), ..lease })
        }
        // The daemon has printed why. For example, the mount point does not belong to the user, or
        // root in a user namespace may mount only in a mount namespace of its own.
        Err(error) if error.kind() == CANNOT_MOUNT && has_fallback => {
            let path = mount_point.display();
            log::warn!("{path}: mounting in a namespace that only the command sees instead");
            mount_privately(mount_point, plan)
        }
        Err(error) => Err(error),
    }
}

/// Mounts in a mount namespace of this process, which the command inherits. The daemon stays
/// outside, where it can remove the directory it created when the namespace has ended.
fn mount_privately(mount_point: &Path, plan: &MountPlan) -> Result<MountLease> {
    let named = |error: Error| error.within(mount_point.display());
    let role = Background { source: ConnectionSource::Private, has_fallback: false };
    let mut launched = Launched::start(plan, role, None).map_err(named)?;
    if let Err(error) = launched.wait_until_opened() {
        clear_private(mount_point);
        return Err(named(error));
    }
    let source = registry::real_paths(plan).into_iter().next().unwrap_or_default();
    let connection = match namespace::enter()
        .and_then(|()| attach::mount_here(mount_point, &source, plan.restrictions()))
    {
        Ok(connection) => connection,
        Err(error) => {
            launched.give_up();
            return Err(error);
        }
    };
    let answers = match launched.hand_over(connection) {
        Ok(()) => launched.wait_until_answers(mount_point).map_err(named),
        Err(error) => {
            launched.give_up();
            Err(error)
        }
    };
    if answers.is_err() {
        // If the daemon still ran, it has removed its directory, and the mount with it.
        let _ = attach::detach_here(mount_point);
        clear_private(mount_point);
    }
    Ok(MountLease::new(answers?, mount_point, true, plan))
}

/// Removes what the killed daemon of a private mount left behind.
fn clear_private(mount_point: &Path) {
    registry::remove_ended_records(mount_point);
    owned_directory::remove_unused(mount_point, None);
}

impl MountLease {
    fn new(client: Client, mount_point: &Path, is_private: bool, plan: &MountPlan) -> Self {
        let (is_summarized, leaves_copy) = (plan.is_summarized(), plan.stage_keep.is_some());
        let mount_point = mount_point.to_owned();
        Self { client, mount_point, is_private, is_shared: false, is_summarized, leaves_copy }
    }

    /// What the daemon logs from now on, or since it has mounted for this process.
    pub(super) fn messages(&self) -> DaemonMessages {
        DaemonMessages::of(&self.mount_point, self.is_shared, self.is_private)
    }

    /// Lets `command` hold the mount as well, so that it keeps its files if this process is killed.
    pub(super) fn hold_for(&mut self, command: ProcessId) {
        let _ = self.client.watch(command);
    }

    /// The variables with which the command reads directly. Warns if it cannot; it reads through
    /// the mount then.
    pub(super) fn direct_reads(&self) -> Environment {
        let prepared = match self.is_private {
            true => Err(Error::new(Kind::Unsupported, "the mount is private")),
            false => prepare_direct_reads(&self.mount_point),
        };
        prepared.unwrap_or_else(|error| {
            log::warn!("{}: --direct has no effect: {error}", self.mount_point.display());
            Vec::new()
        })
    }

    /// Gives the lease back although `command` still runs, as if it had ended.
    pub(super) fn end_before(mut self, command: Option<ProcessId>) {
        // If the daemon does not answer, `end` reports that.
        let _ = command.map(|command| self.client.unwatch(command));
        self.end(&|_| Box::new(()), None, None);
    }

    /// Gives the lease back. Returns when it is unmounted, or at once if it stays because others
    /// hold it; returns whether it is unmounted. If it is, `chart` gets its statistics, and
    /// `messages` what its daemon logged.
    pub(super) fn end(
        mut self,
        show: Show<'_>,
        chart: Option<Chart<'_>>,
        mut messages: Option<&mut DaemonMessages>,
    ) -> bool {
        let mount_point = self.mount_point.as_path();
        // Checked first, because detaching a private mount ends it.
        let has_ended = matches!(
            registry::mount_state(mount_point),
            Ok(MountState::Stale(_) | MountState::Ending | MountState::Free)
        );
        if self.is_private {
            // Files that are still open stay readable until they are closed.
            if let Err(error) = attach::detach_here(mount_point) {
                crate::log::error(&error);
            }
        }
        // The daemon answers this only before it is left.
        let stats = chart.and_then(|_| self.client.stats().ok());
        let shown = show(&format!("unmounting {}", mount_point.display()));
        let daemon = self.client.daemon().filter(|_| self.leaves_copy);
        let mount_fate = self.client.leave();
        if let (Some(daemon), Ok(MountFate::Unmounted { .. })) = (daemon, &mount_fate) {
            // The next mount can use the copy only when this daemon has released it.
            let _ = daemon.wait_for_end(Some(COPY_RELEASE_TIMEOUT));
        }
        drop(shown);
        if let (Some(messages), Ok(MountFate::Stays)) = (&mut messages, &mount_fate) {
            messages.catch_up();
        }
        if let Ok(MountFate::Unmounted { summary, messages: kept }) = &mount_fate {
            if let Some(messages) = &mut messages {
                messages.print(kept);
            }
            if let (Some(chart), Some(stats)) = (chart, &stats) {
                chart(stats);
            }
            if self.is_summarized && !summary.is_empty() {
                crate::log::note(format_args!("{summary}"));
            }
        }
        if has_ended {
            log::error!("{}: the mount ended before the command exited", mount_point.display());
        }
        // A killed daemon leaves a stale mount and its directory, or only the directory.
        let cleared = match &mount_fate {
            Ok(MountFate::Stays) => Ok(()),
            Ok(MountFate::Lost) if self.is_private => {
                clear_private(mount_point);
                Ok(())
            }
            Ok(MountFate::Lost) => {
                registry::clean_up_after_exit(mount_point, registry::EXIT_TIMEOUT)
            }
            // What the private mount covered is visible again, and is not ours to clear.
            _ if self.is_private => Ok(()),
            _ => match registry::mount_state(mount_point) {
                Ok(MountState::Stale(_)) => {
                    registry::clean_up_after_exit(mount_point, registry::EXIT_TIMEOUT)
                }
                _ => Ok(()),
            },
        };
        let is_unmounted = matches!(mount_fate, Ok(MountFate::Unmounted { .. }));
        for error in [mount_fate.err(), cleared.err()].into_iter().flatten() {
            crate::log::error(&error.within(mount_point.display()));
        }
        is_unmounted
    }
}

fn prepare_direct_reads(mount_point: &Path) -> Result<Environment> {
    let missing = || Error::new(Kind::NotFound, "the mount has ended");
    let entry = mountinfo::topmost(mount_point)?.ok_or_else(missing)?;
    let owner = entry.owner().ok_or_else(missing)?;
    let snapshot = RecordSnapshot::of(mount_point, owner).ok_or_else(missing)?;
    // On a connection of its own: a daemon that does not know the request ends the connection.
    let mut client = snapshot.connect().ok_or_else(missing)?;
    let deadline = Instant::now() + TABLE_WAIT;
    let mut prepared = client.prepare_direct_reads()?;
    while prepared == Prepared::NotYet && Instant::now() < deadline {
        thread::sleep(TABLE_POLL_INTERVAL);
        prepared = client.prepare_direct_reads()?;
    }
    let why = match prepared {
        Prepared::Ready | Prepared::NotYet => None,
        Prepared::Never => Some("no file of the mount can be read directly"),
        Prepared::Unknown => Some("the daemon is of another version of archfs"),
    };
    if let Some(why) = why {
        return Err(Error::new(Kind::Unsupported, why));
    }
    let device = entry.device_number().ok_or_else(missing)?;
    let library = RecordDirectory::try_each_parent(|found| direct::install(found.path()))
        .map_err(|error| Error::new(Kind::Io, "cannot store the library").with_source(error))?;
    let inherited = |name: &str| std::env::var_os(name);
    Ok(direct::environment(&library, device, &snapshot.socket(), inherited).into())
}
