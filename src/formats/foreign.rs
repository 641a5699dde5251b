//! Files that are no archive archfs reads: what they seem to be, and what to do with them.
//!
//! Owns the marks that such files begin with, of what people keep datasets in or get in place of
//! one, and the words for each. Leaves telling formats that are read to those. Invariant: a file
//! without a mark is called neither a squashfs image nor a tar, not guessed at.

use super::bytes::index;
use crate::error::{Error, Kind};

const PACK: &str = "unpack it, then: archfs pack DIRECTORY data.sqfs";
const DECODE: &str = "decode it to a plain tar, or compress it anew with gzip, xz, zstd or lz4";
const LIBRARY: &str =
    "its own library reads it without archfs; archfs shows archives of many files";
const ANSWER: &str = "a server has sent this in place of the archive: download it anew";
const OFFSET: &str = "if it starts further into the file, say where with --offset";

/// Where a mark stands, the mark, what the file is then, and what to do about it.
type Mark = (u64, &'static [u8], &'static str, &'static str);

/// As the texts on those formats have them, and file(1).
const MARKS: [Mark; 24] = [
    (0, b"PK\x03\x04", "a zip archive", PACK),
    (0, b"PK\x05\x06", "a zip archive", PACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", PACK),
    (0, b"Rar!\x1a\x07", "a rar archive", PACK),
    (0, b"07070", "a cpio archive", PACK),
    (0, b"!<arch>\n", "an ar archive", PACK),
    (0, b"DWARFS", "a DwarFS image", PACK),
    (0, b"LZIP", "lzip data", DECODE),
    (0, b"\x1f\x9d", "data of compress", DECODE),
    (0, b"\x5d\0\0", "lzma data", DECODE),
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
        "apptainer sif list FILE tells where its image starts: say that with --offset",
    ),
    (
        0,
        b"\x7fELF",
        "a program",
        "an AppImage tells with --appimage-offset where its image starts: say that with --offset",
    ),
    (0, b"version https://git-lfs", "a pointer of Git LFS to the archive", "git lfs pull"),
    (0, b"<!DOCTYPE", "a web page", ANSWER),
    (0, b"<!doctype", "a web page", ANSWER),
    (0, b"<html", "a web page", ANSWER),
    (0, b"<?xml", "an XML text", ANSWER),
];

/// What to say of a file that begins with `head`, `offset` bytes into it.
pub(super) fn unknown(name: &str, head: &[u8], offset: u64) -> Error {
    let (what, hint) = match head {
        [] if offset == 0 => ("is empty", "was it copied whole?"),
        [] => ("has nothing at that offset", "check --offset"),
        _ => marked(head).unwrap_or(("neither a squashfs image nor a tar", OFFSET)),
    };
    Error::new(Kind::UnknownFormat, format!("{name}: {what}")).with_hint(hint)
}

fn marked(head: &[u8]) -> Option<(&'static str, &'static str)> {
    let stands = |at: u64, mark| head.get(index(at)..).is_some_and(|head| head.starts_with(mark));
    // Texts may have a byte order mark and blanks before it.
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let begins = |mark: &[u8]| mark.starts_with(b"<") && text.starts_with(mark);
    let mut marks = MARKS.into_iter();
    let found = marks.find(|&(at, mark, ..)| stands(at, mark) || begins(mark));
    found.map(|(.., what, hint)| (what, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_it_knows_and_does_not_guess_at_the_rest() {
        let said = |head: &[u8]| unknown("f", head, 0).to_string();
        assert_eq!(said(b""), "f: is empty");
        assert_eq!(said(b"7z\xbc\xaf\x27\x1c\0\x04"), "f: a 7z archive");
        assert_eq!(said(b"7z\xbc\xaf"), "f: neither a squashfs image nor a tar");
        assert_eq!(said(b"\n\r\n  <!DOCTYPE html>"), "f: a web page");
        assert_eq!(said(b"\xef\xbb\xbf<html>"), "f: a web page");
        assert_eq!(said(b"  PK\x03\x04"), "f: neither a squashfs image nor a tar");
        let mut lmdb = [0; 64];
        lmdb[16..20].copy_from_slice(b"\xde\xc0\xef\xbe");
        assert_eq!(said(&lmdb), "f: an LMDB database");
        for (at, mark, what, hint) in MARKS {
            let mut head = vec![0; index(at)];
            head.extend(mark);
            let error = unknown("f", &head, 0);
            assert_eq!((error.to_string(), error.hint()), (format!("f: {what}"), Some(hint)));
            assert_eq!(error.kind(), Kind::UnknownFormat);
        }
    }
}
