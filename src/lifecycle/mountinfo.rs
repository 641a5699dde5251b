//! What is mounted where, as /proc/self/mountinfo tells.
//!
//! Owns that file's format (proc_pid_mountinfo(5)). It is read instead of asking the path itself,
//! since on a dead FUSE mount stat(2) fails and on a hung one it hangs.
//! Invariant: of several mounts at one place, the last is the one that is seen.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The type of our mounts: FUSE, subtype archfs.
pub(super) const TYPE: &str = "fuse.archfs";

const PATH: &str = "/proc/self/mountinfo";

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountEntry {
    /// Unique among the mounts that exist now.
    pub(super) id: u64,
    /// Major and minor number of the file system's device, `0:53`; one for each FUSE mount.
    pub(super) device: String,
    pub(super) place: PathBuf,
    pub(super) kind: String,
    pub(super) source: OsString,
    /// Options of the file system, such as `rw,user_id=0,group_id=0`.
    pub(super) options: String,
}

impl MountEntry {
    /// Whether archfs mounted it.
    pub(super) fn is_ours(&self) -> bool {
        self.kind == TYPE
    }

    /// The user who mounted it, where it is a FUSE mount.
    pub(super) fn owner(&self) -> Option<u32> {
        let user = self.options.split(',').find_map(|option| option.strip_prefix("user_id="));
        user?.parse().ok()
    }

    /// For a person: what it is.
    pub(super) fn describe(&self) -> String {
        format!("{} ({})", self.source.to_string_lossy(), self.kind)
    }
}

/// The mount that is seen at `place`, an absolute path without symbolic links.
///
/// # Errors
/// `Io` where /proc can not be read.
pub(super) fn topmost(place: &Path) -> Result<Option<MountEntry>> {
    Ok(all()?.into_iter().rfind(|entry| entry.place == place))
}

/// Something that becomes an exceptional condition for poll(2) with each change of the mounts.
///
/// # Errors
/// `Io` where /proc can not be read.
pub(super) fn changes() -> Result<File> {
    File::open(PATH).map_err(|error| Error::io(format!("can not open {PATH}"), error))
}

/// All mounts, the older ones first.
///
/// # Errors
/// `Io` where /proc can not be read.
pub(super) fn all() -> Result<Vec<MountEntry>> {
    let text = fs::read(PATH).map_err(|error| Error::io(format!("can not read {PATH}"), error))?;
    Ok(entries(&text).collect())
}

fn entries(text: &[u8]) -> impl Iterator<Item = MountEntry> {
    text.split(|&byte| byte == b'\n').filter_map(entry)
}

fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let id = text(fields.next()?).parse().ok()?;
    let _parent = fields.next()?;
    let device = text(fields.next()?);
    let _root = fields.next()?;
    let place = PathBuf::from(unescape(fields.next()?));
    // Optional fields end with a dash; the type, source and options of the file system follow.
    fields.find(|field| *field == b"-")?;
    let kind = text(fields.next()?);
    let source = unescape(fields.next()?);
    let options = text(fields.next()?);
    Some(MountEntry { id, device, place, kind, source, options })
}

/// `bytes` without newlines, as the kernel writes them: `\012`, and `\134` for a backslash.
pub(super) fn escape(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().fold(Vec::with_capacity(bytes.len()), |mut escaped, &byte| {
        match byte {
            b'\n' | b'\\' => escaped.extend(format!("\\{byte:03o}").into_bytes()),
            byte => escaped.push(byte),
        }
        escaped
    })
}

/// Undoes `\040` for a space, and the like for tab, newline and backslash.
pub(super) fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| behind.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &behind[3..];
            }
            None => {
                bytes.push(byte);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 25 0:53 / /tmp/a\\040b\\134c rw,nosuid,nodev shared:7 master:2 - fuse.archfs /d/x\\054y.sqfs ro,user_id=1000,group_id=5
91 25 0:54 / /tmp/a\\040b\\134c rw - tmpfs tmpfs rw
";

    #[test]
    fn decodes_places_sources_and_owners() {
        let all: Vec<_> = entries(TEXT).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[1].place, Path::new("/tmp/a b\\c"));
        assert_eq!(all[1].source, "/d/x,y.sqfs");
        assert_eq!((all[1].id, all[1].device.as_str()), (90, "0:53"));
        assert!(all[1].is_ours());
        assert_eq!(all[1].owner(), Some(1000));
        assert_eq!(all[0].owner(), None);
    }

    #[test]
    fn leaves_a_backslash_that_starts_no_escape() {
        assert_eq!(unescape(b"a\\9bc\\"), "a\\9bc\\");
        assert_eq!(unescape(b"\\012"), "\n");
    }

    #[test]
    fn finds_the_mounts_of_this_machine() {
        assert_eq!(topmost(Path::new("/proc")).unwrap().unwrap().kind, "proc");
        assert_eq!(topmost(Path::new("/no such place")).unwrap(), None);
    }
}
