//! archfs called by the name squashfuse or squashfuse_ll, for programs that were written for them.
//!
//! `squashfuse [-f] [-d] [-s] [-o OPTIONS] ARCHIVE MOUNTPOINT` becomes `archfs mount
//! --mount-helper --squashfuse_ll`. The mount point must exist, and SIGTERM unmounts at once.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::mount_helper::as_mount;

const NAMES: [&str; 2] = ["squashfuse", "squashfuse_ll"];

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
    /// The usage, as help.
    Help,
    /// The usage, as an error: there are no arguments.
    Usage,
    /// Arguments of archfs; the first one is the program name.
    Run(Vec<OsString>),
}

/// Translates a call; `None` if archfs was called by another name.
pub(super) fn translated(arguments: &[OsString]) -> Option<Request> {
    let (name, words) = arguments.split_first()?;
    let name = Path::new(name).file_name()?;
    NAMES.iter().any(|&squashfuse| name == squashfuse).then(|| request(words))
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
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        Some(match translated(&words)? {
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
            assert_eq!(translate(line).unwrap(), expected, "{line}");
        }
        assert_eq!(translate("squashfuse").unwrap(), "usage");
        assert_eq!(translate("squashfuse a -h").unwrap(), "help");
        assert_eq!(translate("squashfuse_ll -V").unwrap(), "archfs --version");
        assert_eq!(translate("archfs mount a /m"), None);
    }
}
