//! Finds what is to be packed: directories, lists of files and archives become one catalog.
//!
//! `disk` and `table` handle files on a disk, `tree` an archive. `walk` visits either, and
//! `placing` fills the catalog. `selection` selects files and leaves files out, `map` moves them.
//!
//! Invariants: the catalog depends on the sources and their order, never on threads or on the order
//! of a disk. What cannot be listed is reported, and the rest is packed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Job;
use super::catalog::{Catalog, InodeId, Owner};
use crate::error::{Error, Kind, Result};
use crate::formats::NameEncoding;

mod disk;
mod map;
mod opening;
mod placing;
mod selection;
mod table;
#[cfg(test)]
mod tests;
mod tree;
mod walk;

use disk::{DiskDirectory, OutputArchive};
use map::PathMap;
use opening::{Opened, PlainFile};
use placing::{CatalogFiller, Destination, Directory, Found};
use selection::{Exclusions, Selection, Wanted};
use table::{Rows, Table};
use tree::{Archive, VisitedDirectories};
use walk::Walk;

pub use disk::{OtherMounts, OutputNames};
pub use placing::XattrRule;
pub use selection::{Excludes, FileList, Separator};

/// What is to be packed.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Directories, archives and other files. If two files get the same path, the later one wins.
    pub paths: Vec<PathBuf>,
    /// Selects files of the one source, or of the current directory if there is none; `None` packs
    /// everything.
    pub list: Option<FileList>,
    /// Selects files that are left out, by their paths in the archive before `map` moves them.
    pub excludes: Excludes,
    /// Whether extended attributes are packed.
    pub xattr_rule: XattrRule,
    /// A file of paths and their new paths; `-` is standard input.
    pub map: Option<PathBuf>,
    /// The owner of all files.
    pub owner: Owner,
    /// Whether archives inside archives become directories. If an archive contains only archives,
    /// they always do.
    pub recursive: bool,
    /// The encoding of names in ZIP archives that are not marked as UTF-8.
    pub name_encoding: Option<NameEncoding>,
    /// Whether files are packed as they are, also archives. Otherwise a single source must be a
    /// directory or an archive.
    pub as_file: bool,
    /// Memory for decoded blocks of all archives together, bytes.
    pub cache_bytes: u64,
    /// What happens to directories on which another file system is mounted.
    pub other_mounts: OtherMounts,
    /// The archive to be written, which is not packed into itself.
    pub output: Option<PathBuf>,
    /// Which files the run writes in the directory of the archive.
    pub names: OutputNames,
}

/// Finds everything that is to be packed.
///
/// # Errors
/// `Usage` and `InvalidInput` if the sources, the list or the map are unusable; `NotFound`,
/// `Corrupt` and other errors if a source cannot be opened; `Interrupted`. A file below a source
/// that cannot be read is a problem of the job.
pub(crate) fn gather(job: &Job<'_>, sources: &Sources) -> Result<Gathered> {
    let paths = sources.checked_paths()?;
    let selection = sources.list.as_ref().map(FileList::read).transpose()?;
    let exclusions = Exclusions::read(&sources.excludes)?;
    let mut map = sources.map.as_deref().map(PathMap::read).transpose()?;
    let output_archive =
        sources.output.as_deref().and_then(|path| OutputArchive::new(path, sources.names));
    let mut opened = opening::all(job, sources, &paths, output_archive.as_ref())?;
    if selection.is_some() && !opened.iter().all(Opened::holds_files) {
        let context = format!("{}: neither a directory nor an archive", paths[0].display());
        return Err(Error::new(Kind::NotADirectory, context)
            .with_hint("--files-from selects files of a directory or an archive"));
    }
    job.progress.begin("listing files");
    let filler = CatalogFiller::new(map.as_mut(), exclusions);
    let mut gathering = Gathering { job, selection: selection.as_ref(), filler, plain: 0 };
    gathering.plain_files(&mut opened)?;
    for (path, opened) in paths.iter().zip(opened) {
        job.check()?;
        match opened {
            Opened::Directory(directory, found) => {
                let name = name_in_archive(path, paths.len() == 1)?;
                if name.as_ref().is_none_or(|name| !gathering.filler.excludes(b"", name, true)) {
                    gathering.directory(name.as_deref(), directory, found)?;
                }
            }
            Opened::Archive(archive) => gathering.archive(archive)?,
            Opened::PlainFile(file) => gathering.add_plain_file(path, file)?,
        }
    }
    let excluded = gathering.filler.excluded();
    Ok(Gathered { catalog: gathering.filler.finish(sources.owner)?, excluded })
}

pub(crate) struct Gathered {
    pub(crate) catalog: Catalog,
    /// Number of files and directories that were excluded, not counting those below excluded
    /// directories.
    pub(crate) excluded: u64,
}

impl Sources {
    /// The paths, after all checks that need no file to be opened.
    fn checked_paths(&self) -> Result<Vec<PathBuf>> {
        let usage = |message: &str| Err(Error::new(Kind::Usage, message));
        let list = self.list.as_ref().map(|list| &list.path);
        let inputs = self.paths.iter().chain(list).chain(&self.map).chain(&self.excludes.files);
        if inputs.filter(|path| is_stdin(path)).count() > 1 {
            return usage("only one argument can be -, standard input");
        }
        if self.as_file && self.paths.iter().any(|path| is_stdin(path)) {
            return usage("--as-file: standard input has no name in the archive");
        }
        match (self.paths.as_slice(), &self.list) {
            ([], None) => usage("nothing to pack"),
            ([], Some(_)) => Ok(vec![PathBuf::from(".")]),
            ([_, _, ..], Some(_)) => usage("--files-from takes one source, but several are given"),
            (paths, _) => Ok(paths.to_vec()),
        }
    }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The name of a directory in the archive; `None` if its contents go into the root.
fn name_in_archive(path: &Path, alone: bool) -> Result<Option<Vec<u8>>> {
    let mut bytes = path.as_os_str().as_bytes();
    while let [rest @ .., b'/'] = bytes {
        bytes = rest;
    }
    if alone || bytes.is_empty() || bytes == b"." || bytes.ends_with(b"/.") {
        return Ok(None);
    }
    if let Some(name) = path.file_name() {
        return Ok(Some(name.as_bytes().to_vec()));
    }
    // The path ends in `..`: resolve it to find the name.
    let real = fs::canonicalize(path).map_err(|error| {
        Error::io(format!("{}: cannot resolve the path", path.display()), error)
    })?;
    Ok(real.file_name().map(OsStr::as_bytes).map(<[u8]>::to_vec))
}

struct Gathering<'g, 'j> {
    job: &'g Job<'j>,
    selection: Option<&'g Selection>,
    filler: CatalogFiller<'g>,
    /// The number of the source of plain files.
    plain: u32,
}

impl Gathering<'_, '_> {
    fn directory(
        &mut self,
        name: Option<&[u8]>,
        directory: DiskDirectory<'_>,
        found: Found,
    ) -> Result<()> {
        let destination = Destination {
            path: name.unwrap_or_default(),
            source: self.filler.next_source(),
            space: 0,
        };
        let top = self.top(name, found);
        let mut rows = Rows::new();
        let walk =
            Walk { job: self.job, source: &directory, selection: self.selection, destination };
        walk.run(top, &mut self.filler, &mut |parent, name, found| {
            rows.add(parent.key, name, found)
        })?;
        let (base, display) = directory.into_base();
        self.filler.source(Box::new(Table::new(rows, base, display)));
        Ok(())
    }

    fn archive(&mut self, archive: Archive) -> Result<()> {
        let source = self.filler.next_source();
        let destination = Destination { path: b"", source, space: source + 1 };
        let top = self.top(None, archive.top()?);
        let mut visited = VisitedDirectories::default();
        let walk = Walk { job: self.job, source: &archive, selection: self.selection, destination };
        walk.run(top, &mut self.filler, &mut |_, _, found| visited.key(found))?;
        self.filler.source(Box::new(archive));
        Ok(())
    }

    /// The directory that a source itself is.
    fn top(&mut self, name: Option<&[u8]>, found: Found) -> Directory {
        let id = found.id;
        let wanted = self.selection.map_or(Wanted::All, Selection::top);
        let name = name.and_then(crate::vfs::Name::parse);
        let inode = self.filler.top(name, found);
        Directory { path: Box::default(), id, key: 0, inode, wanted }
    }

    /// Makes one source of bytes for all plain files, because there may be many.
    fn plain_files(&mut self, opened: &mut [Opened<'_>]) -> Result<()> {
        let mut rows = Rows::new();
        let mut any = false;
        for opened in opened {
            if let Opened::PlainFile(PlainFile { path, found, key }) = opened {
                *key = rows.add(0, path.as_os_str().as_bytes(), found)?;
                any = true;
            }
        }
        if any {
            self.plain = self.filler.next_source();
            let base = opening::open_directory(Path::new("."))?;
            self.filler.source(Box::new(Table::new(rows, base, Vec::new())));
        }
        Ok(())
    }

    fn add_plain_file(&mut self, path: &Path, file: PlainFile) -> Result<()> {
        let root = Directory {
            path: Box::default(),
            id: file.found.id,
            key: 0,
            inode: InodeId::ROOT,
            wanted: Wanted::All,
        };
        let destination = Destination { path: b"", source: self.plain, space: 0 };
        let name = path.file_name().unwrap_or_default().as_bytes();
        if self.filler.excludes(b"", name, false) {
            return Ok(());
        }
        let key = file.key;
        let added = self.filler.add(&destination, &root, name, file.found, key);
        added.map(drop).map_err(|error| error.within(path.display()))
    }
}
