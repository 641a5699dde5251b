//! `-o`: the options of fstab and of other FUSE programs. Invariant: an unknown option is an error.

use std::path::PathBuf;
use std::time::Duration;

use super::values::threads;
use crate::error::{Error, Kind, Result};
use crate::lifecycle::Access;
use crate::units::parse_size;

/// The values given by `-o`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MountOptions {
    pub(super) offset: Option<u64>,
    pub(super) subdir: Option<String>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) umask: Option<u16>,
    pub(super) covers_files: bool,
    pub(super) is_read_only: bool,
    pub(super) access: Access,
    pub(super) no_exec: bool,
    pub(super) allow_changes: bool,
    pub(super) idle: Option<Duration>,
    pub(super) notify_pipe: Option<PathBuf>,
    pub(super) threads: Option<usize>,
    /// Options of other programs that change nothing, each with the reason.
    pub(super) without_effect: Vec<(String, &'static str)>,
}

impl MountOptions {
    /// Parses the values of all `-o`, each a comma-separated list.
    ///
    /// Fails with `Usage` for an unknown option, a bad value, or an option that a read-only mount
    /// cannot honor.
    pub(super) fn parse(texts: &[String]) -> Result<Self> {
        let mut options = Self::default();
        for option in texts.iter().flat_map(|text| text.split(',')).filter(|one| !one.is_empty()) {
            options.apply(option)?;
        }
        Ok(options)
    }

    fn apply(&mut self, option: &str) -> Result<()> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        if let Some(reason) = reason_without_effect(name, value) {
            self.without_effect.push((option.to_owned(), reason));
            return Ok(());
        }
        match (name, value) {
            ("offset", Some(value)) => self.offset = Some(parse_size(value)?),
            ("subdir", Some(value)) => self.subdir = Some(value.to_owned()),
            ("uid", Some(value)) => self.uid = Some(number(option, value)?),
            ("gid", Some(value)) => self.gid = Some(number(option, value)?),
            // Of libfuse, in octal digits.
            ("umask", Some(value)) => self.umask = Some(permissions(option, value)?),
            // Of libfuse 2; squashfuse with libfuse 3 needs no option.
            ("nonempty", None) => self.covers_files = true,
            ("noexec", None) => self.no_exec = true,
            ("exec", None) => self.no_exec = false,
            ("allow_other", None) => self.access = Access::Everybody,
            // Of squashfuse, in seconds; 0 means never.
            ("timeout", Some(value)) => {
                let seconds = number(option, value)?.into();
                self.idle = Some(Duration::from_secs(seconds)).filter(|time| !time.is_zero());
            }
            // Of squashfuse.
            ("notify_pipe", Some(value)) if !value.is_empty() => {
                self.notify_pipe = Some(value.into());
            }
            ("allow_changes", None) => self.allow_changes = true,
            // True for every mount of an archive.
            ("ro", None) => self.is_read_only = true,
            ("nosuid" | "nodev", None) => {}
            // For fstab, mount(8) and systemd, which handle them before they call archfs.
            (name, _) if ["x-", "X-"].iter().any(|prefix| name.starts_with(prefix)) => {}
            ("comment" | "user" | "uhelper", Some(_)) => {}
            // Of libfuse.
            ("max_threads", Some(value)) => self.threads = Some(threads(value)?),
            (
                "defaults" | "auto" | "noauto" | "user" | "users" | "nouser" | "nofail" | "_netdev"
                | "noatime" | "nodiratime" | "relatime" | "norelatime" | "strictatime" | "lazytime"
                | "nolazytime" | "owner" | "group" | "sync" | "async",
                None,
            ) => {}
            ("rw", None) => {
                let context = "-o rw: archfs mounts read-only, or writable with --overlay";
                return Err(Error::new(Kind::Usage, context).with_hint("leave it out"));
            }
            ("suid" | "dev", None) => {
                let context = format!("-o {name}: archfs always mounts nosuid,nodev");
                return Err(Error::new(Kind::Usage, context).with_hint("leave it out"));
            }
            // libfuse checks each request. The kernel opens files of archfs without a request.
            ("allow_root", None) => {
                let context =
                    "-o allow_root: archfs cannot keep users out of what the kernel caches";
                let hint = "use allow_other, or mount as root";
                return Err(Error::new(Kind::Usage, context).with_hint(hint));
            }
            _ => {
                return Err(Error::new(Kind::Usage, format!("-o {option}: no such option"))
                    .with_hint("use offset=, subdir=, uid=, gid=, allow_other, allow_changes, noexec, ro, nosuid or nodev"));
            }
        }
        Ok(())
    }
}

/// Why an option of another FUSE program has no effect; `None` if it is none of these.
fn reason_without_effect(name: &str, value: Option<&str>) -> Option<&'static str> {
    let reason = match (name, value) {
        ("kernel_cache" | "auto_cache" | "noauto_cache" | "noforget", None)
        | (
            "attr_timeout" | "ac_attr_timeout" | "entry_timeout" | "negative_timeout" | "remember",
            Some(_),
        ) => "the kernel caches everything, because an archive does not change",
        ("auto_unmount", None) => {
            "archfs unmounts however its daemon ends, except by SIGKILL; archfs gc clears that"
        }
        ("default_permissions", None) => "the kernel always checks permissions",
        ("use_ino" | "readdir_ino", None) => "inode numbers are always those of the archive",
        ("debug", None) => "use -v and --log-file",
        (
            "clone_fd" | "big_writes" | "large_read" | "async_read" | "sync_read" | "intr"
            | "splice_read" | "splice_write" | "splice_move" | "no_splice_read" | "no_splice_write"
            | "no_splice_move",
            None,
        )
        | (
            "max_read"
            | "max_write"
            | "max_readahead"
            | "max_background"
            | "congestion_threshold"
            | "max_idle_threads",
            Some(_),
        ) => "archfs chooses it by itself",
        ("fsname" | "subtype", Some(_)) => "a mount is named after its archive",
        _ => return None,
    };
    Some(reason)
}

/// A user or group number. The largest one is invalid (chown(2)).
fn number(option: &str, value: &str) -> Result<u32> {
    let number = value.parse().ok().filter(|&number| number != u32::MAX);
    number.ok_or_else(|| {
        Error::new(Kind::Usage, format!("-o {option}: not a number"))
            .with_hint("`id NAME` prints the numbers of a user and its groups")
    })
}

fn permissions(option: &str, value: &str) -> Result<u16> {
    let number = u16::from_str_radix(value, 8).ok().filter(|&number| number <= 0o777);
    number.ok_or_else(|| {
        Error::new(Kind::Usage, format!("-o {option}: not permissions in octal digits"))
            .with_hint("for example, umask=022 shows all files with mode 0755")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountOptions> {
        MountOptions::parse(&[text.to_owned()])
    }

    #[test]
    fn accepts_options_of_other_programs() {
        let options = parse(
            "ro,exec,noexec,offset=4K,subdir=a/b,uid=7,gid=8,allow_other,allow_changes,noauto,_netdev,\
             x-systemd.automount,x-systemd.requires=/data,comment=x,fsname=a,kernel_cache,\
             timeout=90,debug,notify_pipe=/tmp/a b,max_threads=3,umask=0027,nonempty,auto_unmount,\
             remember=-1",
        );
        let options = options.unwrap();
        let expected = MountOptions {
            offset: Some(4096),
            subdir: Some("a/b".into()),
            uid: Some(7),
            gid: Some(8),
            umask: Some(0o27),
            covers_files: true,
            is_read_only: true,
            access: Access::Everybody,
            no_exec: true,
            allow_changes: true,
            idle: Some(Duration::from_secs(90)),
            notify_pipe: Some("/tmp/a b".into()),
            threads: Some(3),
            without_effect: vec![
                ("fsname=a".into(), "a mount is named after its archive"),
                (
                    "kernel_cache".into(),
                    "the kernel caches everything, because an archive does not change",
                ),
                ("debug".into(), "use -v and --log-file"),
                (
                    "auto_unmount".into(),
                    "archfs unmounts however its daemon ends, except by SIGKILL; archfs gc clears that",
                ),
                (
                    "remember=-1".into(),
                    "the kernel caches everything, because an archive does not change",
                ),
            ],
        };
        assert_eq!(options, expected);
        assert!(!parse("noexec,exec").unwrap().no_exec);
        assert_eq!(parse("timeout=0").unwrap().idle, None);
        assert_eq!(parse("").unwrap(), MountOptions::default());
    }

    #[test]
    fn rejects_unknown_and_impossible_options() {
        for text in [
            "rw",
            "suid",
            "dev",
            "no_such",
            "direct_io",
            "big_writes=1",
            "max_threads=0",
            "allow_root",
            "offset",
            "offset=x",
            "notify_pipe=",
            "uid=-1",
            "uid=4294967295",
            "ro=1",
            "umask=8",
            "umask=1777",
            "umask",
        ] {
            assert_eq!(parse(text).unwrap_err().kind(), Kind::Usage, "{text}");
        }
    }
}
