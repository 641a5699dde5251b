//! Collects facts about mounting on this node for `archfs doctor`; `cli::doctor` judges and reports
//! them. `trial` mounts an archive, which is the only proof.
//!
//! Invariants: a check changes nothing permanently. A fact that cannot be determined is reported as
//! unknown, not guessed.

mod batch;
mod container;
mod device;
mod fusermount;
mod kernel;
mod limits;
mod memory;
mod mount_parents;
mod namespace;
mod trial;

pub use batch::{Batch, Scheduler, Task};
pub use container::Container;
pub use device::Device;
pub use fusermount::{Configuration, Unusable};
pub use kernel::Kernel;
pub use limits::{Descriptors, Processes};
pub use memory::Memory;
pub use mount_parents::{MountParent, MountParentState};
pub use namespace::{Barrier, check_namespace};
pub use trial::{Failure, Steps, Trial, Tried, check_mount};

use std::path::PathBuf;

use rustix::process::geteuid;

use crate::lifecycle::commands::list::{State, list};
use crate::lifecycle::mount::attach;
use crate::lifecycle::registry;
use crate::os::processors;

/// The facts about a node, for this user.
#[derive(Debug)]
pub struct Node {
    /// Who tries mount(2) before the helper; `None` if this process does not.
    pub mounts_directly: Option<&'static str>,
    /// /dev/fuse.
    pub device: Device,
    /// The helper that mounts for ordinary users and its version, or why it is unusable.
    pub helper: Result<(PathBuf, String), Unusable>,
    /// /etc/fuse.conf.
    pub configuration: Configuration,
    /// The settings that keep this user from creating namespaces.
    pub barriers: Vec<Barrier>,
    /// The kernel, and whether /proc is mounted.
    pub kernel: Kernel,
    /// The container that this process runs in.
    pub container: Option<Container>,
    /// The batch job that this process runs in.
    pub batch: Option<Batch>,
    /// The limit of open files.
    pub descriptors: Descriptors,
    /// The limits of processes and threads.
    pub processes: Processes,
    /// Memory.
    pub memory: Memory,
    /// The number of CPU cores that this process may use.
    pub processors: usize,
    /// Directories in which users usually mount.
    pub mount_parents: Vec<MountParent>,
    /// The record directory, or the error of writing to it.
    pub records: crate::error::Result<PathBuf>,
    /// Mounts of this user that are stale, whose daemon does not answer, or that are served
    /// although they are unmounted.
    pub broken: Vec<(PathBuf, State)>,
}

impl Node {
    /// Collects everything that can be checked without mounting.
    pub fn examine() -> Self {
        let broken = list().unwrap_or_default().into_iter();
        let broken = broken.filter(|mount| !matches!(mount.state, State::Alive | State::Unknown));
        let processors = processors::count();
        let threads = super::daemon::usual_threads();
        Self {
            mounts_directly: attach::may_mount_directly().then(|| match geteuid().is_root() {
                true => "root",
                false => "this process, with CAP_SYS_ADMIN,",
            }),
            device: Device::probe(),
            helper: fusermount::probe(),
            configuration: Configuration::read(),
            barriers: namespace::barriers(),
            kernel: Kernel::probe(),
            container: Container::around(),
            batch: Batch::around(),
            descriptors: Descriptors::probe(threads),
            processes: Processes::probe(threads),
            memory: Memory::probe(),
            processors,
            mount_parents: mount_parents::all(),
            records: registry::check_record_directory(),
            broken: broken.map(|mount| (mount.mount_point, mount.state)).collect(),
        }
    }
}
