//! Which users can read the mount, the copy, the index, the records, the socket and the log.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{Scene, assert_denied, daemon_of, done, mode, names_in, out, said, scene};
use crate::support::mount::daemon_of as daemon_of_root;
use crate::support::stage::Talker;
use crate::support::{archfs, run, tar, wait_until};

const UMASKS: [&str; 2] = ["000", "077"];

/// Attempts to access files below `mount_point`.
fn tries(mount_point: &Path) -> Vec<String> {
    let mount_point = mount_point.display();
    let below = ["cat", "stat"].map(|verb| format!("{verb} {mount_point}/hello"));
    ["ls", "stat", "cd"]
        .map(|verb| format!("{verb} {mount_point}"))
        .into_iter()
        .chain(below)
        .collect()
}

/// FUSE itself keeps root out, whatever the modes are.
fn assert_root_is_kept_out(mount_point: &Path) {
    let kinds = [
        fs::read_dir(mount_point).map(|_| ()).unwrap_err().kind(),
        fs::metadata(mount_point).map(|_| ()).unwrap_err().kind(),
        fs::read(mount_point.join("hello")).map(|_| ()).unwrap_err().kind(),
    ];
    assert_eq!(kinds, [ErrorKind::PermissionDenied; 3]);
}

/// With such a umask, the registry and the mount point would be inaccessible to their owner.
#[test]
fn a_umask_that_excludes_the_owner_does_not_prevent_mounting() {
    let Some(Scene { _device, owner, stage: _stage, .. }) = scene() else { return };
    // The last process to leave removes it, possibly the daemon a moment later.
    let removed = || wait_until("the registry is removed", || !owner.registry().exists());
    // Each umask twice, because the second round would find remains of the first.
    for umask in ["177", "177", "577", "577", "777"] {
        done(&owner, &format!("umask {umask}; $ARCHFS mount -q --keep $IMAGE mount"));
        assert_eq!(mode(&owner.registry()), 0o700, "{umask}");
        assert_eq!(done(&owner, "cat mount/hello; $ARCHFS unmount mount"), "hello, world\n");
        assert!(!owner.mount_point.exists(), "{umask}");
        removed();
        let script = format!("umask {umask}; $ARCHFS run -q $IMAGE mount -- cat mount/hello");
        assert_eq!(done(&owner, &script), "hello, world\n", "{umask}");
        removed();
    }
    // An existing registry with such a mode is repaired.
    done(&owner, &format!("mkdir -m 600 {}", owner.registry().display()));
    done(&owner, "$ARCHFS mount -q --keep $IMAGE mount; $ARCHFS unmount mount");
    removed();
}

/// > Only the user who mounted can enter the mount. Root cannot, unless root mounted it.
///
/// > **Other users** cannot list or read a mount (EACCES). This holds for any umask, for any mode
/// > of the mount point, and for root on another user's mount.
#[test]
fn a_users_mount_is_closed_to_others_and_root_with_any_umask_and_mode() {
    let Some(Scene { _device, owner, other, stage: _stage, .. }) = scene() else { return };
    for umask in UMASKS {
        // A mount point made by archfs, and one that everyone may enter.
        for point in ["", "mkdir -m 777 mount;"] {
            done(&owner, &format!("umask {umask}; {point} $ARCHFS mount -q --keep $IMAGE mount"));
            assert_eq!(done(&owner, "cat mount/hello"), "hello, world\n");
            assert_denied(&other, &tries(&owner.mount_point));
            assert_root_is_kept_out(&owner.mount_point);
            done(&owner, "$ARCHFS unmount mount; rmdir mount 2>/dev/null; true");
        }
    }
}

/// > Only the user who mounted can enter the mount. Root cannot, unless root mounted it.
///
/// > **Other users** cannot list or read a mount (EACCES). This holds for any umask, for any mode
/// > of the mount point, and for root on another user's mount.
///
/// > **`-o allow_other`** lets every user in, under the modes and owners in the archive.
#[test]
fn roots_mount_is_closed_to_others_without_allow_other() {
    let Some(Scene { _device, owner, stage, .. }) = scene() else { return };
    for umask in UMASKS {
        for (point, option) in [("", ""), ("mkdir -m 777 mount;", ""), ("", "-o allow_other")] {
            let line = format!(
                "umask {umask}; {point} exec $ARCHFS mount -q --keep {option} $IMAGE mount"
            );
            run(&mut stage.bash(&line));
            stage.assert_readable();
            match option {
                "" => assert_denied(&owner, &tries(&stage.mount_point)),
                _ => assert_eq!(done(&owner, "cat ../mount/hello"), "hello, world\n"),
            }
            run(&mut stage.bash("$ARCHFS unmount mount; rmdir mount 2>/dev/null; true"));
        }
    }
}

/// > They do not see a private mount.
#[test]
fn a_private_mount_is_hidden_also_through_proc() {
    let Some(Scene { _device, owner, other, stage, .. }) = scene() else { return };
    let line = "umask 000; exec $ARCHFS run --private -q $IMAGE mount -- \
                sh -c 'cat mount/hello; echo $$; read x'";
    for (mut command, mount_point) in
        [(owner.bash(line), &owner.mount_point), (stage.bash(line), &stage.mount_point)]
    {
        let mut within = Talker::start(&mut command);
        assert_eq!(within.line(), "hello, world");
        let pid = within.line();
        assert_eq!(mode(mount_point), 0o700, "the directory that was made");
        assert_eq!(names_in(mount_point).len(), 0, "root, from outside");
        let through = format!("/proc/{pid}/root{}", mount_point.display());
        let tries = [
            format!("ls {}", mount_point.display()),
            format!("ls {through}"),
            format!("cat {through}/hello"),
            format!("cat /proc/{pid}/cwd/mount/hello"),
        ];
        assert_denied(&other, &tries);
        within.write("\n");
        assert_eq!(within.end(), Some(0));
        assert!(!mount_point.exists());
    }
}

/// > Other users cannot open a copy made by `--stage`, by name or through /proc.
#[test]
fn a_staged_copy_has_no_name_and_is_not_readable_through_proc() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, stage, .. } = &scene;
    let directory = scene.sticky();
    done(owner, "umask 000; $ARCHFS mount -q --keep --stage ../sticky $IMAGE mount");
    run(&mut stage.bash("umask 000; $ARCHFS mount -q --keep --stage sticky $IMAGE mount"));
    assert_eq!(names_in(&directory), Vec::<std::path::PathBuf>::new());
    for pid in [daemon_of(owner), daemon_of_root(&stage.mount_point).unwrap().into()] {
        let descriptors = names_in(Path::new(&format!("/proc/{pid}/fd")));
        let is_copy = |link: &Path| fs::read_link(link).is_ok_and(|to| to.starts_with(&directory));
        let copy = descriptors.into_iter().find(|link| is_copy(link)).expect("a copy");
        assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o7777, 0o600);
        let tries = [
            format!("cat {}", copy.display()),
            format!("ls /proc/{pid}/fd"),
            format!("ls /proc/{pid}/map_files"),
            format!("cat /proc/{pid}/mem"),
            format!("ls /proc/{pid}/cwd/"),
        ];
        assert_denied(other, &tries);
    }
    done(owner, "$ARCHFS unmount mount");
}

/// > They cannot open the index in the cache directory (0600, in a directory 0700), the records and
/// > the socket (in a directory 0700), or the log (0600).
#[test]
fn index_log_and_records_are_private_with_any_umask() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, stage, .. } = &scene;
    // In a directory of root, so that the index is in the cache directory.
    fs::write(stage.work.path().join("data.tar"), tar::of(&[("hello", b"hello, world\n")]))
        .unwrap();
    for umask in UMASKS {
        done(
            owner,
            &format!("umask {umask}; XDG_CACHE_HOME=$PWD/cache $ARCHFS index -q ../data.tar"),
        );
        let cache = owner.home.join("cache/archfs");
        let [index] = &names_in(&cache)[..] else { panic!("no index in the cache") };
        assert_eq!((mode(&cache), mode(index)), (0o700, 0o600));
        let line = "$ARCHFS mount -v --keep --log-file log --stats-json stats $IMAGE mount";
        done(owner, &format!("umask {umask}; {line}"));
        assert_eq!((mode(&owner.registry()), mode(&owner.home.join("log"))), (0o700, 0o600));
        let mut tries = vec![
            format!("ls {}", cache.display()),
            format!("cat {}", index.display()),
            format!("cat {}/log", owner.home.display()),
            format!("ls {}", owner.registry().display()),
        ];
        for record in names_in(&owner.registry()) {
            tries.push(format!("cat {}", record.display()));
        }
        assert_denied(other, &tries);
        done(owner, "$ARCHFS unmount mount");
        let stats = owner.home.join("stats");
        wait_until("the account is there", || stats.exists());
        assert_eq!(mode(&stats) & 0o022, 0, "to read at most");
        done(owner, "rm -r cache log stats");
    }
}

/// > **The cache directory** is `$XDG_CACHE_HOME/archfs` if that is absolute, else
/// > `~/.cache/archfs`. If it is open to others, archfs closes it. archfs does not use it if it, a
/// > link at its name, or its parent belongs to another user. An example is sudo with the HOME of a
/// > user.
#[test]
fn the_cache_directory_is_made_private_or_not_used() {
    let Some(scene) = scene() else { return };
    let Scene { owner, other, stage, .. } = &scene;
    fs::write(stage.work.path().join("data.tar"), tar::of(&[("hello", b"hello, world\n")]))
        .unwrap();
    done(owner, "mkdir cache; mkdir -m 777 cache/archfs");
    done(owner, "XDG_CACHE_HOME=$PWD/cache $ARCHFS index -q ../data.tar");
    assert_eq!(mode(&owner.home.join("cache/archfs")), 0o700);

    let sticky = scene.sticky();
    done(owner, "mkdir dear");
    let dear = owner.home.join("dear");
    for planted in [
        "mkdir -m 777 ../sticky/archfs".to_owned(),
        format!("ln -s {} ../sticky/archfs", dear.display()),
        "ln -s /nowhere ../sticky/archfs".to_owned(),
        "touch ../sticky/archfs".to_owned(),
    ] {
        done(other, &planted);
        let refused = owner.runs("XDG_CACHE_HOME=$PWD/../sticky $ARCHFS index -q ../data.tar");
        assert_eq!(refused.status.code(), Some(1), "{planted}: {}", said(&refused));
        assert!(said(&refused).contains("archfs: error: "), "{}", said(&refused));
        // Reading the archive works without a cache directory.
        let listed = owner.runs("XDG_CACHE_HOME=$PWD/../sticky $ARCHFS ls ../data.tar");
        assert_eq!(out(&listed), "hello\n", "{planted}");
        assert_eq!(names_in(&dear).len(), 0, "{planted}");
        if sticky.join("archfs").is_dir() {
            assert_eq!(names_in(&sticky.join("archfs")).len(), 0, "{planted}");
        }
        done(other, "rm -rf ../sticky/archfs");
    }
    // A relative XDG_CACHE_HOME is ignored, and HOME is used.
    done(owner, "XDG_CACHE_HOME=cache2 HOME=$PWD $ARCHFS index -q ../data.tar");
    assert!(!owner.home.join("cache2").exists());
    assert_eq!(names_in(&owner.home.join(".cache/archfs")).len(), 1);
    // Root with the HOME of a user, as under sudo.
    fs::set_permissions(stage.work.path().join("data.tar"), fs::Permissions::from_mode(0o644))
        .unwrap();
    done(owner, "rm -r .cache/archfs; mkdir -m 700 rootish; ln -s $PWD/rootish .cache/archfs");
    fs::create_dir(stage.work.path().join("data.tar.archfs-index")).unwrap();
    let refused_to_root = || {
        let mut command = archfs();
        command.env("HOME", &owner.home).env_remove("XDG_CACHE_HOME").args(["index", "-q"]);
        let refused = command.arg(stage.work.path().join("data.tar")).output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
        assert!(said(&refused).contains("another user"), "{}", said(&refused));
    };
    refused_to_root();
    assert_eq!(names_in(&owner.home.join("rootish")).len(), 0);
    // If only the parent directory exists, or not even that, root creates nothing, because that
    // would lock out the owner.
    done(owner, "rm .cache/archfs");
    refused_to_root();
    assert!(!owner.home.join(".cache/archfs").exists());
    done(owner, "rmdir .cache");
    refused_to_root();
    assert!(!owner.home.join(".cache").exists());
}

/// > The daemon answers only the same uid and root at its socket, even if the directory of the
/// > socket was opened to others.
#[test]
fn a_client_refused_at_the_socket_is_no_holder() {
    let Some(Scene { _device, owner, other, stage, .. }) = scene() else { return };
    done(&owner, "umask 000; $ARCHFS mount -q --keep $IMAGE mount");
    let directory = owner.registry();
    let is_socket = |path: &std::path::PathBuf| path.extension() == Some("socket".as_ref());
    let socket = names_in(&directory).into_iter().find(is_socket).unwrap();
    assert_denied(&other, &[format!("stat {}", socket.display())]);
    // Opened up on purpose.
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o711)).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!(
        "import socket\nit = socket.socket(socket.AF_UNIX)\nit.settimeout(10)\nit.connect('{}')\n\
         try:\n  it.sendall(b'hold\\nkeep\\n')\n  answer = it.recv(100)\n\
         except (ConnectionResetError, BrokenPipeError):\n  answer = b''\n\
         print('answer', answer, flush=True)\ninput()",
        socket.display()
    );
    fs::write(stage.work.path().join("holds.py"), script).unwrap();
    let mut holder = Talker::start(&mut other.bash("exec /usr/bin/python3 ../holds.py 2>&1"));
    assert_eq!(holder.line(), "answer b''");
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"status\n").unwrap();
    let mut status = String::new();
    BufReader::new(stream).read_line(&mut status).unwrap();
    assert!(status.starts_with("{\"holders\":[],\"kept\":true,"), "{status}");
    holder.write("\n");
    holder.end();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    done(&owner, "$ARCHFS unmount mount");
    wait_until("nothing is left", || !directory.exists());
}
