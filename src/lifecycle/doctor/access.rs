//! What mounting needs: /dev/fuse, and either the helper fusermount3 or a namespace.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;

use super::environment::Container;
use super::{Check, Failure, Node, Trial};
use crate::error::{Result, reason};
use crate::lifecycle::mount::fusermount::Helper;
use crate::lifecycle::mount::{device, namespace};
use crate::os::kernel_file;

/// The remedy in a container without the device.
const DEVICE_IN_CONTAINER: &str =
    "start the container with --device /dev/fuse (docker, podman) or -B /dev/fuse (apptainer)";

/// Requests to the administrator.
const LOAD_MODULE: &str = "load the kernel module (modprobe fuse)";
const OPEN_DEVICE: &str =
    "set the mode of /dev/fuse to 0666 (udev: KERNEL==\"fuse\", MODE=\"0666\")";
const INSTALL_HELPER: &str = "install fuse3";
const ALLOW_NAMESPACES: &str = "set sysctl user.max_user_namespaces=15000";

fn ask(request: &str) -> String {
    format!("ask the administrator to {request}")
}

/// The state of /dev/fuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Device {
    Opens,
    Missing,
    /// The path is not the FUSE device.
    Other,
    /// Its mode does not allow this user to open it.
    Refused {
        mode: u32,
        owner: u32,
    },
    /// The kernel does not allow this process to open it, whatever its mode is: for example, the
    /// device was not added to the container.
    Denied,
    /// The kernel has no FUSE module for it.
    NoModule,
    Failed(String),
}

impl Device {
    /// Opens it as a mount does, which changes nothing: a connection starts only with a mount.
    pub(super) fn probe() -> Self {
        let found = match fs::metadata("/dev/fuse") {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::Missing,
            Err(error) => return Self::Failed(reason(error)),
        };
        if !device::is_fuse(found.mode(), found.rdev()) {
            return Self::Other;
        }
        let Err(error) = device::open_connection() else {
            return Self::Opens;
        };
        match Errno::from_io_error(&error) {
            Some(Errno::ACCESS) => {
                Self::Refused { mode: found.mode() & 0o7777, owner: found.uid() }
            }
            Some(Errno::PERM) => Self::Denied,
            Some(Errno::NODEV | Errno::NXIO) => Self::NoModule,
            _ => Self::Failed(reason(error)),
        }
    }

    pub(super) fn check(&self, container: Option<&Container>) -> Check {
        const NAME: &str = "device";
        let (text, request) = match self {
            Self::Opens => return Check::good(NAME, "/dev/fuse can be opened"),
            Self::Missing => ("/dev/fuse does not exist".to_owned(), LOAD_MODULE),
            Self::Other => (
                "/dev/fuse is not the FUSE device".to_owned(),
                "create the device (mknod -m 0666 /dev/fuse c 10 229)",
            ),
            Self::NoModule => ("/dev/fuse: the FUSE module is not loaded".to_owned(), LOAD_MODULE),
            Self::Refused { mode, owner } => (
                format!("/dev/fuse cannot be opened: mode {mode:04o}, owner uid {owner}"),
                OPEN_DEVICE,
            ),
            Self::Denied => (
                "/dev/fuse is denied to this process (control group)".to_owned(),
                "allow /dev/fuse in jobs (cgroup.conf)",
            ),
            Self::Failed(why) => (format!("/dev/fuse cannot be opened: {why}"), LOAD_MODULE),
        };
        match container {
            Some(_) => Check::problem(NAME, text, DEVICE_IN_CONTAINER),
            None => Check::problem(NAME, text, ask(request)).asking(Some(request)),
        }
    }
}

/// Why this user cannot use the helper, and what to do about it.
pub(super) struct Unusable {
    text: String,
    remedy: String,
    request: Option<&'static str>,
    /// Whether it cannot be started, as perhaps other programs.
    does_not_run: bool,
}

impl Unusable {
    fn asking(text: String, request: &'static str) -> Self {
        Self { text, remedy: ask(request), request: Some(request), does_not_run: false }
    }
}

/// The helper that mounts for ordinary users, and its version. It runs only with `--version`, in
/// the environment that it would get for a mount.
pub(super) fn probe_helper() -> std::result::Result<(PathBuf, String), Unusable> {
    let helper = Helper::find().map_err(|error| {
        let missing = Unusable::asking(error.to_string(), INSTALL_HELPER);
        let remedy = error.hint().map_or_else(|| missing.remedy.clone(), str::to_owned);
        Unusable { remedy, ..missing }
    })?;
    let path = helper.path.clone();
    let shown = path.display();
    let does_not_run = |why: String| Unusable {
        does_not_run: true,
        ..Unusable::asking(format!("{shown} does not run: {why}"), INSTALL_HELPER)
    };
    let output = helper.command().arg("--version").stdin(Stdio::null()).output();
    let version = match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(does_not_run(format!("{}: {said}", output.status)));
        }
        Err(error) => return Err(does_not_run(error.to_string())),
    };
    if !helper.is_set_uid {
        return Err(Unusable::asking(format!("{shown} is not set-uid root"), INSTALL_HELPER));
    }
    if statvfs(&path).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::NOSUID)) {
        let text = format!("{shown} is on a file system mounted with nosuid");
        let request = "install fusermount3 on a file system without nosuid";
        return Err(Unusable::asking(text, request));
    }
    // As in containers and some batch systems. Administrators of nodes do not set it.
    if kernel_file::own_status("NoNewPrivs").as_deref() == Some("1") {
        return Err(Unusable {
            text: format!("{shown} gains no rights: no_new_privs is set"),
            remedy: "mount outside the container or service that sets it".to_owned(),
            request: None,
            does_not_run: false,
        });
    }
    // fusermount writes `fusermount3 version: 3.14.0`.
    let version = version.rsplit(": ").next().unwrap_or_default().to_owned();
    Ok((path, version))
}

pub(super) fn check_helper(node: &Node, trial: &Trial) -> Check {
    const NAME: &str = "fusermount";
    if let Some(who) = node.mounts_directly {
        return check_mounting_without_helper(who, node, trial);
    }
    let Unusable { text, remedy, request, does_not_run } = match &node.helper {
        Ok((path, version)) => {
            return Check::good(NAME, format!("{}, version {version}", path.display()));
        }
        Err(why) => why,
    };
    // For example, a container's replacement for fusermount3 that mounts in another way.
    let is_replaced = trial.mount.is_ok();
    // Other programs do not start here either.
    let is_limited = *does_not_run && !is_conclusive(node, trial);
    if is_replaced || is_limited {
        return Check::note(NAME, text);
    }
    Check::problem(NAME, text, or_run(trial, remedy.clone()))
        .asking(request.filter(|_| is_conclusive(node, trial)))
}

/// `who` mounts without a helper, except where the kernel forbids it, as in a container or user
/// namespace.
fn check_mounting_without_helper(who: &str, node: &Node, trial: &Trial) -> Check {
    const NAME: &str = "fusermount";
    match &trial.mount {
        Err(Failure { said, hint, .. }) if node.device == Device::Opens => {
            let text = format!("{who} cannot mount here: {said}");
            // An error without a hint is about this process: limits or /proc.
            match hint.clone().filter(|_| is_conclusive(node, trial)) {
                Some(hint) => Check::problem(NAME, text, or_run(trial, hint)),
                None => Check::note(NAME, text),
            }
        }
        _ => Check::good(NAME, format!("{who} does not need it")),
    }
}

/// Adds the way that works without `archfs mount`.
fn or_run(trial: &Trial, remedy: String) -> String {
    match trial.run.is_ok() {
        true => format!("use `archfs run`; for `archfs mount`, {remedy}"),
        false => remedy,
    }
}

/// Whether a failed trial shows what the node lacks, and not only what limits this process.
fn is_conclusive(node: &Node, trial: &Trial) -> bool {
    node.has_proc && trial.is_known()
}

/// A setting that prevents a private mount, as the reason and, unless a container sets it, the
/// request to the administrator.
pub(super) type Barrier = (&'static str, Option<&'static str>);

/// The barriers that are in effect. They only explain a failure: whether a namespace can be created
/// is tested (`check_namespace`). A setting that cannot be read does not count.
pub(super) fn barriers() -> Vec<Barrier> {
    let is =
        |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    let found = [
        (
            is("/proc/sys/user/max_user_namespaces", "0"),
            ("user.max_user_namespaces is 0", Some(ALLOW_NAMESPACES)),
        ),
        (
            is("/proc/sys/user/max_mnt_namespaces", "0"),
            ("user.max_mnt_namespaces is 0", Some("set sysctl user.max_mnt_namespaces=15000")),
        ),
        // Debian.
        (
            is("/proc/sys/kernel/unprivileged_userns_clone", "0"),
            (
                "kernel.unprivileged_userns_clone is 0",
                Some("set sysctl kernel.unprivileged_userns_clone=1"),
            ),
        ),
        // Ubuntu.
        (
            is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
            (
                "kernel.apparmor_restrict_unprivileged_userns is 1",
                Some(
                    "set sysctl kernel.apparmor_restrict_unprivileged_userns=0 or give archfs an AppArmor profile with userns",
                ),
            ),
        ),
        // As in containers.
        (kernel_file::own_status("Seccomp").as_deref() == Some("2"), ("seccomp filter", None)),
    ];
    found.into_iter().filter_map(|(is_active, barrier)| is_active.then_some(barrier)).collect()
}

/// Enters a namespace as `run --private` does. Call it in a process that exits afterward.
///
/// # Errors
/// `CannotMount` if the node does not allow it; `Io`.
pub(crate) fn check_namespace() -> Result<()> {
    namespace::enter()
}

pub(super) fn check_namespaces(node: &Node, trial: &Trial) -> Check {
    const NAME: &str = "namespaces";
    let why = match &trial.namespace {
        Ok(()) => return Check::good(NAME, "can be created"),
        Err(failure) if failure.is_unknown => {
            return Check::note(NAME, format!("not tried: {}", failure.said));
        }
        Err(failure) => &failure.said,
    };
    let (reasons, requests): (Vec<_>, Vec<_>) = node.barriers.iter().copied().unzip();
    let text = match reasons.is_empty() {
        true => why.clone(),
        false => format!("{why} ({})", reasons.join(", ")),
    };
    let request = requests.first().copied().unwrap_or(Some(ALLOW_NAMESPACES));
    let remedy =
        request.map_or_else(|| "start with --security-opt seccomp=unconfined".to_owned(), ask);
    if trial.mount.is_ok() {
        return Check::note_with(NAME, text, format!("for `archfs run --private`, {remedy}"));
    }
    Check::problem(NAME, text, remedy).asking(request.filter(|_| is_conclusive(node, trial)))
}

/// Whether other users may enter a mount. `mounts_directly` is whether this process needs no
/// helper, which reads /etc/fuse.conf.
pub(super) fn check_allow_other(mounts_directly: bool) -> Check {
    const NAME: &str = "allow-other";
    let text = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    let HelperConfiguration { user_allow_other, mount_max } = HelperConfiguration::parse(&text);
    if mounts_directly || user_allow_other {
        return Check::good(NAME, "-o allow_other is permitted");
    }
    let text = "no user_allow_other in /etc/fuse.conf";
    match mount_max {
        Some(most) => Check::good(NAME, format!("{text}; mount_max is {most}")),
        None => Check::good(NAME, text),
    }
}

/// /etc/fuse.conf, which the helper reads.
#[derive(Debug, Default, PartialEq, Eq)]
struct HelperConfiguration {
    /// Whether ordinary users may allow others access to their mounts.
    user_allow_other: bool,
    /// The maximum number of mounts of all users other than root, if it is set.
    mount_max: Option<u64>,
}

impl HelperConfiguration {
    fn parse(text: &str) -> Self {
        let mut found = Self::default();
        // A # starts a comment anywhere in a line (libfuse, util/fusermount.c).
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        for line in lines {
            if line == "user_allow_other" {
                found.user_allow_other = true;
            } else if let Some((name, value)) = line.split_once('=')
                && name.trim() == "mount_max"
            {
                found.mount_max = value.trim().parse().ok();
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckState;
    use super::*;

    #[test]
    fn requests_go_to_the_administrator_or_to_the_owner_of_the_container() {
        let container = Container { runtime: "docker".into(), sign: "/.dockerenv".into() };
        for (device, words, wish) in [
            (Device::Missing, "does not exist", "modprobe fuse"),
            (Device::Refused { mode: 0o600, owner: 0 }, "mode 0600, owner uid 0", "0666"),
            (Device::NoModule, "module is not loaded", "modprobe fuse"),
            (Device::Denied, "is denied", "allow /dev/fuse"),
        ] {
            let on_node = device.check(None);
            assert_eq!(on_node.state, CheckState::Problem);
            assert!(on_node.text.contains(words), "{on_node:?}");
            assert!(on_node.request.is_some_and(|it| it.contains(wish)), "{on_node:?}");
            let inside = device.check(Some(&container));
            assert_eq!(inside.request, None);
            assert!(inside.remedy.is_some_and(|it| it.contains("--device /dev/fuse")));
        }
        assert_eq!(Device::Opens.check(Some(&container)).state, CheckState::Good);
    }

    #[test]
    fn parses_the_configuration_as_the_helper_does() {
        let found = HelperConfiguration::parse("# comment\nmount_max = 30\n #user_allow_other\n");
        assert_eq!(found, HelperConfiguration { user_allow_other: false, mount_max: Some(30) });
        assert!(HelperConfiguration::parse("\nuser_allow_other\n").user_allow_other);
        let found = HelperConfiguration::parse("user_allow_other # for all\nmount_max = 7# few\n");
        assert_eq!(found, HelperConfiguration { user_allow_other: true, mount_max: Some(7) });
    }
}
