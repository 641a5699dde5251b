//! The part of a daemon among those of the other nodes of its job.

use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use crate::error::Result;
use crate::lifecycle::MountPlan;
use crate::stats::Stats;
use crate::storage::{FileStorage, Sharing};
use crate::sync::{Arc, thread};
use crate::together::{Entrance, Group, Membership};

/// How long the end of a daemon waits until its record is removed, which is on a network file
/// system.
const REMOVAL_MAX: Duration = Duration::from_secs(1);

/// The other nodes of a job, which this one can be found by soon.
pub(super) struct Nodes {
    group: Arc<Group>,
    entrance: Entrance,
}

impl Nodes {
    /// Those that share some of `files`, the archives of `plan`. `None` if they share nothing, or
    /// cannot find each other.
    ///
    /// Fails with `Io` or `Usage` if they cannot, and the user requires it.
    pub(super) fn of(plan: &MountPlan, files: &[Arc<FileStorage>]) -> Result<Option<Self>> {
        let Some(settings) = &plan.together else { return Ok(None) };
        // Copies on other nodes would not follow changes of a file.
        let changes =
            |file: &FileStorage| plan.allow_changes && plan.stage.is_none() && !file.is_remote();
        let is_seen =
            |file: &Arc<FileStorage>| settings.is_required || file.is_seen_by_other_nodes();
        if !files.iter().any(is_seen) || files.iter().any(|file| changes(file)) {
            return Ok(None);
        }
        let found = or_alone(Group::new(settings.clone()), settings.is_required)?;
        Ok(found.map(|(group, entrance)| Self { group, entrance }))
    }

    /// Which archives of `plan` they share.
    pub(super) fn sharing(&self, plan: &MountPlan) -> Sharing<'_> {
        let is_required = plan.together.as_ref().is_some_and(|settings| settings.is_required);
        Sharing { group: &self.group, is_required }
    }

    /// Serves the shared ones of `files` to the other nodes, and looks for these. `None` if nothing
    /// is shared, or if that is impossible and the user does not require it.
    pub(super) fn join(
        self,
        plan: &MountPlan,
        files: &[Arc<FileStorage>],
        stats: &Stats,
    ) -> Result<Option<Departure>> {
        let served: Vec<_> = files.iter().filter_map(FileStorage::for_peers).collect();
        if served.is_empty() {
            return Ok(None);
        }
        let is_required = self.sharing(plan).is_required;
        let Self { group, entrance } = self;
        let counted = Arc::clone(&group);
        stats.together.watch(Box::new(move || counted.counts()));
        let joined = group.join(entrance, served).inspect_err(|_| group.leave());
        let membership = or_alone(joined, is_required)?;
        Ok(membership.map(|membership| Departure { membership: Some(membership) }))
    }
}

/// `None` for an error, if the node may read the archives by itself.
fn or_alone<T>(outcome: Result<T>, is_required: bool) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_required => Err(error.within("--together")),
        Err(error) => {
            log::info!("--together: {error}; this node reads the archives by itself");
            Ok(None)
        }
    }
}

/// A membership that ends without delaying an unmount.
pub(super) struct Departure {
    membership: Option<Membership>,
}

/// The end of a membership in the background. Nothing is ever sent: the sender is dropped then.
pub(super) struct Departing(Receiver<()>);

impl Departure {
    /// Ends it. Other nodes do not ask this one any more.
    pub(super) fn begin(&mut self) -> Option<Departing> {
        let membership = self.membership.take()?;
        let (sender, ended) = sync_channel(0);
        let work = move || {
            drop(membership);
            drop(sender);
        };
        thread::Builder::new().name("leave".into()).spawn(work).ok()?;
        Some(Departing(ended))
    }
}

impl Departing {
    /// Waits for the end, but not for long.
    pub(super) fn wait(&self) {
        let _ = self.0.recv_timeout(REMOVAL_MAX);
    }
}
