//! Files that archfs cannot read: what they seem to be, and a hint what to do.
//!
//! Known files are recognized by magic bytes. Invariant: archfs does not guess; a file without
//! known magic bytes gets no name.

use super::bytes::index;
use crate::error::{Error, Kind};
use crate::storage::Storage;
use crate::units::quoted;

const PACK: &str = "unpack it (bsdtar -xf FILE), then: archfs pack DIRECTORY data.sqfs";
const PACK_7Z: &str = "unpack it (7z x FILE), then: archfs pack DIRECTORY data.sqfs";
const PACK_DWARFS: &str =
    "unpack it (dwarfsextract -i FILE -o DIRECTORY), then: archfs pack DIRECTORY data.sqfs";
const LOOP: &str = "mount it as root, with `mount -o loop,ro FILE DIRECTORY`";
const DECODE: &str = "decompress it to a tar, or compress it again with gzip, xz, zstd or lz4";
const LIBRARY: &str = "read it with its own library; archfs mounts archives of many files";
const ANSWER: &str = "a server sent this instead of the archive: download it again";
const OFFSET: &str = "if the archive starts further into the file, use --offset N";

/// Offset of the magic bytes, the magic bytes, what the file is, a hint with its name as FILE.
type Magic = (u64, &'static [u8], &'static str, &'static str);

/// From the specifications of the formats, and from file(1).
const MAGICS: [Magic; 23] = [
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", PACK_7Z),
    (0, b"Rar!\x1a\x07", "a rar archive", PACK_7Z),
    (0, b"07070", "a cpio archive", PACK),
    (0, b"!<arch>\n", "an ar archive", PACK),
    (0, b"MSCF\0\0\0\0", "a cabinet file", PACK),
    (0, b"\xed\xab\xee\xdb", "an RPM package", PACK),
    (0, b"DWARFS", "a DwarFS image", PACK_DWARFS),
    (0, b"QFI\xfb", "a QEMU disk image", "`guestmount` or `qemu-nbd` mounts it"),
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

/// File systems, from the headers of Linux and ECMA-119.
const DISKS: [Magic; 5] = [
    (1024, b"\xe2\xe1\xf5\xe0", "an EROFS image", "`erofsfuse FILE DIRECTORY` mounts it"),
    (0x8001, b"CD001", "an ISO 9660 image", PACK),
    (0, b"XFSB", "an XFS file system", LOOP),
    (0x1_0040, b"_BHRfS_M", "a Btrfs file system", LOOP),
    EXT,
];

/// Its magic number is so short that other files may have it by chance.
const EXT: Magic = (
    1080,
    b"\x53\xef",
    "an ext2, ext3 or ext4 file system",
    "`fuse2fs -o ro FILE DIRECTORY` mounts it",
);

/// The error for a file that starts with `head` at `offset`. `storage` has it from there.
pub(super) fn unknown(name: &str, head: &[u8], storage: &dyn Storage, offset: u64) -> Error {
    let (description, hint) = match head {
        [] if offset == 0 => ("is empty", "check that it was copied completely"),
        [] => ("ends before --offset", "check --offset"),
        _ => find_magic(head)
            .or_else(|| file_system(storage).filter(|(what, _)| *what != EXT.2))
            .unwrap_or(("not a SquashFS image, tar or ZIP archive", OFFSET)),
    };
    Error::new(Kind::UnknownFormat, format!("{name}: {description}"))
        .with_hint(with_name(hint, name))
}

/// The error for the file `name` that begins with zeros but is no empty tar. It lacks the name.
pub(super) fn zeros(name: &str, storage: Option<&dyn Storage>) -> Error {
    let found = storage.and_then(file_system);
    let hint = if storage.is_some() { LOOP } else { "decompress it to see what it is" };
    let (description, hint) = found.unwrap_or(("begins with zeros, but is not an empty tar", hint));
    Error::new(Kind::UnknownFormat, description).with_hint(with_name(hint, name))
}

fn with_name(hint: &str, name: &str) -> String {
    hint.replace("FILE", &quoted(name))
}

/// What file system `storage` has, and a hint.
fn file_system(storage: &dyn Storage) -> Option<(&'static str, &'static str)> {
    let matches = |&(offset, magic, ..): &Magic| {
        let mut found = vec![0; magic.len()];
        storage.read_exact_at(&mut found, offset).is_ok() && found == magic
    };
    DISKS.iter().find(|magic| matches(magic)).map(|&(.., what, hint)| (what, hint))
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
    use crate::storage::MemStorage;

    #[test]
    fn names_known_formats_and_does_not_guess_others() {
        let unknown = |head: &[u8]| unknown("f", head, &MemStorage::new(head.to_vec()), 0);
        let message = |head: &[u8]| unknown(head).to_string();
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
            let error = unknown(&head);
            assert_eq!(
                (error.to_string(), error.hint()),
                (format!("f: {what}"), Some(with_name(hint, "f").as_str()))
            );
            assert_eq!(error.kind(), Kind::UnknownFormat);
        }
    }

    #[test]
    fn names_file_systems_also_behind_zeros() {
        for (offset, magic, what, hint) in DISKS {
            let mut file = vec![0; index(offset)];
            file.extend(magic);
            let error = zeros("f", Some(&MemStorage::new(file.clone())));
            assert_eq!(
                (error.to_string().as_str(), error.hint()),
                (what, Some(with_name(hint, "f").as_str()))
            );
            // A hybrid image, which a computer can start from, does not begin with zeros.
            if offset > 0 {
                file[0] = 0xeb;
            }
            let expected = match what == EXT.2 {
                true => "f: not a SquashFS image, tar or ZIP archive".to_owned(),
                false => format!("f: {what}"),
            };
            let head = &file[..file.len().min(1024)];
            let error = unknown("f", head, &MemStorage::new(file.clone()), 0);
            assert_eq!(error.to_string(), expected);
        }
        assert_eq!(zeros("f", None).to_string(), "begins with zeros, but is not an empty tar");
    }
}
