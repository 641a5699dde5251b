//! Limits of the format that a catalog can exceed, checked before hours of packing.
//!
//! The writers of the tables check the same limits again, and those that depend on the layout.

use crate::error::Result;
use crate::pack::catalog::{Catalog, InodeKind};

use super::directories;
use super::tables::Owners;

/// Checks the number of owners and the sizes of directories.
///
/// Fails with `InvalidInput` if one of them cannot be stored; the message names the limit.
pub(super) fn check(catalog: &Catalog) -> Result<()> {
    let mut owners = Owners::default();
    for id in catalog.named() {
        let inode = catalog.inode(id);
        owners.number(inode.meta.uid)?;
        owners.number(inode.meta.gid)?;
        if matches!(inode.kind, InodeKind::Directory(_)) {
            directories::check_names(catalog.entries(id).map(|(name, _)| name))?;
        }
    }
    Ok(())
}
