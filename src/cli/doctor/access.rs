//! Checks of what mounting needs: the device, the helper or a namespace, the kernel, the
//! permissions of a container.
//!
//! Invariant: if a trial succeeded, its needs are no problem, whatever the settings say.

use super::check::{Check, State};
use crate::lifecycle::doctor::{
    Barrier, Container, Device, Failure, Kernel, Node, Trial, Unusable,
};

/// The remedy in a container without the device.
const DEVICE_IN_CONTAINER: &str =
    "start the container with --device /dev/fuse (docker, podman) or -B /dev/fuse (apptainer)";

/// Requests to the administrator.
const LOAD_MODULE: &str = "load the kernel module (modprobe fuse)";
const OPEN_DEVICE: &str =
    "set the mode of /dev/fuse to 0666 (udev: KERNEL==\"fuse\", MODE=\"0666\")";
const INSTALL_HELPER: &str = "install fuse3";
const ALLOW_NAMESPACES: &str = "set sysctl user.max_user_namespaces=15000";

pub(super) fn checks(node: &Node, trial: &Trial) -> Vec<Check> {
    vec![
        device(&node.device, node.container.as_ref()),
        fusermount(node, trial),
        namespaces(node, trial),
        kernel(&node.kernel),
        proc(&node.kernel),
        container(node, trial),
    ]
}

fn device(device: &Device, container: Option<&Container>) -> Check {
    const NAME: &str = "device";
    let (text, request) = match device {
        Device::Opens => return Check::good(NAME, "/dev/fuse can be opened"),
        Device::Missing => ("/dev/fuse does not exist".to_owned(), LOAD_MODULE),
        Device::Other => (
            "/dev/fuse is not the FUSE device".to_owned(),
            "create the device (mknod -m 0666 /dev/fuse c 10 229)",
        ),
        Device::NoModule => ("/dev/fuse: the FUSE module is not loaded".to_owned(), LOAD_MODULE),
        Device::Refused { mode, owner } => {
            (format!("/dev/fuse cannot be opened: mode {mode:04o}, owner uid {owner}"), OPEN_DEVICE)
        }
        Device::Denied => (
            "/dev/fuse is denied to this process (control group)".to_owned(),
            "allow /dev/fuse in jobs (cgroup.conf)",
        ),
        Device::Failed(why) => (format!("/dev/fuse cannot be opened: {why}"), LOAD_MODULE),
    };
    match container {
        Some(_) => Check::problem(NAME, text, DEVICE_IN_CONTAINER),
        None => Check::problem(NAME, text, ask(request)).asking(request),
    }
}

/// The remedy for a user.
fn ask(request: &str) -> String {
    format!("ask the administrator to {request}")
}

fn fusermount(node: &Node, trial: &Trial) -> Check {
    const NAME: &str = "fusermount";
    if let Some(who) = node.mounts_directly {
        return without_helper(who, node, trial);
    }
    let why = match &node.helper {
        Ok((path, version)) => {
            return Check::good(NAME, format!("{}, version {version}", path.display()));
        }
        Err(why) => why,
    };
    let (text, remedy, request) = describe(why);
    // For example, a container's replacement for fusermount3 that mounts in another way.
    let is_replaced = trial.mount.is_ok();
    // Other programs do not start here either.
    let is_limited = matches!(why, Unusable::DoesNotRun(..)) && !is_conclusive(node, trial);
    if is_replaced || is_limited {
        return Check::note(NAME, text, None);
    }
    let check = Check::problem(NAME, text, or_run(trial, remedy));
    match request.filter(|_| is_conclusive(node, trial)) {
        Some(request) => check.asking(request),
        None => check,
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
    node.kernel.has_proc && trial.is_known()
}

/// `who` mounts without a helper, except where the kernel forbids it, as in a container or user
/// namespace.
fn without_helper(who: &str, node: &Node, trial: &Trial) -> Check {
    const NAME: &str = "fusermount";
    match &trial.mount {
        Err(Failure { said, hint, .. }) if node.device == Device::Opens => {
            let text = format!("{who} cannot mount here: {said}");
            // An error without a hint is about this process: limits or /proc.
            match hint.clone().filter(|_| is_conclusive(node, trial)) {
                Some(hint) => Check::problem(NAME, text, or_run(trial, hint)),
                None => Check::note(NAME, text, None),
            }
        }
        _ => Check::good(NAME, format!("{who} does not need it")),
    }
}

/// The text, the remedy and the request.
fn describe(why: &Unusable) -> (String, String, Option<&'static str>) {
    let asking = |text, request| (text, ask(request), Some(request));
    match why {
        Unusable::NotFound(why, hint) => {
            let remedy = hint.clone().unwrap_or_else(|| ask(INSTALL_HELPER));
            (why.clone(), remedy, Some(INSTALL_HELPER))
        }
        Unusable::NotSetUid(path) => {
            asking(format!("{} is not set-uid root", path.display()), INSTALL_HELPER)
        }
        Unusable::NoSuid(path) => asking(
            format!("{} is on a file system mounted with nosuid", path.display()),
            "install fusermount3 on a file system without nosuid",
        ),
        // Administrators of nodes do not set no_new_privs.
        Unusable::NoNewRights(path) => (
            format!("{} gains no rights: no_new_privs is set", path.display()),
            "mount outside the container or service that sets it".to_owned(),
            None,
        ),
        Unusable::DoesNotRun(path, why) => {
            asking(format!("{} does not run: {why}", path.display()), INSTALL_HELPER)
        }
    }
}

fn namespaces(node: &Node, trial: &Trial) -> Check {
    const NAME: &str = "namespaces";
    let why = match &trial.namespace {
        Ok(()) => return Check::good(NAME, "can be created"),
        Err(failure) if failure.is_unknown => {
            return Check::note(NAME, format!("not tried: {}", failure.said), None);
        }
        Err(failure) => &failure.said,
    };
    let (reasons, requests): (Vec<_>, Vec<_>) =
        node.barriers.iter().map(|&barrier| describe_barrier(barrier)).unzip();
    let text = match reasons.is_empty() {
        true => why.clone(),
        false => format!("{why} ({})", reasons.join(", ")),
    };
    let request = requests.first().copied().unwrap_or(Some(ALLOW_NAMESPACES));
    let remedy =
        request.map_or_else(|| "start with --security-opt seccomp=unconfined".to_owned(), ask);
    if trial.mount.is_ok() {
        return Check::note(NAME, text, Some(format!("for `archfs run --private`, {remedy}")));
    }
    let check = Check::problem(NAME, text, remedy);
    match request.filter(|_| is_conclusive(node, trial)) {
        Some(request) => check.asking(request),
        None => check,
    }
}

/// The reason and, unless a container sets it, the request to the administrator.
fn describe_barrier(barrier: Barrier) -> (&'static str, Option<&'static str>) {
    let (reason, request) = match barrier {
        Barrier::NoneAllowed => ("user.max_user_namespaces is 0", ALLOW_NAMESPACES),
        Barrier::NoMountNamespaces => {
            ("user.max_mnt_namespaces is 0", "set sysctl user.max_mnt_namespaces=15000")
        }
        Barrier::OnlyForRoot => (
            "kernel.unprivileged_userns_clone is 0",
            "set sysctl kernel.unprivileged_userns_clone=1",
        ),
        Barrier::AppArmor => (
            "kernel.apparmor_restrict_unprivileged_userns is 1",
            "set sysctl kernel.apparmor_restrict_unprivileged_userns=0 or give archfs an AppArmor profile with userns",
        ),
        Barrier::Filter => return ("seccomp filter", None),
    };
    (reason, Some(request))
}

fn kernel(kernel: &Kernel) -> Check {
    const NAME: &str = "kernel";
    let Kernel { release, version, has_fuse, request_timeout, .. } = kernel;
    if *has_fuse == Some(false) {
        // The device has the remedy, because opening it may load the module.
        return Check::note(NAME, format!("Linux {release}; FUSE is not loaded"), None);
    }
    if version.is_some_and(|version| version < COMPLETE) {
        return Check::note(NAME, format!("Linux {release}; archfs may be faster from 5.3"), None);
    }
    if let Some(seconds) = request_timeout {
        let text = format!(
            "Linux {release}; it ends a mount that does not answer a request for {seconds} s"
        );
        return Check::note(
            NAME,
            text,
            Some("if the storage of the archive may stall for longer, use --stage".into()),
        );
    }
    Check::good(NAME, format!("Linux {release}"))
}

/// The first kernel with everything that archfs uses; pidfd_open came last.
const COMPLETE: (u32, u32) = (5, 3);

fn proc(kernel: &Kernel) -> Check {
    match kernel.has_proc {
        true => Check::good("proc", "/proc is mounted"),
        false => Check::problem(
            "proc",
            "/proc is not mounted, or does not show this process",
            "mount -t proc proc /proc",
        ),
    }
}

fn container(node: &Node, trial: &Trial) -> Check {
    const NAME: &str = "container";
    let Some(Container { runtime, sign }) = &node.container else {
        return Check::good(NAME, "none found");
    };
    let text = format!("{runtime} (from {sign})");
    if [&trial.mount, &trial.run, &trial.run_private].into_iter().all(Result::is_ok) {
        return Check::good(NAME, text);
    }
    let remedy = match runtime.as_str() {
        "apptainer" | "singularity" => "mount on the node, then apptainer exec -B MOUNTPOINT:/data",
        _ => {
            "mount on the node and bind with -v MOUNTPOINT:/data, or start with --device /dev/fuse \
             --cap-add SYS_ADMIN"
        }
    };
    let nothing_works = trial.run.is_err() && trial.mount.is_err() && trial.run_private.is_err();
    let (state, text) = match nothing_works {
        true => (State::Problem, format!("{text}; nothing can be mounted in it")),
        false => (State::Note, text),
    };
    Check { name: NAME, state, text, remedy: Some(remedy.into()), request: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_to_the_administrator_or_to_the_owner_of_the_container() {
        let container = Container { runtime: "docker".into(), sign: "/.dockerenv".into() };
        for (state, words, wish) in [
            (Device::Missing, "does not exist", "modprobe fuse"),
            (Device::Refused { mode: 0o600, owner: 0 }, "mode 0600, owner uid 0", "0666"),
            (Device::NoModule, "module is not loaded", "modprobe fuse"),
            (Device::Denied, "is denied", "allow /dev/fuse"),
        ] {
            let on_node = device(&state, None);
            assert_eq!(on_node.state, State::Problem);
            assert!(on_node.text.contains(words), "{on_node:?}");
            assert!(on_node.request.is_some_and(|it| it.contains(wish)), "{on_node:?}");
            let inside = device(&state, Some(&container));
            assert_eq!(inside.request, None);
            assert!(inside.remedy.is_some_and(|it| it.contains("--device /dev/fuse")));
        }
        assert_eq!(device(&Device::Opens, Some(&container)).state, State::Good);
    }
}
