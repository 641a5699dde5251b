//! The files of contrib/ for automounters, with the real programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::skip::{skip, skip_part};
use crate::support::{image, run, skip_without_mounts, work_directory};

fn contrib(directory: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib").join(directory)
}

/// In namespaces of its own, with a process group that is known there: autofs mounts the map of
/// contrib/autofs, with the paths of a small archive. $1 is the work directory, $2 archfs.
///
/// Another archive is mounted as soon as the first is unmounted: the kernel gives it the same
/// numbers, and the daemon of the first must not take it for its own.
const AUTOFS: &str = r#"set -e
cd "$1"
mount --make-rprivate /
mount -t tmpfs none /usr/local/bin
ln -s "$2" /usr/local/bin/archfs
mkdir -p /run/autofs
mount -t tmpfs none /run/autofs
setsid automount --foreground --dont-check-daemon --pid-file "$1/pid" "$1/master" > "$1/log" 2>&1 &
automount=$!
is_mounted() { grep -q " $1/imagenet fuse.archfs " /proc/self/mounts; }
wait_until() {
    for _ in $(seq 300); do if "$@"; then return; fi; sleep 0.1; done
    echo "never: $*" >&2
    cat log >&2
    exit 1
}
not() { ! "$@"; }
wait_until grep -q " $1/imagenet autofs " /proc/self/mounts
for _ in 1 2; do
    not is_mounted "$1"
    timeout 30 cat imagenet/hello
    is_mounted "$1"
    # autofs unmounts it after a second without use, and the daemon exits.
    wait_until not is_mounted "$1"
    mkdir -p other
    "$2" mount --keep --quiet small.sqfs other
    wait_until not pgrep -f "archfs mount.*$1/imagenet"
    cat other/hello > /dev/null
    "$2" unmount other
done
kill $automount
wait $automount || true
"#;

#[test]
fn autofs_mounts_at_the_first_access_and_unmounts_an_unused_archive() {
    if skip_without_mounts() {
        return;
    }
    let file_systems = fs::read_to_string("/proc/filesystems").unwrap();
    if !file_systems.contains("autofs") || Command::new("automount").arg("-V").output().is_err() {
        return skip("no autofs in the kernel, or no automount (package autofs)");
    }
    let work = work_directory();
    let path = work.path().to_str().unwrap();
    let archive = image::small(work.path());
    let map = fs::read_to_string(contrib("autofs/auto.archfs")).unwrap();
    let map = map.replace("/lustre/imagenet.sqfs", archive.to_str().unwrap());
    fs::write(work.path().join("map"), map.replace("/imagenet ", &format!("{path}/imagenet ")))
        .unwrap();
    fs::write(work.path().join("master"), format!("/- {path}/map --timeout=1\n")).unwrap();
    let output = run(Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["bash", "-c", AUTOFS, "bash", path, env!("CARGO_BIN_EXE_archfs")]));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello, world\n".repeat(2));
}

/// systemd checks sections, keys, names and paths.
#[test]
fn systemd_accepts_the_units() {
    let units: Vec<_> =
        ["imagenet.mount", "imagenet.automount"].map(|name| contrib("systemd").join(name)).into();
    let verified = Command::new("systemd-analyze").arg("verify").args(&units).output();
    let Ok(verified) = verified else { return skip_part("systemd-analyze is not installed") };
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && said.is_empty(), "{said}");
    for unit in units {
        let text = fs::read_to_string(&unit).unwrap();
        let point = text.lines().find_map(|line| line.strip_prefix("Where=")).unwrap();
        let suffix = unit.extension().unwrap().to_str().unwrap();
        let name = format!("{}.{suffix}", point.trim_start_matches('/').replace('/', "-"));
        assert_eq!(unit.file_name().unwrap(), &*name);
    }
}

#[test]
fn systemd_tmpfiles_keeps_records() {
    let Ok(version) = Command::new("systemd-tmpfiles").arg("--version").output() else {
        return skip_part("systemd-tmpfiles is not installed");
    };
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let number = version.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    if number.is_none_or(|number: u32| number < 250) {
        return skip_part("this systemd-tmpfiles does not choose the times that it looks at");
    }
    let root = work_directory();
    let old = |name: &str| {
        let path = root.path().join("tmp").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        run(Command::new("touch").args(["-d", "1 month ago"]).arg(&path));
        path
    };
    let (record, other) = (old("archfs-1000/one.mount"), old("other/file"));
    for directory in ["tmp/archfs-1000", "tmp/other"] {
        run(Command::new("touch").args(["-d", "1 month ago"]).arg(root.path().join(directory)));
    }
    let clean = |configuration: &Path| {
        Command::new("systemd-tmpfiles")
            .arg(format!("--root={}", root.path().display()))
            .arg("--clean")
            .arg(configuration)
            .output()
            .unwrap()
    };
    let both = root.path().join("both.conf");
    let own = fs::read_to_string(contrib("systemd/archfs-tmpfiles.conf")).unwrap();
    fs::write(&both, format!("{own}\nq /tmp 1777 root root m:1d\n")).unwrap();
    let output = clean(&both);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(record.exists() && !other.exists());
}
