//! How the archives of a plan are opened, and the part of them that is shown.

use crate::cache;
use crate::error::{Kind, Result};
use crate::formats::{self, OpenOptions};
use crate::lifecycle::MountPlan;
use crate::os::processors;
use crate::progress::Progress;
use crate::sync::Arc;
use crate::vfs::{Tree, View, list_root};

/// The options that say what the archives of `plan` contain, and its cache budget.
pub(crate) fn options(plan: &MountPlan) -> OpenOptions {
    OpenOptions {
        offset: plan.offset,
        cache_bytes: cache_bytes(plan.cache_bytes),
        recursive: plan.recursive,
        directories: plan.directories.clone(),
        names: plan.names,
        partial: plan.partial,
        index: plan.index.clone(),
        ..OpenOptions::default()
    }
}

fn cache_bytes(wanted: Option<u64>) -> u64 {
    let fitting = |wanted| cache::reduced_to_fit(wanted, |text| log::warn!("{text}"));
    wanted.map_or_else(cache::default_bytes, fitting)
}

/// The archives of `plan`, as it shows them, to read them without a mount. `progress` shows how far
/// opening is.
pub fn open_to_read(plan: &MountPlan, progress: &Progress) -> Result<Arc<dyn Tree>> {
    plan.cpus.as_ref().map_or(Ok(()), processors::run_on)?;
    let tree = formats::open(&plan.archives, &options(plan), progress)?;
    view(plan, tree)
}

/// The part of `tree`, the archives of `plan`, that the plan shows.
pub(crate) fn view(plan: &MountPlan, tree: Arc<dyn Tree>) -> Result<Arc<dyn Tree>> {
    View::apply(tree, &plan.view).map_err(|error| match plan.archives.first() {
        Some(first) if error.kind() == Kind::NotFound => {
            let first = first.display().to_string();
            error.within(&first).with_hint(format!("to see its paths: archfs ls {first}"))
        }
        Some(first) => error.within(first.display()),
        None => error,
    })
}

/// Lists the root of `tree`, so that no mount is reported as ready in which `ls` fails.
pub(crate) fn check_root(plan: &MountPlan, tree: &dyn Tree) -> Result<()> {
    match list_root(tree) {
        Err(error) if error.is_damage() && plan.partial => {
            log::error!("{}", crate::log::text_of(&error));
            Ok(())
        }
        // An error of a saved index has its own.
        Err(error) if error.is_damage() && error.hint().is_none() => {
            let hint = "copy the archive again, or add --partial to mount it without its root";
            Err(error.with_hint(hint))
        }
        listed => listed,
    }
}
