//! The layout of archives on Lustre, with a stand-in for its program `lfs`.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{archfs, run, tar, work_directory};

/// A program `lfs` that does as if all files were on Lustre and new files got this many stripes. It
/// notes the layouts that it sets in `layouts`.
fn with_lfs(work: &Path, stripes: &str, status: u8) -> OsString {
    let bin = work.join("bin");
    fs::create_dir_all(&bin).unwrap();
    let script = format!(
        "#!/bin/bash\nif [ $1 = getstripe ]; then echo {stripes}; exit; fi\n\
         echo \"$@\" >> {}\n[ {status} != 0 ] || : > \"${{@: -1}}\"\nexit {status}\n",
        work.join("layouts").display()
    );
    fs::write(bin.join("lfs"), script).unwrap();
    fs::set_permissions(bin.join("lfs"), Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    format!("{}:{path}", bin.display()).into()
}

#[test]
fn an_archive_on_lustre_gets_stripes_if_the_directory_gives_it_one() {
    let work = work_directory();
    let (tree, archive) = (work.path().join("tree"), work.path().join("new.sqfs"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("a"), "a").unwrap();
    let layouts = work.path().join("layouts");
    for (stripes, status, expected) in [("1", 0, 1), ("4", 0, 0), ("", 0, 0), ("1", 1, 1)] {
        let path = with_lfs(work.path(), stripes, status);
        let mut pack = archfs();
        run(pack.args(["pack", "--quiet", "--force"]).arg(&tree).arg(&archive).env("PATH", path));
        let set = fs::read_to_string(&layouts).unwrap_or_default();
        assert_eq!(set.lines().count(), expected, "{stripes} {status}: {set}");
        assert!(set.lines().all(|line| line.starts_with("setstripe -E 256M -c 1 -S 4M ")), "{set}");
        let _ = fs::remove_file(&layouts);
        let listing = run(archfs().arg("ls").arg(&archive)).stdout;
        assert_eq!(listing, b"a\n");
        let plain = work.path().join("plain");
        fs::write(&plain, "").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
        assert_eq!(mode(&archive), mode(&plain), "the mode of a new file");
        let left = fs::read_dir(work.path()).unwrap();
        let left = left.filter(|entry| entry.as_ref().unwrap().file_name().as_bytes()[0] == b'.');
        assert_eq!(left.count(), 0);
    }
}

#[test]
fn info_notes_a_large_archive_with_one_stripe() {
    let work = work_directory();
    let archive = work.path().join("large.tar");
    fs::write(&archive, tar::of(&[("a", b"a")])).unwrap();
    let advises = |stripes: &str| {
        let path = with_lfs(work.path(), stripes, 0);
        let output = run(archfs().arg("info").arg(&archive).env("PATH", path)).stdout;
        String::from_utf8(output).unwrap().contains("lfs migrate -c 16 ")
    };
    assert!(!advises("1"), "it is small");
    fs::File::options().write(true).open(&archive).unwrap().set_len(1 << 30).unwrap();
    assert!(advises("1"));
    assert!(!advises("8"));
}
