//! What has no effect on a mount: set-uid bits, file capabilities, devices, and links that lead out
//! of the archive.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::{OWNER, Scene, done, out, said, scene};
use crate::support::mount::unmount as archfs_unmount;
use crate::support::stage::{Talker, stage_with};
use crate::support::user::{OpenDevice, User};
use crate::support::{archfs, image, node, run, tar, wait_until};

/// CAP_DAC_OVERRIDE, permitted and effective (linux/capability.h, struct vfs_cap_data, revision 2).
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Set-uid programs, file capabilities and devices, as root could pack them on another machine.
fn dangerous(directory: &Path) -> PathBuf {
    let source = directory.join("dangerous");
    fs::create_dir(&source).unwrap();
    for (program, mode) in [("id", 0o6755), ("grep", 0o755)] {
        let copy = source.join(program);
        fs::copy(Path::new("/usr/bin").join(program), &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(mode)).unwrap();
    }
    setxattr(source.join("grep"), "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
    let rights = Mode::from(0o666);
    for (name, minor) in [("null", 3), ("zero", 5)] {
        let device = makedev(1, minor);
        mknodat(CWD, source.join(name), FileType::CharacterDevice, rights, device).unwrap();
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(0o666)).unwrap();
    }
    fs::set_permissions(&source, fs::Permissions::from_mode(0o755)).unwrap();
    source
}

/// The effective uid, gid and capabilities that a user gets from these programs below `directory`.
fn rights(user: &User, directory: &Path) -> String {
    let directory = directory.display();
    done(
        user,
        &format!("{directory}/id -u; {directory}/id -g; {directory}/grep CapEff /proc/self/status"),
    )
}

/// > **Devices, fifos, sockets** are shown. The mount is `nodev` and `nosuid`, so device nodes
/// > cannot be opened and set-uid bits have no effect.
///
/// > Therefore set-uid bits and `security.capability` give no rights, and devices cannot be opened.
#[test]
fn programs_gain_no_rights_and_devices_cannot_be_opened() {
    let Some(stage) = node::enter().and_then(|()| stage_with(image::small)) else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, OWNER);
    let source = dangerous(stage.work.path());
    let packed = stage.work.path().join("data.tar");
    let script = "cd \"$1\" && tar --xattrs --xattrs-include='*' -cf \"$2\" *";
    run(Command::new("sh").args(["-c", script, "sh"]).arg(&source).arg(&packed));
    let none = format!("{OWNER}\n{OWNER}\nCapEff:\t0000000000000000\n");
    // Outside the archive the programs do have these rights.
    assert_eq!(rights(&user, &source), "0\n0\nCapEff:\t0000000000000002\n");
    for archive in [image::make(stage.work.path(), "dangerous.sqfs", &source, &[]), packed] {
        let mut command = archfs();
        command.args(["mount", "-q", "--keep", "-o", "allow_other"]).arg(&archive);
        run(command.arg(&stage.mount_point));
        assert_eq!(rights(&user, &stage.mount_point), none, "{}", archive.display());
        // The mode is still shown.
        assert_eq!(fs::metadata(stage.mount_point.join("id")).unwrap().mode() & 0o7777, 0o6755);
        for device in ["null", "zero"].map(|name| stage.mount_point.join(name)) {
            let found = fs::metadata(&device).unwrap();
            assert_eq!(found.mode() & 0o777, 0o666);
            let error = fs::File::open(&device).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "root");
            let opened = user.runs(&format!("head -c 1 {}", device.display()));
            assert!(!opened.status.success() && said(&opened).contains("denied"));
        }
        archfs_unmount(&stage.mount_point);
    }
}

/// The options of the mount at `mount_point`, from a file in the format of /proc/self/mountinfo.
fn flags(mountinfo: &str, mount_point: &Path) -> Vec<String> {
    let text = fs::read_to_string(mountinfo).unwrap();
    let line = text
        .lines()
        .find(|line| line.split(' ').nth(4) == mount_point.to_str())
        .unwrap_or_else(|| panic!("{} is not in {mountinfo}", mount_point.display()));
    line.split(' ').nth(5).unwrap().split(',').map(str::to_owned).collect()
}

fn assert_inert(mountinfo: &str, mount_point: &Path) {
    let flags = flags(mountinfo, mount_point);
    for flag in ["ro", "nosuid", "nodev"] {
        assert!(flags.iter().any(|found| found == flag), "{flag}: {flags:?}");
    }
}

/// > **Flags**: every mount that archfs makes is `ro,nosuid,nodev`, as root, through fusermount3
/// > and in a namespace.
#[test]
fn every_mount_is_read_only_nosuid_and_nodev() {
    let Some(Scene { _device, owner, stage, .. }) = scene() else { return };
    let own = "/proc/thread-self/mountinfo";
    for options in ["", "-o allow_other", "-o exec,default_permissions"] {
        run(&mut stage.bash(&format!("$ARCHFS mount -q --keep {options} $IMAGE mount")));
        assert_inert(own, &stage.mount_point);
        run(&mut stage.bash("$ARCHFS unmount mount"));
    }
    done(&owner, "$ARCHFS mount -q --keep $IMAGE mount");
    assert_inert(own, &owner.mount_point);
    done(&owner, "$ARCHFS unmount mount");
    for refused in ["suid", "dev", "rw"] {
        let output = owner.runs(&format!("$ARCHFS mount -q -o {refused} $IMAGE mount"));
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    }
    let line = "exec $ARCHFS run --private -q $IMAGE mount -- sh -c 'echo $$; read x'";
    for (mut command, mount_point) in
        [(owner.bash(line), &owner.mount_point), (stage.bash(line), &stage.mount_point)]
    {
        let mut within = Talker::start(&mut command);
        assert_inert(&format!("/proc/{}/mountinfo", within.line()), mount_point);
        within.write("\n");
        assert_eq!(within.end(), Some(0));
    }
}

/// > A mount that was passed as `/dev/fd/N` has the flags of the program that made it, which must
/// > set `nosuid,nodev`.
#[test]
fn a_connection_passed_in_keeps_the_flags_of_its_mount() {
    let Some(stage) = stage_with(image::small) else { return };
    fs::create_dir(&stage.mount_point).unwrap();
    for (given, inert) in
        [(MountFlags::NOSUID | MountFlags::NODEV, true), (MountFlags::empty(), false)]
    {
        let device: OwnedFd =
            fs::File::options().read(true).write(true).open("/dev/fuse").unwrap().into();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        let given = given | MountFlags::RDONLY;
        mount("somebody", &stage.mount_point, "fuse", given, Some(options.as_c_str())).unwrap();
        let mut command = stage.bash("exec 3<&0 </dev/null; $ARCHFS mount -q $IMAGE /dev/fd/3");
        command.stdin(Stdio::from(device));
        run(&mut command);
        drop(command);
        stage.assert_readable();
        let found = flags("/proc/thread-self/mountinfo", &stage.mount_point);
        assert_eq!(found.contains(&"nosuid".to_owned()), inert, "{found:?}");
        unmount(&stage.mount_point, UnmountFlags::NOFOLLOW).unwrap();
    }
    let image = stage.image.to_str().unwrap().to_owned();
    let is_left = || crate::support::stage::processes_about(&[&image, "--daemon="]);
    wait_until("no daemon is left", || is_left().is_empty());
}

/// > **Symbolic links** hold the bytes they were packed with, and the kernel resolves them. An
/// > absolute link leads out of the mount, as on any file system.
///
/// > **Links in an archive** are shown as packed. The kernel follows them; `archfs cat`, `ls` and
/// > `--subdir` follow none out of the archive.
#[test]
fn links_out_of_an_archive_are_followed_only_by_the_kernel() {
    let Some(stage) = stage_with(image::small) else { return };
    let work = stage.work.path();
    let secret = work.join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("file"), "not in the archive\n").unwrap();
    let source = work.join("links");
    fs::create_dir_all(source.join("folder")).unwrap();
    fs::write(source.join("file"), "in the archive\n").unwrap();
    let up = format!("{}{}", "../".repeat(30), secret.strip_prefix("/").unwrap().display());
    symlink(secret.join("file"), source.join("absolute")).unwrap();
    symlink(format!("{up}/file"), source.join("relative")).unwrap();
    symlink(&secret, source.join("away")).unwrap();
    symlink(&up, source.join("folder/up")).unwrap();
    symlink("../../../file", source.join("folder/within")).unwrap();
    let packed = work.join("links.tar");
    tar::pack(&packed, &source);
    for archive in [image::make(work, "links.sqfs", &source, &[]), packed] {
        for name in ["absolute", "relative", "away/file", "folder/up/file", "../secret/file"] {
            let output = archfs().arg("cat").arg(&archive).arg(name).output().unwrap();
            assert_eq!((output.status.code(), out(&output)), (Some(1), String::new()), "{name}");
            assert!(said(&output).contains("archfs: error: "), "{}", said(&output));
        }
        let inside = run(archfs().arg("cat").arg(&archive).arg("folder/within"));
        assert_eq!(out(&inside), "in the archive\n");
        for name in ["away/file", "folder/up/file", "../secret/file"] {
            let output = archfs().arg("ls").arg(&archive).arg(name).output().unwrap();
            assert_eq!((output.status.code(), out(&output)), (Some(1), String::new()), "{name}");
        }
        for directory in ["away", "folder/up", "..", "../secret"] {
            let mut command = archfs();
            command.args(["mount", "-q", "--keep", "--subdir", directory]).arg(&archive);
            let output = command.arg(&stage.mount_point).output().unwrap();
            match directory {
                // The root is its own parent.
                ".." if output.status.success() => {
                    assert!(stage.mount_point.join("folder").is_dir());
                    archfs_unmount(&stage.mount_point);
                }
                _ => assert_eq!(output.status.code(), Some(1), "{directory}: {}", said(&output)),
            }
            assert!(stage.is_gone(), "{directory}");
        }
        run(archfs().args(["mount", "-q", "--keep"]).arg(&archive).arg(&stage.mount_point));
        assert_eq!(fs::read_link(stage.mount_point.join("away")).unwrap(), secret);
        let read = fs::read_to_string(stage.mount_point.join("absolute")).unwrap();
        assert_eq!(read, "not in the archive\n", "as of any file system");
        archfs_unmount(&stage.mount_point);
    }
}
