//! Archives of which something is missing: a job never gets half a dataset by mistake.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::mount::{is_mounted, unmount};
use crate::support::stage::{Stage, stage_as_user};
use crate::support::{archfs, image, run, tar, work_directory};

/// A place to mount archives.
struct Trial(Stage);

fn trial() -> Option<Trial> {
    stage_as_user().map(Trial)
}

impl Trial {
    fn work(&self) -> &Path {
        self.0.work.path()
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.work().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn mount(&self, options: &[&str], archives: &[&Path]) -> Output {
        let mut command = archfs();
        command.args(["mount", "--keep"]).args(options).args(archives).arg(&self.0.mount_point);
        command.output().unwrap()
    }

    /// Checks that the archive is refused, and what is said then.
    fn refuses(&self, archive: &Path, says: &str) {
        let output = self.mount(&[], &[archive]);
        let stderr = said(&output);
        assert_eq!(output.status.code(), Some(3), "{stderr}");
        let (error, hint) = stderr.trim().split_once('\n').expect("an error and a hint");
        let name = archive.file_name().unwrap().to_str().unwrap();
        assert!(error.starts_with("archfs: error: "), "{stderr}");
        assert!(error.contains(&format!("{name}: {says}")), "{stderr}, not {says}");
        assert!(hint.starts_with("archfs: hint: ") && hint.contains("--partial"), "{stderr}");
        assert!(!hint.contains('\n'), "{stderr}");
        assert!(!is_mounted(&self.0.mount_point) && !self.0.mount_point.exists(), "{stderr}");
    }

    /// Mounts, and returns the names of the files and what was said.
    fn shows(&self, options: &[&str], archive: &Path) -> (Vec<String>, String) {
        let output = self.mount(options, &[archive]);
        let stderr = said(&output);
        assert!(output.status.success(), "{stderr}");
        let listed = run(Command::new("find")
            .arg(&self.0.mount_point)
            .args(["-type", "f", "-printf", "%P\n"]));
        unmount(&self.0.mount_point);
        let mut names: Vec<_> =
            String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect();
        names.sort();
        (names, stderr)
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Four files of 700 bytes: a header and two blocks each, then two blocks of zeros.
fn four_files() -> Vec<u8> {
    tar::of(&[("a", &[b'a'; 700]), ("b", &[b'b'; 700]), ("c", &[b'c'; 700]), ("d", &[b'd'; 700])])
}

fn compressed(program: &str, bytes: &[u8]) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    let input = Stdio::from(fs::File::open(file.path()).unwrap());
    run(Command::new(program).arg("-c").stdin(input)).stdout
}

#[test]
fn a_tar_that_is_cut_off_is_refused() {
    let Some(trial) = trial() else { return };
    let whole = four_files();
    for (len, files, says) in [
        // In the header of the second file, in the data of the third, and before the last block.
        (1536 + 100, 1, "cut off: a header and everything after it is missing"),
        (2 * 1536 + 512 + 300, 2, "cut off: \"c\" and everything after it is missing"),
        (4 * 1536 - 512, 3, "cut off: \"d\" and everything after it is missing"),
    ] {
        let archive = trial.file("cut.tar", &whole[..len]);
        trial.refuses(&archive, says);
        // A saved index does not hide it.
        run(archfs().args(["index", "--quiet"]).arg(&archive));
        trial.refuses(&archive, says);
        let (names, stderr) = trial.shows(&["--partial"], &archive);
        assert_eq!(names, ["a", "b", "c"][..files]);
        assert!(stderr.contains(says), "{stderr}");
        fs::remove_file(trial.work().join("cut.tar.archfs-index")).unwrap();
        // Looking into it needs no option, and the status tells a script.
        for command in ["ls", "info"] {
            let output = archfs().arg(command).arg(&archive).output().unwrap();
            let is_told = said(&output).contains(says) && !output.stdout.is_empty();
            assert!(output.status.code() == Some(3) && is_told, "{output:?}");
            let text = String::from_utf8(output.stdout).unwrap();
            assert_eq!(text.contains("copy the archive again"), command == "info", "{text}");
        }
        // Also if it is asked for a path after the cut.
        let output = archfs().arg("ls").arg(&archive).args(["a", "missing"]).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let output =
            archfs().arg("run").arg(&archive).args(["--", "echo", "started"]).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(123), 0), "{output:?}");
    }
}

#[test]
fn a_tar_without_an_end_mark_is_accepted_as_by_gnu_tar() {
    let Some(trial) = trial() else { return };
    let archive = trial.file("unended.tar", &four_files()[..4 * 1536]);
    assert!(run(Command::new("tar").arg("-tf").arg(&archive)).stderr.is_empty());
    let (names, stderr) = trial.shows(&[], &archive);
    assert_eq!(names, ["a", "b", "c", "d"]);
    assert!(stderr.contains("unended.tar: no end mark: perhaps cut off"), "{stderr}");
}

#[test]
fn a_compressed_tar_that_is_cut_off_or_damaged_is_refused() {
    let Some(trial) = trial() else { return };
    let noise = crate::support::source::noise(5, 300_000);
    let whole = tar::of(&[("a", &[b'a'; 700]), ("b", &noise), ("c", &[b'c'; 700])]);
    for (program, suffix) in [("gzip", "gz"), ("zstd", "zst"), ("xz", "xz"), ("bzip2", "bz2")] {
        let bytes = compressed(program, &whole);
        let archive = trial.file(&format!("cut.tar.{suffix}"), &bytes[..bytes.len() / 2]);
        let output = trial.mount(&[], &[&archive]);
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        assert!(said(&output).contains("archfs: error: "), "{}", said(&output));
        assert!(!trial.0.mount_point.exists());
    }
    let gzip = compressed("gzip", &whole);
    let archive = trial.file("cut.tar.gz", &gzip[..gzip.len() / 2]);
    let (names, _) = trial.shows(&["--partial"], &archive);
    assert_eq!(names, ["a"]);
}

#[test]
fn a_damaged_member_is_a_missing_one() {
    let Some(trial) = trial() else { return };
    let mut bytes = four_files();
    bytes[1536 + 3] ^= 0x40;
    let archive = trial.file("damaged.tar", &bytes);
    trial.refuses(&archive, "damaged: there is no header where one should be; members are missing");
    assert_eq!(trial.shows(&["--partial"], &archive).0, ["a", "c", "d"]);
}

#[test]
fn a_damaged_inner_archive_is_refused() {
    let Some(trial) = trial() else { return };
    let inner = four_files();
    let cut = tar::of(&[("x.tar", &inner[..2100]), ("y.tar", &inner)]);
    let archive = trial.file("outer.tar", &cut);
    let output = trial.mount(&["--recursive"], &[&archive]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("in \"x\": cut off: \"b\""), "{}", said(&output));
    let (names, _) = trial.shows(&["--recursive", "--partial"], &archive);
    assert_eq!(names, ["x/a", "y/a", "y/b", "y/c", "y/d"]);
    // As files, both are whole.
    let (names, stderr) = trial.shows(&[], &archive);
    assert_eq!(names, ["x.tar", "y.tar"]);
    assert!(
        stderr.contains("note: ") && stderr.contains("all files are archives; --nested"),
        "{stderr}"
    );
}

#[test]
fn a_tar_of_zeros_is_refused_and_one_of_directories_is_mounted_with_a_warning() {
    let Some(trial) = trial() else { return };
    let empty = trial.work().join("empty.tar");
    run(Command::new("tar").args(["-T", "/dev/null", "-cf"]).arg(&empty));
    trial.refuses(&empty, "contains only zeros");
    let zeros = fs::read(&empty).unwrap();
    trial.refuses(&trial.file("empty.tar.gz", &compressed("gzip", &zeros)), "contains only zeros");
    assert!(trial.shows(&["--partial"], &empty).0.is_empty());
    let listed = archfs().arg("ls").arg(&empty).output().unwrap();
    assert_eq!(listed.status.code(), Some(3), "{listed:?}");
    assert!(String::from_utf8_lossy(&listed.stderr).contains("contains only zeros"));

    let tree = trial.work().join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    let directories = trial.work().join("directories.tar");
    tar::pack(&directories, &tree);
    let (names, stderr) = trial.shows(&[], &directories);
    assert!(names.is_empty() && stderr.contains("warning: "), "{stderr}");
    assert!(stderr.contains("there is no file in the archive"), "{stderr}");
    // A link is something.
    std::os::unix::fs::symlink("b", tree.join("a/link")).unwrap();
    tar::pack(&directories, &tree);
    let (_, stderr) = trial.shows(&[], &directories);
    assert!(!stderr.contains("warning: "), "{stderr}");
}

#[test]
fn the_same_archive_twice_is_wrong_use() {
    let Some(trial) = trial() else { return };
    let archive = trial.file("data.tar", &four_files());
    let link = trial.work().join("link.tar");
    std::os::unix::fs::symlink(&archive, &link).unwrap();
    for again in [&archive, &link] {
        let output = trial.mount(&[], &[&archive, again]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(": the same archive twice\n"), "{}", said(&output));
    }
    let copy = trial.file("copy.tar", &four_files());
    let output = trial.mount(&[], &[&archive, &copy]);
    assert!(output.status.success(), "{}", said(&output));
    unmount(&trial.0.mount_point);
}

#[test]
fn pack_refuses_a_file_that_is_no_archive() {
    let work = work_directory();
    let target = work.path().join("made.sqfs");
    let pack = |options: &[&str], source: &Path| {
        archfs().arg("pack").args(options).arg(source).arg(&target).output().unwrap()
    };
    for (name, bytes) in [
        ("x.7z", &b"7z\xbc\xaf\x27\x1c and more"[..]),
        ("empty", b""),
        ("random", &crate::support::source::noise(3, 5000)),
        ("text", &compressed("gzip", b"only text")),
    ] {
        let source = work.path().join(name);
        fs::write(&source, bytes).unwrap();
        let output = pack(&[], &source);
        assert_eq!(output.status.code(), Some(3), "{name}: {}", said(&output));
        assert!(
            said(&output).contains("add --as-file to pack it as one file"),
            "{}",
            said(&output)
        );
        assert!(!target.exists());
        let output = pack(&["--as-file", "--force"], &source);
        assert!(output.status.success(), "{}", said(&output));
        let read = run(archfs().arg("cat").arg(&target).arg(name));
        assert!(read.stdout == bytes, "{name}");
        fs::remove_file(&target).unwrap();
    }
    // One of several sources may be a file.
    let output = archfs()
        .current_dir(&work)
        .args(["pack", "random", "empty", "made.sqfs"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    // With the option, an archive is a file as well.
    let archive = work.path().join("data.tar");
    fs::write(&archive, four_files()).unwrap();
    assert!(pack(&["--as-file", "--force"], &archive).status.success());
    assert_eq!(run(archfs().arg("ls").arg(&target)).stdout, b"data.tar\n");
}

/// An image of the files `first` and `other` and of the directory `apart`. In its root, the second
/// file is damaged to have the name of the first.
fn image_with_damaged_root(directory: &Path) -> PathBuf {
    let source = directory.join("source");
    fs::create_dir_all(source.join("apart")).unwrap();
    for name in ["first", "other", "apart/whole"] {
        fs::write(source.join(name), name).unwrap();
    }
    let image = image::make(directory, "damaged.sqfs", &source, &["-noI"]);
    let mut bytes = fs::read(&image).unwrap();
    let is_name = |at: &usize| bytes[*at..].starts_with(b"other");
    // After the contents of the file is the listing.
    let name = (0..bytes.len()).rfind(is_name).unwrap();
    bytes[name..name + 5].copy_from_slice(b"first");
    fs::write(&image, bytes).unwrap();
    image
}

#[test]
fn an_archive_whose_root_cannot_be_listed_is_refused() {
    let Some(trial) = trial() else { return };
    let image = image_with_damaged_root(trial.work());
    let says = "damaged directory: first comes after first, names must ascend";
    trial.refuses(&image, says);
    for words in [&["run"][..], &["mount", "--foreground"]] {
        let mut command = archfs();
        command.args(words).arg(&image).arg(&trial.0.mount_point);
        if words[0] == "run" {
            command.args(["--", "echo", "started"]);
        }
        let output = command.output().unwrap();
        let status = if words[0] == "run" { 123 } else { 3 };
        assert_eq!(output.status.code(), Some(status), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(says) && output.stdout.is_empty(), "{output:?}");
    }
    // Together with another archive, and within others.
    let tar = trial.file("whole.tar", &four_files());
    let bytes = fs::read(&image).unwrap();
    let nested = trial.file("nested.tar", &tar::of(&[("a", b"a"), ("b.sqfs", &bytes)]));
    let source = trial.work().join("with-image");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("b.sqfs"), &bytes).unwrap();
    let outer = image::make(trial.work(), "outer.sqfs", &source, &[]);
    for (options, archives) in [
        (&[][..], &[&*tar, &*image][..]),
        (&["--nested"], &[&*nested]),
        (&["--nested"], &[&*outer]),
    ] {
        let output = trial.mount(options, archives);
        assert_eq!(output.status.code(), Some(3), "{archives:?}: {}", said(&output));
        assert!(said(&output).contains(says), "{}", said(&output));
        assert!(!trial.0.mount_point.exists());
    }
    // What does not need the root is there.
    assert_eq!(trial.shows(&["--subdir", "apart"], &image).0, ["whole"]);
    let output = trial.mount(&["--partial"], &[&image]);
    assert!(output.status.success() && said(&output).contains(says), "{}", said(&output));
    let whole = fs::read(trial.0.mount_point.join("apart/whole"));
    let listed = fs::read_dir(&trial.0.mount_point)
        .and_then(|mut entries| entries.find_map(Result::err).map_or(Ok(()), Err));
    unmount(&trial.0.mount_point);
    assert_eq!(whole.unwrap(), b"apart/whole");
    assert_eq!(listed.unwrap_err().raw_os_error(), Some(5));
}
