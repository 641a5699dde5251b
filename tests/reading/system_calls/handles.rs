//! File handles (name_to_handle_at(2)), which overlayfs and NFS servers store.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{Format, archives, small_tree};
use crate::support::mount::{CleanUp, Mounted};
use crate::support::skip::skip;
use crate::support::{run, skip_without_mounts, work_directory};

/// Makes handles of files on one mount, makes the kernel drop their inodes, opens the handles on
/// another mount, and prints the contents.
const OPEN: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
first, second, *names = sys.argv[1:]

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_char * 128)]

def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

handles = []
for name in names:
    handle, mount = Handle(bytes=128), ctypes.c_int()
    path = os.path.join(first, name).encode()
    checked(libc.name_to_handle_at(-100, path, ctypes.byref(handle), ctypes.byref(mount), 0))
    handles.append(handle)
with open("/proc/sys/vm/drop_caches", "w") as file:
    file.write("2")
root = os.open(second, os.O_RDONLY)
for name, handle in zip(names, handles):
    opened = checked(libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY))
    found, packed = os.fstat(opened), os.stat(os.path.join(second, name))
    assert (found.st_ino, found.st_mode) == (packed.st_ino, packed.st_mode), name
    # Of a directory also its mount_point is known.
    if os.path.isdir(os.path.join(second, name)):
        path = os.readlink(f"/proc/self/fd/{opened}")
        assert path == os.path.normpath(os.path.join(second, name)), path
        print(name, sorted(os.listdir(opened)))
    else:
        print(name, os.read(opened, 100))
    os.close(opened)
"#;

fn opened_by_handle(first: &Path, second: &Path) -> Output {
    let mut command = Command::new("python3");
    let names = ["folder/b", "folder/hard", "folder", "folder/below", "."];
    command.args(["-c", OPEN]).args([first, second]).args(names).output().unwrap()
}

/// > A handle (`name_to_handle_at`) stays valid as long as the archive is the same. This holds
/// > after the kernel has forgotten the inode, and at another mount.
#[test]
fn handles_stay_valid_after_eviction_and_at_the_next_mount() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = small_tree(work.path());
    for (format, archive) in archives(work.path(), &tree) {
        let [first, second] =
            ["first", "second"].map(|name| Mounted::archfs(&archive, &work.path().join(name), &[]));
        for (from, to) in [(&first, &first), (&first, &second)] {
            let output = opened_by_handle(from.path(), to.path());
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{format:?}: {stderr}");
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.contains("folder/b b'b'"), "{format:?}: {text}");
            assert_eq!(text.lines().count(), 5, "{format:?}: {text}");
        }
    }
}

/// An overlay on a mount, removed when dropped. It reuses the upper directory of an earlier
/// overlay.
fn overlay(work: &Path, lower: &Path) -> Result<(PathBuf, CleanUp), String> {
    let [upper, inner, mount_point] = ["upper", "inner", "overlay"].map(|name| work.join(name));
    let options = format!(
        "lowerdir={},upperdir={},workdir={},index=on,xino=on",
        lower.display(),
        upper.display(),
        inner.display()
    );
    let mut mount = Command::new("mount");
    let output = mount
        .args(["-t", "overlay", "overlay", "-o", &options])
        .arg(&mount_point)
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok((mount_point.clone(), CleanUp(mount_point))),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// > Therefore overlayfs accepts a mount as its lower directory with `index=on` and `xino=on`.
#[test]
fn an_overlay_keeps_hard_links_and_inode_numbers() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let tree = small_tree(work.path());
    for (format, archive) in archives(work.path(), &tree) {
        for directory in ["upper", "inner", "overlay"].map(|name| work.path().join(name)) {
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir(directory).unwrap();
        }
        let lower = Mounted::archfs(&archive, &work.path().join("mount"), &[]);
        let (mount_point, clean_up) = match overlay(work.path(), lower.path()) {
            Ok(mounted) => mounted,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "CI must have overlayfs: {error}");
                skip(&format!("no overlayfs: {error}"));
                return;
            }
        };
        let number = |name: &str| fs::metadata(mount_point.join(name)).unwrap().ino();
        let before = number("folder/b");
        // A file written through one name must change under its other name, which needs the index.
        fs::write(mount_point.join("folder/a"), "written").unwrap();
        fs::write(mount_point.join("folder/b"), "written, too").unwrap();
        run(Command::new("sh").args(["-c", "echo 2 > /proc/sys/vm/drop_caches"]));
        assert_eq!(
            fs::read_to_string(mount_point.join("folder/hard")).unwrap(),
            "written",
            "{format:?}"
        );
        assert_eq!(number("folder/a"), number("folder/hard"), "{format:?}");
        assert_eq!(number("folder/b"), before, "{format:?}: also after it was copied up");
        // Again at the next mount of the lower archive.
        drop(clean_up);
        drop(lower);
        let lower = Mounted::archfs(&archive, &work.path().join("mount"), &[]);
        let (mount_point, clean_up) = overlay(work.path(), lower.path()).unwrap();
        assert_eq!(
            fs::read_to_string(mount_point.join("folder/hard")).unwrap(),
            "written",
            "{format:?}"
        );
        assert!(matches!(format, Format::Image | Format::Tar));
        drop(clean_up);
        drop(lower);
    }
}
