//! `-o noexec`: the kernel executes no file of the mount, whoever mounts and in whatever way.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::stage::{said, stage_as_user};
use crate::support::{image, run};

#[test]
fn a_mount_with_noexec_executes_no_file() {
    let Some(stage) = stage_as_user() else { return };
    let source = stage.work.path().join("programs");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("program"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(source.join("program"), fs::Permissions::from_mode(0o755)).unwrap();
    image::make(stage.work.path(), "programs.sqfs", &source, &[]);
    let ran = |options: &str| {
        let script = format!(
            "$ARCHFS run -q {options} programs.sqfs -- sh -c 'grep -m1 \" {{}} \" /proc/self/mountinfo; {{}}/program'"
        );
        let output = stage.bash(&script).output().unwrap();
        let mount_options = String::from_utf8(output.stdout.clone()).unwrap();
        (output.status.code(), mount_options.contains("ran\n"), mount_options, said(&output))
    };
    for way in ["", "--private"] {
        let (status, has_run, text, said) = ran(way);
        assert_eq!((status, has_run, text.contains("noexec")), (Some(0), true, false), "{said}");
        let (status, has_run, text, said) = ran(&format!("{way} -o noexec"));
        // As a shell reports EACCES of execve(2).
        assert_eq!((status, has_run, text.contains("noexec")), (Some(126), false, true), "{said}");
    }
    // A mount without it is another mount.
    let mount = |options: &str| {
        stage.bash(&format!("$ARCHFS mount -q --keep {options} programs.sqfs mount"))
    };
    run(&mut mount("-o noexec"));
    run(&mut mount("-o noexec"));
    let refused = mount("").output().unwrap();
    assert!(said(&refused).contains("with other options"), "{}", said(&refused));
    run(Command::new(env!("CARGO_BIN_EXE_archfs")).arg("unmount").arg(&stage.mount_point));
}
