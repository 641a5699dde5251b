//! `archfs doctor`: whether this node can mount, and what to do if it cannot.
//!
//! `Node` has what can be found without mounting. `trial` mounts an archive, which is the only
//! proof. `Verdict` draws the conclusion from both.
//!
//! Invariants: nothing here changes the node permanently. A fact that cannot be determined is
//! reported as unknown, not guessed. If a trial succeeded, what it needs is no problem, whatever
//! the settings say.

mod access;
mod environment;
mod resources;
mod trial;

pub(crate) use access::check_namespace;
pub(crate) use trial::{Failure, Trial, Tried, check_mount};

use std::path::PathBuf;

use rustix::process::geteuid;
use serde::Serialize;

use self::access::{Barrier, Device, Unusable};
use self::environment::Container;
use self::resources::{Descriptors, Memory, MountParent, Processes};
use crate::lifecycle::daemon;
use crate::lifecycle::mount::attach;
use crate::os::processors;

/// What is known about this node, for this user, without mounting.
pub(crate) struct Node {
    /// Who tries mount(2) before the helper; `None` if this process does not.
    mounts_directly: Option<&'static str>,
    device: Device,
    /// The helper that mounts for ordinary users and its version, or why it is unusable.
    helper: Result<(PathBuf, String), Unusable>,
    /// The settings that keep this user from creating namespaces.
    barriers: Vec<Barrier>,
    /// Whether /proc shows this process and its mounts.
    has_proc: bool,
    /// The container that this process runs in.
    container: Option<Container>,
    pub(crate) descriptors: Descriptors,
    pub(crate) processes: Processes,
    pub(crate) memory: Memory,
    /// The number of CPU cores that this process may use.
    pub(crate) processors: usize,
    pub(crate) mount_parents: Vec<MountParent>,
    kernel: Check,
    records: Check,
    broken_mounts: Check,
    batch_job: Check,
    allow_other: Check,
}

impl Node {
    /// Collects everything that can be checked without mounting.
    pub(crate) fn examine() -> Self {
        let threads = daemon::usual_threads();
        let mounts_directly = attach::may_mount_directly().then(|| match geteuid().is_root() {
            true => "root",
            false => "this process, with CAP_SYS_ADMIN,",
        });
        Self {
            mounts_directly,
            device: Device::probe(),
            helper: access::probe_helper(),
            barriers: access::barriers(),
            has_proc: environment::has_proc(),
            container: Container::around(),
            descriptors: Descriptors::probe(threads),
            processes: Processes::probe(threads),
            memory: Memory::probe(),
            processors: processors::count(),
            mount_parents: resources::mount_parents(),
            kernel: environment::check_kernel(),
            records: resources::check_records(),
            broken_mounts: resources::check_mounts(),
            batch_job: environment::check_batch_job(),
            allow_other: access::check_allow_other(mounts_directly.is_some()),
        }
    }

    /// All checks, the most important ones first.
    fn checks(&self, trial: &Trial) -> Vec<Check> {
        // If a mount works with little of a resource, it is only slow: a note, not a problem.
        let can_mount = trial.mount.is_ok() || trial.run.is_ok() || self.device != Device::Opens;
        let with_severity = |check: Check| match check.state {
            CheckState::Note if !can_mount && check.remedy.is_some() => {
                Check { state: CheckState::Problem, ..check }
            }
            _ => check,
        };
        vec![
            self.device.check(self.container.as_ref()),
            access::check_helper(self, trial),
            access::check_namespaces(self, trial),
            self.kernel.clone(),
            environment::check_proc(self.has_proc),
            environment::check_container(self.container.as_ref(), trial),
            resources::check_mount_parents(&self.mount_parents),
            self.records.clone(),
            self.broken_mounts.clone(),
            with_severity(self.descriptors.check()),
            self.processes.check(),
            with_severity(self.memory.check()),
            Check::good("processors", format!("{} CPU cores", self.processors)),
            self.batch_job.clone(),
            self.allow_other.clone(),
        ]
    }
}

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    /// What was checked; a stable key.
    #[serde(skip)]
    pub(crate) name: &'static str,
    pub(crate) state: CheckState,
    pub(crate) text: String,
    /// What a user without root rights can do. A problem has a remedy.
    pub(crate) remedy: Option<String>,
    /// What the administrator can do, as a phrase after "please".
    #[serde(skip)]
    request: Option<&'static str>,
}

/// The severity of a result, with its stable name in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum CheckState {
    #[serde(rename = "ok")]
    Good,
    #[serde(rename = "note")]
    Note,
    /// It prevents a way to mount, or makes the mount useless.
    #[serde(rename = "problem")]
    Problem,
}

impl Check {
    fn good(name: &'static str, text: impl Into<String>) -> Self {
        Self { name, state: CheckState::Good, text: text.into(), remedy: None, request: None }
    }

    fn note(name: &'static str, text: impl Into<String>) -> Self {
        Self { state: CheckState::Note, ..Self::good(name, text) }
    }

    fn note_with(name: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::note(name, text) }
    }

    fn problem(name: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: CheckState::Problem, ..Self::note_with(name, text, remedy) }
    }

    /// Adds a request to the administrator.
    #[must_use]
    fn asking(self, request: Option<&'static str>) -> Self {
        Self { request, ..self }
    }
}

/// The conclusion from all checks. A way to mount works only if it was tried and succeeded.
pub(crate) struct Verdict {
    pub(crate) checks: Vec<Check>,
    /// The request to send to the administrator.
    pub(crate) request: Option<String>,
}

impl Verdict {
    pub(crate) fn of(node: &Node, trial: &Trial) -> Self {
        let checks = node.checks(trial);
        // A user who can mount and lacks only `run --private` has nothing to ask for.
        let request = trial.mount.is_err().then(|| request(node, &checks)).flatten();
        Self { checks, request }
    }
}

/// Nothing works without the device. With it, the helper is enough, and namespaces are the
/// alternative.
fn request(node: &Node, checks: &[Check]) -> Option<String> {
    let of = |name: &str| checks.iter().find(|check| check.name == name)?.request;
    let device = of("device");
    let way = of("fusermount").or_else(|| of("namespaces"));
    let requests: Vec<_> = [device, way].into_iter().flatten().collect();
    if requests.is_empty() || (node.container.is_some() && node.device != Device::Opens) {
        return None;
    }
    let requests = requests.join(", and ");
    Some(format!(
        "\"Please {requests} on the compute nodes, so that users can mount with archfs.\""
    ))
}
