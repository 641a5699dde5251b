//! Files that archfs cannot read: what they seem to be, and a hint what to do.
//!
//! Known files are recognized by magic bytes. Invariant: archfs does not guess; a file without
//! known magic bytes gets no name.

use super::bytes::index;
use crate::error::{Error, Kind};

const PACK: &str = "unpack it, then: archfs pack DIRECTORY data.sqfs";
const DECODE: &str = "decompress it to a tar, or compress it again with gzip, xz, zstd or lz4";
const LIBRARY: &str = "read it with its own library; archfs mounts archives of many files";
const ANSWER: &str = "a server sent this instead of the archive: download it again";
const OFFSET: &str = "if the archive starts further into the file, use --offset N";

/// Offset of the magic bytes, the magic bytes, what the file is, a hint.
type Magic = (u64, &'static [u8], &'static str, &'static str);

/// From the specifications of the formats, and from file(1).
const MAGICS: [Magic; 20] = [
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", PACK),
    (0, b"Rar!\x1a\x07", "a rar archive", PACK),
    (0, b"07070", "a cpio archive", PACK),
    (0, b"!<arch>\n", "an ar archive", PACK),
    (0, b"DWARFS", "a DwarFS image", PACK),
    (0, b"\x1f\x9d", "a file of compress (.Z)", DECODE),
    (0, b"\x89LZO\0\r\n\x1a\n", "lzop data", DECODE),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", LIBRARY),
    (16, b"\xde\xc0\xef\xbe", "an LMDB database", LIBRARY),
    (0, b"SQLite format 3\0", "an SQLite database", LIBRARY),
    (0, b"PAR1", "a Parquet file", LIBRARY),
    (0, b"ARROW1\0\0", "an Arrow file", LIBRARY),
    (0, b"\x93NUMPY", "a NumPy array", LIBRARY),
    (
        32,
        b"SIF_MAGIC",
        "a SIF container",
        "`apptainer sif list FILE` prints the offset of its image: use --offset N",
    ),
    (
        0,
        b"\x7fELF",
        "a program",
        "an AppImage prints the offset of its image with --appimage-offset: use --offset N",
    ),
    (0, b"version https://git-lfs", "a Git LFS pointer to the archive", "run `git lfs pull`"),
    (0, b"<!DOCTYPE", "a web page", ANSWER),
    (0, b"<!doctype", "a web page", ANSWER),
    (0, b"<html", "a web page", ANSWER),
    (0, b"<?xml", "an XML text", ANSWER),
];

/// The error for a file that starts with `head` at `offset`.
pub(super) fn unknown(name: &str, head: &[u8], offset: u64) -> Error {
    let (description, hint) = match head {
        [] if offset == 0 => ("is empty", "check that it was copied completely"),
        [] => ("ends before --offset", "check --offset"),
        _ => find_magic(head).unwrap_or(("not a SquashFS image, tar or ZIP archive", OFFSET)),
    };
    Error::new(Kind::UnknownFormat, format!("{name}: {description}")).with_hint(hint)
}

fn find_magic(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let matches_at =
        |offset: u64, magic| head.get(index(offset)..).is_some_and(|head| head.starts_with(magic));
    // A text may start with a byte order mark and blanks.
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let matches_text = |magic: &[u8]| magic.starts_with(b"<") && text.starts_with(magic);
    let mut magics = MAGICS.into_iter();
    let found =
        magics.find(|&(offset, magic, ..)| matches_at(offset, magic) || matches_text(magic));
    found.map(|(.., what, hint)| (what, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_known_formats_and_does_not_guess_others() {
        let message = |head: &[u8]| unknown("f", head, 0).to_string();
        assert_eq!(message(b""), "f: is empty");
        assert_eq!(message(b"7z\xbc\xaf\x27\x1c\0\x04"), "f: a 7z archive");
        assert_eq!(message(b"7z\xbc\xaf"), "f: not a SquashFS image, tar or ZIP archive");
        assert_eq!(message(b"\n\r\n  <!DOCTYPE html>"), "f: a web page");
        assert_eq!(message(b"\xef\xbb\xbf<html>"), "f: a web page");
        let mut lmdb = [0; 64];
        lmdb[16..20].copy_from_slice(b"\xde\xc0\xef\xbe");
        assert_eq!(message(&lmdb), "f: an LMDB database");
        for (offset, magic, what, hint) in MAGICS {
            let mut head = vec![0; index(offset)];
            head.extend(magic);
            let error = unknown("f", &head, 0);
            assert_eq!((error.to_string(), error.hint()), (format!("f: {what}"), Some(hint)));
            assert_eq!(error.kind(), Kind::UnknownFormat);
        }
    }
}
