//! Files that appear all together or not at all.
//!
//! Invariant: no file gets its name before all files are complete and on the disk. If a name cannot
//! be given, names given before are removed, unless they replaced files of an earlier run.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::os::directory::{Directory, parent_of};
use crate::pack::output::{Existing, Output, Sealed, open_parent};

/// Maximum number of unnamed files kept open; each needs a descriptor.
const OPEN_MAX: usize = 256;

/// Digits of the number in a name. Larger numbers have more.
const DIGITS: usize = 6;

/// The shards of a run, and the list of classes.
pub(in crate::pack) struct ShardSet {
    /// The common start of all paths.
    stem: PathBuf,
    directory: Directory,
    existing: Existing,
    sealed: Vec<Sealed>,
    shards: u64,
}

impl ShardSet {
    /// Creates a set for `path`, the name without numbers: `a.tar` for `a-000000.tar`.
    ///
    /// Fails with `InvalidInput` if shards with that name exist and must not be replaced; `Usage`
    /// if the name does not end with `.tar`; `Io`.
    pub(super) fn new(path: &Path, existing: Existing) -> Result<Self> {
        if path.extension() != Some("tar".as_ref()) {
            let context = format!("{}: the name of shards must end in .tar", path.display());
            return Err(Error::new(Kind::Usage, context)
                .with_hint("OUT.tar makes OUT-000000.tar and so on"));
        }
        let stem = path.with_extension("");
        let directory = open_parent(path)?;
        let set = Self { stem, directory, existing, sealed: Vec::new(), shards: 0 };
        match set.existing_files()?.first() {
            Some(found) if existing == Existing::Refuse => {
                let found = path.with_file_name(found);
                let context = format!("{}: already exists", found.display());
                Err(Error::new(Kind::InvalidInput, context)
                    .with_hint("use --force to replace all shards of that name"))
            }
            _ => Ok(set),
        }
    }

    pub(super) fn shard(&mut self) -> Result<Output> {
        let number = self.shards;
        self.shards += 1;
        let path = self.named(&format!("-{number:0DIGITS$}.tar"));
        Output::create_in(&self.directory, &path, self.existing)
    }

    pub(super) fn classes(&self) -> Result<Output> {
        Output::create_in(&self.directory, &self.named("-classes.txt"), self.existing)
    }

    pub(super) fn add(&mut self, output: Output) -> Result<()> {
        let sealed = output.seal()?;
        let sealed = if self.sealed.len() < OPEN_MAX { sealed } else { sealed.closed()? };
        self.sealed.push(sealed);
        Ok(())
    }

    /// Gives all files their names, and removes other files of an earlier run.
    pub(in crate::pack) fn publish(self) -> Result<()> {
        let before = self.existing_files()?;
        let mut published: Vec<OsString> = Vec::new();
        for sealed in self.sealed {
            let name = sealed.name().to_owned();
            if let Err(error) = sealed.publish() {
                for name in published.iter().filter(|name| !before.contains(name)) {
                    // Report the first error, not one of the cleanup.
                    let _ = self.directory.remove_file(name);
                }
                return Err(error);
            }
            published.push(name);
        }
        published.sort();
        for name in before.iter().filter(|name| published.binary_search(name).is_err()) {
            self.directory.remove_file(name).map_err(|error| {
                let path = self.stem.with_file_name(name);
                Error::io(format!("{}: cannot remove", path.display()), error)
            })?;
        }
        Ok(())
    }

    fn named(&self, end: &str) -> PathBuf {
        let mut path = self.stem.clone().into_os_string().into_vec();
        path.extend(end.bytes());
        PathBuf::from(OsString::from_vec(path))
    }

    /// Names of existing files that a run with this stem could use.
    fn existing_files(&self) -> Result<Vec<OsString>> {
        let listed = self.directory.names();
        let mut names = listed.map_err(|error| {
            Error::io(format!("{}: cannot list", parent_of(&self.stem).display()), error)
        })?;
        let stem = self.stem.file_name().unwrap_or_default().as_bytes();
        names.retain(|name| {
            let end = name.as_bytes().strip_prefix(stem).and_then(|end| end.strip_prefix(b"-"));
            end.is_some_and(is_shard_suffix)
        });
        names.sort();
        Ok(names)
    }
}

/// Whether `name` is a shard or the class list of `archive` (`OUT.tar`).
pub(in crate::pack) fn is_shard(archive: &[u8], name: &[u8]) -> bool {
    let stem = archive.strip_suffix(b".tar").unwrap_or(archive);
    name.strip_prefix(stem).and_then(|end| end.strip_prefix(b"-")).is_some_and(is_shard_suffix)
}

/// Whether the part of a name after `OUT-` belongs to a shard or the class list.
fn is_shard_suffix(end: &[u8]) -> bool {
    let number = end.strip_suffix(b".tar");
    let is_shard =
        number.is_some_and(|n| n.len() >= DIGITS && n.iter().all(|byte| byte.is_ascii_digit()));
    is_shard || end == b"classes.txt"
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn fill(set: &mut ShardSet, shards: usize) {
        for nth in 0..shards {
            let mut output = set.shard().unwrap();
            output.append(nth.to_string().as_bytes()).unwrap();
            set.add(output).unwrap();
        }
    }

    #[test]
    fn all_files_appear_at_once() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("a.tar");
        let mut set = ShardSet::new(&path, Existing::Refuse).unwrap();
        fill(&mut set, OPEN_MAX + 10);
        assert!(names(work.path()).iter().all(|name| name.starts_with(".archfs-pack-")));
        set.publish().unwrap();
        let found = names(work.path());
        assert_eq!(found.len(), OPEN_MAX + 10);
        assert_eq!(found[OPEN_MAX + 9], format!("a-{:06}.tar", OPEN_MAX + 9));
        assert_eq!(fs::read_to_string(work.path().join(&found[261])).unwrap(), "261");

        let mut dropped = ShardSet::new(&work.path().join("b.tar"), Existing::Refuse).unwrap();
        fill(&mut dropped, OPEN_MAX + 10);
        drop(dropped);
        assert_eq!(names(work.path()), found);
    }

    #[test]
    fn shards_of_a_longer_run_are_refused_or_removed() {
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("a.tar");
        for other in ["a-000007.tar", "a-classes.txt", "a-1.tar", "ab-000007.tar", "a-00000x.tar"] {
            fs::write(work.path().join(other), "old").unwrap();
        }
        assert!(ShardSet::new(&path, Existing::Refuse).is_err());
        let mut set = ShardSet::new(&path, Existing::Replace).unwrap();
        fill(&mut set, 2);
        set.publish().unwrap();
        let expected = ["a-000000.tar", "a-000001.tar", "a-00000x.tar", "a-1.tar", "ab-000007.tar"];
        assert_eq!(names(work.path()), expected);
    }

    #[test]
    fn removes_given_names_if_one_cannot_be_given() {
        let work = tempfile::tempdir().unwrap();
        let mut set = ShardSet::new(&work.path().join("a.tar"), Existing::Refuse).unwrap();
        fill(&mut set, 3);
        fs::write(work.path().join("a-000001.tar"), "another file").unwrap();
        assert!(set.publish().is_err());
        assert_eq!(names(work.path()), ["a-000001.tar"]);
        assert!(ShardSet::new(&work.path().join("a.sqfs"), Existing::Refuse).is_err());
    }
}
