//! The part of a daemon among those of the other nodes of its job.

use crate::error::Result;
use crate::lifecycle::MountPlan;
use crate::stats::Stats;
use crate::storage::FileStorage;
use crate::sync::Arc;
use crate::together::{Group, Membership, Serve};

/// The group of `plan`. `None` if the nodes of the job share nothing.
///
/// Fails with `Io` if the user requires one and it cannot be made.
pub(super) fn group(plan: &MountPlan) -> Result<Option<Arc<Group>>> {
    let Some(settings) = &plan.together else { return Ok(None) };
    match Group::new(settings.clone()) {
        Ok(group) => Ok(Some(group)),
        Err(error) if settings.is_required => Err(error.within("--together")),
        Err(error) => {
            log::info!("--together: {error}");
            Ok(None)
        }
    }
}

/// Serves the shared ones of `files` to the other nodes, and looks for these. `None` if nothing is
/// shared, or if that is impossible and the user does not require it.
pub(super) fn join(
    plan: &MountPlan,
    group: &Arc<Group>,
    files: &[Arc<FileStorage>],
    stats: &Stats,
) -> Result<Option<Membership>> {
    let served = files.iter().filter_map(|file| {
        let (key, reader) = (file.key_for_peers()?.to_owned(), Arc::clone(file));
        let serve: Serve =
            Box::new(move |buffer, offset, wanted| reader.read_for_peer(buffer, offset, wanted));
        Some((key, file.identity().len, serve))
    });
    let served: Vec<_> = served.collect();
    if served.is_empty() {
        return Ok(None);
    }
    let counted = Arc::clone(group);
    stats.together.watch(Box::new(move || counted.counts()));
    match group.join(served) {
        Ok(membership) => Ok(Some(membership)),
        Err(error) if plan.together.as_ref().is_some_and(|it| it.is_required) => {
            Err(error.within("--together"))
        }
        Err(error) => {
            group.leave();
            log::info!("--together: {error}; this node reads the archives by itself");
            Ok(None)
        }
    }
}
