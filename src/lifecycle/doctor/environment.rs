//! Where this process runs: the kernel, a container, a batch job.

use std::env;
use std::fs;
use std::path::Path;

use rustix::system::uname;

use super::{Check, Trial};
use crate::batch_job::{self, Scheduler};
use crate::os::kernel_file;
use crate::os::process::ProcessId;

/// The first kernel with everything that archfs uses; pidfd_open came last.
const COMPLETE: (u32, u32) = (5, 3);

/// Time-outs of FUSE requests in seconds, 0 for none (Linux 6.15,
/// Documentation/admin-guide/sysctl/fs.rst).
const DEFAULT_TIMEOUT: &str = "/proc/sys/fs/fuse/default_request_timeout";
const MAX_TIMEOUT: &str = "/proc/sys/fs/fuse/max_request_timeout";

/// Distributions backport features to old versions. So the version only helps to explain the result
/// of a trial.
pub(super) fn check_kernel() -> Check {
    const NAME: &str = "kernel";
    let release = uname().release().to_string_lossy().into_owned();
    let lacks_fuse = fs::read_to_string("/proc/filesystems")
        .is_ok_and(|text| !text.lines().any(|line| line.split('\t').next_back() == Some("fuse")));
    if lacks_fuse {
        // The device has the remedy, because opening it may load the module.
        return Check::note(NAME, format!("Linux {release}; FUSE is not loaded"));
    }
    if version(&release).is_some_and(|version| version < COMPLETE) {
        return Check::note(NAME, format!("Linux {release}; archfs may be faster from 5.3"));
    }
    let setting = |path: &str| kernel_file::read_text(path).ok()?.trim().parse::<u64>().ok();
    if let Some(seconds) = request_timeout(setting(DEFAULT_TIMEOUT), setting(MAX_TIMEOUT)) {
        let text = format!(
            "Linux {release}; it ends a mount that does not answer a request for {seconds} s"
        );
        let remedy = "if the storage of the archive may stall for longer, use --stage";
        return Check::note_with(NAME, text, remedy);
    }
    Check::good(NAME, format!("Linux {release}"))
}

/// Seconds after which the kernel ends a mount that asks for no time-out, as archfs does, and that
/// has not answered a request; `None` for never.
fn request_timeout(default: Option<u64>, max: Option<u64>) -> Option<u64> {
    [default, max].into_iter().flatten().filter(|&seconds| seconds > 0).min()
}

/// The major and minor version, if `release` starts with them.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether /proc shows this process and its mounts.
pub(super) fn has_proc() -> bool {
    fs::metadata("/proc/self/mountinfo").is_ok()
}

pub(super) fn check_proc(has_proc: bool) -> Check {
    match has_proc {
        true => Check::good("proc", "/proc is mounted"),
        false => Check::problem(
            "proc",
            "/proc is not mounted, or does not show this process",
            "mount -t proc proc /proc",
        ),
    }
}

/// The container that this process runs in.
pub(super) struct Container {
    /// Its runtime, such as `apptainer`.
    pub(super) runtime: String,
    /// The variable or file that shows it.
    pub(super) sign: String,
}

impl Container {
    /// Finds it from variables and files that runtimes set.
    pub(super) fn around() -> Option<Self> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let found = |runtime: &str, sign: &str| {
            Some(Self { runtime: runtime.to_owned(), sign: sign.to_owned() })
        };
        for (name, runtime) in
            [("APPTAINER_CONTAINER", "apptainer"), ("SINGULARITY_CONTAINER", "singularity")]
        {
            if variable(name).is_some() {
                return found(runtime, name);
            }
        }
        // Runtimes set this variable by systemd's protocol (systemd.io/CONTAINER_INTERFACE).
        if let Some(runtime) = variable("container") {
            return found(&runtime, "the variable container");
        }
        for (path, runtime) in [
            ("/.singularity.d", "apptainer"),
            ("/run/.containerenv", "podman"),
            ("/.dockerenv", "docker"),
        ] {
            if Path::new(path).exists() {
                return found(runtime, path);
            }
        }
        let first = fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
        ["docker", "kubepods", "libpod", "lxc"]
            .into_iter()
            .find(|name| first.contains(&format!("/{name}")))
            .and_then(|name| found(name, "/proc/1/cgroup"))
    }
}

pub(super) fn check_container(container: Option<&Container>, trial: &Trial) -> Check {
    const NAME: &str = "container";
    let Some(Container { runtime, sign }) = container else {
        return Check::good(NAME, "none found");
    };
    let text = format!("{runtime} (from {sign})");
    let ways = [&trial.mount, &trial.run, &trial.run_private];
    if ways.into_iter().all(Result::is_ok) {
        return Check::good(NAME, text);
    }
    let remedy = match runtime.as_str() {
        "apptainer" | "singularity" => "mount on the node, then apptainer exec -B MOUNTPOINT:/data",
        _ => {
            "mount on the node and bind with -v MOUNTPOINT:/data, or start with --device /dev/fuse \
             --cap-add SYS_ADMIN"
        }
    };
    match ways.into_iter().all(Result::is_err) {
        true => Check::problem(NAME, format!("{text}; nothing can be mounted in it"), remedy),
        false => Check::note_with(NAME, text, remedy),
    }
}

/// The batch job, found from variables and control groups only, so that it causes no load on the
/// scheduler. docs/SLURM.md has the details of the remedy.
pub(super) fn check_batch_job() -> Check {
    const NAME: &str = "batch";
    let Some((scheduler, job)) = batch_job::current() else {
        return Check::good(NAME, "no job found");
    };
    let system = match scheduler {
        Scheduler::Slurm => "Slurm",
        Scheduler::Pbs => "PBS",
        Scheduler::Lsf => "LSF",
        Scheduler::GridEngine => "Grid Engine",
    };
    let step = env::var("SLURM_STEP_ID").ok().and_then(|step| step.parse::<u32>().ok());
    let step = step.map(|step| format!(", step {step}")).unwrap_or_default();
    // A mount in the script is unmounted when this process ends.
    let task = match env::var("SLURM_TASK_PID").map(|pid| pid.parse()) {
        Err(_) => String::new(),
        Ok(Ok(pid)) if ProcessId::of(pid).is_ok() => {
            format!("; archfs unmounts when process {pid} exits")
        }
        Ok(_) => "; SLURM_TASK_PID names no process here".to_owned(),
    };
    let text = format!("{system} job {job}{step}{task}");
    match batch_job::killed_with() {
        Some(killed_with) => Check::note_with(
            NAME,
            format!("{text}; mounts are killed with {killed_with} (proctrack/cgroup)"),
            "without srun, use exec archfs run (docs/SLURM.md)",
        ),
        None => Check::good(NAME, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_kernel_releases() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("4.18.0-513.el8.x86_64"), Some((4, 18)));
        assert_eq!(version("7.0"), Some((7, 0)));
        assert_eq!(version("odd"), None);
    }

    #[test]
    fn the_shorter_time_out_applies() {
        assert_eq!(request_timeout(None, None), None, "before Linux 6.15");
        assert_eq!(request_timeout(Some(0), Some(0)), None);
        assert_eq!(request_timeout(Some(60), Some(0)), Some(60));
        assert_eq!(request_timeout(Some(0), Some(300)), Some(300));
        assert_eq!(request_timeout(Some(600), Some(300)), Some(300));
    }
}
