//! Archives at URLs, from a server that fails, stops or replaces them as the test says.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::mount::{CleanUp, is_mounted, listed, unmount};
use crate::support::snapshot::{Depth, assert_same, take};
use crate::support::stage::{end, processes_about, said, shell, tell};
use crate::support::{
    archfs, image, run, skip_without_mounts, source, tar, wait_until, work_directory,
};
use crate::test_server::{ETAG, Manner, Reply, Request, TestServer};

/// A directory, a mount point in it, and what unmounts that first. `None` without mounts.
fn begin() -> Option<(tempfile::TempDir, PathBuf, CleanUp)> {
    (!skip_without_mounts()).then(|| {
        let work = work_directory();
        let mount_point = work.path().join("mount");
        (work, mount_point.clone(), CleanUp(mount_point))
    })
}

/// Files of several sizes, and archives of them.
fn tree(work: &Path) -> PathBuf {
    let root = work.join("tree");
    fs::create_dir_all(root.join("folder/empty")).unwrap();
    for (number, len) in [0, 1, 4096, 70_000, 1_000_000].into_iter().enumerate() {
        let name = format!("folder/{len}");
        fs::write(root.join(name), source::noise(number as u64 + 1, len)).unwrap();
    }
    for number in 0..200 {
        fs::write(root.join(format!("{number}")), source::noise(number, 9000)).unwrap();
    }
    fs::write(root.join("text"), "hello, world\n".repeat(20_000)).unwrap();
    // A tar without its root shows the time of the first member there.
    run(Command::new("find").arg(&root).args(["-exec", "touch", "-d", "@1000000000", "{}", "+"]));
    root
}

/// The archives of `tree` in `work`, by their names.
fn archives(work: &Path) -> Vec<PathBuf> {
    let tree = tree(work);
    let tar = work.join("data.tar");
    tar::pack(&tar, &tree);
    run(Command::new("gzip").arg("--keep").arg(&tar));
    let image = image::make(work, "data.sqfs", &tree, &["-comp", "gzip"]);
    let zip = work.join("data.zip");
    run(Command::new("python3")
        .current_dir(&tree)
        .args(["-m", "zipfile", "-c"])
        .arg(&zip)
        .arg("."));
    vec![tar, work.join("data.tar.gz"), image, zip]
}

/// Serves the files of `directory`, each by its name.
fn serve(
    directory: &Path,
    fault: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
) -> TestServer {
    let directory = directory.to_owned();
    TestServer::start(move |request| {
        fault(request).unwrap_or_else(|| {
            let name = request.path.split('?').next().unwrap().trim_start_matches('/');
            match fs::read(directory.join(name)) {
                Ok(bytes) => Reply::part(request, &bytes),
                Err(_) => Reply::status(404),
            }
        })
    })
}

/// Some of the answers fail.
fn unreliable(request: &Request) -> Option<Reply> {
    match request.number.wrapping_mul(2_654_435_761) >> 7 & 15 {
        0 => Some(Reply::status(503)),
        1 => Some(Reply::status(206).sent(Manner::Reset(0))),
        2 => Some(Reply::status(206).sent(Manner::Cut(0))),
        3 => {
            let slow = Manner::Drip(Duration::from_millis(1));
            Some(Reply { body: b"busy".to_vec(), ..Reply::status(500) }.sent(slow))
        }
        _ => None,
    }
}

/// archfs that keeps its indexes and copies in `work`.
fn archfs_in(work: &Path) -> Command {
    let mut archfs = archfs();
    archfs.env("XDG_CACHE_HOME", work.join("cache")).env("TMPDIR", work);
    archfs
}

/// archfs with these words, which must succeed.
fn does(work: &Path, words: &[&str]) -> Output {
    run(archfs_in(work).args(words))
}

fn without_zip_times(name: &str) -> bool {
    // ZIP archives store no owners and coarse times.
    name.ends_with(".zip")
}

#[test]
fn a_tree_at_a_url_is_the_same_whatever_the_server_does() {
    let Some((work, mount_point, _clean_up)) = begin() else { return };
    let files = archives(work.path());
    let server = serve(work.path(), unreliable);
    let expected = take(&work.path().join("tree"), Depth::NoXattrs);
    for file in &files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let url = server.url(&format!("/{name}"));
        for options in [&[][..], &["--stage=/dev/shm"], &["--stage=/dev/shm", "--stage-wait"]] {
            let mount = ["mount", "--keep", "--quiet"];
            let words = [&mount[..], options, &[&url, mount_point.to_str().unwrap()]].concat();
            does(work.path(), &words);
            if without_zip_times(name) {
                let diff = ["-r", "tree", "mount"];
                run(Command::new("diff").current_dir(work.path()).args(diff));
            } else {
                assert_same(name, &expected, &take(&mount_point, Depth::NoXattrs));
            }
            assert_eq!(listed(&mount_point).unwrap()["archives"][0], url.as_str());
            unmount(&mount_point);
        }
    }
}

#[test]
fn all_commands_read_archives_at_urls() {
    let work = work_directory();
    let files = archives(work.path());
    let server = serve(work.path(), unreliable);
    let tree = work.path().join("tree");
    for file in &files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let url = server.url(&format!("/{name}"));
        let far = |command: &str| does(work.path(), &[command, &url]).stdout;
        let near = |command: &str| does(work.path(), &[command, file.to_str().unwrap()]).stdout;
        assert_eq!(far("ls"), near("ls"), "{name}");
        let text = does(work.path(), &["cat", &url, "folder/70000"]).stdout;
        assert!(text == fs::read(tree.join("folder/70000")).unwrap(), "{name}");
        let info = String::from_utf8(far("info")).unwrap();
        assert!(info.contains(&url), "{info}");
        far("verify");
        let target = work.path().join("extracted");
        does(work.path(), &["extract", "--quiet", &url, target.to_str().unwrap()]);
        run(Command::new("diff").arg("-r").arg(&tree).arg(&target));
        fs::remove_dir_all(&target).unwrap();
        let packed = work.path().join("packed.sqfs");
        does(work.path(), &["pack", "--quiet", "--force", &url, packed.to_str().unwrap()]);
        let path = packed.to_str().unwrap();
        assert_eq!(does(work.path(), &["ls", path]).stdout, near("ls"), "{name}");
    }
    let url = server.url("/data.tar");
    let output = archfs_in(work.path()).args(["pack", "--as-file", &url, "x.sqfs"]).output();
    assert_eq!(output.unwrap().status.code(), Some(2));
}

#[test]
fn urls_and_files_are_one_tree() {
    let Some((work, mount_point, _clean_up)) = begin() else { return };
    for name in ["a", "b", "c"] {
        let bytes = tar::of(&[(name, name.as_bytes())]);
        fs::write(work.path().join(format!("{name}.tar")), bytes).unwrap();
    }
    let server = serve(work.path(), |_| None);
    let (a, b) = (server.url("/a.tar"), server.url("/b.tar?key=1"));
    let c = work.path().join("c.tar");
    let paths = [&a, c.to_str().unwrap(), &b, mount_point.to_str().unwrap()];
    does(work.path(), &[&["mount", "--keep", "--quiet"], &paths[..]].concat());
    for name in ["a", "b", "c"] {
        assert_eq!(fs::read_to_string(mount_point.join(name)).unwrap(), name);
    }
    unmount(&mount_point);
    let twice = archfs().args(["mount", &a, &a]).arg(&mount_point).output().unwrap();
    assert_eq!(twice.status.code(), Some(2));
    assert!(said(&twice).contains("the same archive twice"));
    // The last word before -- is an archive.
    let script = "cat {}/a";
    let output = does(work.path(), &["run", &a, "--", "sh", "-c", script]);
    assert_eq!(output.stdout, b"a");
}

/// > archfs shows, logs and records a URL without user, password and query, even if the URL is
/// > mistyped. Only the user can read the whole URL, in the environment of the daemon.
#[test]
fn no_secret_of_a_url_can_be_seen() {
    let Some((work, mount_point, _clean_up)) = begin() else { return };
    let files: Vec<(String, Vec<u8>)> =
        (0..1500).map(|number| (number.to_string(), vec![1])).collect();
    let files: Vec<_> = files.iter().map(|(name, data)| (&name[..], &data[..])).collect();
    fs::write(work.path().join("a.tar"), tar::of(&files)).unwrap();
    let is_down = Arc::new(AtomicBool::new(false));
    let down = Arc::clone(&is_down);
    let server = serve(work.path(), move |request| {
        let is_known = request.header("authorization") == "Basic bWU6aHVzaGh1c2g=";
        let is_signed = request.path.contains("SIGNATURE") || request.path.contains("index");
        let is_right = is_known && is_signed && !down.load(Ordering::Relaxed);
        (!is_right).then(|| Reply::status(403))
    });
    let url = server
        .url("/a.tar?X-Amz-Signature=SIGNATURE")
        .replace("http", "HTTP")
        .replace("://", "://me:hushhush@");
    let log = work.path().join("log");
    let options = ["--keep", "-v", "--log-file", log.to_str().unwrap(), "--stage=/dev/shm"];
    let mut command = archfs_in(work.path());
    command.arg("mount").args(options).arg(&url).arg(&mount_point);
    // Records are below it.
    command.env("XDG_RUNTIME_DIR", work.path());
    let mounted = run(&mut command);
    let pid = listed(&mount_point).unwrap()["daemon"].to_string();
    assert_eq!(fs::read(mount_point.join("7")).unwrap(), [1]);
    let mut runner = archfs_in(work.path());
    let script = "read line; env; cat {}/8";
    runner.args(["run", &url, "--", "sh", "-c", script]).stdin(Stdio::piped());
    let mut runner = runner.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the command runs", || !processes_about(&["read line; env; cat /"]).is_empty());
    let shown = |pid: &str| fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let mut seen = vec![shown(&pid), shown(&runner.id().to_string())];
    for pid in processes_about(&["archfs", "daemon"]) {
        seen.extend(fs::read(format!("/proc/{pid}/cmdline")));
    }
    drop(runner.stdin.take());
    let ran = runner.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));
    is_down.store(true, Ordering::Relaxed);
    let failed = archfs_in(work.path()).args(["ls", &url]).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    let list = run(archfs().args(["list", "--json"]));
    for output in [mounted, ran, failed, list] {
        seen.extend([output.stdout, output.stderr]);
    }
    seen.push(fs::read(&log).unwrap());
    let everything = run(Command::new("find").arg(work.path()).args(["-xdev", "-ls"]));
    seen.push(everything.stdout);
    // Its status is 1 if it finds nothing, and 2 if a directory does not exist.
    let script = "grep -rlsE 'hushhush|SIGNATURE|bWU6' --devices=skip --exclude-dir=mount \
                  \"$0\" /run/archfs* /run/user/*/archfs* /dev/shm/archfs* /tmp/archfs-0*";
    let records = Command::new("sh").args(["-c", script]).arg(work.path()).output().unwrap();
    seen.push(records.stdout);
    unmount(&mount_point);
    for text in seen {
        let text = String::from_utf8_lossy(&text);
        for secret in ["hushhush", "SIGNATURE", "bWU6"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

/// > archfs shows, logs and records a URL without user, password and query, even if the URL is
/// > mistyped.
#[test]
fn no_message_has_a_secret_of_a_mistyped_url() {
    let work = work_directory();
    let _clean_up = CleanUp(work.path().join("m"));
    fs::write(work.path().join("a.tar"), tar::of(&[("a", b"a")])).unwrap();
    let server = serve(work.path(), |_| Some(Reply::status(404)));
    let found = server.url("/a.tar?sig=SECRET").replace("http://", "HTTP://me:SECRET@");
    let urls = [
        found.as_str(),
        "htps://me:SECRET@host/a.tar?X-Amz-Signature=SECRET",
        "https:/me:SECRET@host/a.tar",
        "s3://KEY:SE/CRET/SECRET@bucket/key",
    ];
    let commands = [
        "URL",
        "--URL",
        "ls URL",
        "ls --index=URL a.tar",
        "cat URL a",
        "cat a.tar URL",
        "info --json URL",
        "verify --json URL",
        "index URL",
        "extract URL x",
        "pack URL x.sqfs",
        "pack --compressor=URL a.tar x",
        "pack --URL a.tar x",
        "mount URL m",
        "mount URL URL",
        "mount a.tar URL",
        "mount --cache=URL a.tar m",
        "mount --stage URL a.tar m",
        "mount -oURL a.tar m",
        "mount -osubdir=URL a.tar m",
        "run URL -- true",
        "run URL true",
        "run a.tar -- URL",
        "unmount URL",
        "wait URL --timeout 0",
        "list URL",
        "stats --json URL",
        "gc URL",
        "doctor URL",
        "completions URL",
        "mount.archfs URL m",
        "read-server URL",
    ];
    for url in urls {
        for line in commands {
            let words = line.split(' ').map(|word| word.replace("URL", url));
            let mut archfs = archfs_in(work.path());
            archfs.current_dir(work.path()).args(words).stdin(Stdio::null());
            if line == "ls URL" {
                archfs.env("ARCHFS_INDEX", url);
            }
            let output = archfs.output().unwrap();
            let text = said(&output) + &String::from_utf8_lossy(&output.stdout);
            assert!(!text.contains("SECRET"), "{line}: {url}: {text}");
        }
    }
}

#[test]
fn the_list_of_processes_has_no_secret() {
    let work = work_directory();
    let server = serve(work.path(), |_| Some(Reply::status(206).sent(Manner::Never)));
    let url = server.url("/a.tar?sig=SECRET").replace("http://", "HTTP://me:SECRET@");
    for index in ["--index=htps://me:SECRET@host/i", "--index=https:/me:SECRET@host?token=SECRET"] {
        let asked = server.requests().len();
        let mut archfs = archfs_in(work.path());
        archfs.args(["ls", index, &url]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut archfs = archfs.spawn().unwrap();
        wait_until("it asks the server", || server.requests().len() > asked);
        let shown = fs::read(format!("/proc/{}/cmdline", archfs.id())).unwrap();
        archfs.kill().unwrap();
        archfs.wait().unwrap();
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains(&server.url("/a.tar?...")) && !shown.contains("SECRET"), "{shown}");
    }
}

/// > After a change, all reads of the archive fail with EIO, and archfs logs that it was replaced.
#[test]
fn an_archive_that_is_replaced_is_not_mixed() {
    let Some((work, mount_point, _clean_up)) = begin() else { return };
    let tree = tree(work.path());
    let image = image::make(work.path(), "data.sqfs", &tree, &["-noD", "-noF"]);
    for stage in [&[][..], &["--stage=/dev/shm"]] {
        let is_replaced = Arc::new(AtomicBool::new(false));
        let replaced = Arc::clone(&is_replaced);
        let bytes = fs::read(&image).unwrap();
        let server = TestServer::start(move |request| {
            let reply = Reply::part(request, &bytes);
            if replaced.load(Ordering::Relaxed) {
                return match request.header("if-match") == ETAG {
                    true => Reply::status(412),
                    false => reply.with("ETag", "\"version 2\""),
                };
            }
            // What the fill asks for does not arrive, so the copy is never complete.
            let (first, last) = request.range();
            if last - first > 300_000 { Reply::status(503) } else { reply }
        });
        let url = server.url("/data.sqfs");
        let log = work.path().join("log");
        let log_file = format!("--log-file={}", log.display());
        let options = ["mount", "--keep", "--quiet", "--no-name-readahead", &log_file];
        let paths = [url.as_str(), mount_point.to_str().unwrap()];
        does(work.path(), &[&options[..], stage, &paths].concat());
        is_replaced.store(true, Ordering::Relaxed);
        let output = Command::new("sh")
            .args(["-c", "cat $0/?? $0/folder/1000000 > /dev/null"])
            .arg(&mount_point)
            .output()
            .unwrap();
        assert!(said(&output).contains("Input/output error"), "{}", said(&output));
        unmount(&mount_point);
        let logged = fs::read_to_string(&log).unwrap();
        assert!(logged.contains("replaced on the server"), "{logged}");
        fs::remove_file(&log).unwrap();
    }
}

/// > A job that ends while its server is down is unmounted within two seconds.
#[test]
fn a_job_that_ends_while_its_server_is_down_leaves_nothing() {
    let Some((work, mount_point, _clean_up)) = begin() else { return };
    let tree = tree(work.path());
    image::make(work.path(), "data.sqfs", &tree, &["-comp", "gzip"]);
    for how in [Reply::status(503), Reply::status(206).sent(Manner::Never)] {
        let is_down = Arc::new(AtomicBool::new(false));
        let down = Arc::clone(&is_down);
        let server = serve(work.path(), move |_| down.load(Ordering::Relaxed).then(|| how.clone()));
        let mut script = shell(work.path());
        let (url, log) = (server.url("/data.sqfs"), work.path().join("log"));
        let mount = format!("$ARCHFS mount -q --log-file=log {url} mount");
        assert_eq!(tell(&mut script, &mount), "done 0\n");
        is_down.store(true, Ordering::Relaxed);
        assert_eq!(
            tell(&mut script, "cat mount/folder/1000000 > /dev/null 2>&1 & true"),
            "done 0\n"
        );
        let asked = server.requests().len();
        wait_until("the reader waits", || server.requests().len() > asked);
        let start = Instant::now();
        // As a batch system does.
        assert_eq!(tell(&mut script, "kill -9 $!"), "done 0\n");
        end(script);
        wait_until("it is unmounted", || !is_mounted(&mount_point));
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        wait_until("the daemon has ended", || {
            processes_about(&["archfs", "--daemon", work.path().to_str().unwrap()]).is_empty()
        });
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        let logged = fs::read_to_string(&log).unwrap();
        let failed = logged.lines().filter(|line| line.contains(": folder/1000000: "));
        let times: Vec<_> = failed.map(|line| line.matches(&url).count()).collect();
        assert!(!times.is_empty() && times.iter().all(|times| *times == 1), "{logged}");
        fs::remove_file(&log).unwrap();
    }
}

/// > With a `--stage` copy, an outage concerns only reads of bytes that are not copied yet. The copy
/// > is continued when the server answers again.
#[test]
fn a_copy_outlives_an_outage() {
    let Some((work, mount_point, _clean_up)) = begin() else { return };
    let tree = tree(work.path());
    image::make(work.path(), "data.sqfs", &tree, &["-noD", "-noF"]);
    let is_down = Arc::new(AtomicBool::new(true));
    let down = Arc::clone(&is_down);
    let server = serve(work.path(), move |request| {
        // The fill asks for large parts.
        let (first, last) = request.range();
        (down.load(Ordering::Relaxed) && last - first > 300_000).then(|| Reply::status(503))
    });
    let url = server.url("/data.sqfs");
    let words = ["mount", "--keep", "--quiet", "--stage=/dev/shm", &url];
    does(work.path(), &[&words[..], &[mount_point.to_str().unwrap()]].concat());
    assert_eq!(fs::read(mount_point.join("7")).unwrap(), source::noise(7, 9000));
    let staged = || listed(&mount_point).unwrap()["staged"].clone();
    assert_ne!(staged()["copied_bytes"], staged()["total_bytes"]);
    is_down.store(false, Ordering::Relaxed);
    wait_until("it is complete", || staged()["copied_bytes"] == staged()["total_bytes"]);
    let asked = server.requests().len();
    run(Command::new("diff").arg("-r").arg(&tree).arg(&mount_point));
    assert_eq!(server.requests().len(), asked, "the server is not asked any more");
    unmount(&mount_point);
}

/// Its connections end with the daemon, which is no fault of the server.
#[test]
fn a_copy_that_ends_with_the_mount_is_not_warned_of() {
    let Some((work, mount_point, _clean_up)) = begin() else { return };
    let tree = tree(work.path());
    image::make(work.path(), "data.sqfs", &tree, &["-noD", "-noF"]);
    // Without the start and the end of the image, which are needed to open it.
    let is_of_the_copy = |request: &Request| {
        let (first, last) = request.range();
        last - first > 200_000 && first > 0 && last < 2_000_000
    };
    for how in [Reply::status(206).sent(Manner::Never), Reply::status(503)] {
        let server =
            serve(work.path(), move |request| is_of_the_copy(request).then(|| how.clone()));
        let (url, log) = (server.url("/data.sqfs"), work.path().join("log"));
        let option = format!("--log-file={}", log.display());
        let words = ["mount", "--keep", "--quiet", "--stage=/dev/shm", &option, &url];
        does(work.path(), &[&words[..], &[mount_point.to_str().unwrap()]].concat());
        wait_until("the copy waits", || server.requests().iter().any(is_of_the_copy));
        unmount(&mount_point);
        wait_until("the daemon has ended", || {
            processes_about(&["archfs", "--daemon", work.path().to_str().unwrap()]).is_empty()
        });
        let logged = fs::read_to_string(&log).unwrap();
        assert!(!logged.contains("warning"), "{logged}");
        fs::remove_file(&log).unwrap();
    }
}

/// Bytes that unlinked files take on the file system of `directory`.
fn used(directory: &Path) -> u64 {
    let found = rustix::fs::statvfs(directory).unwrap();
    (found.f_blocks - found.f_bfree) * found.f_frsize
}

#[test]
fn a_daemon_that_is_killed_leaves_no_file() {
    let Some((work, mount_point, _clean_up)) = begin() else { return };
    let temporary = work.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let mut mount = Command::new("mount");
    run(mount.args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"]).arg(&temporary));
    let _unmounted = CleanUp(temporary.clone());
    let tree = tree(work.path());
    tar::pack(&work.path().join("data.tar"), &tree);
    let before = used(&temporary);
    let delay = Arc::new(AtomicUsize::new(0));
    let wait = Arc::clone(&delay);
    let server = serve(work.path(), move |_| {
        thread::sleep(Duration::from_millis(wait.load(Ordering::Relaxed) as u64));
        None
    });
    let url = server.url("/data.tar");
    let stage = format!("--stage={}", temporary.display());
    for round in 0..8 {
        delay.store(round * 3, Ordering::Relaxed);
        let mut command = archfs();
        command.args(["mount", "--keep", "--quiet"]).env("TMPDIR", &temporary);
        command.args((round % 2 == 0).then_some(&stage)).arg(&url).arg(&mount_point);
        run(&mut command);
        let pid = listed(&mount_point).unwrap()["daemon"].as_i64().unwrap();
        run(Command::new("kill").args(["-9", &pid.to_string()]));
        run(archfs().arg("unmount").arg(&mount_point));
        wait_until("the copy is freed", || used(&temporary) == before);
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    }
    run(Command::new("umount").arg(&temporary));
}

#[test]
fn the_index_beside_an_archive_at_its_server_is_used_if_it_fits() {
    let work = work_directory();
    let tree = tree(work.path());
    let tar = work.path().join("data.tar");
    tar::pack(&tar, &tree);
    run(archfs().args(["index", "--quiet"]).arg(&tar));
    let index = work.path().join("data.tar.archfs-index");
    let listing = does(work.path(), &["ls", tar.to_str().unwrap()]).stdout;
    let list = |expected: &str| {
        let server = serve(work.path(), |_| None);
        let url = server.url("/data.tar");
        let output = does(work.path(), &["ls", &url]);
        assert_eq!(output.stdout, listing, "{expected}");
        let bytes: usize = server
            .requests()
            .iter()
            .filter(|request| request.path == "/data.tar")
            .map(|request| request.range().1 - request.range().0 + 1)
            .sum();
        (bytes, said(&output))
    };
    let (bytes, text) = list("with an index");
    assert!(bytes < 1 << 20 && text.is_empty(), "{bytes}: {text}");
    let whole = tar.metadata().unwrap().size() as usize;
    // Of another archive, damaged, none, and no index at all.
    let good = fs::read(&index).unwrap();
    let mut other = fs::read(&tar).unwrap();
    other[0] = b'X';
    let damaged: Vec<u8> = good.iter().map(|byte| byte ^ 1).collect();
    for (what, bytes) in [("damaged", &damaged[..]), ("a page", b"<html></html>"), ("empty", b"")] {
        fs::write(&index, bytes).unwrap();
        let (read, text) = list(what);
        assert!(read >= whole, "{what}: {read}");
        assert!(text.contains("made again"), "{what}: {text}");
    }
    fs::remove_file(&index).unwrap();
    let (read, text) = list("none");
    assert!(read >= whole && text.is_empty(), "{read} {text}");
}

/// The name and the data of a member of `two_versions`.
fn numbered(number: u64) -> (String, Vec<u8>) {
    (format!("f{number:04}"), source::noise(number + 1, 2000))
}

/// Members in `two_versions`: enough for an index that is saved, and that samples only some.
const MEMBERS: u64 = 1200;

/// Two versions of a tar with the same length. The members 10 and 11, of which an index has no
/// sample, are exchanged.
fn two_versions() -> [Vec<u8>; 2] {
    let version = |order: &dyn Fn(u64) -> u64| {
        let members: Vec<_> = (0..MEMBERS).map(|number| numbered(order(number))).collect();
        let members: Vec<_> = members.iter().map(|(name, data)| (&name[..], &data[..])).collect();
        tar::of(&members)
    };
    let exchanged = |number| if number == 10 || number == 11 { 21 - number } else { number };
    [version(&|number| number), version(&exchanged)]
}

/// The member `number` of the archive at `url`, which must be the right one.
fn assert_right(work: &Path, url: &str, number: u64) -> Output {
    let (name, data) = numbered(number);
    let output = does(work, &["cat", url, &name]);
    assert!(output.stdout == data, "{name} of {url}: other bytes");
    output
}

/// Bytes that were asked for since the first `count` requests.
fn asked_for(server: &TestServer, count: usize) -> usize {
    let requests = server.requests();
    requests[count..].iter().map(|it| it.range().1 - it.range().0 + 1).sum()
}

/// > If an index may be of another version (beside a copied archive or a URL), the first read of each
/// > member compares its headers in the archive with those in the index, except of a file that is
/// > one hole. If they differ, the read gives EIO, and the next mount makes a new index.
#[test]
fn an_index_beside_a_url_gives_no_bytes_of_another_member() {
    let Some((work, mount_point, _clean_up)) = begin() else { return };
    let [old, new] = two_versions();
    let tar = work.path().join("data.tar");
    fs::write(&tar, old).unwrap();
    run(archfs().args(["index", "--quiet"]).arg(&tar));
    fs::write(&tar, new).unwrap();
    let server = serve(work.path(), |_| None);
    let url = server.url("/data.tar");
    let read = |number| fs::read(mount_point.join(numbered(number).0));
    let log = format!("--log-file={}", work.path().join("log").display());
    let mount = |cache: &str| {
        let mut command = archfs_in(work.path());
        command.env("XDG_CACHE_HOME", work.path().join(cache));
        command.args(["mount", "--keep", "--no-name-readahead", &log, &url]).arg(&mount_point);
        run(&mut command)
    };
    mount("cache");
    let before = server.requests().len();
    assert!(read(500).unwrap() == numbered(500).1);
    assert_eq!(server.requests().len(), before + 1, "the header comes with the data");
    for number in [10, 11] {
        assert_eq!(read(number).unwrap_err().raw_os_error(), Some(5));
    }
    unmount(&mount_point);
    let logged = fs::read_to_string(work.path().join("log")).unwrap();
    let line = format!("{url}: f0010: the index {url}.archfs-index is of another version");
    assert!(logged.contains(&line), "{logged}");
    assert_eq!(logged.matches("is of another version").count(), 1, "{logged}");
    assert!(!logged.contains("made again"), "{logged}");
    assert!(logged.contains("hint: mount the archive again"), "{logged}");
    mount("cache");
    let logged = fs::read_to_string(work.path().join("log")).unwrap();
    assert!(logged.contains("it contradicts the archive; made again"), "{logged}");
    for number in [10, 11, 500] {
        assert!(read(number).unwrap() == numbered(number).1, "{number}");
    }
    unmount(&mount_point);
    // No read bypasses the mount.
    let mut command = archfs_in(work.path());
    command.env("XDG_CACHE_HOME", work.path().join("other")).args(["run", "--direct", "-v", &url]);
    let script =
        "until grep -q 'direct' $0; do sleep 0.01; done; cat {}/f0500 > /dev/null && cat {}/f0010";
    let log = work.path().join("direct.log");
    command.args(["--log-file", log.to_str().unwrap(), "--", "sh", "-c", script]).arg(&log);
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{}", said(&output));
    let logged = fs::read_to_string(&log).unwrap();
    assert!(logged.contains("--direct has no effect"), "{logged}");
}

/// > If an index beside a URL is older than the tar (Last-Modified), archfs makes the index again.
#[test]
fn an_index_at_a_server_that_is_older_than_its_archive_is_not_used() {
    let work = work_directory();
    let [bytes, _] = two_versions();
    let tar = work.path().join("data.tar");
    fs::write(&tar, bytes).unwrap();
    run(archfs().args(["index", "--quiet"]).arg(&tar));
    for (second, is_used) in [(36, false), (37, true), (38, true)] {
        let directory = work.path().to_owned();
        let server = TestServer::start(move |request| {
            let Ok(bytes) = fs::read(directory.join(&request.path[1..])) else {
                return Reply::status(404);
            };
            let second = if request.path.ends_with("index") { second } else { 37 };
            let time = format!("Sun, 06 Nov 1994 08:49:{second} GMT");
            Reply::part(request, &bytes).with("Last-Modified", &time)
        });
        let output = assert_right(work.path(), &server.url("/data.tar"), 10);
        let text = said(&output);
        assert_eq!(text.contains("older than the archive"), !is_used, "{second}: {text}");
        let whole = tar.metadata().unwrap().size() as usize;
        assert_eq!(asked_for(&server, 0) < whole, is_used, "{second}");
    }
}

/// Serves the first version of an archive at queries with `id=1`, and the second one at others, with
/// the same ETag.
fn serve_by_query() -> TestServer {
    let [first, second] = two_versions();
    TestServer::start(move |request| match request.path.contains("id=1") {
        true => Reply::part(request, &first),
        false => Reply::part(request, &second),
    })
}

/// > A saved index and a copy of `--stage-keep` belong to a URL with its query. Parameters of a
/// > signature, a password and temporary keys do not count.
#[test]
fn a_saved_index_is_of_one_query_with_any_signature() {
    let work = work_directory();
    let server = serve_by_query();
    let url = |query: &str| server.url(&format!("/data.tar?{query}"));
    assert_right(work.path(), &url("id=1&X-Amz-Date=1&X-Amz-Signature=a"), 10);
    assert_right(work.path(), &url("id=3&X-Amz-Date=1&X-Amz-Signature=a"), 10);
    let before = server.requests().len();
    assert_right(work.path(), &url("id=1&X-Amz-Date=2&X-Amz-Signature=b"), 10);
    let asked = asked_for(&server, before);
    assert!(asked < 1 << 20, "{asked} bytes with a saved index");
}

#[test]
fn a_kept_copy_is_of_one_query_with_any_signature() {
    let Some((work, mount_point, _clean_up)) = begin() else { return };
    let server = serve_by_query();
    let stage = format!("--stage={}", work.path().display());
    let options = ["mount", "--keep", "--quiet", &stage, "--stage-keep=100M", "--stage-wait"];
    let whole = two_versions()[0].len();
    for (query, is_kept) in
        [("id=1&X-Amz-Signature=a", false), ("id=3", false), ("id=1&X-Amz-Signature=b", true)]
    {
        let before = server.requests().len();
        let url = server.url(&format!("/data.tar?{query}"));
        does(work.path(), &[&options[..], &[&url, mount_point.to_str().unwrap()]].concat());
        assert_eq!(asked_for(&server, before) < whole, is_kept, "{query}");
        for number in [10, 11] {
            let (name, data) = numbered(number);
            assert!(fs::read(mount_point.join(&name)).unwrap() == data, "{name} of {query}");
        }
        unmount(&mount_point);
    }
}

/// > If the server sends neither ETag nor Last-Modified, archfs saves and uses neither.
#[test]
fn without_a_version_nothing_is_saved_or_believed() {
    let work = work_directory();
    let versions = two_versions();
    let is_replaced = Arc::new(AtomicBool::new(false));
    let replaced = Arc::clone(&is_replaced);
    let server = TestServer::start(move |request| {
        let mut reply =
            Reply::part(request, &versions[usize::from(replaced.load(Ordering::Relaxed))]);
        reply.headers.retain(|(name, _)| name != "ETag");
        reply
    });
    let url = server.url("/data.tar");
    assert_right(work.path(), &url, 10);
    is_replaced.store(true, Ordering::Relaxed);
    assert_right(work.path(), &url, 10);
    let output = archfs_in(work.path()).args(["index", &url]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("the server names no version"), "{}", said(&output));
    assert!(!work.path().join("cache").exists());
}

#[test]
fn errors_name_the_url_and_what_to_do() {
    let work = work_directory();
    let server = serve(work.path(), |request| match request.path.as_str() {
        "/secret" => Some(Reply::status(403)),
        "/whole" => Some(Reply { body: vec![0; 100], ..Reply::status(200) }),
        "/huge" => Some(
            Reply { body: vec![0], ..Reply::status(206) }
                .with("Content-Range", "bytes 0-0/18446744073709551615"),
        ),
        _ => None,
    });
    fs::write(work.path().join("text"), "no archive at all").unwrap();
    for (path, status, text) in [
        ("/missing.tar", 1, "no such file on the server"),
        ("/secret", 1, "the server answers 403 Forbidden"),
        ("/whole", 1, "the server sends only whole files"),
        ("/huge", 1, "an impossible size of the file: 18446744073709551615 bytes"),
        ("/text", 3, "text"),
    ] {
        let url = server.url(path);
        let output = archfs_in(work.path()).args(["ls", &url]).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", said(&output));
        let said = said(&output);
        assert!(said.contains(&format!("archfs: error: {url}: ")) && said.contains(text), "{said}");
    }
    let url = server.url("/a.tar");
    let output = archfs().args(["mount", "a.tar", &url]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("a URL, not a mount point"), "{}", said(&output));
}

/// The answer of mirrors with several ETags.
fn of_mirror(directory: &Path, request: &Request, etag: usize) -> Reply {
    let bytes = fs::read(directory.join(request.path.trim_start_matches('/')));
    Reply::part(request, &bytes.unwrap())
        .with("ETag", &format!("\"{etag}\""))
        .with("Last-Modified", "Mon, 02 Jan 2023 00:00:00 GMT")
}

#[test]
fn mirrors_with_several_etags_are_reported_once_and_may_be_allowed() {
    let Some((work, mount_point, _clean_up)) = begin() else { return };
    let tree = tree(work.path());
    image::make(work.path(), "data.sqfs", &tree, &["-noD", "-noF"]);
    let directory = work.path().to_owned();
    let two = serve(work.path(), move |request| {
        (request.path == "/data.sqfs").then(|| of_mirror(&directory, request, request.number % 2))
    });
    let output = does(work.path(), &["cat", &two.url("/data.sqfs"), "folder/1000000"]);
    assert!(output.stdout == fs::read(tree.join("folder/1000000")).unwrap());
    assert_eq!(said(&output).matches("its mirrors disagree").count(), 1, "{}", said(&output));
    // No ETag returns.
    let directory = work.path().to_owned();
    let many = serve(work.path(), move |request| {
        (request.path == "/data.sqfs").then(|| of_mirror(&directory, request, request.number))
    });
    for stage in [&[][..], &["--stage=/dev/shm"]] {
        let options = ["mount", "--keep", "--quiet", "--allow-changes"];
        let paths = [&many.url("/data.sqfs"), mount_point.to_str().unwrap()];
        does(work.path(), &[&options[..], stage, &paths].concat());
        run(Command::new("diff").arg("-r").arg(&tree).arg(&mount_point));
        unmount(&mount_point);
    }
}

/// A server with TLS for localhost, whose certificate another one has signed.
struct TlsServer(std::process::Child, u16);

impl TlsServer {
    /// Makes `ca.pem` in `work` and starts it.
    fn start(work: &Path) -> Self {
        let openssl = |words: &str| {
            run(Command::new("openssl").current_dir(work).args(words.split(' ')));
        };
        openssl(
            "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=Site",
        );
        openssl("req -newkey rsa:2048 -nodes -keyout key.pem -out key.csr -subj /CN=localhost");
        fs::write(work.join("names"), "subjectAltName=DNS:localhost").unwrap();
        openssl(
            "x509 -req -in key.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out cert.pem -days 2 \
             -extfile names",
        );
        loop {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut server = Command::new("openssl");
            server.current_dir(work).args(["s_server", "-www", "-quiet", "-cert", "cert.pem"]);
            server.args(["-key", "key.pem", "-accept", &port.to_string()]).stdin(Stdio::null());
            let mut server = Self(server.spawn().unwrap(), port);
            wait_until("it accepts", || TcpStream::connect(("127.0.0.1", port)).is_ok());
            // Another process may have taken the port first. It then accepts in place of this one.
            if server.0.try_wait().unwrap().is_none() {
                return server;
            }
        }
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As the AWS command line, which alone knows this variable.
#[test]
fn the_certificates_of_aws_are_for_objects_alone() {
    let work = work_directory();
    let server = TlsServer::start(work.path());
    let host = format!("https://localhost:{}", server.1);
    let url = format!("{host}/a.tar");
    // This server sends a page, whatever is asked for.
    let (trusted, refused) = ("sends only whole files", "no secure connection");
    for (url, variable, text) in [
        (url.as_str(), "SSL_CERT_FILE", trusted),
        (url.as_str(), "AWS_CA_BUNDLE", refused),
        ("s3://bucket/a.tar", "SSL_CERT_FILE", trusted),
        ("s3://bucket/a.tar", "AWS_CA_BUNDLE", trusted),
    ] {
        let mut command = archfs_in(work.path());
        command.env("HOME", work.path()).env("AWS_ENDPOINT_URL", &host);
        command.env_remove("AWS_CA_BUNDLE").env_remove("SSL_CERT_FILE");
        let output = command.env(variable, work.path().join("ca.pem")).args(["ls", url]).output();
        let said = said(&output.unwrap());
        assert!(said.contains(text), "{url} {variable}: {said}");
    }
}

#[test]
fn tasks_that_ask_for_one_url_share_a_mount() {
    if skip_without_mounts() {
        return;
    }
    let work = work_directory();
    fs::write(work.path().join("a.tar"), tar::of(&[("a", b"a")])).unwrap();
    let server = serve(work.path(), |_| None);
    let url = server.url("/a.tar");
    let mut script = shell(work.path());
    let line = format!(
        "for task in 1 2 3; do $ARCHFS run {url} -- sh -c 'echo {{}} >> points; until [ $(wc -l < points) = 3 ]; \
         do sleep 0.05; done; cat {{}}/a >> texts' & done; wait"
    );
    assert_eq!(tell(&mut script, &line), "done 0\n");
    end(script);
    let points = fs::read_to_string(work.path().join("points")).unwrap();
    let mut points: Vec<_> = points.lines().collect();
    points.dedup();
    assert_eq!(points.len(), 1, "{points:?}");
    assert_eq!(fs::read_to_string(work.path().join("texts")).unwrap(), "aaa");
    let host = server.host();
    assert!(url.contains(&host));
}

#[test]
fn a_server_that_does_not_answer_is_said_to_be_waited_for() {
    let Some((work, mount_point, _clean_up)) = begin() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/data.tar", listener.local_addr().unwrap());
    let [target, packed] = ["target", "x.sqfs"].map(|name| work.path().join(name));
    let [mount_point, target, packed] =
        [&mount_point, &target, &packed].map(|path| path.to_str().unwrap());
    let commands: [&[&str]; 8] = [
        &["ls", &url],
        &["cat", &url, "file"],
        &["info", &url],
        &["verify", &url],
        &["extract", &url, target],
        &["pack", &url, packed],
        &["mount", &url, mount_point],
        &["run", &url, "--", "true"],
    ];
    let children = commands.map(|words| {
        let line = format!("{} {}", env!("CARGO_BIN_EXE_archfs"), words.join(" "));
        let mut terminal = Command::new("script");
        terminal.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env("COLUMNS", "80");
        terminal.env("no_proxy", "*").env_remove("SLURM_TASK_PID");
        (words, terminal.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    });
    // All have ended before one of them is judged.
    for (words, output) in children.map(|(words, child)| (words, child.wait_with_output().unwrap()))
    {
        let text = String::from_utf8_lossy(&output.stdout);
        let waits = text.find("data.tar: waiting for the server");
        assert!(waits < text.find("the server does not answer in time"), "{words:?}: {text:?}");
        assert!(waits.is_some() && !output.status.success(), "{words:?}: {text:?}");
    }
    let output =
        archfs_in(work.path()).args(["extract", "--quiet", &url, target]).output().unwrap();
    assert!(!said(&output).contains("waiting for the server"), "{}", said(&output));
}
