//! Checks what reading all files does not reach: whether the tables of an image agree.
//!
//! Damage in files and directories is reported by `vfs::verify`, with their names.
//!
//! Invariant: tables are compared only if both can be read. A table that cannot be read is reported
//! once.
//!
//! The audit walks the inode table from the first record to the last, and all directories. It keeps
//! 24 bytes per inode and 16 bytes per name, sorts both by reference, and merges them.

use std::collections::HashSet;
use std::ops::ControlFlow;

use super::SquashFs;
use super::blocks::DataBlock;
use super::directory::Directory;
use super::inode::{Body, InodeRef};
use super::metadata::Table;
use super::superblock;
use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};
use crate::vfs::{Cookie, FileKind, Finding, Location};

/// Bytes checked after the image. mksquashfs pads images with zeros to a multiple of 4 KiB.
const PADDING: u64 = 4096;

/// The bytes that the format adds to the size of a directory, for "." and "..".
const DOTS: u32 = 3;

/// Reports to `found` what is wrong with `image`.
pub(super) fn audit(image: &SquashFs, found: &mut dyn FnMut(Finding)) {
    let mut audit = Audit { image, found };
    let mut used = Used::default();
    let records = audit.inode_table(&mut used);
    let names = audit.directories();
    if let Some(mut records) = records {
        audit.check_numbers(&mut records);
        audit.check_export_table(&records);
        records.sort_unstable_by_key(|record| record.reference);
        if let Some(names) = names {
            audit.check_names(&records, names);
        }
        audit.check_fragments(Some(&used));
    } else {
        audit.check_fragments(None);
    }
    audit.check_xattrs();
    audit.check_padding();
}

/// The fields of an inode that are compared.
struct Record {
    reference: u64,
    number: u32,
    /// `None` for directories, because writers count their links differently.
    nlink: Option<u32>,
}

/// The fields of a directory entry that are compared.
struct Named {
    reference: u64,
    number: u32,
}

/// A bit set of the fragments that files use.
#[derive(Default)]
struct Used(Vec<u64>);

impl Used {
    fn add(&mut self, fragment: u32) {
        let word = index(fragment / 64);
        if word >= self.0.len() {
            self.0.resize(word.saturating_add(1), 0);
        }
        if let Some(word) = self.0.get_mut(word) {
            *word |= mask(fragment);
        }
    }

    fn has(&self, fragment: u32) -> bool {
        let word = self.0.get(index(fragment / 64)).copied().unwrap_or(0);
        word & mask(fragment) != 0
    }
}

/// The bit of a fragment in its word.
fn mask(fragment: u32) -> u64 {
    1_u64.rotate_left(fragment)
}

/// Counts findings of one kind, and keeps the first.
#[derive(Default)]
struct Tally {
    first: Option<Finding>,
    more: u64,
}

impl Tally {
    fn add(&mut self, finding: impl FnOnce() -> Finding) {
        match self.first {
            None => self.first = Some(finding()),
            Some(_) => self.more = self.more.saturating_add(1),
        }
    }
}

/// The inode at `reference`. `stored` is its number in a record or directory entry.
fn location_of(image: &SquashFs, reference: u64, stored: u32) -> Location {
    let ino = InodeRef::parse(reference).and_then(|found| image.numbers.ino(found, stored).ok());
    ino.map_or(Location::Archive, Location::Inode)
}

struct Audit<'i, 'f> {
    image: &'i SquashFs,
    found: &'f mut dyn FnMut(Finding),
}

impl Audit<'_, '_> {
    fn damage(&mut self, message: String) {
        (self.found)(Finding::damage(Location::Archive, message));
    }

    fn report_error(&mut self, table: &str, error: Error) {
        (self.found)(Finding::from_error(Location::Archive, &error.within(table)));
    }

    fn report_tally(&mut self, tally: Tally) {
        if let Some(mut finding) = tally.first {
            if tally.more > 0 {
                finding.what = format!("{}; and {} more", finding.what, tally.more);
            }
            (self.found)(finding);
        }
    }

    /// All records of the inode table; `None` if it cannot be read to its end.
    fn inode_table(&mut self, used: &mut Used) -> Option<Vec<Record>> {
        let count = self.image.superblock.inode_count;
        let mut records = Vec::new();
        match self.scan_inodes(&mut records, used) {
            Ok(()) if length(records.len()) == u64::from(count) => Some(records),
            Ok(()) => {
                let there = records.len();
                self.damage(format!("inode table: {count} inodes announced, {there} found"));
                None
            }
            Err(error) => {
                self.report_error("inode table", error);
                None
            }
        }
    }

    fn scan_inodes(&self, records: &mut Vec<Record>, used: &mut Used) -> Result<()> {
        self.image.scan_inodes(|reference, inode, _| {
            let nlink = match inode.body {
                Body::Directory(_) => None,
                _ => Some(inode.nlink),
            };
            if let Body::Regular(body) = &inode.body
                && let Some(tail) = body.tail
                && tail.fragment < self.image.superblock.fragment_count
            {
                used.add(tail.fragment);
            }
            records.push(Record { reference: reference.bits(), number: inode.number, nlink });
            Ok(())
        })?;
        Ok(())
    }

    /// Checks that the inode numbers are 1 to the number of inodes, each once.
    fn check_numbers(&mut self, records: &mut [Record]) {
        records.sort_unstable_by_key(|record| record.number);
        let mut tally = Tally::default();
        for (expected, record) in (1_u32..).zip(&*records) {
            if record.number != expected {
                let number = record.number;
                tally.add(|| {
                    let message =
                        format!("inode table: number {number} where {expected} should be");
                    Finding::damage(Location::Archive, message)
                });
            }
        }
        self.report_tally(tally);
    }

    /// Checks that the export table maps each number to the inode with that number.
    fn check_export_table(&mut self, records: &[Record]) {
        let SquashFs { superblock, metadata, whole, .. } = self.image;
        let Some(start) = superblock.export_table else { return };
        let (count, end) = (superblock.inode_count, superblock.bytes_used);
        let table = Table::<8>::read(metadata, &**whole, "export", start, count, end);
        let table = match table {
            Ok(table) => table,
            Err(error) => return self.report_error("export table", error),
        };
        let mut tally = Tally::default();
        for Record { reference, number, .. } in records {
            match table.record(number.saturating_sub(1)) {
                Ok(found) if u64::from_le_bytes(found) == *reference => {}
                Ok(found) => tally.add(|| {
                    let found = u64::from_le_bytes(found);
                    let message = format!(
                        "export table: inode {number} listed at {found:#x}, but it is at \
                         {reference:#x}"
                    );
                    Finding::damage(Location::Archive, message)
                }),
                Err(error) => {
                    tally.add(|| {
                        Finding::from_error(Location::Archive, &error.within("export table"))
                    });
                }
            }
        }
        self.report_tally(tally);
    }

    /// Walks all directories and collects their entries. `None` if one cannot be listed:
    /// `vfs::verify` reports that, and the entries are incomplete.
    fn directories(&mut self) -> Option<Vec<Named>> {
        let image = self.image;
        let mut names: Vec<Named> = Vec::new();
        let mut complete = true;
        let root = image.numbers.root();
        let mut visited = HashSet::from([root.bits()]);
        let mut pending = vec![(root, None)];
        let mut without_dots: u64 = 0;
        while let Some((reference, above)) = pending.pop() {
            let Ok((inode, index)) = image.inode(reference) else {
                complete = false;
                continue;
            };
            let Body::Directory(body) = inode.body else { continue };
            let subject = location_of(image, reference.bits(), inode.number);
            if let Some(above) = above
                && above != body.parent
            {
                let message = format!("its parent is inode {above}, but it names {}", body.parent);
                (self.found)(Finding::damage(subject.clone(), message));
            }
            let directory =
                Directory::new(&image.metadata, image.superblock.directory_table, body, index);
            let mut end = 0;
            let listed = directory.visit(Cookie::START, |entry| {
                end = entry.end;
                let reference = entry.reference.bits();
                names.push(Named { reference, number: entry.number });
                let is_directory = entry.kind == FileKind::Directory;
                if is_directory && visited.insert(reference) {
                    pending.push((entry.reference, Some(inode.number)));
                }
                ControlFlow::Continue(())
            });
            complete &= listed.is_ok();
            if listed.is_err() {
                continue;
            }
            if let Err(error) = directory.check_index() {
                (self.found)(Finding::from_error(subject.clone(), &error));
            }
            match end.saturating_sub(body.listing_len()) {
                0 => {}
                DOTS => without_dots = without_dots.saturating_add(1),
                excess => {
                    let message = format!("its listing is {excess} bytes longer than it states");
                    (self.found)(Finding::damage(subject, message));
                }
            }
        }
        if without_dots > 0 {
            (self.found)(Finding::note(format!(
                "directories whose size is {DOTS} bytes less than the format says, as older \
                 programs write it: {without_dots}"
            )));
        }
        complete.then_some(names)
    }

    /// Compares directory entries with inodes, both sorted by reference.
    fn check_names(&mut self, records: &[Record], mut names: Vec<Named>) {
        let image = self.image;
        names.sort_unstable_by_key(|name| name.reference);
        let mut rest = names.as_slice();
        let mut unnamed: u64 = 0;
        let report_unknown = |names: &[Named], found: &mut dyn FnMut(Finding)| {
            for name in names {
                let subject = location_of(image, name.reference, name.number);
                found(Finding::damage(subject, "no inode of the table begins at its position"));
            }
        };
        for Record { reference, number, nlink } in records {
            let before = rest.partition_point(|name| name.reference < *reference);
            let (unknown, behind) = rest.split_at_checked(before).unwrap_or_default();
            report_unknown(unknown, self.found);
            let count = behind.partition_point(|name| name.reference == *reference);
            let (own, behind) = behind.split_at_checked(count).unwrap_or_default();
            rest = behind;
            let location = || location_of(image, *reference, *number);
            if let Some(wrong) = own.iter().find(|name| name.number != *number) {
                let message = format!("named as inode {}, but it is inode {number}", wrong.number);
                (self.found)(Finding::damage(location(), message));
            }
            match nlink {
                _ if own.is_empty() => {
                    unnamed = unnamed
                        .saturating_add(u64::from(*reference != image.numbers.root().bits()));
                }
                Some(nlink) if length(own.len()) != u64::from(*nlink) => {
                    let names = own.len();
                    let message = format!(
                        "its link count is {nlink}, but the number of its names is {names}"
                    );
                    (self.found)(Finding::damage(location(), message));
                }
                _ => {}
            }
        }
        report_unknown(rest, self.found);
        if unnamed > 0 {
            (self.found)(Finding::note(format!("inodes without a name: {unnamed}")));
        }
    }

    /// Checks that each fragment block lies in the image. `used` are the fragments that files use.
    fn check_fragments(&mut self, used: Option<&Used>) {
        let super::Superblock { fragment_count, bytes_used, .. } = self.image.superblock;
        let first = length(superblock::SIZE);
        let (mut tally, mut unused) = (Tally::default(), 0_u64);
        for fragment in 0..fragment_count {
            let is_used = used.is_none_or(|used| used.has(fragment));
            match self.image.blocks.fragment(fragment) {
                Ok(
                    DataBlock::Uncompressed { start, len } | DataBlock::Compressed { start, len },
                ) => {
                    let end = start.saturating_add(u64::from(len));
                    if start < first || end > bytes_used {
                        tally.add(|| {
                            let message = format!(
                                "fragment table: {fragment} lies at {start:#x} to {end:#x}, the \
                                 image ends at {bytes_used:#x}"
                            );
                            Finding::damage(Location::Archive, message)
                        });
                    }
                }
                Ok(DataBlock::Hole) if is_used => tally.add(|| {
                    let message =
                        format!("fragment table: fragment {fragment} is a block of 0 bytes");
                    Finding::damage(Location::Archive, message)
                }),
                Ok(DataBlock::Hole) => {}
                Err(error) => {
                    tally.add(|| {
                        Finding::from_error(Location::Archive, &error.within("fragment table"))
                    });
                }
            }
            unused = unused.saturating_add(u64::from(!is_used));
        }
        self.report_tally(tally);
        if unused > 0 {
            (self.found)(Finding::note(format!("fragment blocks that no file uses: {unused}")));
        }
    }

    /// Checks that the names of each xattr index can be read.
    fn check_xattrs(&mut self) {
        let Some(xattrs) = &self.image.xattrs else { return };
        let mut tally = Tally::default();
        for id in 0..xattrs.count() {
            if let Err(error) = xattrs.list(id) {
                tally.add(|| Finding::from_error(Location::Archive, &error.within("xattr table")));
            }
        }
        self.report_tally(tally);
    }

    /// Checks that only padding follows the image.
    fn check_padding(&mut self) {
        let end = self.image.superblock.bytes_used;
        let behind = self.image.whole.len().saturating_sub(end);
        let mut padding = vec![0; index(behind.min(PADDING))];
        match self.image.whole.read_exact_at(&mut padding, end) {
            Ok(()) if padding.iter().all(|&byte| byte == 0) => {}
            Ok(()) => {
                let message = format!("{behind} bytes after the end of the image at {end:#x}");
                (self.found)(Finding::note(message));
            }
            Err(error) => self.report_error("padding", error),
        }
    }
}
