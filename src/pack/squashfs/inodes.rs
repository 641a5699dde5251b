//! The records of inodes (squashfs.rst, section 3.3), in their basic or extended form.
//!
//! Invariant: the basic form is used whenever it can hold all fields.

use crate::vfs::FileKind;

use super::fragments::Tail;

/// Means "no fragment" and "no extended attributes".
const NONE: u32 = u32::MAX;

/// The fields that every record begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) permissions: u16,
    /// Indices into the id table.
    pub(super) uid: u16,
    pub(super) gid: u16,
    /// Seconds since 1970.
    pub(super) modified: u32,
    pub(super) number: u32,
    pub(super) links: u32,
    /// Index into the table of extended attributes.
    pub(super) xattr: Option<u32>,
}

/// The fields of a regular file. The sizes of its blocks follow the record.
#[derive(Clone, Copy, Debug)]
pub(super) struct File {
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) sparse: u64,
    pub(super) tail: Option<Tail>,
}

/// The fields of a directory. Its index follows the record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Directory {
    pub(super) block: u32,
    pub(super) offset: u16,
    /// Bytes of the listing, plus three.
    pub(super) size: u32,
    /// Inode number of the parent.
    pub(super) parent: u32,
    pub(super) index_count: u16,
}

/// The number of a kind in directory entries and basic records. Extended records add 7.
pub(super) fn kind_number(kind: FileKind) -> u16 {
    match kind {
        FileKind::Directory => 1,
        FileKind::Regular => 2,
        FileKind::Symlink => 3,
        FileKind::BlockDevice => 4,
        FileKind::CharDevice => 5,
        FileKind::Fifo => 6,
        FileKind::Socket => 7,
    }
}

impl Header {
    fn begin(&self, kind: FileKind, is_extended: bool) -> Vec<u8> {
        let mut record = Vec::with_capacity(64);
        record.extend((kind_number(kind) + if is_extended { 7 } else { 0 }).to_le_bytes());
        record.extend(self.permissions.to_le_bytes());
        record.extend(self.uid.to_le_bytes());
        record.extend(self.gid.to_le_bytes());
        record.extend(self.modified.to_le_bytes());
        record.extend(self.number.to_le_bytes());
        record
    }

    fn end_xattr(&self, record: &mut Vec<u8>) {
        if let Some(xattr) = self.xattr {
            record.extend(xattr.to_le_bytes());
        }
    }

    /// A regular file.
    pub(super) fn file(&self, file: &File) -> Vec<u8> {
        let (fragment, offset) = file.tail.map_or((NONE, 0), |tail| (tail.fragment, tail.offset));
        let basic = match (u32::try_from(file.start), u32::try_from(file.size)) {
            (Ok(start), Ok(size)) if self.links == 1 && self.xattr.is_none() => {
                (file.sparse == 0).then_some((start, size))
            }
            _ => None,
        };
        let mut record = self.begin(FileKind::Regular, basic.is_none());
        if let Some((start, size)) = basic {
            for field in [start, fragment, offset, size] {
                record.extend(field.to_le_bytes());
            }
            return record;
        }
        for field in [file.start, file.size, file.sparse] {
            record.extend(field.to_le_bytes());
        }
        for field in [self.links, fragment, offset, self.xattr.unwrap_or(NONE)] {
            record.extend(field.to_le_bytes());
        }
        record
    }

    /// A directory.
    pub(super) fn directory(&self, directory: &Directory) -> Vec<u8> {
        let basic = u16::try_from(directory.size).ok();
        let basic = basic.filter(|_| self.xattr.is_none() && directory.index_count == 0);
        let mut record = self.begin(FileKind::Directory, basic.is_none());
        if let Some(size) = basic {
            record.extend(directory.block.to_le_bytes());
            record.extend(self.links.to_le_bytes());
            record.extend(size.to_le_bytes());
            record.extend(directory.offset.to_le_bytes());
            record.extend(directory.parent.to_le_bytes());
            return record;
        }
        for field in [self.links, directory.size, directory.block, directory.parent] {
            record.extend(field.to_le_bytes());
        }
        record.extend(directory.index_count.to_le_bytes());
        record.extend(directory.offset.to_le_bytes());
        record.extend(self.xattr.unwrap_or(NONE).to_le_bytes());
        record
    }

    /// A symbolic link; `target` is shorter than 2^32 bytes.
    pub(super) fn symlink(&self, target: &[u8]) -> Vec<u8> {
        let mut record = self.begin(FileKind::Symlink, self.xattr.is_some());
        record.extend(self.links.to_le_bytes());
        record.extend((target.len() as u32).to_le_bytes());
        record.extend_from_slice(target);
        self.end_xattr(&mut record);
        record
    }

    /// A device, with its number in the kernel's 32-bit encoding.
    pub(super) fn device(&self, kind: FileKind, number: u32) -> Vec<u8> {
        let mut record = self.begin(kind, self.xattr.is_some());
        record.extend(self.links.to_le_bytes());
        record.extend(number.to_le_bytes());
        self.end_xattr(&mut record);
        record
    }

    /// A named pipe or a socket.
    pub(super) fn special(&self, kind: FileKind) -> Vec<u8> {
        let mut record = self.begin(kind, self.xattr.is_some());
        record.extend(self.links.to_le_bytes());
        self.end_xattr(&mut record);
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        permissions: 0o644,
        uid: 1,
        gid: 2,
        modified: 3,
        number: 4,
        links: 1,
        xattr: None,
    };

    fn kind(record: &[u8]) -> u16 {
        u16::from_le_bytes([record[0], record[1]])
    }

    #[test]
    fn a_file_is_extended_only_where_it_must_be() {
        let max = u64::from(u32::MAX);
        let file = File { start: max, size: max, sparse: 0, tail: None };
        let basic = HEADER.file(&file);
        assert_eq!((kind(&basic), basic.len()), (2, 32));
        for (header, file) in [
            (HEADER, File { start: max + 1, ..file }),
            (HEADER, File { size: max + 1, ..file }),
            (HEADER, File { sparse: 1, ..file }),
            (Header { links: 2, ..HEADER }, file),
            (Header { xattr: Some(0), ..HEADER }, file),
        ] {
            let extended = header.file(&file);
            assert_eq!((kind(&extended), extended.len()), (9, 56), "{header:?} {file:?}");
        }
    }

    #[test]
    fn a_directory_is_extended_only_where_it_must_be() {
        let directory = Directory { block: 0, offset: 0, size: 65535, parent: 1, index_count: 0 };
        let basic = HEADER.directory(&directory);
        assert_eq!((kind(&basic), basic.len()), (1, 32));
        for (header, directory) in [
            (HEADER, Directory { size: 65536, ..directory }),
            (HEADER, Directory { index_count: 1, ..directory }),
            (Header { xattr: Some(0), ..HEADER }, directory),
        ] {
            let extended = header.directory(&directory);
            assert_eq!((kind(&extended), extended.len()), (8, 40), "{header:?} {directory:?}");
        }
    }

    #[test]
    fn other_inodes_are_extended_only_for_attributes() {
        let with = Header { xattr: Some(7), links: 9, ..HEADER };
        assert_eq!(kind(&HEADER.symlink(b"x")), 3);
        assert_eq!(kind(&with.symlink(b"x")), 10);
        assert_eq!(with.symlink(b"xyz").len(), 16 + 8 + 3 + 4);
        assert_eq!(kind(&with.device(FileKind::BlockDevice, 1)), 11);
        assert_eq!(kind(&HEADER.device(FileKind::CharDevice, 1)), 5);
        assert_eq!(kind(&with.special(FileKind::Fifo)), 13);
        assert_eq!(kind(&HEADER.special(FileKind::Socket)), 7);
    }
}
