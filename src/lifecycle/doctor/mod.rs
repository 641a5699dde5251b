//! What a node has and lacks for mounting, as facts.
//!
//! Owns gathering them, one file for each thing that is looked at; leaves words, remedies and the
//! verdict to `cli::doctor`. `trial` really mounts, which is the only proof.
//! Invariants: nothing is changed and nothing is left behind; what can not be found out is said so,
//! never guessed.

mod batch;
mod container;
mod device;
mod fusermount;
mod kernel;
mod limits;
mod memory;
mod namespace;
mod places;
mod trial;

pub use batch::{Batch, Scheduler, Task};
pub use container::Container;
pub use device::Device;
pub use fusermount::{Configuration, Unusable};
pub use kernel::Kernel;
pub use limits::{Descriptors, Processes};
pub use memory::Memory;
pub use namespace::{Barrier, check_namespace};
pub use places::{Place, State as PlaceState};
pub use trial::{Failure, Steps, Trial, Tried, check_mount};

use std::path::PathBuf;

use rustix::process::geteuid;

use crate::lifecycle::commands::list::{State, list};
use crate::lifecycle::share;
use crate::processors;

/// What is known of a node, for this user.
#[derive(Debug)]
pub struct Node {
    /// Whether this user mounts by itself.
    pub is_root: bool,
    /// /dev/fuse.
    pub device: Device,
    /// The helper that mounts for ordinary users, with its version, or why it does not.
    pub helper: Result<(PathBuf, String), Unusable>,
    /// /etc/fuse.conf.
    pub configuration: Configuration,
    /// What keeps this user from making namespaces, where the system tells.
    pub barriers: Vec<Barrier>,
    /// The kernel, and whether /proc is there.
    pub kernel: Kernel,
    /// What this process is in.
    pub container: Option<Container>,
    /// The job.
    pub batch: Option<Batch>,
    /// Open files.
    pub descriptors: Descriptors,
    /// Processes and threads.
    pub processes: Processes,
    /// Memory.
    pub memory: Memory,
    /// Processors that this process may use.
    pub processors: usize,
    /// Where one mounts.
    pub places: Vec<Place>,
    /// The directory of the registry, or why nothing can be written there.
    pub records: crate::error::Result<PathBuf>,
    /// Mounts of this user that are dead, or whose daemon does not answer.
    pub broken: Vec<(PathBuf, State)>,
}

impl Node {
    /// Looks at everything that can be looked at without mounting.
    pub fn examine() -> Self {
        let broken = list().unwrap_or_default().into_iter();
        let broken = broken.filter(|it| matches!(it.state, State::Dead | State::Silent));
        let processors = processors::count();
        let threads = super::daemon::usual_threads();
        Self {
            is_root: geteuid().is_root(),
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
            places: places::all(),
            records: share::try_registry(),
            broken: broken.map(|it| (it.mount_point, it.state)).collect(),
        }
    }
}
