//! What of an image no reader of files meets: do its tables agree with each other?
//!
//! Owns the comparison; leaves each table's layout to its file. Not here: what has a name is read
//! by who verifies, and what fails then is told with the name.
//! Invariant: tables are compared only if both could be read; one that could not is told once.
//!
//! The inode table is gone through from its first record to its last, and so are all folders. What
//! is kept is 24 bytes an inode and 16 bytes a name, sorted by reference, to be merged.

use std::collections::HashSet;
use std::ops::ControlFlow;

use super::SquashFs;
use super::blocklist::Extent;
use super::directory::Directory;
use super::inode::{Body, InodeRef, Tail};
use super::superblock;
use super::table::Table;
use crate::error::{Error, Result};
use crate::formats::bytes::{index, length};
use crate::vfs::{Cookie, FileKind, Finding, Location};

/// Bytes behind the image that are looked at: it is padded to 4 KiB, with zeros.
const PADDING: u64 = 4096;

/// Tells `found` what is wrong with `image`.
pub(super) fn audit(image: &SquashFs, found: &mut dyn FnMut(Finding)) {
    let mut audit = Audit { image, found };
    let mut used = Used::default();
    let records = audit.inode_table(&mut used);
    let names = audit.folders();
    if let Some(mut records) = records {
        audit.numbers(&mut records);
        audit.export_table(&records);
        records.sort_unstable_by_key(|record| record.reference);
        if let Some(names) = names {
            audit.names(&records, names);
        }
        audit.fragments(Some(&used));
    } else {
        audit.fragments(None);
    }
    audit.xattrs();
    audit.behind();
}

/// What an inode's record says.
struct Record {
    reference: u64,
    number: u32,
    /// `None` where writers do not agree what it counts.
    nlink: Option<u32>,
}

/// What an entry of a directory says.
struct Named {
    reference: u64,
    number: u32,
}

/// Fragments that files use, a bit for each.
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

/// Things of one kind that are wrong: the first, and how many.
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

/// The inode at `reference`, which is said to have the number `stored`.
fn subject(image: &SquashFs, reference: u64, stored: u32) -> Location {
    let ino = InodeRef::parse(reference).and_then(|found| image.ino(found, stored).ok());
    ino.map_or(Location::Archive, Location::Inode)
}

struct Audit<'i, 'f> {
    image: &'i SquashFs,
    found: &'f mut dyn FnMut(Finding),
}

impl Audit<'_, '_> {
    fn damage(&mut self, what: String) {
        (self.found)(Finding::damage(Location::Archive, what));
    }

    fn met(&mut self, table: &str, error: Error) {
        (self.found)(Finding::met(Location::Archive, &error.within(table)));
    }

    fn tell(&mut self, tally: Tally) {
        if let Some(mut finding) = tally.first {
            if tally.more > 0 {
                finding.what = format!("{}; and {} more", finding.what, tally.more);
            }
            (self.found)(finding);
        }
    }

    /// All records of the inode table; `None` where it can not be read to its end.
    fn inode_table(&mut self, used: &mut Used) -> Option<Vec<Record>> {
        let count = self.image.superblock.inode_count;
        let mut records = Vec::new();
        match self.scan_inodes(&mut records, used) {
            Ok(()) if length(records.len()) == u64::from(count) => Some(records),
            Ok(()) => {
                let there = records.len();
                self.damage(format!("inode table: {count} inodes announced, {there} are there"));
                None
            }
            Err(error) => {
                self.met("inode table", error);
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

    /// Each number from 1 to the count of inodes belongs to one of them.
    fn numbers(&mut self, records: &mut [Record]) {
        records.sort_unstable_by_key(|record| record.number);
        let mut tally = Tally::default();
        for (expected, record) in (1_u32..).zip(&*records) {
            if record.number != expected {
                let number = record.number;
                tally.add(|| {
                    let what = format!("inode table: number {number} where {expected} should be");
                    Finding::damage(Location::Archive, what)
                });
            }
        }
        self.tell(tally);
    }

    /// The export table leads from each number to the inode of that number.
    fn export_table(&mut self, records: &[Record]) {
        let superblock = &self.image.superblock;
        let Some(start) = superblock.export_table else { return };
        let (count, end) = (superblock.inode_count, superblock.bytes_used);
        let table = Table::<8>::read(&*self.image.whole, "export", start, count, end);
        let table = match table {
            Ok(table) => table,
            Err(error) => return self.met("export table", error),
        };
        let mut tally = Tally::default();
        for Record { reference, number, .. } in records {
            match table.record(&self.image.metadata, number.saturating_sub(1)) {
                Ok(found) if u64::from_le_bytes(found) == *reference => {}
                Ok(found) => tally.add(|| {
                    let found = u64::from_le_bytes(found);
                    let what = format!(
                        "export table: inode {number} is said to be at {found:#x}, it is at \
                         {reference:#x}"
                    );
                    Finding::damage(Location::Archive, what)
                }),
                Err(error) => {
                    tally.add(|| Finding::met(Location::Archive, &error.within("export table")));
                }
            }
        }
        self.tell(tally);
    }

    /// Goes through all folders; what can not be listed is told by who reads names, and leaves
    /// names unknown: then `None`.
    fn folders(&mut self) -> Option<Vec<Named>> {
        let image = self.image;
        let mut names: Vec<Named> = Vec::new();
        let mut whole = true;
        let root = image.numbers.root();
        let mut known = HashSet::from([root.bits()]);
        let mut waiting = vec![(root, None)];
        while let Some((reference, above)) = waiting.pop() {
            let Ok((inode, index)) = image.inode(reference) else {
                whole = false;
                continue;
            };
            let Body::Directory(body) = inode.body else { continue };
            let subject = subject(image, reference.bits(), inode.number);
            if let Some(above) = above
                && above != body.parent
            {
                let what =
                    format!("its parent is inode {above}, but {} by its own word", body.parent);
                (self.found)(Finding::damage(subject.clone(), what));
            }
            let folder =
                Directory::new(&image.metadata, image.superblock.directory_table, body, index);
            let listed = folder.visit(Cookie::START, |entry| {
                let reference = entry.reference.bits();
                names.push(Named { reference, number: entry.number });
                let is_folder = entry.kind == FileKind::Directory;
                if is_folder && known.insert(reference) {
                    waiting.push((entry.reference, Some(inode.number)));
                }
                ControlFlow::Continue(())
            });
            whole &= listed.is_ok();
            if listed.is_ok()
                && let Err(error) = folder.check_index()
            {
                (self.found)(Finding::met(subject, &error));
            }
        }
        whole.then_some(names)
    }

    /// What names say of inodes, and inodes of their names; both sorted by reference.
    fn names(&mut self, records: &[Record], mut names: Vec<Named>) {
        let image = self.image;
        names.sort_unstable_by_key(|name| name.reference);
        let mut rest = names.as_slice();
        let mut unnamed: u64 = 0;
        let odd = |names: &[Named], found: &mut dyn FnMut(Finding)| {
            for name in names {
                let subject = subject(image, name.reference, name.number);
                found(Finding::damage(subject, "no inode of the table begins where it should be"));
            }
        };
        for Record { reference, number, nlink } in records {
            let before = rest.partition_point(|name| name.reference < *reference);
            let (strangers, behind) = rest.split_at_checked(before).unwrap_or_default();
            odd(strangers, self.found);
            let count = behind.partition_point(|name| name.reference == *reference);
            let (own, behind) = behind.split_at_checked(count).unwrap_or_default();
            rest = behind;
            let subject = || subject(image, *reference, *number);
            if let Some(wrong) = own.iter().find(|name| name.number != *number) {
                let what = format!("named as inode {}, but it is inode {number}", wrong.number);
                (self.found)(Finding::damage(subject(), what));
            }
            match nlink {
                _ if own.is_empty() => {
                    unnamed = unnamed
                        .saturating_add(u64::from(*reference != image.numbers.root().bits()));
                }
                Some(nlink) if length(own.len()) != u64::from(*nlink) => {
                    let names = own.len();
                    let what = format!("its count of links is {nlink}, but it has {names} names");
                    (self.found)(Finding::damage(subject(), what));
                }
                _ => {}
            }
        }
        odd(rest, self.found);
        if unnamed > 0 {
            (self.found)(Finding::note(format!("{unnamed} inodes that no name leads to")));
        }
    }

    /// Each entry of the fragment table lies in the image; `used` are those that files use.
    fn fragments(&mut self, used: Option<&Used>) {
        let super::Superblock { fragment_count, bytes_used, .. } = self.image.superblock;
        let first = length(superblock::SIZE);
        let (mut tally, mut unused) = (Tally::default(), 0_u64);
        for fragment in 0..fragment_count {
            let tail = Tail { fragment, offset: 0 };
            match self.image.data.fragment(&self.image.metadata, tail) {
                Ok(Extent::Uncompressed { start, len } | Extent::Compressed { start, len }) => {
                    let end = start.saturating_add(u64::from(len));
                    if start < first || end > bytes_used {
                        tally.add(|| {
                            let what = format!(
                                "fragment table: {fragment} lies at {start:#x} to {end:#x}, the \
                                 image ends at {bytes_used:#x}"
                            );
                            Finding::damage(Location::Archive, what)
                        });
                    }
                }
                Ok(Extent::Hole) => {}
                Err(error) => {
                    tally.add(|| Finding::met(Location::Archive, &error.within("fragment table")));
                }
            }
            let is_used = used.is_none_or(|used| used.has(fragment));
            unused = unused.saturating_add(u64::from(!is_used));
        }
        self.tell(tally);
        if unused > 0 {
            (self.found)(Finding::note(format!("{unused} fragment blocks that no file uses")));
        }
    }

    /// Each xattr index leads to names.
    fn xattrs(&mut self) {
        let Some(xattrs) = &self.image.xattrs else { return };
        let mut tally = Tally::default();
        for id in 0..xattrs.count() {
            if let Err(error) = xattrs.list(&self.image.metadata, id) {
                tally.add(|| Finding::met(Location::Archive, &error.within("xattr table")));
            }
        }
        self.tell(tally);
    }

    /// What follows the image is padding.
    fn behind(&mut self) {
        let end = self.image.superblock.bytes_used;
        let behind = self.image.whole.len().saturating_sub(end);
        let mut padding = vec![0; index(behind.min(PADDING))];
        match self.image.whole.read_exact_at(&mut padding, end) {
            Ok(()) if padding.iter().all(|&byte| byte == 0) => {}
            Ok(()) => {
                let what = format!("{behind} bytes behind the image at {end:#x} are not of it");
                (self.found)(Finding::note(what));
            }
            Err(error) => self.met("padding", error),
        }
    }
}
