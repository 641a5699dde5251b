//! Groups files into samples as webdataset does (its tariterators.py, `base_plus_ext` and
//! `group_by_keys`).
//!
//! Invariant: the files of a sample are neighbors in one directory, because the key is the name up
//! to its first dot.

use super::Labels;
use crate::error::{Error, Kind};
use crate::pack::Job;
use crate::pack::catalog::{Catalog, InodeId, InodeKind};
use crate::units::counted;
use crate::vfs::FileKind;

/// A sample: consecutive entries of a directory. Entries that are no regular files do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// Index into `Samples::directories`.
    pub(super) directory: u32,
    pub(super) first: u32,
    pub(super) count: u32,
}

/// A directory with samples.
pub(super) struct Directory {
    pub(super) id: InodeId,
    /// Its path with a trailing slash; empty for the root.
    pub(super) path: Vec<u8>,
    /// The number of its top directory among all top directories; `None` for the root.
    pub(super) class: Option<u32>,
}

/// All samples, in the order of names.
#[derive(Default)]
pub(super) struct Samples {
    pub(super) directories: Vec<Directory>,
    pub(super) samples: Vec<Sample>,
    /// The names of the top directories, in their order.
    pub(super) classes: Vec<Vec<u8>>,
    left_out: Counted,
    other: Counted,
    dotted: Counted,
}

/// A counter that keeps the first path counted.
#[derive(Default)]
struct Counted {
    count: u64,
    first: Vec<u8>,
}

impl Counted {
    fn add(&mut self, directory: &[u8], name: &[u8]) {
        if self.count == 0 {
            self.first = [directory, name].concat();
        }
        self.count += 1;
    }

    fn note(&self, message: &str) -> Option<String> {
        let first = String::from_utf8_lossy(&self.first);
        let files = counted(self.count, "file");
        (self.count > 0).then(|| format!("{files} {message}, for example {first}"))
    }
}

/// Splits a name at its first dot into key and extension. `None` if there is no dot or no key:
/// webdataset skips such files, or groups all of a directory into one sample.
pub(super) fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let dot = name.iter().position(|&byte| byte == b'.').filter(|&dot| dot > 0)?;
    Some((&name[..dot], &name[dot + 1..]))
}

impl Samples {
    /// Finds all samples. A sample that webdataset cannot read is a problem of the job.
    pub(super) fn find(job: &Job<'_>, catalog: &Catalog, labels: Labels) -> Self {
        let mut found = Self::default();
        let mut directories = vec![Directory { id: InodeId::ROOT, path: Vec::new(), class: None }];
        while let Some(directory) = directories.pop() {
            let before = directories.len();
            found.directory(job, catalog, labels, directory, &mut directories);
            // The stack returns the last one first.
            directories[before..].reverse();
        }
        found
    }

    /// Notes about files that are not packed as the user may expect.
    pub(super) fn notes(&self) -> Vec<String> {
        let notes = [
            self.left_out.note("left out: no key or no extension"),
            self.other.note("left out: links and special files"),
            self.dotted.note("with more than one dot in the name: the key ends at the first dot"),
        ];
        notes.into_iter().flatten().collect()
    }

    fn directory(
        &mut self,
        job: &Job<'_>,
        catalog: &Catalog,
        labels: Labels,
        directory: Directory,
        below: &mut Vec<Directory>,
    ) {
        let number = self.directories.len() as u32;
        let mut run: Option<(Sample, &[u8])> = None;
        let mut runs = Vec::new();
        for (nth, (name, id)) in catalog.entries(directory.id).enumerate() {
            match catalog.inode(id).kind {
                InodeKind::Directory(_) => {
                    let path = [&directory.path, name, b"/"].concat();
                    let class = directory.class.or_else(|| {
                        self.classes.push(name.to_vec());
                        Some(self.classes.len() as u32 - 1)
                    });
                    // webdataset skips these names because it uses them itself.
                    let own = directory.path.is_empty() && is_meta(name);
                    if own {
                        self.left_out.add(&directory.path, name);
                    } else {
                        below.push(Directory { id, path, class });
                    }
                }
                InodeKind::File { .. } => {
                    let Some((key, extension)) = split(name) else {
                        self.left_out.add(&directory.path, name);
                        continue;
                    };
                    if extension.contains(&b'.') {
                        self.dotted.add(&directory.path, name);
                    }
                    let nth = nth as u32;
                    match &mut run {
                        Some((sample, same)) if *same == key => {
                            sample.count = nth - sample.first + 1;
                        }
                        _ => {
                            let sample = Sample { directory: number, first: nth, count: 1 };
                            runs.extend(run.replace((sample, key)));
                        }
                    }
                }
                _ => self.other.add(&directory.path, name),
            }
        }
        runs.extend(run);
        for (sample, key) in runs {
            match invalid_reason(catalog, &directory, sample, labels) {
                Some(error) => {
                    let path = [&directory.path, key].concat();
                    job.problem(String::from_utf8_lossy(&path), &error);
                }
                None => self.samples.push(sample),
            }
        }
        self.directories.push(directory);
    }

    /// The path of a sample's key.
    pub(super) fn key(&self, catalog: &Catalog, sample: Sample) -> Vec<u8> {
        let directory = &self.directories[sample.directory as usize];
        let name =
            catalog.entry(directory.id, sample.first as usize).map_or(&[][..], |(name, _)| name);
        let key = split(name).map_or(name, |(key, _)| key);
        [&directory.path, key].concat()
    }

    /// The files of a sample: paths and inodes.
    pub(super) fn files(
        &self,
        catalog: &Catalog,
        sample: Sample,
    ) -> impl Iterator<Item = (Vec<u8>, InodeId)> {
        let directory = &self.directories[sample.directory as usize];
        files_in(catalog, directory.id, sample)
            .map(move |(name, id)| ([&directory.path, name].concat(), id))
    }

    /// The inodes of the files of a sample.
    pub(super) fn ids(&self, catalog: &Catalog, sample: Sample) -> impl Iterator<Item = InodeId> {
        files_in(catalog, self.directories[sample.directory as usize].id, sample).map(|(_, id)| id)
    }

    /// The class of a sample.
    pub(super) fn class(&self, sample: Sample) -> Option<u32> {
        self.directories[sample.directory as usize].class
    }
}

fn files_in(
    catalog: &Catalog,
    directory: InodeId,
    sample: Sample,
) -> impl Iterator<Item = (&[u8], InodeId)> {
    let entries = sample.first as usize..(sample.first + sample.count) as usize;
    entries
        .filter_map(move |nth| catalog.entry(directory, nth))
        .filter(|&(_, id)| catalog.inode(id).file_kind() == FileKind::Regular)
}

/// Whether webdataset reserves the name of a top directory: `__x__`.
fn is_meta(name: &[u8]) -> bool {
    name.len() >= 4 && name.starts_with(b"__") && name.ends_with(b"__")
}

/// Why a sample is invalid, if it is.
fn invalid_reason(
    catalog: &Catalog,
    directory: &Directory,
    sample: Sample,
    labels: Labels,
) -> Option<Error> {
    let error = |message| Some(Error::new(Kind::InvalidInput, message));
    let mut seen: Vec<Vec<u8>> = Vec::new();
    for (name, _) in files_in(catalog, directory.id, sample) {
        let (_, extension) = split(name)?;
        // webdataset converts extensions to lower case.
        let extension = extension.to_ascii_lowercase();
        if seen.contains(&extension) {
            let extension = String::from_utf8_lossy(&extension).into_owned();
            return error(format!(
                "two files with the extension .{extension}, which differ only in case"
            ));
        }
        seen.push(extension);
    }
    match labels {
        Labels::ByDirectory if seen.iter().any(|extension| extension == b"cls") => {
            error("has a file .cls already, which --labels would add".to_owned())
        }
        Labels::ByDirectory if directory.class.is_none() => {
            error("not in a directory, so it has no class for --labels".to_owned())
        }
        _ => None,
    }
}
