//! CPU cores: how many this process may use, and which it chooses.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::str::FromStr;
use std::sync::OnceLock;
use std::thread;

use serde::{Deserialize, Serialize};

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, Kind, Result};
use crate::os::control_group::Group;
use crate::os::{kernel_file, mountinfo, process};

/// The number of CPU cores this process may use, limited by its CPU affinity and control groups.
/// Computed once, because it reads several files of /proc and /sys.
pub fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// CPU cores by their numbers, as text in the list format of cpuset(7): `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cores {
    /// Those of the control group, even if a batch system bound this process to fewer. Without
    /// those that the kernel isolates (isolcpus), where it does not balance load.
    All,
    /// At least one.
    These(BTreeSet<usize>),
}

impl FromStr for Cores {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        if text == "all" {
            return Ok(Self::All);
        }
        let mut cores = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(());
            }
            cores.extend(first..=last);
        }
        Ok(Self::These(cores))
    }
}

/// The number of a core, digits only.
fn number(text: &str) -> std::result::Result<usize, ()> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().map_err(|_| ())?;
    if is_number && number < CpuSet::MAX_CPU { Ok(number) } else { Err(()) }
}

impl fmt::Display for Cores {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::These(cores) = self else { return out.write_str("all") };
        let mut rest = cores.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(out, "{separator}{first}")?;
            if last > first {
                write!(out, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

/// Whether a control group of this process, below the root of its hierarchy, names the cores of its
/// processes. Then it is a batch system that names them. Without a group, all cores of the node
/// belong to the other jobs on it as well.
pub fn are_named_by_group() -> bool {
    let mounts = mountinfo::all().unwrap_or_default();
    let is_root = |group: &Group| mounts.iter().any(|mount| mount.mount_point == group.directory);
    let names_cores = |group: &Group| {
        let cores = kernel_file::read_text(group.directory.join("cpuset.cpus"));
        cores.is_ok_and(|cores| !cores.trim().is_empty())
    };
    Group::own("cpuset").iter().any(|group| !is_root(group) && names_cores(group))
}

/// Runs the threads of this process, and those and the processes that they start from now on, on
/// these cores.
///
/// # Errors
/// `Usage` if the control group does not have all of them; `Io` if the kernel refuses.
pub fn run_on(cores: &Cores) -> Result<()> {
    let wanted = choose(cores)?;
    let mask = mask_of(&wanted);
    for thread in process::threads() {
        match sched_setaffinity(Some(thread), &mask) {
            // It has ended.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(cannot_choose(error)),
        }
    }
    Ok(())
}

/// The numbers of these cores, of those that the control group has.
fn choose(cores: &Cores) -> Result<BTreeSet<usize>> {
    let all = all()?;
    match cores {
        Cores::All => Ok(match &all - &isolated() {
            none if none.is_empty() => all,
            balanced => balanced,
        }),
        Cores::These(wanted) if wanted.is_subset(&all) => Ok(wanted.clone()),
        Cores::These(_) => {
            let context = format!("CPU cores {cores}: this job has only {}", Cores::These(all));
            let hint = "name some of these with --cpus or ARCHFS_CPUS, or all";
            Err(Error::new(Kind::Usage, context).with_hint(hint))
        }
    }
}

/// The cores of the control group.
fn all() -> Result<BTreeSet<usize>> {
    let before = sched_getaffinity(None).map_err(cannot_choose)?;
    // The kernel leaves out cores that the control group does not have.
    sched_setaffinity(None, &mask_of(&(0..CpuSet::MAX_CPU).collect())).map_err(cannot_choose)?;
    let all = sched_getaffinity(None).map_err(cannot_choose)?;
    sched_setaffinity(None, &before).map_err(cannot_choose)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core)).collect())
}

fn cannot_choose(error: Errno) -> Error {
    Error::io("cannot choose CPU cores", error.into())
}

/// The cores that the kernel isolates from load balancing.
fn isolated() -> BTreeSet<usize> {
    let text = fs::read_to_string("/sys/devices/system/cpu/isolated").unwrap_or_default();
    match text.trim().parse() {
        Ok(Cores::These(cores)) => cores,
        _ => BTreeSet::new(),
    }
}

fn mask_of(cores: &BTreeSet<usize>) -> CpuSet {
    let mut mask = CpuSet::new();
    cores.iter().for_each(|&core| mask.set(core));
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_numbers_and_ranges() {
        for (text, shown) in [
            ("0", "0"),
            ("3,1,2", "1-3"),
            ("0-3,8", "0-3,8"),
            ("8-8,8", "8"),
            ("0,2,4-5,1023", "0,2,4-5,1023"),
            ("all", "all"),
        ] {
            let cores: Cores = text.parse().unwrap();
            assert_eq!(cores.to_string(), shown);
            assert_eq!(shown.parse(), Ok(cores));
        }
        for text in ["", ",", "1,", "-1", "1-", "3-1", "1024", "0-1024", "+1", "a", "ALL", "1 2"] {
            assert_eq!(text.parse::<Cores>(), Err(()), "{text:?}");
        }
    }

    #[test]
    fn chooses_cores_of_the_control_group_and_no_others_also_if_this_thread_is_bound() {
        thread::spawn(|| {
            let all = choose(&Cores::All).unwrap();
            let last = [*all.last().unwrap()].into();
            sched_setaffinity(None, &mask_of(&last)).unwrap();
            assert_eq!(choose(&Cores::All).unwrap(), all);
            assert_eq!(choose(&Cores::These(all.clone())).unwrap(), all);
            let absent = Cores::These([CpuSet::MAX_CPU - 1].into());
            assert_eq!(choose(&absent).unwrap_err().kind(), Kind::Usage);
            assert_eq!(sched_getaffinity(None).unwrap(), mask_of(&last), "the thread stays bound");
        })
        .join()
        .unwrap();
    }
}
