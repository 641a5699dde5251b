//! Accepts the command lines of mount helpers, fstab lines and `mount -t fuse.archfs`, and those of
//! squashfuse.
//!
//! mount(8) executes `/sbin/mount.fuse.archfs SOURCE DIRECTORY [-sfnv] [-N NAMESPACE] [-o OPTIONS]
//! [-t TYPE]`. If that file is missing, `mount.fuse` of libfuse executes `archfs SOURCE DIRECTORY
//! -o OPTIONS`, the form of squashfuse. Both become `archfs mount --mount-helper`. A call of
//! `squashfuse` or `squashfuse_ll` becomes that with `--squashfuse_ll`.
//!
//! Such calls pass `rw`, `dev` and `suid` if fstab does not mention them. A mount of an archive is
//! always ro,nosuid,nodev, so these options are dropped here. `archfs mount -o` rejects them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The names under which mount(8) looks for its helpers.
const NAMES: [&str; 2] = ["mount.archfs", "mount.fuse.archfs"];

/// Options of a call that have no meaning for a read-only mount.
const MEANINGLESS: [&[u8]; 3] = [b"rw", b"dev", b"suid"];

/// Translates the call of a helper to arguments of `archfs mount`; other calls are unchanged. The
/// first argument is the program name. `None` if there is nothing to do (`mount --fake`).
pub(super) fn of_mount(
    arguments: Vec<OsString>,
    is_subcommand: impl Fn(&OsStr) -> bool,
) -> Option<Vec<OsString>> {
    let name = arguments.first().and_then(|name| Path::new(name).file_name());
    if name.is_some_and(|name| NAMES.iter().any(|&helper| name == helper)) {
        return from_mount(&arguments);
    }
    let is_archive = |word: &OsString| {
        let bytes = word.as_bytes();
        // Never look up a subcommand as a file: `./mount` may be what this process is to
        // serve.
        !bytes.starts_with(b"-")
            && !is_subcommand(word)
            && (bytes.contains(&b'/') || Path::new(word).is_file())
    };
    match arguments.len() > 2 && arguments.get(1).is_some_and(is_archive) {
        true => {
            let (name, rest) = arguments.split_first()?;
            Some(as_mount(name, rest.iter().cloned()))
        }
        false => Some(arguments),
    }
}

fn from_mount(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let mut rest = arguments.iter().skip(1);
    let mut words = Vec::new();
    while let Some(word) = rest.next() {
        match word.as_bytes() {
            b"-o" => words.extend([word.clone(), rest.next().cloned().unwrap_or_default()]),
            b"-t" | b"-N" => _ = rest.next(),
            // Several flags may share one dash.
            flags
                if flags.starts_with(b"-") && flags[1..].iter().all(|it| b"sfnv".contains(it)) =>
            {
                if flags.contains(&b'f') {
                    return None;
                }
            }
            _ => words.push(word.clone()),
        }
    }
    Some(as_mount(OsStr::new("archfs"), words.into_iter()))
}

/// `archfs mount --mount-helper` with `words`.
fn as_mount(name: &OsStr, words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = vec![name.to_owned(), "mount".into(), "--mount-helper".into()];
    let mut is_options = false;
    for word in words {
        let options = match word.as_bytes() {
            bytes if is_options => Some(bytes),
            b"-o" => None,
            bytes => bytes.strip_prefix(b"-o"),
        };
        is_options = options.is_none() && word == "-o";
        match options {
            Some(options) => {
                let kept = options.split(|&byte| byte == b',');
                let kept: Vec<_> = kept.filter(|it| !MEANINGLESS.contains(it)).collect();
                if kept.is_empty() {
                    continue;
                }
                arguments.push(OsString::from_vec([b"-o", &kept.join(&b',')[..]].concat()));
            }
            None if is_options => {}
            None => arguments.push(word),
        }
    }
    arguments
}

/// The names under which programs call squashfuse.
const SQUASHFUSE: [&str; 2] = ["squashfuse", "squashfuse_ll"];

/// Apptainer looks for `-o uid=` in it (1.4, `imagedriver.go`).
pub(super) const USAGE: &str = "\
archfs as squashfuse: mount a SquashFS image, a tar or a ZIP archive

Usage: squashfuse_ll [OPTIONS] ARCHIVE MOUNTPOINT

Options:
    -f                     stay in the foreground
    -d                     the same
    -s                     ignored: archfs always has several threads
    -o offset=N            the image starts N bytes into ARCHIVE
    -o subdir=PATH         show only this directory of ARCHIVE
    -o timeout=SECONDS     unmount after this idle time
    -o uid=N, -o gid=N     show this owner and group
    -o umask=OCTAL         show all files with the permissions 0777 without these
    -o notify_pipe=PATH    write s (mounted) or f (failed) to this named pipe
    -o allow_other         let other users access the mount
    -h, --help             show this text
    -V, --version          show the version

Run `archfs mount --help` for the other options.
";

/// What a call of squashfuse asks for.
pub(super) enum Request {
    Help,
    /// The usage, as an error: there are no arguments.
    Usage,
    /// Arguments of archfs; the first one is the program name.
    Run(Vec<OsString>),
}

/// Translates a call of squashfuse; `None` if archfs was called by another name. The mount point
/// must exist, and SIGTERM unmounts at once.
pub(super) fn of_squashfuse(arguments: &[OsString]) -> Option<Request> {
    let (name, words) = arguments.split_first()?;
    let name = Path::new(name).file_name()?;
    SQUASHFUSE.iter().any(|&squashfuse| name == squashfuse).then(|| request(words))
}

fn request(words: &[OsString]) -> Request {
    let asks = |flags: &[&str]| words.iter().any(|word| flags.iter().any(|flag| word == flag));
    if asks(&["-h", "--help", "-ho"]) {
        return Request::Help;
    }
    if words.is_empty() {
        return Request::Usage;
    }
    if asks(&["-V", "--version"]) {
        return Request::Run(["archfs", "--version"].map(OsString::from).to_vec());
    }
    let words = words.iter().filter_map(|word| match word.as_bytes() {
        b"-s" => None,
        b"-d" => Some("-f".into()),
        _ => Some(word.clone()),
    });
    Request::Run(as_mount(
        OsStr::new("archfs"),
        ["--squashfuse_ll".into()].into_iter().chain(words),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translate(line: &str) -> Option<String> {
        let words = line.split(' ').map(OsString::from).collect();
        let words = of_mount(words, |word| word == "mount" || word == "ls");
        let words = words?.into_iter().map(|word| word.into_string().unwrap());
        Some(words.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn calls_of_helpers_become_mounts_and_others_stay() {
        let mounts = "archfs mount --mount-helper";
        for (line, expected) in [
            // As mount.fuse of libfuse calls archfs.
            ("archfs /a.sqfs /m -o rw,allow_other,dev,suid", "/a.sqfs /m -oallow_other"),
            ("archfs ./a.sqfs /m -oro,suid -f", "./a.sqfs /m -oro -f"),
            ("archfs /a.tar /b.tar /m", "/a.tar /b.tar /m"),
            // As mount(8) calls archfs.
            ("/sbin/mount.fuse.archfs /a /m -o rw,dev -t fuse.archfs", "/a /m"),
            ("mount.archfs a /m -sn -v -N /proc/1/ns/mnt -o ro,offset=1", "a /m -oro,offset=1"),
        ] {
            assert_eq!(translate(line).unwrap(), format!("{mounts} {expected}"), "{line}");
        }
        for line in [
            "archfs mount /a /m -o rw",
            "archfs ls /a",
            "archfs no-such-command /m",
            "archfs /a",
            "archfs --help",
            "archfs",
        ] {
            assert_eq!(translate(line).as_deref(), Some(line));
        }
        assert_eq!(translate("mount.archfs /a /m -fv -o ro"), None);
    }

    fn translate_squashfuse(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        Some(match of_squashfuse(&words)? {
            Request::Help => "help".into(),
            Request::Usage => "usage".into(),
            Request::Run(words) => {
                let words = words.into_iter().map(|word| word.into_string().unwrap());
                words.collect::<Vec<_>>().join(" ")
            }
        })
    }

    #[test]
    fn calls_of_squashfuse_become_mounts() {
        for (line, expected) in [
            ("squashfuse a.sqfs /m", "a.sqfs /m"),
            ("/usr/bin/squashfuse_ll -f -s -o ro,offset=9 a /m", "-f -oro,offset=9 a /m"),
            ("squashfuse -d a /m -o allow_other,dev", "-f a /m -oallow_other"),
        ] {
            let expected = format!("archfs mount --mount-helper --squashfuse_ll {expected}");
            assert_eq!(translate_squashfuse(line).unwrap(), expected, "{line}");
        }
        assert_eq!(translate_squashfuse("squashfuse").unwrap(), "usage");
        assert_eq!(translate_squashfuse("squashfuse a -h").unwrap(), "help");
        assert_eq!(translate_squashfuse("squashfuse_ll -V").unwrap(), "archfs --version");
        assert_eq!(translate_squashfuse("archfs mount a /m"), None);
    }
}
