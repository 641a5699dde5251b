//! The directories below the target: created first, completed last.

use std::collections::HashSet;
use std::os::fd::AsFd;

use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;

use super::attributes::{Object, restore};
use super::listing::{DirectoryId, Listing};
use super::report::{Failure, Report};
use super::target::{OpenDirectories, Target};
use crate::vfs::{Counts, Tree};

/// The directories that could not be created, and those below them. They are reported once, and
/// what is in them is left out.
pub(super) struct Unusable(HashSet<DirectoryId>);

impl Unusable {
    pub(super) fn contains(&self, id: DirectoryId) -> bool {
        self.0.contains(&id)
    }
}

/// Creates all directories, for this user alone.
pub(super) fn create(listing: &Listing, target: &Target, report: &Report<'_>) -> Unusable {
    let mut unusable = Unusable(HashSet::new());
    let mut opened = OpenDirectories::new(target, listing);
    for id in listing.below_root() {
        if report.is_stopped() {
            break;
        }
        let parent = listing.directory(id).parent;
        if unusable.contains(parent) {
            unusable.0.insert(id);
            continue;
        }
        let created = opened.open(parent).and_then(|parent| {
            match mkdirat(&parent, listing.directory_name(id), Mode::RWXU) {
                // It must be a directory.
                Err(Errno::EXIST) => opened.open(id).map(drop),
                created => created,
            }
        });
        if let Err(errno) = created {
            let failure = match errno {
                Errno::NOTDIR | Errno::LOOP => Failure::NotADirectory,
                errno => Failure::System("cannot create the directory", errno),
            };
            report.failed(listing.directory_path(id), &failure);
            unusable.0.insert(id);
        }
    }
    unusable
}

/// Sets the attributes of all directories, those of the target only if it was created.
pub(super) fn complete(
    tree: &dyn Tree,
    (listing, unusable): (&Listing, &Unusable),
    target: &Target,
    report: &Report<'_>,
) {
    let mut opened = OpenDirectories::new(target, listing);
    let root = target.is_new().then_some(DirectoryId::ROOT);
    // From the bottom up, because a directory may become unreadable.
    for id in listing.below_root().rev().chain(root) {
        if report.is_stopped() {
            return;
        }
        if unusable.contains(id) {
            continue;
        }
        let path = || listing.directory_path(id);
        let opened = opened.open(id).map_err(|errno| Failure::System("cannot open", errno));
        let restored = opened.and_then(|opened| {
            let attr = tree.attr(listing.directory(id).ino).map_err(Failure::Tree)?;
            restore(tree, &attr, Object::Open(opened.as_fd()), report, &path)
        });
        match restored {
            Ok(()) => report.written(Counts { directories: 1, ..Counts::default() }),
            Err(failure) => report.failed(path(), &failure),
        }
    }
}
