//! Paths that an attacker swaps while archfs mounts or unmounts.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use super::{OTHER, OWNER, Scene, done, scene};
use crate::support::mount::CleanUp;
use crate::support::stage::{Stage, said};
use crate::support::user::User;
use crate::support::{archfs, run, tar};

/// How long each loop runs.
const TIME: Duration = Duration::from_secs(3);

/// A user who swaps a directory with a symbolic link as fast as possible.
struct Swapper(Child);

impl Swapper {
    fn start(user: &User, directory: &Path, trap: &Path) -> Self {
        // renameat2(2) with RENAME_EXCHANGE, so that the name always exists.
        let script = "import ctypes, os, sys\nname, trap = map(os.fsencode, sys.argv[1:])\n\
                      link = name + b'.link'\nos.symlink(trap, link)\n\
                      swap = ctypes.CDLL(None).renameat2\n\
                      while True: swap(-100, name, -100, link, 2)\n";
        let script = format!("exec /usr/bin/python3 -c \"{script}\" \"$1\" \"$2\"");
        let mut command = user.bash(&script);
        command.arg("bash").arg(directory).arg(trap).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The mount points below `directory`.
fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    // Another test has a mount point that is not UTF-8.
    let text = fs::read("/proc/thread-self/mountinfo").unwrap();
    let text = String::from_utf8_lossy(&text);
    let mount_points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    mount_points.filter(|mount_point| mount_point.starts_with(directory)).collect()
}

/// Mounts and unmounts at `mount_point` repeatedly, and checks `trap` after each step.
fn play(stage: &Stage, mount_point: &Path, trap: &Path) -> (usize, usize) {
    let number = fs::metadata(trap).unwrap().ino();
    let (mut mounted, mut refused) = (0, 0);
    let until = Instant::now() + TIME;
    while Instant::now() < until {
        let line = "timeout 20 $ARCHFS mount -q --keep --threads 1 $IMAGE \"$MOUNT_POINT\"";
        for line in [line, "timeout 20 $ARCHFS unmount --lazy \"$MOUNT_POINT\""] {
            let mut command = stage.bash(line);
            let output = command.env("MOUNT_POINT", mount_point).output().unwrap();
            match output.status.success() {
                true => mounted += 1,
                false => refused += 1,
            }
            assert!(matches!(output.status.code(), Some(0 | 1 | 4 | 5)), "{output:?}");
            assert!(!mounts_below(trap).iter().any(|_| true), "it was mounted over");
            assert_eq!(fs::metadata(trap).unwrap().ino(), number, "it was removed");
        }
    }
    (mounted, refused)
}

/// Cleans up after a lost race and checks that this works.
fn clear(stage: &Stage) {
    for mount_point in mounts_below(stage.work.path()) {
        let _ = archfs().args(["unmount", "--lazy"]).arg(mount_point).output();
    }
    run(archfs().args(["gc", "-q"]));
    assert_eq!(mounts_below(stage.work.path()), Vec::<PathBuf>::new());
}

/// > Root opens the parent directory once, without following links, and mounts, unmounts and
/// > removes from there. A swapped directory or link can make that fail, but cannot redirect it.
#[test]
fn swapping_the_mount_point_for_a_link_never_redirects_root() {
    let Some(scene) = scene() else { return };
    let directory = scene.directory_of(OTHER, "theirs", 0o755);
    let (mount_point, trap) = (directory.join("point"), scene.stage.work.path().join("trap"));
    let _clean_up =
        [&trap, &mount_point, &directory.join("point.link")].map(|path| CleanUp(path.clone()));
    for made in [&mount_point, &trap] {
        fs::create_dir(made).unwrap();
    }
    chown(&mount_point, Some(OTHER), Some(OTHER)).unwrap();
    let swapper = Swapper::start(&scene.other, &mount_point, &trap);
    let (mounted, refused) = play(&scene.stage, &mount_point, &trap);
    drop(swapper);
    println!("mounted or unmounted {mounted} times, refused {refused} times");
    assert!(mounted > 0 && refused > 0, "{mounted} {refused}");
    clear(&scene.stage);
}

/// Bounds the rounds of the following tests. Long with ARCHFS_LONG_TESTS.
fn rounds(short: usize) -> usize {
    if std::env::var_os("ARCHFS_LONG_TESTS").is_some() { 40 * short } else { short }
}

/// A directory that only the victim can enter, to which the attacker's links lead.
struct Trap {
    path: PathBuf,
    /// Names and contents.
    files: Vec<(String, &'static str)>,
}

impl Trap {
    fn new(scene: &Scene, victim: u32, files: Vec<(String, &'static str)>) -> Self {
        let path = scene.directory_of(victim, &format!("trap-{victim}"), 0o700);
        for (name, text) in &files {
            fs::write(path.join(name), text).unwrap();
            chown(path.join(name), Some(victim), Some(victim)).unwrap();
        }
        Self { path, files }
    }

    fn assert_untouched(&self, what: &str) {
        let found = fs::read_dir(&self.path).unwrap().count();
        assert_eq!(found, self.files.len(), "{what}: the names in the victim's directory");
        for (name, text) in &self.files {
            assert_eq!(fs::read_to_string(self.path.join(name)).unwrap(), *text, "{what}: {name}");
        }
    }
}

/// The victims: an ordinary user, and root.
const VICTIMS: [u32; 2] = [OWNER, 0];

/// Runs `line` as the victim, with $ARCHFS and $IMAGE.
fn runs_as(Scene { owner, stage, .. }: &Scene, victim: u32, line: &str) -> Output {
    match victim {
        0 => stage.bash(line).current_dir(&owner.home).output().unwrap(),
        _ => owner.runs(line),
    }
}

/// Commands that write into the directory POINT, and the files that they write.
const WRITERS: [&str; 6] = [
    "$ARCHFS run -q --log-file POINT/log $IMAGE -- true",
    "$ARCHFS index -q --index POINT/index ../data.tar",
    "$ARCHFS pack -q --force ../data.tar POINT/pack.sqfs",
    "$ARCHFS extract --overwrite ../data.tar POINT",
    "$ARCHFS man --dir POINT",
    "$ARCHFS run -q --stats-json POINT/stats $IMAGE -- true",
];
/// Each could be replaced or appended to.
const WRITTEN: [(&str, &str); 6] = [
    ("log", "dear"),
    ("index", ""),
    ("pack.sqfs", "dear"),
    ("hello", "dear"),
    ("archfs.1", "dear"),
    ("stats", "{}"),
];

fn scene_with_archive() -> Option<Scene> {
    let scene = scene()?;
    let archive = scene.stage.work.path().join("data.tar");
    fs::write(&archive, tar::of(&[("hello", b"hello, world\n")])).unwrap();
    fs::set_permissions(&archive, fs::Permissions::from_mode(0o644)).unwrap();
    Some(scene)
}

fn trap_for_writers(scene: &Scene, victim: u32) -> Trap {
    Trap::new(scene, victim, WRITTEN.map(|(name, text)| (name.to_owned(), text)).to_vec())
}

/// > **Directories on a path**: on the path of a log, a statistics file, an index, a packed archive or extracted files, root
/// > follows no symbolic link of another user. Other users follow one only to a directory of the
/// > owner of the link, or that others may write to, and none in a world-writable directory.
#[test]
fn a_link_of_another_user_leads_no_file_to_a_private_directory() {
    let Some(scene) = scene_with_archive() else { return };
    let theirs = scene.directory_of(OTHER, "theirs", 0o777);
    for victim in VICTIMS {
        // One for each: the daemon of the victim before may write its statistics once more.
        let names =
            format!("mkdir -m 777 open-{victim}; ln -s $PWD/open-{victim} ../theirs/good-{victim}");
        done(&scene.other, &names);
        let good = theirs.join(format!("good-{victim}"));
        let trap = trap_for_writers(&scene, victim);
        let bad = theirs.join(format!("bad-{victim}"));
        done(&scene.other, &format!("ln -s {} {}", trap.path.display(), bad.display()));
        // The modes of the directory of the links; the third may be led to.
        for (mode, point, is_led) in
            [(0o755, &bad, false), (0o1777, &good, false), (0o755, &good, victim != 0)]
        {
            fs::set_permissions(&theirs, fs::Permissions::from_mode(mode)).unwrap();
            for line in WRITERS {
                let line = line.replace("POINT", point.to_str().unwrap());
                let output = runs_as(&scene, victim, &line);
                let what = format!("{victim} {mode:o}: {line}: {}", said(&output));
                // A mount does not fail for its statistics.
                let is_done = is_led || line.contains("stats");
                assert_eq!(output.status.success(), is_done, "{what}");
                assert!(is_done || said(&output).contains("link of another user"), "{what}");
                trap.assert_untouched(&what);
                assert!(is_led || fs::read_dir(good.as_path()).unwrap().next().is_none(), "{what}");
            }
        }
        let is_written = |(name, _): &(&str, &str)| good.join(name).exists();
        assert!(WRITTEN.iter().all(|written| is_written(written) == (victim != 0)));
    }
}

/// > archfs opens the directory of such a file once, and does everything there.
#[test]
fn exchanging_a_directory_for_a_link_redirects_no_file_that_is_written() {
    let Some(scene) = scene_with_archive() else { return };
    for victim in VICTIMS {
        let directory = scene.directory_of(OTHER, &format!("theirs-{victim}"), 0o755);
        let point = directory.join("point");
        fs::create_dir(&point).unwrap();
        chown(&point, Some(OTHER), Some(OTHER)).unwrap();
        fs::set_permissions(&point, fs::Permissions::from_mode(0o777)).unwrap();
        let trap = trap_for_writers(&scene, victim);
        let _swapper = Swapper::start(&scene.other, &point, &trap.path);
        let (mut done, mut refused) = (0, 0);
        for _ in 0..rounds(2) {
            for line in WRITERS {
                let line = line.replace("POINT", point.to_str().unwrap());
                let output = runs_as(&scene, victim, &line);
                match output.status.success() {
                    true => done += 1,
                    false => refused += 1,
                }
                trap.assert_untouched(&format!("{victim}: {line}: {}", said(&output)));
            }
        }
        println!("uid {victim}: done {done} times, refused {refused} times");
        assert!(done > 0, "every command was refused");
    }
}

/// > `--stage-keep` and `gc --stage` use a directory of copies only if no other user can replace it.
#[test]
fn exchanging_the_directory_of_copies_for_a_link_removes_nothing() {
    let Some(scene) = scene() else { return };
    let image_len = fs::metadata(&scene.stage.image).unwrap().len();
    for victim in VICTIMS {
        let shared = scene.directory_of(OTHER, &format!("shared-{victim}"), 0o777);
        let copies = shared.join(format!("archfs-stage-{victim}"));
        fs::create_dir(&copies).unwrap();
        chown(&copies, Some(victim), Some(victim)).unwrap();
        fs::set_permissions(&copies, fs::Permissions::from_mode(0o700)).unwrap();
        let files = (0..8).map(|number| (format!("results-{number}"), "dear")).collect();
        let trap = Trap::new(&scene, victim, files);
        let _swapper = Swapper::start(&scene.other, &copies, &trap.path);
        let (stage, most) = (shared.display(), image_len + 8192);
        let gc = format!("$ARCHFS gc -q --stage {stage}");
        let keep = format!("$ARCHFS run -q --stage {stage} --stage-keep {most} $IMAGE -- true");
        for round in 0..rounds(16) {
            let line = if round % 4 == 0 { &keep } else { &gc };
            let output = runs_as(&scene, victim, line);
            trap.assert_untouched(&format!("{victim}: {line}: {}", said(&output)));
            assert_eq!(output.status.success(), round % 4 == 0, "{}", said(&output));
        }
    }
}
