//! Ordinary programs read a mount correctly: diff, tar, find, rsync, cp, a Python data loader, and
//! many readers at once.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support;
use crate::support::mount::Mounted;
use crate::support::{image, run, skip_without_mounts, source, work_directory};

fn with_mount(test: impl Fn(&Path, &Path, &Path)) {
    if skip_without_mounts() {
        return;
    }
    let tree = source::varied();
    let work = work_directory();
    let image = image::make(work.path(), "image.sqfs", &tree, &["-comp", "zstd"]);
    let mounted = Mounted::archfs(&image, &work.path().join("mount"), &[]);
    test(mounted.path(), &tree, work.path());
}

#[test]
fn diff_finds_no_difference() {
    with_mount(|mount, tree, _| {
        // diff fails on device nodes and other special files, and does not compare them.
        let mut diff = Command::new("diff");
        diff.args(["-r", "--no-dereference"]);
        for special in ["fifo", "hard-fifo", "block", "char", "socket"] {
            diff.args(["-x", special]);
        }
        assert!(run(diff.arg(tree).arg(mount)).stdout.is_empty());
    });
}

#[test]
fn rsync_has_nothing_to_transfer() {
    with_mount(|mount, tree, _| {
        let slash = |path: &Path| format!("{}/", path.display());
        let mut rsync = Command::new("rsync");
        rsync.args(["-aHAXn", "--delete", "--checksum", "--itemize-changes"]);
        let output = run(rsync.arg(slash(tree)).arg(slash(mount)));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    });
}

#[test]
fn find_prints_the_same_for_both_trees() {
    with_mount(|mount, tree, _| {
        let find = |root: &Path| {
            let format = "%P|%y|%m|%U|%G|%s|%TY-%Tm-%Td %TH:%TM|%n|%l\\0";
            let mut find = Command::new("find");
            find.current_dir(root).args([".", "-not", "-type", "d", "-printf", format]);
            let output = run(&mut find).stdout;
            let mut lines: Vec<Vec<u8>> = output.split(|b| *b == 0).map(<[u8]>::to_vec).collect();
            lines.sort();
            lines
        };
        let (expected, found) = (find(tree), find(mount));
        assert!(expected.len() > 3000);
        assert!(expected == found);
    });
}

#[test]
fn tar_and_cp_copy_the_source() {
    with_mount(|mount, tree, work| {
        let snapshot =
            |root: &Path| support::snapshot::take(root, support::snapshot::Depth::Everything);
        let expected = snapshot(tree);
        let copy = work.join("copy");
        run(Command::new("cp").arg("-a").arg(mount).arg(&copy));
        support::snapshot::assert_same("cp -a", &expected, &snapshot(&copy));
        fs::remove_dir_all(&copy).unwrap();

        fs::create_dir(&copy).unwrap();
        let tar = |directory: &Path| {
            let mut tar = Command::new("tar");
            tar.current_dir(directory).args(["--xattrs", "--xattrs-include=*", "--sparse"]);
            tar
        };
        let mut pack = tar(mount);
        let pack = pack.args(["-cf", "-", "."]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut pack = pack.spawn().unwrap();
        let mut unpack = tar(&copy);
        run(unpack.args(["-xpf", "-", "--numeric-owner"]).stdin(pack.stdout.take().unwrap()));
        assert!(pack.wait().unwrap().success());
        let (mut expected, mut found) = (expected, snapshot(&copy));
        for snapshot in [&mut expected, &mut found] {
            // tar stores no sockets, and stores a fifo with two names as two fifos.
            for name in ["socket", "fifo", "hard-fifo"] {
                snapshot.remove(name.as_bytes());
            }
        }
        support::snapshot::assert_same("tar", &expected, &found);
    });
}

#[test]
fn sixteen_processes_in_shuffled_order_read_the_source() {
    with_mount(|mount, tree, work| {
        let mut files = Vec::new();
        list_files(tree, tree, &mut files);
        let sums: BTreeMap<&PathBuf, u64> =
            files.iter().map(|file| (file, support::snapshot::content(&tree.join(file)))).collect();
        // Separate processes read the shuffled lists: cmp against the source.
        let script = "cd \"$1\" && xargs -0 -I{} cmp -- \"$2\"/{} {} < \"$3\"";
        let readers: Vec<_> = (0..16)
            .map(|seed| {
                let list = work.join(format!("list-{seed}"));
                let mut order: Vec<_> = files.iter().collect();
                let random = source::noise(seed + 100, order.len() * 8);
                let mut keys = random.chunks(8);
                order.sort_by_cached_key(|_| keys.next().unwrap().to_vec());
                let text: Vec<u8> = order
                    .iter()
                    .step_by(4)
                    .flat_map(|file| [file.as_os_str().as_bytes(), b"\0"].concat())
                    .collect();
                fs::write(&list, text).unwrap();
                let mut reader = Command::new("sh");
                reader.args(["-c", script, "sh"]).arg(mount).arg(tree).arg(list);
                reader.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for reader in readers {
            let output = reader.wait_with_output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && output.stdout.is_empty(), "{stderr}");
        }
        // Again with threads of one process, after dropping the page cache of the mount.
        let _ = fs::write("/proc/sys/vm/drop_caches", "1");
        std::thread::scope(|scope| {
            for seed in 0..16_usize {
                let (sums, files) = (&sums, &files);
                scope.spawn(move || {
                    for nth in 0..files.len() / 4 {
                        let file = &files[(nth * 7919 + seed * 104_729) % files.len()];
                        let found = support::snapshot::content(&mount.join(file));
                        assert_eq!(found, sums[file], "{}", file.display());
                    }
                });
            }
        });
    });
}

#[test]
fn an_image_folder_loader_reads_two_epochs_under_run() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    let dataset = work.path().join("dataset");
    for class in 0..10 {
        let directory = dataset.join(format!("class{class}"));
        fs::create_dir_all(&directory).unwrap();
        for number in 0..40_usize {
            let len = 20_000 + number * 3_777;
            let bytes = source::noise((class * 100 + number) as u64, len);
            fs::write(directory.join(format!("{number:04}.jpg")), bytes).unwrap();
        }
    }
    let image = image::make(work.path(), "data.sqfs", &dataset, &["-comp", "zstd"]);
    let loader = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/imagefolder.py");
    let mut plain = Command::new("python3");
    let expected = run(plain.arg(&loader).arg(&dataset)).stdout;
    let mount_point = work.path().join("mount");
    let _clean_up = support::mount::CleanUp(mount_point.clone());
    let mut mounted = support::archfs();
    mounted
        .arg("run")
        .arg(&image)
        .arg(&mount_point)
        .args(["--", "python3"])
        .arg(&loader)
        .arg(&mount_point);
    let found = run(&mut mounted).stdout;
    assert!(String::from_utf8_lossy(&expected).contains("400 files"));
    assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&expected));
    assert!(!mount_point.exists(), "the mount point was made by run and is gone");
}

fn list_files(root: &Path, directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        // xargs -I substitutes within arguments, so names with odd bytes are left to the walks.
        let path = entry.path();
        if kind.is_dir() {
            list_files(root, &path, files);
        } else if kind.is_file() && entry.file_name().as_bytes().iter().all(u8::is_ascii_graphic) {
            let relative = path.strip_prefix(root).unwrap();
            if !relative.starts_with("-rf") && !relative.as_os_str().as_bytes().contains(&b'\\') {
                files.push(relative.to_owned());
            }
        }
    }
}
