//! Groups files into samples as webdataset does (its tariterators.py, `base_plus_ext` and
//! `group_by_keys`).
//!
//! Invariant: the files of a sample are neighbors in one directory, because the key is the name up
//! to its first dot.

use std::ops::Range;

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

    pub(super) fn files(
        &self,
        catalog: &Catalog,
        sample: Sample,
    ) -> impl Iterator<Item = (Vec<u8>, InodeId)> {
        let directory = &self.directories[sample.directory as usize];
        files_in(catalog, directory.id, sample)
            .map(move |(name, id)| ([&directory.path, name].concat(), id))
    }

    pub(super) fn ids(&self, catalog: &Catalog, sample: Sample) -> impl Iterator<Item = InodeId> {
        files_in(catalog, self.directories[sample.directory as usize].id, sample).map(|(_, id)| id)
    }

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

/// The numbers from 0 up to `count`, shuffled. The same count and seed give the same order in every
/// version.
///
/// The shuffle is Fisher-Yates from the last index down to 1: index `i` is swapped with a number
/// below `i + 1`. Numbers come from SplitMix64 (Steele, Lea, Flood 2014; its initial state is the
/// seed). Each is brought into range as the upper half of a 128-bit product (Lemire 2019, without
/// the rejection: its bias is below 2^-32 for fewer than 2^32 samples).
pub(super) fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    let mut state = seed;
    for last in (1..order.len()).rev() {
        let below = last as u128 + 1;
        let pick = (u128::from(split_mix(&mut state)) * below) >> 64;
        order.swap(last, pick as usize);
    }
    order
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Splits samples of these sizes into shards of at most `max_bytes` bytes, as computed by
/// `finished`. A shard exceeds that only if it holds a single sample.
pub(super) fn cut(
    sizes: impl Iterator<Item = u64>,
    max_bytes: u64,
    finished: impl Fn(u64) -> u64,
) -> Vec<Range<usize>> {
    let mut shards: Vec<Range<usize>> = Vec::new();
    let mut filled = 0_u64;
    for (nth, size) in sizes.enumerate() {
        match shards.last_mut() {
            Some(last) if finished(filled.saturating_add(size)) <= max_bytes => {
                last.end = nth + 1;
                filled += size;
            }
            _ => {
                shards.push(nth..nth + 1);
                filled = size;
            }
        }
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        // The first outputs of Vigna's splitmix64.c from the seed 1234567.
        let mut state = 1_234_567;
        let found: Vec<_> = (0..3).map(|_| split_mix(&mut state)).collect();
        let published =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(found, published);
    }

    #[test]
    fn a_seed_gives_one_order_and_another_seed_another() {
        let order = shuffled(1000, 42);
        assert_eq!(order, shuffled(1000, 42));
        assert_ne!(order, shuffled(1000, 43));
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        assert!(shuffled(0, 1).is_empty());
        assert_eq!(shuffled(1, 1), [0]);
    }

    #[test]
    fn each_position_is_equally_likely() {
        let mut found = [0_u32; 5];
        for seed in 0..10_000 {
            found[shuffled(5, seed).iter().position(|&nth| nth == 0).unwrap()] += 1;
        }
        assert!(found.iter().all(|count| (1850..2150).contains(count)), "{found:?}");
    }

    #[test]
    fn shards_are_full_but_not_too_full() {
        let cuts = |sizes: &[u64], max_bytes| cut(sizes.iter().copied(), max_bytes, |len| len + 1);
        assert_eq!(cuts(&[4, 5, 1, 20, 9], 10), [0..2, 2..3, 3..4, 4..5]);
        assert_eq!(cuts(&[4, 6], 10), [0..1, 1..2]);
        assert!(cuts(&[], 10).is_empty());
    }
}
