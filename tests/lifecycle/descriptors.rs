//! Archives can be named by a descriptor: /dev/stdin, /dev/fd/N, /proc/self/fd/N and `<(...)`.

use crate::support;
use crate::support::stage::{said, stage};

const PATHS: [&str; 2] = ["/dev/fd/7", "/proc/self/fd/7"];

#[test]
fn a_descriptor_of_a_named_file_is_mounted_by_that_name() {
    let Some(stage) = stage() else { return };
    for path in PATHS.into_iter().chain(["/dev/stdin"]) {
        let script = format!(
            "exec 7< $IMAGE; $ARCHFS run -q {path} mount -- cat mount/hello < $IMAGE || exit
             $ARCHFS mount -q --keep {path} mount < $IMAGE || exit
             grep -c \" $IMAGE \" /proc/self/mountinfo; $ARCHFS unmount mount 2> gone"
        );
        let output = stage.bash(&script).output().unwrap();
        assert!(output.status.success(), "{path}: {}", said(&output));
        assert_eq!(output.stdout, b"hello, world\n1\n", "{path}: {}", said(&output));
        assert!(stage.is_gone(), "{path}");
    }
}

#[test]
fn a_deleted_file_is_passed_to_the_daemon() {
    let Some(stage) = stage() else { return };
    for path in PATHS.into_iter().chain(["/dev/stdin"]) {
        for command in [
            "$ARCHFS run -q PATH mount -- cat mount/hello",
            "$ARCHFS mount -q --keep PATH mount && exec 7<&- < /dev/null \
             && cat mount/hello && $ARCHFS unmount mount 2> gone",
            "$ARCHFS run -q --private PATH mount -- cat mount/hello",
            "$ARCHFS cat PATH hello",
        ] {
            let script = format!("cp $IMAGE copy; exec 7< copy < copy; rm copy; {command}")
                .replace("PATH", path);
            let output = stage.bash(&script).output().unwrap();
            assert!(output.status.success(), "{script}: {}", said(&output));
            assert_eq!(output.stdout, b"hello, world\n", "{script}: {}", said(&output));
            assert!(stage.is_gone(), "{script}");
        }
    }
}

#[test]
fn mounts_a_deleted_tar_with_a_deleted_index() {
    let Some(stage) = stage() else { return };
    let mut script = stage.bash(
        "mkdir tree && echo text > tree/file && tar cf data.tar -C tree . \
         && $ARCHFS index -q --index index data.tar && exec 7< data.tar 8< index && rm data.tar index \
         && $ARCHFS run -q --index /dev/fd/8 /dev/fd/7 mount -- cat mount/file",
    );
    let output = script.output().unwrap();
    assert_eq!(output.stdout, b"text\n", "{}", said(&output));
}

/// The daemon does not inherit the caller's other descriptors.
#[test]
fn the_daemon_keeps_only_the_descriptors_of_its_archives() {
    let Some(stage) = stage() else { return };
    let script =
        "cp $IMAGE copy; exec 7< copy 8< $IMAGE; rm copy; $ARCHFS mount -q --keep /dev/fd/7 mount";
    assert!(stage.bash(script).status().unwrap().success());
    let links = format!("/proc/{}/fd", stage.daemon().as_raw_nonzero());
    let named = std::fs::read_dir(links).unwrap().filter(|entry| {
        let link = std::fs::read_link(entry.as_ref().unwrap().path());
        link.is_ok_and(|link| link == stage.image)
    });
    assert_eq!(named.count(), 0);
    support::mount::unmount(&stage.mount_point);
}

#[test]
fn a_pipe_is_refused() {
    let Some(stage) = stage() else { return };
    for (command, status) in [
        ("mount -q <(cat $IMAGE) mount", 2),
        ("run -q <(cat $IMAGE) mount -- true", 122),
        ("mount -q --foreground <(cat $IMAGE) mount", 2),
        ("ls <(cat $IMAGE)", 2),
        ("cat <(cat $IMAGE) hello", 2),
        ("info <(cat $IMAGE)", 2),
        ("verify <(cat $IMAGE)", 2),
    ] {
        let output = stage.bash(&format!("exec $ARCHFS {command}")).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{command}: {}", said(&output));
        assert!(said(&output).contains(": a pipe; archfs needs a file"), "{}", said(&output));
        assert!(stage.is_gone(), "{command}");
    }
}

#[test]
fn the_error_names_a_descriptor_that_is_not_open() {
    let Some(stage) = stage() else { return };
    let output = stage.ends(&["mount", "-q", "/dev/fd/99", "mount"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("/dev/fd/99: descriptor 99 is not open"), "{}", said(&output));
}

/// Otherwise the kernel enlarges it while threads run, for which it waits.
#[test]
fn the_descriptor_table_is_large_enough_from_the_start() {
    let Some(stage) = stage() else { return };
    for (limit, least) in [(4096, 1024), (256, 256)] {
        let script = format!("ulimit -Sn {limit}; $ARCHFS mount -q --keep $IMAGE mount");
        assert!(stage.bash(&script).status().unwrap().success());
        let status = format!("/proc/{}/status", stage.daemon().as_raw_nonzero());
        let status = std::fs::read_to_string(status).unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        assert!(size.trim().parse::<u32>().unwrap() >= least, "{limit}: {size}");
        support::mount::unmount(&stage.mount_point);
    }
}

/// The kernel's out-of-memory message shows this name.
#[test]
fn the_process_name_of_the_daemon_is_archfs() {
    let Some(stage) = stage() else { return };
    for stack in [8192, 64] {
        let script = format!("ulimit -s {stack}; $ARCHFS mount -q --keep $IMAGE mount");
        assert!(stage.bash(&script).status().unwrap().success());
        let comm = format!("/proc/{}/comm", stage.daemon().as_raw_nonzero());
        assert_eq!(std::fs::read_to_string(comm).unwrap(), "archfs\n");
        support::mount::unmount(&stage.mount_point);
    }
}
