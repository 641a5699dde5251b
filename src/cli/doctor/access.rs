//! Checks of what mounting needs: the device, the helper or a namespace, the kernel, the
//! permissions of a container.
//!
//! Invariant: if a trial succeeded, its needs are no problem, whatever the settings say.

use super::check::{Check, State};
use crate::lifecycle::doctor::{
    Barrier, Container, Device, Failure, Kernel, Node, Trial, Unusable,
};

/// The remedy in a container without the device.
const DEVICE_IN_CONTAINER: &str = "start the container with --device /dev/fuse (docker, podman) or with -B /dev/fuse \
     (apptainer), or mount outside and bind the folder in";

const ASK_MODULE: &str = "load the kernel module fuse on the compute nodes (modprobe fuse)";
const ASK_MODE: &str = "give /dev/fuse the mode 0666 on the compute nodes, as distributions do (udev rule: \
     KERNEL==\"fuse\", MODE=\"0666\")";
const ASK_HELPER: &str =
    "install fusermount3 set-user-ID root on the compute nodes (package fuse3)";
const ASK_SUID: &str =
    "have fusermount3 on a file system of the compute nodes that is mounted without nosuid";
const ASK_NAMESPACES: &str =
    "allow user namespaces on the compute nodes (sysctl user.max_user_namespaces=15000)";

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
    // Inside a container the remedy is a different one.
    let problem = |text: String, remedy: &str, request| match container {
        Some(_) => Check::problem(NAME, text, DEVICE_IN_CONTAINER),
        None => Check::problem(NAME, text, remedy).asking(request),
    };
    match device {
        Device::Opens => Check::good(NAME, "/dev/fuse can be opened"),
        Device::Missing => problem(
            "/dev/fuse is not there".into(),
            "ask for the kernel module fuse (modprobe fuse); ls, cat, info, verify and pack work without",
            ASK_MODULE,
        ),
        Device::Other => problem(
            "/dev/fuse is not the FUSE device but something of that name".into(),
            "ask for the device: a character device, major 10, minor 229",
            ASK_MODULE,
        ),
        Device::NoModule => problem(
            "/dev/fuse is there, but the kernel has no FUSE behind it".into(),
            "ask for the kernel module fuse (modprobe fuse)",
            ASK_MODULE,
        ),
        Device::Refused { mode, owner } => problem(
            format!("/dev/fuse can not be opened: its mode is {mode:04o}, its owner uid {owner}"),
            "ask for the mode 0666, as distributions set it",
            ASK_MODE,
        ),
        Device::Denied => problem(
            "/dev/fuse is there, but this process was not given it (a control group's devices)"
                .into(),
            "ask whoever starts this container or job to allow the device /dev/fuse",
            "allow the device /dev/fuse in jobs (cgroup.conf or the container's configuration)",
        ),
        Device::Failed(why) => problem(
            format!("/dev/fuse can not be opened: {why}"),
            "ask for /dev/fuse as distributions set it up: the module fuse, the mode 0666",
            ASK_MODULE,
        ),
    }
}

fn fusermount(node: &Node, trial: &Trial) -> Check {
    const NAME: &str = "fusermount";
    if node.is_root {
        return of_root(node, trial);
    }
    let why = match &node.helper {
        Ok((path, version)) => {
            let path = path.display();
            return Check::good(NAME, format!("{path} is set-user-ID root (version {version})"));
        }
        Err(why) => why,
    };
    let (text, remedy) = describe(why);
    if trial.mount.is_ok() {
        // For example a container's replacement for fusermount3 that mounts in another way.
        return Check::note(NAME, format!("{text}; it mounts all the same"), None);
    }
    if matches!(why, Unusable::DoesNotRun(..)) && !is_conclusive(node, trial) {
        // Other programs do not start here either.
        return Check::note(NAME, text, None);
    }
    let remedy = match trial.run.is_ok() {
        true => format!("`archfs run` works without; for `archfs mount`, {remedy}"),
        false => remedy,
    };
    let check = Check::problem(NAME, text, remedy);
    match why {
        _ if !is_conclusive(node, trial) => check,
        Unusable::NotFound(..) | Unusable::NotSetUid(_) | Unusable::DoesNotRun(..) => {
            check.asking(ASK_HELPER)
        }
        Unusable::NoSuid(_) => check.asking(ASK_SUID),
        // Administrators of nodes do not set no_new_privs.
        Unusable::NoNewRights(_) => check,
    }
}

/// Whether a failed trial shows what the node lacks, and not only what limits this process.
fn is_conclusive(node: &Node, trial: &Trial) -> bool {
    node.kernel.has_proc && trial.is_known()
}

/// Root in a container or user namespace may be unable to mount, and no helper changes that.
fn of_root(node: &Node, trial: &Trial) -> Check {
    const NAME: &str = "fusermount";
    match &trial.mount {
        Err(Failure { said, hint, .. }) if node.device == Device::Opens => {
            let text = format!("not needed, for root mounts without it; but here: {said}");
            // An error without a hint is about this process: limits or /proc.
            let Some(hint) = hint.clone().filter(|_| is_conclusive(node, trial)) else {
                return Check::note(NAME, text, None);
            };
            let remedy = match trial.run.is_ok() {
                true => format!("`archfs run` works; for `archfs mount`, {hint}"),
                false => hint,
            };
            Check::problem(NAME, text, remedy)
        }
        _ => Check::good(NAME, "not needed, for root mounts without it"),
    }
}

fn describe(why: &Unusable) -> (String, String) {
    let ask = || "ask for the package fuse3 on the compute nodes".to_owned();
    match why {
        Unusable::NotFound(why, hint) => (why.clone(), hint.clone().unwrap_or_else(ask)),
        Unusable::NotSetUid(path) => (
            format!("{} is not set-user-ID root, so it can not mount", path.display()),
            "ask for the one of the package fuse3; one of conda or of a module can not do it".into(),
        ),
        Unusable::NoSuid(path) => (
            format!("{} is on a file system where set-user-ID does not count (nosuid)", path.display()),
            "ask for fusermount3 on the node's own file system".into(),
        ),
        Unusable::NoNewRights(path) => (
            format!("{} can not work: this process may gain no rights (no_new_privs)", path.display()),
            "a container or the batch system sets that; mount outside, or use `archfs run --private`".into(),
        ),
        Unusable::DoesNotRun(path, why) => (
            format!("{} does not run: {why}", path.display()),
            ask(),
        ),
    }
}

fn namespaces(node: &Node, trial: &Trial) -> Check {
    const NAME: &str = "namespaces";
    let why = match &trial.namespace {
        Ok(()) => return Check::good(NAME, "this user can make a namespace to mount in"),
        Err(failure) if failure.is_unknown => {
            return Check::note(NAME, format!("not tried: {}", failure.said), None);
        }
        Err(failure) => &failure.said,
    };
    let (reasons, remedies): (Vec<_>, Vec<_>) =
        node.barriers.iter().map(|&barrier| describe_barrier(barrier)).unzip();
    let text = match reasons.is_empty() {
        true => why.clone(),
        false => format!("{why} ({})", reasons.join(", ")),
    };
    let remedy = match remedies.first() {
        Some(remedy) => (*remedy).to_owned(),
        None => "ask for user namespaces (sysctl user.max_user_namespaces)".to_owned(),
    };
    if trial.mount.is_ok() {
        return Check::note(NAME, text, Some(format!("`archfs run --private` needs it: {remedy}")));
    }
    let check = Check::problem(NAME, text, remedy);
    if is_conclusive(node, trial) { check.asking(ASK_NAMESPACES) } else { check }
}

fn describe_barrier(barrier: Barrier) -> (&'static str, &'static str) {
    match barrier {
        Barrier::NoneAllowed => {
            ("user.max_user_namespaces is 0", "ask for sysctl user.max_user_namespaces=15000")
        }
        Barrier::NoMountNamespaces => {
            ("user.max_mnt_namespaces is 0", "ask for sysctl user.max_mnt_namespaces=15000")
        }
        Barrier::OnlyForRoot => (
            "kernel.unprivileged_userns_clone is 0",
            "ask for sysctl kernel.unprivileged_userns_clone=1",
        ),
        Barrier::AppArmor => (
            "kernel.apparmor_restrict_unprivileged_userns is 1",
            "ask for an AppArmor profile that lets archfs make user namespaces (userns), or for \
             sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        Barrier::Filter => (
            "a filter of system calls is on this process",
            "a container's filter forbids it: mount outside and bind the folder in, or start it with \
             --security-opt seccomp=unconfined",
        ),
    }
}

fn kernel(kernel: &Kernel) -> Check {
    const NAME: &str = "kernel";
    let Kernel { release, version, has_fuse, .. } = kernel;
    if *has_fuse == Some(false) {
        let text = format!("Linux {release}, in which FUSE is not loaded");
        // Opening the device loads the module if that is allowed.
        return Check::note(NAME, text, Some("the device above tells whether it can be".into()));
    }
    let missing: Vec<_> = NEEDED_FOR
        .into_iter()
        .filter(|(since, _)| version.is_some_and(|version| version < *since))
        .map(|((major, minor), feature)| format!("{feature} ({major}.{minor})"))
        .collect();
    if missing.is_empty() {
        return Check::good(NAME, format!("Linux {release}, with all that archfs makes use of"));
    }
    let missing = missing.join(", ");
    let text = format!("Linux {release} may lack {missing}; archfs goes on without");
    Check::note(NAME, text, None)
}

/// Features by the kernel that introduced them (Linux, fs/fuse and include/uapi/linux/fuse.h).
const NEEDED_FOR: [((u32, u32), &str); 6] = [
    ((4, 2), "a connection for each thread"),
    ((4, 7), "parallel directory operations"),
    ((4, 18), "mounts in user namespaces"),
    ((4, 20), "requests of more than 128 KiB, cached symbolic links"),
    ((5, 1), "opendir without a request"),
    ((5, 3), "watching processes without asking again and again"),
];

fn proc(kernel: &Kernel) -> Check {
    match kernel.has_proc {
        true => Check::good("proc", "/proc is mounted"),
        false => Check::problem(
            "proc",
            "/proc is not mounted, or does not show this process",
            "in a container or chroot, mount it: mount -t proc proc /proc",
        ),
    }
}

fn container(node: &Node, trial: &Trial) -> Check {
    const NAME: &str = "container";
    let Some(Container { runtime, sign }) = &node.container else {
        return Check::good(NAME, "not in one, as far as can be told");
    };
    let text = format!("in a container of {runtime}, as {sign} tells");
    if [&trial.mount, &trial.run, &trial.run_private].into_iter().all(Result::is_ok) {
        return Check::good(NAME, text);
    }
    let remedy = match runtime.as_str() {
        "apptainer" | "singularity" => {
            "mount on the node and bind it in (apptainer exec -B /dev/shm/data ...), or let the \
             runtime mount: --fusemount \"container:archfs mount DATA.sqfs /data\" \
             (where DATA.sqfs is to be seen inside)"
        }
        _ => {
            "mount on the node and bind it in (-v /dev/shm/data:/data), or start the container with \
             --device /dev/fuse --cap-add SYS_ADMIN (and --security-opt apparmor=unconfined where there is AppArmor)"
        }
    };
    let nothing_works = trial.run.is_err() && trial.mount.is_err() && trial.run_private.is_err();
    let state = if nothing_works { State::Problem } else { State::Note };
    Check { name: NAME, state, text, remedy: Some(remedy.into()), request: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_to_the_administrator_or_to_the_owner_of_the_container() {
        let container = Container { runtime: "docker".into(), sign: "/.dockerenv".into() };
        for (state, words, wish) in [
            (Device::Missing, "is not there", "modprobe fuse"),
            (Device::Refused { mode: 0o600, owner: 0 }, "mode is 0600, its owner uid 0", "0666"),
            (Device::NoModule, "no FUSE behind it", "modprobe fuse"),
            (Device::Denied, "was not given it", "allow the device"),
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
