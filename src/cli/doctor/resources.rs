//! Checks of the resources that a mount needs: directories, open files, threads, memory, CPU cores.
//!
//! Invariant: the numbers are those of this process, because a batch job has other limits than a
//! login shell.

use super::check::{Check, State};
use crate::lifecycle::State as MountState;
use crate::lifecycle::doctor::{
    Descriptors, Device, Memory, Node, Place, PlaceState, Processes, Trial,
};
use crate::memory::Bound;
use crate::units::show_size;

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
        places(&node.places),
        records(node),
        broken(node),
        with_severity(descriptors(node.descriptors)),
        processes(node.processes),
        with_severity(memory(&node.memory)),
        Check::good("processors", format!("{} for this process", node.processors)),
    ]
}

fn places(places: &[Place]) -> Check {
    const NAME: &str = "places";
    let describe = |place: &Place| {
        let path = place.path.display();
        match &place.state {
            PlaceState::Writable(room) => format!("{path} has room for {}", show_size(*room)),
            PlaceState::Refused(why) => format!("{path} can not be written to ({why})"),
            PlaceState::Missing => format!("{path} is not there"),
        }
    };
    let text = places.iter().map(describe).collect::<Vec<_>>().join(", ");
    let room = |place: &Place| match place.state {
        PlaceState::Writable(room) => Some(room),
        _ => None,
    };
    let remedy = "set TMPDIR to a folder of the node that you may write to, and mount below it";
    if !places.iter().any(|place| room(place).is_some()) {
        return Check::problem(NAME, text, remedy);
    }
    if places.iter().all(|place| room(place).is_some_and(|room| room >= LITTLE_ROOM)) {
        return Check::good(NAME, text);
    }
    let remedy = "mount and --stage where there is room; a mount itself takes none";
    Check::note(NAME, text, Some(remedy.into()))
}

fn records(node: &Node) -> Check {
    const NAME: &str = "records";
    match &node.records {
        Ok(directory) if directory.starts_with("/tmp") => {
            Check::good(NAME, format!("{} can be written", directory.display()))
        }
        Ok(directory) => {
            let text = format!("{} is used, because /tmp cannot be written", directory.display());
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
        return Check::good(NAME, "none of yours is dead");
    }
    let describe = node.broken.iter().map(|(place, state)| match state {
        MountState::Dead => format!("{} is dead", place.display()),
        _ => format!("{} does not answer", place.display()),
    });
    let text = describe.collect::<Vec<_>>().join(", ");
    let is_dead = |(_, state): &(_, MountState)| *state == MountState::Dead;
    let remedy = match node.broken.iter().all(is_dead) {
        true => "archfs gc clears them",
        false => "archfs gc clears the dead; archfs list tells which process serves the others",
    };
    Check::note(NAME, text, Some(remedy.into()))
}

fn descriptors(found: Descriptors) -> Check {
    const NAME: &str = "open-files";
    let Descriptors { most, wanted } = found;
    match most {
        None => Check::good(NAME, format!("no limit; a mount takes {wanted}")),
        Some(most) if most >= wanted => {
            Check::good(NAME, format!("{most} at most; a mount takes {wanted}"))
        }
        Some(most) => {
            let text = format!(
                "{most} at most; a mount takes {wanted}, or with fewer its threads share one"
            );
            let remedy =
                format!("ulimit -Hn {wanted}, or ask for that in /etc/security/limits.conf");
            Check::note(NAME, text, Some(remedy))
        }
    }
}

/// Fewest threads with which a mount starts.
const MIN_THREADS: u64 = 8;

fn processes(found: Processes) -> Check {
    const NAME: &str = "threads";
    let wanted = found.wanted;
    let Some(left) = found.left() else {
        return Check::good(NAME, format!("no limit; a mount takes {wanted}"));
    };
    if left >= wanted {
        return Check::good(NAME, format!("{left} more can be started; a mount takes {wanted}"));
    }
    let bound = match found.left_to_user == Some(left) {
        true => "the limit of this user's processes (ulimit -u)",
        false => "the job's control group (pids.max)",
    };
    let text = format!("{left} more can be started by {bound}, where a mount takes {wanted}");
    let remedy = "end what is not needed, mount with --threads 4, or ask for a higher limit";
    match left < MIN_THREADS {
        true => Check::problem(NAME, text, remedy),
        false => Check::note(NAME, text, Some(remedy.into())),
    }
}

fn memory(found: &Memory) -> Check {
    const NAME: &str = "memory";
    let cache = show_size(found.cache);
    let Some(left) = found.left else {
        // No remedy, because the memory may be sufficient.
        let text = format!("can not be told; the cache of a mount would be {cache} (--cache)");
        return Check::note(NAME, text, None);
    };
    let bound = match left.bound {
        Bound::Node => "the node has left",
        Bound::ControlGroup => "the job's limit leaves",
    };
    let text = format!("{bound} {}; the cache of a mount would be {cache}", show_size(left.bytes));
    if let Some(space) = found.address_space {
        let text =
            format!("{text}; the address space is limited to {} (ulimit -v)", show_size(space));
        let remedy = "ulimit -v unlimited: threads take address space that they never use";
        return Check::note(NAME, text, Some(remedy.into()));
    }
    match left.bytes < LITTLE_MEMORY {
        true => {
            let remedy =
                "ask for more memory (--mem); --cache and --threads make a mount take less";
            Check::note(NAME, text, Some(remedy.into()))
        }
        false => Check::good(NAME, text),
    }
}
