//! Writes SquashFS 4.0 images for random reads.
//!
//! `data` writes the bytes of files, or copies them as `base` says. `tree` writes the inodes and
//! directories. The other tables and the superblock come last. `formats::squashfs` reads images and
//! shares no code with this writer.
//!
//! Invariant: the image depends only on the catalog, the recipe and the earlier image, not on the
//! number of threads.
//!
//! Memory: 44 bytes an inode and the compressed tables, which are spilled; 4 bytes a block, and
//! some 30 bytes a file to find duplicates. A file that is copied from an earlier image takes about
//! 100 bytes instead. The number of threads bounds the memory of batches and fragment blocks.

use serde::Serialize;
use zerocopy::IntoBytes;

use crate::codecs::Encoder;
use crate::error::Result;
use crate::pack::catalog::{Catalog, InodeKind};
use crate::pack::output::Output;
use crate::pack::{Job, OnProblem};
use crate::units::counted;

mod base;
mod blocks;
mod data;
mod duplicates;
mod geometry;
mod inodes;
mod superblock;
mod tables;
#[cfg(test)]
mod tests;
mod tree;

use geometry::{Geometry, Tails};
use superblock::Superblock;
use tables::Owners;

pub(crate) use base::Base;
pub use geometry::{Compressor, Profile, Recipe};

/// Alignment of the image size, bytes. A loop device needs whole pages.
const PADDING: u64 = 4096;

/// The contents of an image in numbers, counted and not estimated.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Layout {
    /// Names of regular files.
    pub files: u64,
    /// Names that are not the first of their file.
    pub hard_links: u64,
    /// Directories, including the root.
    #[serde(rename = "folders")]
    pub directories: u64,
    /// Names of symbolic links.
    pub symlinks: u64,
    /// Names of devices, pipes and sockets.
    pub specials: u64,
    /// Files that were left out because they could not be read or stored.
    pub failed: u64,
    /// Bytes of all files, including their holes.
    pub bytes: u64,
    /// Bytes of holes.
    pub hole_bytes: u64,
    /// Bytes of the image, without padding.
    pub stored_bytes: u64,
    /// Bytes of tables: inodes, names, attributes.
    pub metadata_bytes: u64,
    /// The name of the compressor.
    pub compressor: &'static str,
    /// Its level, if it has levels.
    pub level: Option<u32>,
    /// Block size, bytes.
    pub block_size: u32,
    /// Maximum number of bytes decoded to read a file smaller than a fragment block.
    pub read_cost: u32,
    /// Bytes decoded on average to read one file, each equally likely.
    pub mean_decoded: f64,
    /// Files with the same bytes as an earlier file.
    pub duplicates: u64,
    /// Bytes of the duplicates.
    pub duplicate_bytes: u64,
    /// Files that have not changed since an earlier image was made, and whose blocks were copied.
    pub reused: u64,
    /// Bytes of these files.
    pub reused_bytes: u64,
    /// Number of uncompressed blocks.
    pub plain_blocks: u64,
    /// Number of compressed blocks.
    pub compressed_blocks: u64,
    /// Number of fragment blocks, which several files share. The two numbers above include them.
    pub fragments: u64,
    /// What could not be kept, in sentences.
    pub notes: Vec<String>,
}

impl Layout {
    fn count_block(&mut self, size_field: u32) {
        match blocks::is_uncompressed(size_field) {
            true => self.plain_blocks += 1,
            false => self.compressed_blocks += 1,
        }
    }
}

/// Writes an image of `catalog` to `output`, which is empty. Copies what has not changed since
/// `base`, for which `recipe` is fitted. A file that cannot be packed is a
/// problem of `job`; if the run must then be abandoned, the output is no valid image.
///
/// # Errors
/// `Interrupted`; `InvalidInput` if a limit of the format is exceeded; errors of writing.
pub(crate) fn write(
    job: &Job<'_>,
    catalog: &Catalog,
    recipe: &Recipe,
    base: Option<&Base>,
    on_problem: OnProblem,
    output: &mut Output,
) -> Result<Layout> {
    let files = catalog.files();
    check_limits(catalog)?;
    let geometry = Geometry::choose(recipe, catalog, &files);
    let compressor = geometry.compressor;
    output.append(&[0; superblock::SIZE])?;
    output.append(&superblock::options(compressor).unwrap_or_default())?;
    let mut layout = Layout {
        compressor: compressor.name(),
        level: compressor.level(),
        block_size: geometry.block_size,
        read_cost: geometry.fragment_size,
        ..Layout::default()
    };
    let data =
        data::write(job, catalog, &geometry, (&files, base), on_problem, &mut layout, output)?;
    let mut encoder = Encoder::new(geometry.metadata_method())?;
    let tree_start = output.len();
    job.progress.begin("writing inodes and directories");
    let tree =
        tree::write(job, catalog, &geometry, &data, recipe.epoch, &mut layout, &mut encoder)?;
    data.states.check()?;
    if on_problem == OnProblem::Abort && layout.failed > 0 {
        return Ok(layout);
    }
    let (skipped, changed_times) = (tree.xattrs.skipped, tree.changed_times);
    let superblock = finish(recipe, &geometry, &data, tree, &mut encoder, output)?;
    output.overwrite(&superblock.encode(), 0)?;
    let padding = output.len().next_multiple_of(PADDING) - output.len();
    output.append(&vec![0; padding as usize])?;
    layout.stored_bytes = superblock.bytes_used;
    layout.metadata_bytes = superblock.bytes_used - tree_start;
    if changed_times > 0 {
        let objects = counted(changed_times, "object");
        layout
            .notes
            .push(format!("times of {objects} changed: SquashFS has those from 1970 to 2106"));
    }
    if skipped > 0 {
        layout.notes.push(format!(
            "{} left out: SquashFS stores only user, trusted and security attributes of at most 64 KiB",
            counted(skipped, "extended attribute")
        ));
    }
    Ok(layout)
}

/// Checks the number of owners and the sizes of directories before hours of packing. The writers of
/// the tables check them again.
///
/// Fails with `InvalidInput` if one of them cannot be stored; the message names the limit.
fn check_limits(catalog: &Catalog) -> Result<()> {
    let mut owners = Owners::default();
    for id in catalog.named() {
        let inode = catalog.inode(id);
        owners.number(inode.meta.uid)?;
        owners.number(inode.meta.gid)?;
        if matches!(inode.kind, InodeKind::Directory(_)) {
            inodes::check_names(catalog.entries(id).map(|(name, _)| name))?;
        }
    }
    Ok(())
}

/// Writes the tables in the order in which Linux expects them, and records their offsets.
fn finish(
    recipe: &Recipe,
    geometry: &Geometry,
    data: &data::Data,
    tree: tree::Tree,
    encoder: &mut Encoder,
    output: &mut Output,
) -> Result<Superblock> {
    let inode_table = output.len();
    output.append(&tree.inodes)?;
    let directory_table = output.len();
    output.append(&tree.directories)?;
    let fragment_table = match data.fragments.is_empty() {
        true => None,
        false => Some(tables::write(&tables::fragments(&data.fragments), encoder, output)?),
    };
    let export_table = tables::write(tree.references.as_bytes(), encoder, output)?;
    tree.check()?;
    let id_table = tables::write(tree.owners.records(), encoder, output)?;
    let xattr_table = tree.xattrs.write(encoder, output)?;
    Ok(Superblock {
        compressor: geometry.compressor,
        block_size: geometry.block_size,
        has_all_tails: geometry.tails == Tails::All,
        inodes: tree.references.len() as u32,
        modified: recipe.epoch.map_or(tree.newest, tree::seconds),
        fragments: data.fragments.len() as u32,
        owners: tree.owners.count(),
        root: tree.root,
        bytes_used: output.len(),
        id_table,
        xattr_table,
        inode_table,
        directory_table,
        fragment_table,
        export_table,
    })
}
