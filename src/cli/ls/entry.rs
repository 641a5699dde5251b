//! One entry of a listing, as text or as JSON.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

use crate::cli::term::{self, hex_if_not_utf8, name_for_output};
use crate::error::Result;
use crate::units::format_size;
use crate::vfs::{self, Attr, FileKind};

/// How sizes are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    Bytes,
    /// As 1.5 KiB.
    Rounded,
}

/// The keys of `--json`. Scripts rely on them.
#[derive(Serialize)]
struct Row {
    path: String,
    /// The path in hexadecimal digits if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    kind: &'static str,
    /// Octal digits.
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size_bytes: u64,
    modified_seconds: i64,
    modified_nanoseconds: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_hex: Option<String>,
}

/// The line of `--long`, with the target of a symbolic link.
pub(super) fn long_line(
    attr: &Attr,
    name: &[u8],
    target: Option<&[u8]>,
    (sizes, zone): (Sizes, &TimeZone),
) -> Vec<u8> {
    let Attr { nlink, uid, gid, .. } = attr;
    let size = match sizes {
        Sizes::Bytes => format!("{:12}", attr.size),
        Sizes::Rounded => format!("{:>10}", format_size(attr.size)),
    };
    let (mode, date) = (mode(attr), date(attr.modified, zone));
    let mut line = format!("{mode} {nlink:3} {uid:5} {gid:5} {size} {date} ").into_bytes();
    line.extend(name_for_output(name));
    if let Some(target) = target {
        line.extend(b" -> ");
        line.extend(name_for_output(target));
    }
    line
}

/// The JSON object.
pub(in crate::cli) fn json_line(
    attr: &Attr,
    path: &[u8],
    target: Option<&[u8]>,
) -> Result<Vec<u8>> {
    let row = Row {
        path: String::from_utf8_lossy(path).into_owned(),
        path_hex: hex_if_not_utf8(path),
        kind: kind(attr.kind),
        mode: format!("{:04o}", attr.permissions),
        links: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size_bytes: attr.size,
        modified_seconds: attr.modified.seconds,
        modified_nanoseconds: attr.modified.nanoseconds,
        target: target.map(|target| String::from_utf8_lossy(target).into_owned()),
        target_hex: target.and_then(hex_if_not_utf8),
    };
    term::json_line(&row).map(String::into_bytes)
}

/// Local time in the format of `tar -tv`; seconds since 1970 for a year beyond 9999.
fn date(modified: vfs::Timestamp, zone: &TimeZone) -> String {
    match Timestamp::new(modified.seconds, 0) {
        Ok(time) => time.to_zoned_datetime(zone.clone()).strftime("%Y-%m-%d %H:%M").to_string(),
        Err(_) => format!("@{:<15}", modified.seconds),
    }
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::BlockDevice => "block device",
        FileKind::CharDevice => "character device",
        FileKind::Fifo => "pipe",
        FileKind::Socket => "socket",
    }
}

/// Kind and permissions in the format of ls(1).
fn mode(attr: &Attr) -> String {
    let kind = match attr.kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::BlockDevice => 'b',
        FileKind::CharDevice => 'c',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    let has = |bit: u16| attr.permissions & bit != 0;
    let execute = |bit: u16, special: u16, letter: char| match (has(bit), has(special)) {
        (false, false) => '-',
        (true, false) => 'x',
        (true, true) => letter,
        (false, true) => letter.to_ascii_uppercase(),
    };
    let class = |shift: u16, special: u16, letter: char| {
        let read = if has(0o4 << shift) { 'r' } else { '-' };
        let write = if has(0o2 << shift) { 'w' } else { '-' };
        [read, write, execute(1 << shift, special, letter)]
    };
    let classes = [class(6, 0o4000, 's'), class(3, 0o2000, 's'), class(0, 0o1000, 't')];
    std::iter::once(kind).chain(classes.concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::Ino;

    #[test]
    fn shows_modes_as_ls_does() {
        for (kind, permissions, shown) in [
            (FileKind::Regular, 0o644, "-rw-r--r--"),
            (FileKind::Directory, 0o1777, "drwxrwxrwt"),
            (FileKind::Regular, 0o6755, "-rwsr-sr-x"),
            (FileKind::Fifo, 0o7000, "p--S--S--T"),
        ] {
            let attr = Attr {
                ino: Ino::ROOT,
                kind,
                permissions,
                nlink: 1,
                uid: 0,
                gid: 0,
                size: 0,
                allocated: 0,
                device: 0,
                modified: vfs::Timestamp { seconds: 0, nanoseconds: 0 },
                block_size: 0,
            };
            assert_eq!(mode(&attr), shown);
        }
    }
}
