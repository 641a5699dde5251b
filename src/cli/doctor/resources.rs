//! Checks of the resources that a mount needs: directories, open files, threads, memory, CPU cores.
//!
//! Invariant: the numbers are those of this process, because a batch job has other limits than a
//! login shell.

use super::check::{Check, State};
use crate::lifecycle::State as MountState;
use crate::lifecycle::doctor::{
    Descriptors, Device, Memory, MountParent, MountParentState, Node, Processes, Trial,
};
use crate::os::memory::Bound;
use crate::units::format_size;

/// Free space below which a directory counts as full, bytes.
const LITTLE_ROOM: u64 = 64 << 20;

/// Memory below which a mount is slow, bytes. A quarter of it is less than the default cache.
const LITTLE_MEMORY: u64 = 256 << 20;

pub(super) fn checks(node: &Node, trial: &Trial) -> Vec<Check> {
    // If a mount works with little of a resource, it is only slow: a note, not a problem.
    let can_mount = trial.mount.is_ok() || trial.run.is_ok() || node.device != Device::Opens;
    let with_severity = |check: Check| match check.state {
        State::Note if !can_mount && check.remedy.is_some() => {
            Check { state: State::Problem, ..check }
        }
        _ => check,
    };
    vec![
        mount_parents(&node.mount_parents),
        records(node),
        broken(node),
        with_severity(descriptors(node.descriptors)),
        processes(node.processes),
        with_severity(memory(&node.memory)),
        Check::good("processors", format!("{} CPU cores", node.processors)),
    ]
}

fn mount_parents(parents: &[MountParent]) -> Check {
    const NAME: &str = "places";
    let describe = |parent: &MountParent| {
        let path = parent.path.display();
        match &parent.state {
            MountParentState::Writable(room) => format!("{path} {} free", format_size(*room)),
            MountParentState::Refused(why) => format!("{path} cannot be written ({why})"),
            MountParentState::Missing => format!("{path} does not exist"),
        }
    };
    let text = parents.iter().map(describe).collect::<Vec<_>>().join(", ");
    let room = |parent: &MountParent| match parent.state {
        MountParentState::Writable(room) => Some(room),
        _ => None,
    };
    let remedy = "set TMPDIR to a writable directory of the node";
    if !parents.iter().any(|parent| room(parent).is_some()) {
        return Check::problem(NAME, text, remedy);
    }
    if parents.iter().all(|parent| room(parent).is_some_and(|room| room >= LITTLE_ROOM)) {
        return Check::good(NAME, text);
    }
    let remedy = "mount and --stage where there is space";
    Check::note(NAME, text, Some(remedy.into()))
}

fn records(node: &Node) -> Check {
    const NAME: &str = "records";
    match &node.records {
        Ok(directory) if directory.starts_with("/tmp") => {
            Check::good(NAME, directory.display().to_string())
        }
        Ok(directory) => {
            let text = format!("{}; /tmp cannot be written", directory.display());
            Check::note(NAME, text, Some("free space in /tmp".into()))
        }
        Err(error) => {
            let remedy = error.hint().unwrap_or("free space in the directory above it");
            Check::problem(NAME, error.to_string(), remedy)
        }
    }
}

fn broken(node: &Node) -> Check {
    const NAME: &str = "mounts";
    if node.broken.is_empty() {
        return Check::good(NAME, "none is stale");
    }
    let describe = node.broken.iter().map(|(mount_point, state)| match state {
        MountState::Stale => format!("{} is stale", mount_point.display()),
        MountState::Detached => format!("{} is unmounted but still served", mount_point.display()),
        _ => format!("{} does not answer", mount_point.display()),
    });
    let text = describe.collect::<Vec<_>>().join(", ");
    let is_stale = |(_, state): &(_, MountState)| *state == MountState::Stale;
    let remedy = match node.broken.iter().any(is_stale) {
        true => "archfs gc",
        false => "archfs list",
    };
    Check::note(NAME, text, Some(remedy.into()))
}

fn descriptors(found: Descriptors) -> Check {
    const NAME: &str = "open-files";
    let Descriptors { most, wanted } = found;
    match most {
        None => Check::good(NAME, format!("no limit; {wanted} needed")),
        Some(most) => {
            let text = format!("{most} allowed; {wanted} needed");
            match most >= wanted {
                true => Check::good(NAME, text),
                false => Check::note(
                    NAME,
                    text,
                    Some(format!(
                        "ask the administrator to raise the limit on open files to {wanted} (ulimit -Hn)"
                    )),
                ),
            }
        }
    }
}

/// Fewest threads with which a mount starts.
const MIN_THREADS: u64 = 8;

fn processes(found: Processes) -> Check {
    const NAME: &str = "threads";
    let wanted = found.wanted;
    let Some(left) = found.left() else {
        return Check::good(NAME, format!("no limit; {wanted} needed"));
    };
    let text = format!("{left} allowed; {wanted} needed");
    if left >= wanted {
        return Check::good(NAME, text);
    }
    let limit = match found.left_to_user == Some(left) {
        true => "ulimit -u",
        false => "pids.max",
    };
    let text = format!("{text} ({limit})");
    let remedy = "mount with --threads 4";
    match left < MIN_THREADS {
        true => Check::problem(NAME, text, remedy),
        false => Check::note(NAME, text, Some(remedy.into())),
    }
}

fn memory(found: &Memory) -> Check {
    const NAME: &str = "memory";
    let cache = format_size(found.cache);
    let Some(left) = found.left else {
        // No remedy, because the memory may be sufficient.
        return Check::note(NAME, format!("unknown; default cache {cache}"), None);
    };
    let bound = match left.bound {
        Bound::Node => "on the node",
        Bound::ControlGroup => "to the job",
    };
    let text = format!("{} left {bound}; default cache {cache}", format_size(left.bytes));
    if let Some(space) = found.address_space {
        let text = format!("{text}; ulimit -v is {}", format_size(space));
        return Check::note(NAME, text, Some("ulimit -v unlimited".into()));
    }
    match left.bytes < LITTLE_MEMORY {
        true => {
            let remedy = "request more memory (--mem), or mount with --cache and --threads";
            Check::note(NAME, text, Some(remedy.into()))
        }
        false => Check::good(NAME, text),
    }
}
