//! The inode table and the directory table, which refer to each other.
//!
//! Invariants: an inode without a number is not in the image. An inode is written before its names,
//! and a listing before the inode of its directory.
//!
//! Numbers ascend from 1, the root, in the order of the walk. The entries of a directory are
//! numbered together because a listing stores the differences of numbers. Inodes are written from
//! the deepest directory up. Those of one directory are contiguous, including subdirectories, so
//! that `ls -l` reads them at once.

use std::collections::HashMap;

use zerocopy::little_endian::U64;

use crate::codecs::Encoder;
use crate::error::{Error, Kind, Result};
use crate::pack::Job;
use crate::pack::catalog::{Catalog, Inode, InodeId, InodeKind, cannot_spill, lost};
use crate::spilled::{Spill, Spilled, Value};
use crate::vfs::Timestamp;

use super::Layout;
use super::blocks::{Fragment, Placement, is_uncompressed};
use super::data::{Data, FileState};
use super::geometry::Geometry;
use super::inodes::{Directory, Entry, File, Header, Listing, kind_number, write_listing};
use super::tables::{Chain, Owners, Position, Xattrs};

/// Maximum length of the target of a symbolic link, bytes: what readers of the format accept.
const TARGET: usize = 65535;

/// Size fields that are appended to the inode table at once.
const SIZE_FIELDS: usize = 4096;

/// Both tables, and the values collected while writing them.
pub(super) struct Tree {
    pub(super) inodes: Spilled<u8>,
    pub(super) directories: Spilled<u8>,
    /// References of inodes by their number, from 1.
    pub(super) references: Spilled<U64>,
    pub(super) root: u64,
    pub(super) owners: Owners,
    pub(super) xattrs: Xattrs,
    pub(super) newest: u32,
    /// Objects whose time the format cannot store.
    pub(super) changed_times: u64,
}

impl Tree {
    /// Checks that the disk kept what was spilled to it.
    pub(super) fn check(&self) -> Result<()> {
        let Self { inodes, directories, references, .. } = self;
        let checked = inodes.check().and_then(|()| directories.check());
        checked.and_then(|()| references.check()).map_err(lost)
    }
}

/// Writes both tables for all files that could be read, and counts them.
///
/// Fails with `InvalidInput` if a limit of the format is exceeded; the message names it. A symbolic
/// link that is too long is a problem of `job`, and left out.
pub(super) fn write(
    job: &Job<'_>,
    catalog: &Catalog,
    geometry: &Geometry,
    data: &Data,
    epoch: Option<i64>,
    layout: &mut Layout,
    encoder: &mut Encoder,
) -> Result<Tree> {
    let (numbers, count) = numbers(job, catalog, data, layout)?;
    let mut writer = Writer {
        catalog,
        geometry,
        data,
        latest: epoch.map_or(u32::MAX, seconds),
        layout,
        encoder,
        references: filled(NO_REFERENCE, count as usize)?,
        numbers,
        listings: HashMap::new(),
        inodes: Chain::default(),
        directories: Chain::default(),
        owners: Owners::default(),
        xattrs: Xattrs::default(),
        newest: 0,
        changed_times: 0,
        decoded: 0.0,
        inodes_of_files: 0,
    };
    for directory in directories_bottom_up(catalog) {
        job.check()?;
        writer.directory(directory)?;
    }
    // The root has no parent. mksquashfs stores a number that no inode has.
    let root = writer.inode(InodeId::ROOT, count + 1)?.reference();
    let Writer { layout, encoder, references, inodes, directories, owners, xattrs, .. } = writer;
    layout.mean_decoded = writer.decoded / (writer.inodes_of_files.max(1) as f64);
    writer.numbers.check().map_err(lost)?;
    let (newest, changed_times) = (writer.newest, writer.changed_times);
    let (inodes, _) = inodes.finish(encoder)?;
    let (directories, _) = directories.finish(encoder)?;
    Ok(Tree { inodes, directories, references, root, owners, xattrs, newest, changed_times })
}

/// The number of an inode that is not in the image.
const LEFT_OUT: u32 = u32::MAX;

/// The reference of an inode that is not written yet.
const NO_REFERENCE: U64 = U64::MAX_VALUE;

fn filled<T: Value>(value: T, len: usize) -> Result<Spilled<T>> {
    Spilled::filled(value, len, &Spill::default()).map_err(cannot_spill)
}

/// The number of each inode, `LEFT_OUT` for those left out, 0 for those without a name, and the
/// number of inodes.
fn numbers(
    job: &Job<'_>,
    catalog: &Catalog,
    data: &Data,
    layout: &mut Layout,
) -> Result<(Spilled<u32>, u32)> {
    let mut list = filled(0, catalog.len())?;
    let numbers: &mut [u32] = &mut list;
    let mut count = 1_u32;
    numbers[InodeId::ROOT.index()] = count;
    catalog.walk(&mut |path, directory| {
        for (name, id) in catalog.entries(directory) {
            let index = id.index();
            if numbers[index] != 0 {
                continue;
            }
            let is_left_out = match &catalog.inode(id).kind {
                InodeKind::File { .. } => !matches!(data.states.get(id), FileState::Placed(_)),
                InodeKind::Symlink(target) if target.len() > TARGET => {
                    let message = format!(
                        "link target of {} bytes, the limit of SquashFS is {TARGET}",
                        target.len()
                    );
                    let path = [path, name].join(&b"/"[..]);
                    let path = String::from_utf8_lossy(&path);
                    let path = path.trim_start_matches('/');
                    job.problem(path, &Error::new(Kind::InvalidInput, message));
                    true
                }
                _ => false,
            };
            if is_left_out {
                layout.failed += 1;
                numbers[index] = LEFT_OUT;
            } else {
                count = count.saturating_add(1);
                numbers[index] = count;
            }
        }
    });
    match count {
        // The number after the last one is the parent of the root.
        u32::MAX => {
            Err(Error::new(Kind::InvalidInput, "a SquashFS image has at most 2^32 - 2 inodes"))
        }
        _ => Ok((list, count)),
    }
}

/// All directories, subdirectories before their parents.
fn directories_bottom_up(catalog: &Catalog) -> Vec<InodeId> {
    let mut order = Vec::new();
    let mut waiting = vec![InodeId::ROOT];
    while let Some(directory) = waiting.pop() {
        order.push(directory);
        let is_directory =
            |id: &InodeId| matches!(catalog.inode(*id).kind, InodeKind::Directory(_));
        waiting.extend(catalog.entries(directory).map(|(_, id)| id).filter(is_directory));
    }
    order.reverse();
    order
}

/// Seconds as the format stores them: 32 bits from 1970 on.
pub(super) fn seconds(seconds: i64) -> u32 {
    u32::try_from(seconds.max(0)).unwrap_or(u32::MAX)
}

struct Writer<'w> {
    catalog: &'w Catalog,
    geometry: &'w Geometry,
    data: &'w Data,
    latest: u32,
    layout: &'w mut Layout,
    encoder: &'w mut Encoder,
    numbers: Spilled<u32>,
    /// References of inodes, by inode number less one.
    references: Spilled<U64>,
    /// Listings of directories whose inodes are not written yet, and their link counts.
    listings: HashMap<InodeId, (Listing, u32)>,
    inodes: Chain,
    directories: Chain,
    owners: Owners,
    xattrs: Xattrs,
    newest: u32,
    changed_times: u64,
    /// Bytes decoded to read each file once.
    decoded: f64,
    /// Regular files, each once.
    inodes_of_files: u64,
}

impl Writer<'_> {
    /// Writes the inodes of the entries of a directory, and its listing.
    fn directory(&mut self, directory: InodeId) -> Result<()> {
        let parent = self.numbers[directory.index()];
        let catalog = self.catalog;
        let mut links = 2_u32;
        for (_, id) in catalog.entries(directory) {
            let number = self.numbers[id.index()];
            if matches!(number, 0 | LEFT_OUT) {
                continue;
            }
            if matches!(catalog.inode(id).kind, InodeKind::Directory(_)) {
                links = links.saturating_add(1);
            }
            if self.references[number as usize - 1] == NO_REFERENCE {
                self.inode(id, parent)?;
            }
        }
        let (numbers, references): (&[u32], &[U64]) = (&self.numbers, &self.references);
        let entries = catalog.entries(directory).filter_map(|(name, id)| {
            let number = numbers[id.index()];
            let reference = *references.get(number.checked_sub(1)? as usize)?;
            let inode = (reference != NO_REFERENCE).then(|| Position::of(reference.get()))?;
            Some(Entry { name, inode, number, kind: kind_number(catalog.inode(id).file_kind()) })
        });
        let listing = write_listing(&mut self.directories, self.encoder, entries)?;
        self.listings.insert(directory, (listing, links));
        Ok(())
    }

    fn inode(&mut self, id: InodeId, parent: u32) -> Result<Position> {
        let inode = self.catalog.inode(id);
        let header = self.header(id, &inode)?;
        let position = self.inodes.position();
        let names = u64::from(header.links);
        if !matches!(inode.kind, InodeKind::Directory(_)) {
            self.layout.hard_links += names.saturating_sub(1);
        }
        match &inode.kind {
            InodeKind::File { size, .. } => {
                let FileState::Placed(placement) = self.data.states.get(id) else {
                    return Err(Error::new(
                        Kind::Io,
                        "internal error: a file without a position has a number",
                    ));
                };
                self.file(&header, &placement, *size)?;
            }
            InodeKind::Directory(_) => self.directory_inode(header, id, parent)?,
            InodeKind::Symlink(target) => {
                self.layout.symlinks += names;
                self.inodes.put(self.encoder, &header.symlink(target))?;
            }
            InodeKind::Device { kind, number } => {
                self.layout.specials += names;
                self.inodes.put(self.encoder, &header.device(*kind, *number))?;
            }
            InodeKind::Fifo | InodeKind::Socket => {
                self.layout.specials += names;
                self.inodes.put(self.encoder, &header.special(inode.file_kind()))?;
            }
        }
        self.references[header.number as usize - 1] = U64::new(position.reference());
        Ok(position)
    }

    fn header(&mut self, id: InodeId, inode: &Inode) -> Result<Header> {
        let meta = &inode.meta;
        let Timestamp { seconds: exact, .. } = meta.modified;
        let modified = seconds(exact).min(self.latest);
        // A time that SOURCE_DATE_EPOCH replaces was not to be kept.
        let is_replaced = exact > i64::from(self.latest) && self.latest < u32::MAX;
        if i64::from(modified) != exact && !is_replaced {
            self.changed_times += 1;
        }
        self.newest = self.newest.max(modified);
        let xattr = match meta.xattrs {
            Some(set) => self.xattrs.number(self.catalog, self.encoder, set)?,
            None => None,
        };
        Ok(Header {
            permissions: meta.permissions & 0o7777,
            uid: self.owners.number(meta.uid)?,
            gid: self.owners.number(meta.gid)?,
            modified,
            number: self.numbers[id.index()],
            links: self.catalog.links(id),
            xattr,
        })
    }

    fn file(&mut self, header: &Header, placement: &Placement, size: u64) -> Result<()> {
        let Placement { start, sparse, tail, .. } = *placement;
        self.inodes.put(self.encoder, &header.file(&File { start, size, sparse, tail }))?;
        let block_size = self.geometry.block_size;
        let count = Data::size_field_count(placement, size, block_size);
        let size_fields =
            &self.data.size_fields[placement.size_fields..placement.size_fields + count];
        for part in size_fields.chunks(SIZE_FIELDS) {
            let bytes: Vec<u8> =
                part.iter().flat_map(|size_field| size_field.to_le_bytes()).collect();
            self.inodes.put(self.encoder, &bytes)?;
        }
        self.inodes_of_files += 1;
        self.layout.files += u64::from(header.links);
        self.layout.bytes += size;
        self.layout.hole_bytes += sparse;
        let compressed = size_fields
            .iter()
            .enumerate()
            .filter(|(_, size_field)| **size_field != 0 && !is_uncompressed(**size_field));
        let block =
            |nth: usize| u64::from(block_size).min(size - nth as u64 * u64::from(block_size));
        self.decoded += compressed.map(|(nth, _)| block(nth)).sum::<u64>() as f64;
        if let Some(tail) = tail {
            let Fragment { size_field, len, .. } = self.data.fragments[tail.fragment as usize];
            self.decoded += if is_uncompressed(size_field) { 0.0 } else { f64::from(len) };
        }
        Ok(())
    }

    fn directory_inode(&mut self, header: Header, id: InodeId, parent: u32) -> Result<()> {
        let Some((listing, links)) = self.listings.remove(&id) else {
            return Err(Error::new(
                Kind::Io,
                "internal error: a directory comes before its listing",
            ));
        };
        let directory = Directory {
            block: listing.position.block32("directory")?,
            offset: listing.position.offset,
            // Three more for `.` and `..`, which are not stored.
            size: listing.len + 3,
            parent,
            index_count: listing.index_count,
        };
        self.layout.directories += 1;
        self.inodes.put(self.encoder, &Header { links, ..header }.directory(&directory))?;
        self.inodes.put(self.encoder, &listing.index)
    }
}
