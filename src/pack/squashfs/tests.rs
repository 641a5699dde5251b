//! Images of trees in memory, written and read again by `formats`.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::Path;

use super::geometry::Profile;
use super::*;
use crate::error::{Error, Kind};
use crate::formats::{self, OpenOptions};
use crate::pack::catalog::{Builder, Content, ContentId, Inode, InodeId, InodeKind, Meta, Owner};
use crate::pack::output::Existing;
use crate::progress::Progress;
use crate::sync::{Arc, AtomicBool};
use crate::vfs::{Cookie, FileKind, Ino, Name, Scratch, Timestamp, Tree};

/// A file in memory: its bytes, and which of them are stored.
#[derive(Clone, Default)]
struct File {
    bytes: Vec<u8>,
    stored: Option<Vec<Range<u64>>>,
    /// How many reads succeed before they fail.
    fails_after: Option<u64>,
}

struct Memory {
    files: Vec<File>,
    reads: Vec<crate::sync::AtomicU64>,
}

impl Content for Memory {
    fn read(&self, key: u64, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let file = &self.files[key as usize];
        let reads = self.reads[key as usize].fetch_add(1, crate::sync::Ordering::Relaxed);
        if file.fails_after.is_some_and(|limit| reads >= limit) {
            return Err(Error::new(Kind::Changed, format!("{}: is gone", self.origin(key))));
        }
        let offset = offset as usize;
        buffer.copy_from_slice(&file.bytes[offset..offset + buffer.len()]);
        Ok(())
    }

    fn next_data(&self, key: u64, offset: u64) -> Result<Option<Range<u64>>> {
        let stored = self.files[key as usize].stored.clone().unwrap_or_default();
        let found = stored.into_iter().find(|range| range.end > offset);
        Ok(found.map(|range| range.start.max(offset)..range.end))
    }

    fn origin(&self, key: u64) -> String {
        format!("memory/{key}")
    }
}

/// A tree under construction.
struct Forest {
    builder: Builder,
    files: Vec<File>,
}

const META: Meta = Meta {
    permissions: 0o755,
    uid: 1000,
    gid: 100,
    modified: Timestamp { seconds: 1_500_000_000, nanoseconds: 0 },
    xattrs: None,
};

fn name(bytes: &[u8]) -> Name<'_> {
    Name::parse(bytes).unwrap()
}

impl Forest {
    fn new() -> Self {
        Self { builder: Builder::new(META), files: Vec::new() }
    }

    fn file(&mut self, parent: InodeId, name_bytes: &[u8], file: File) -> InodeId {
        let key = self.files.len() as u64;
        let (size, sparse) = (file.bytes.len() as u64, file.stored.is_some());
        self.files.push(file);
        let kind = InodeKind::File { size, content: ContentId { source: 0, key }, sparse };
        self.builder.add(parent, name(name_bytes), Inode { meta: META, kind })
    }

    fn bytes(&mut self, parent: InodeId, name_bytes: &[u8], bytes: Vec<u8>) -> InodeId {
        self.file(parent, name_bytes, File { bytes, ..File::default() })
    }

    fn finish(mut self) -> Catalog {
        let reads = self.files.iter().map(|_| crate::sync::AtomicU64::new(0)).collect();
        self.builder.source(Box::new(Memory { files: self.files, reads }));
        self.builder.finish(Owner::default()).unwrap()
    }
}

fn text(len: usize, seed: usize) -> Vec<u8> {
    let words =
        (0..).flat_map(|n: usize| format!("{} ", (n + seed) * (n + seed) % 7919).into_bytes());
    words.take(len).collect()
}

/// One of everything, on both sides of every size that matters.
fn odd() -> Catalog {
    let mut forest = Forest::new();
    let root = InodeId::ROOT;
    for len in [0, 1, 4095, 4096, 4097, 8192, 131_071, 131_072, 131_073, 1 << 20, (1 << 20) + 1] {
        forest.bytes(root, format!("text{len}").as_bytes(), text(len, len));
        let noise = blocks::noise(len, len as u64);
        forest.bytes(root, format!("noise{len}").as_bytes(), noise);
        forest.bytes(root, format!("zeros{len}").as_bytes(), vec![0; len]);
    }
    let long = text(3_500_000, 5);
    for name_bytes in ["long", "longer copy"] {
        forest.bytes(root, name_bytes.as_bytes(), long.clone());
    }
    let mut other = long;
    *other.last_mut().unwrap() ^= 1;
    forest.bytes(root, b"long, almost", other);
    for name_bytes in ["copy1", "copy2", "copy3"] {
        forest.bytes(root, name_bytes.as_bytes(), text(50_000, 9));
    }
    let mut sparse = vec![0; 3_000_000];
    sparse[1_000_000..1_100_000].copy_from_slice(&text(100_000, 3));
    sparse[2_999_999] = 7;
    let stored = Some(vec![1_000_000..1_100_000, 2_999_999..3_000_000]);
    forest.file(root, b"sparse", File { bytes: sparse, stored, fails_after: None });
    let hole = File { bytes: vec![0; 2_000_001], stored: Some(Vec::new()), fails_after: None };
    forest.file(root, b"hole", hole);
    let directory = forest.builder.directory(root, name(b"folder"), META);
    let deep = forest.builder.directory(directory, name(b"deep\xff\xfe"), META);
    forest.builder.directory(directory, name(b"empty"), Meta { permissions: 0o1700, ..META });
    let linked = forest.bytes(deep, b"first", text(5000, 1));
    forest.builder.link(directory, name(b"second"), linked);
    forest.builder.link(root, name(b"a third"), linked);
    forest.bytes(deep, &[b'n'; 255], text(10, 1));
    let mut add = |name_bytes: &[u8], meta: Meta, kind: InodeKind| {
        forest.builder.add(deep, name(name_bytes), Inode { meta, kind })
    };
    add(b"symlink", META, InodeKind::Symlink(b"../no\xffwhere"));
    add(b"long symlink", META, InodeKind::Symlink(&[b'x'; 4000]));
    let (kind, number) = (FileKind::BlockDevice, 0x0810_0321);
    add(b"block", META, InodeKind::Device { kind, number });
    add(b"char", META, InodeKind::Device { kind: FileKind::CharDevice, number: 0x103 });
    add(b"fifo", Meta { uid: u32::MAX - 1, gid: 0, permissions: 0o7777, ..META }, InodeKind::Fifo);
    let time = |seconds| Meta { modified: Timestamp { seconds, nanoseconds: 5 }, ..META };
    add(b"socket", time(-5), InodeKind::Socket);
    add(b"late", time(1 << 33), InodeKind::Socket);
    let pair = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
    let set = vec![
        pair(b"user.one", b"1"),
        pair(b"trusted.two", &[2; 40_000]),
        pair(b"security.three", b""),
        pair(b"system.not", b"kept"),
    ];
    let xattrs = forest.builder.xattrs(set);
    let only = forest.builder.xattrs(vec![pair(b"system.none", b"1")]);
    for (name_bytes, xattrs) in
        [(&b"with"[..], xattrs), (b"with again", xattrs), (b"without", only)]
    {
        let directory = forest.builder.directory(deep, name(name_bytes), Meta { xattrs, ..META });
        for (nth, kind) in [
            InodeKind::Fifo,
            InodeKind::Socket,
            InodeKind::Symlink(b"t"),
            InodeKind::Device { kind: FileKind::CharDevice, number: 1 },
        ]
        .into_iter()
        .enumerate()
        {
            let inode = Inode { meta: Meta { xattrs, ..META }, kind };
            forest.builder.add(directory, name(&[b'0' + nth as u8]), inode);
        }
        let key = forest.files.len() as u64;
        forest.files.push(File { bytes: text(77, 1), ..File::default() });
        let kind =
            InodeKind::File { size: 77, content: ContentId { source: 0, key }, sparse: false };
        forest.builder.add(directory, name(b"f"), Inode { meta: Meta { xattrs, ..META }, kind });
    }
    let many = forest.builder.directory(root, name(b"many"), META);
    for nth in 0..3000 {
        forest.bytes(
            many,
            format!("a rather long name, number {nth}").as_bytes(),
            text(nth % 50, nth),
        );
    }
    for nth in 0..700 {
        forest.bytes(directory, format!("f{nth}").as_bytes(), text(nth * 97, nth));
    }
    forest.finish()
}

const RECIPE: Recipe = Recipe {
    compressor: Some(Compressor::Zstd(3)),
    profile: Profile::Random,
    read_cost: None,
    block_size: None,
    epoch: None,
};

/// Writes an image at `path` and returns its layout and the problems.
fn pack(
    catalog: &Catalog,
    recipe: &Recipe,
    threads: usize,
    path: &Path,
) -> (Layout, Vec<crate::pack::Problem>) {
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let job = Job::new(threads, &progress, &stop);
    let mut output = Output::create(path, Existing::Replace).unwrap();
    let layout = write(&job, catalog, recipe, None, OnProblem::Continue, &mut output).unwrap();
    output.publish().unwrap();
    let problems = job.into_problems();
    (layout, problems)
}

fn open(path: &Path) -> Arc<dyn Tree> {
    let options = OpenOptions { cache_bytes: 64 << 20, ..OpenOptions::default() };
    formats::open(&[path.to_owned()], &options, &Progress::default()).unwrap()
}

/// All entries of a directory.
fn list(tree: &dyn Tree, directory: Ino) -> Vec<(Vec<u8>, Ino)> {
    let mut found = Vec::new();
    let mut visit = |entry: crate::vfs::DirEntry<'_>| {
        found.push((entry.name.as_bytes().to_vec(), entry.ino));
        ControlFlow::Continue(())
    };
    tree.read_dir(directory, Cookie::START, &mut visit).unwrap();
    found
}

fn read(tree: &dyn Tree, file: Ino) -> Vec<u8> {
    let (mut bytes, mut scratch) = (Vec::new(), Scratch::default());
    loop {
        let part = tree.read(file, bytes.len() as u64, 100_000, &mut scratch).unwrap();
        let part = part.as_slice();
        if part.is_empty() {
            return bytes;
        }
        bytes.extend_from_slice(part);
    }
}

/// Compares an image, as `formats` reads it, with the catalog, and verifies it.
fn compare(catalog: &Catalog, path: &Path, epoch: Option<i64>) {
    let tree = open(path);
    let mut inos: BTreeMap<InodeId, Ino> = BTreeMap::new();
    let mut waiting = vec![(InodeId::ROOT, Ino::ROOT)];
    while let Some((id, ino)) = waiting.pop() {
        let (inode, attr) = (catalog.inode(id), tree.attr(ino).unwrap());
        let context = format!("{inode:?} {attr:?}");
        let meta = inode.meta;
        assert_eq!(
            (attr.kind, attr.permissions),
            (inode.file_kind(), meta.permissions),
            "{context}"
        );
        assert_eq!((attr.uid, attr.gid), (meta.uid, meta.gid), "{context}");
        let time = meta.modified.seconds.clamp(0, u32::MAX.into()).min(epoch.unwrap_or(i64::MAX));
        assert_eq!(attr.modified, Timestamp { seconds: time, nanoseconds: 0 });
        let links = match inode.kind {
            InodeKind::Directory(_) => {
                2 + catalog
                    .entries(id)
                    .filter(|(_, id)| matches!(catalog.inode(*id).kind, InodeKind::Directory(_)))
                    .count()
            }
            _ => catalog.links(id) as usize,
        };
        assert_eq!(attr.nlink as usize, links, "{context}");
        // All names lead to the same inode.
        assert_eq!(*inos.entry(id).or_insert(ino), ino);
        match &inode.kind {
            InodeKind::Directory(_) => {
                let found = list(tree.as_ref(), ino);
                assert_eq!(found.len(), catalog.entries(id).len());
                for ((wanted, child), (name_bytes, ino)) in catalog.entries(id).zip(found) {
                    assert_eq!(wanted, name_bytes);
                    let looked_up = tree.lookup(inos[&id], name(wanted));
                    assert_eq!(looked_up.unwrap().unwrap().ino, ino);
                    waiting.push((child, ino));
                }
            }
            InodeKind::File { size, content, .. } => {
                let mut wanted = vec![0; *size as usize];
                catalog.content(*content).read(content.key, 0, &mut wanted).unwrap();
                assert!(read(tree.as_ref(), ino) == wanted, "{context}");
            }
            InodeKind::Symlink(target) => assert_eq!(*tree.read_link(ino).unwrap(), **target),
            InodeKind::Device { number, .. } => assert_eq!(attr.device, *number),
            InodeKind::Fifo | InodeKind::Socket => {}
        }
        let set = meta.xattrs.map_or(&[][..], |set| catalog.xattrs(set));
        let kept = || set.iter().filter(|(name, _)| !name.starts_with(b"system."));
        let names: Vec<u8> = kept().flat_map(|(name, _)| [name, &b"\0"[..]].concat()).collect();
        assert_eq!(tree.list_xattrs(ino).unwrap(), names);
        kept().for_each(|(name, value)| assert_eq!(tree.xattr(ino, name).unwrap(), *value));
    }
    let options = OpenOptions { cache_bytes: 64 << 20, ..OpenOptions::default() };
    let verified = formats::verify(&path.to_owned(), &options, 2, &Progress::default()).unwrap();
    assert_eq!(verified.findings, []);
}

#[test]
fn round_trips_with_each_compressor_and_profile() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("a.sqfs");
    let catalog = odd();
    for compressor in [
        Compressor::Zstd(3),
        Compressor::Zstd(15),
        Compressor::Gzip(1),
        Compressor::Gzip(9),
        Compressor::Xz,
        Compressor::Lz4,
        Compressor::None,
    ] {
        for (nth, (profile, block_size, read_cost, epoch)) in [
            (Profile::Random, None, None, None),
            (Profile::Archive, None, None, Some(1_400_000_000)),
            (Profile::Random, Some(4096), None, None),
            (Profile::Random, Some(1 << 20), Some(20_000), None),
            (Profile::Archive, Some(8192), Some(0), None),
        ]
        .into_iter()
        .enumerate()
        {
            // Sizes are independent of the compressor, so vary them for one only.
            if nth > 1 && compressor != Compressor::Zstd(3) {
                continue;
            }
            let compressor = Some(compressor);
            let recipe = Recipe { compressor, profile, read_cost, block_size, epoch };
            let (layout, problems) = pack(&catalog, &recipe, 3, &path);
            assert_eq!(problems, []);
            assert_eq!(layout.notes.len(), 2, "{layout:?}");
            compare(&catalog, &path, epoch);
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_image() {
    let work = tempfile::tempdir().unwrap();
    let mut forest = Forest::new();
    for nth in 0..2000 {
        forest.bytes(InodeId::ROOT, nth.to_string().as_bytes(), text(2100, nth));
    }
    // Copies that are compressed by different threads.
    for nth in 0..3000 {
        forest.bytes(InodeId::ROOT, format!("c{nth}").as_bytes(), text(3000, nth % 100));
    }
    for (nth, (catalog, profile)) in
        [(odd(), Profile::Random), (odd(), Profile::Archive), (forest.finish(), Profile::Random)]
            .into_iter()
            .enumerate()
    {
        // Small fragment blocks, to have more than may be pending.
        let recipe = Recipe { profile, read_cost: Some(4096), ..RECIPE };
        let images = [1, 2, 7].map(|threads| {
            let path = work.path().join(threads.to_string());
            let (layout, _) = pack(&catalog, &recipe, threads, &path);
            assert!(nth < 2 || layout.fragments > 2000, "{layout:?}");
            std::fs::read(path).unwrap()
        });
        assert!(images[0] == images[1] && images[1] == images[2]);
        assert_eq!(images[0].len() % PADDING as usize, 0);
    }
}

#[test]
fn the_same_bytes_are_stored_once() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("a");
    let mut forest = Forest::new();
    for nth in 0..20 {
        forest.bytes(InodeId::ROOT, format!("s{nth}").as_bytes(), blocks::noise(100_000, 1));
        forest.bytes(InodeId::ROOT, format!("l{nth}").as_bytes(), blocks::noise(1_500_000, 2));
    }
    let catalog = forest.finish();
    let (layout, _) = pack(&catalog, &RECIPE, 4, &path);
    assert_eq!((layout.duplicates, layout.duplicate_bytes), (38, 19 * 1_600_000));
    assert!(layout.stored_bytes < 1_610_000, "{layout:?}");
    compare(&catalog, &path, None);
}

#[test]
fn reading_a_small_file_decodes_no_more_than_was_allowed() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("a");
    let mut forest = Forest::new();
    for nth in 0..50 {
        forest.bytes(InodeId::ROOT, format!("s{nth}").as_bytes(), text(10_000, nth));
    }
    forest.bytes(InodeId::ROOT, b"t", text(20_001, 3));
    forest.bytes(InodeId::ROOT, b"u", blocks::noise(9000, 3));
    let catalog = forest.finish();
    let recipe = Recipe { read_cost: Some(20_000), ..RECIPE };
    let (layout, _) = pack(&catalog, &recipe, 4, &path);
    // Pairs of small files; the others have blocks of their own.
    assert_eq!((layout.fragments, layout.plain_blocks, layout.compressed_blocks), (25, 1, 26));
    // Reading uncompressed blocks decodes nothing.
    let mean = (50.0 * 20_000.0 + 20_001.0) / 52.0;
    assert!((layout.mean_decoded - mean).abs() < 0.001, "{layout:?}");
    compare(&catalog, &path, None);
}

#[test]
fn unreadable_files_are_reported_and_left_out_under_all_names() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("a");
    let forest = || {
        let mut forest = Forest::new();
        let fails = |len, reads| File {
            bytes: blocks::noise(len, 1),
            fails_after: Some(reads),
            ..File::default()
        };
        let bad = forest.file(InodeId::ROOT, b"bad", fails(1000, 0));
        forest.builder.link(InodeId::ROOT, name(b"bad too"), bad);
        forest.file(InodeId::ROOT, b"large", fails(5_000_000, 2));
        // Readable once for the comparison (five batches), and then no more.
        forest.file(InodeId::ROOT, b"m1", File { fails_after: Some(5), ..fails(4_500_000, 0) });
        forest.bytes(InodeId::ROOT, b"m2", blocks::noise(4_500_000, 1));
        forest.bytes(InodeId::ROOT, b"good", text(1000, 1));
        let target = vec![b'x'; 65536];
        let kind = InodeKind::Symlink(&target);
        forest.builder.add(InodeId::ROOT, name(b"symlink"), Inode { meta: META, kind });
        forest.finish()
    };
    let (layout, problems) = pack(&forest(), &RECIPE, 1, &path);
    let origins: Vec<_> = problems.iter().map(|problem| problem.origin.as_str()).collect();
    assert_eq!(origins, ["memory/0", "memory/1", "memory/2", "symlink"]);
    assert_eq!((layout.files, layout.failed), (2, 4));
    let tree = open(&path);
    let found = list(tree.as_ref(), Ino::ROOT);
    assert_eq!(found.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), [&b"good"[..], b"m2"]);
    assert!(read(tree.as_ref(), found[1].1) == blocks::noise(4_500_000, 1));

    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let job = Job::new(2, &progress, &stop);
    let mut output = Output::create(&path, Existing::Replace).unwrap();
    let layout = write(&job, &forest(), &RECIPE, None, OnProblem::Abort, &mut output).unwrap();
    assert!(layout.failed >= 4);
    assert_eq!(job.problems.lock().0.len(), 4);
}

#[test]
fn too_many_owners_are_an_error_that_names_the_limit() {
    let work = tempfile::tempdir().unwrap();
    let mut forest = Forest::new();
    for uid in 0..65_536 {
        let inode = Inode { meta: Meta { uid, gid: uid, ..META }, kind: InodeKind::Fifo };
        forest.builder.add(InodeId::ROOT, name(uid.to_string().as_bytes()), inode);
    }
    let catalog = forest.finish();
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let job = Job::new(2, &progress, &stop);
    let mut output = Output::create(&work.path().join("a"), Existing::Refuse).unwrap();
    let error = write(&job, &catalog, &RECIPE, None, OnProblem::Continue, &mut output).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
    assert!(error.to_string().contains("65535"), "{error}");
    assert_eq!(output.len(), 0, "the limit is checked before anything is written");
}

#[test]
fn stops_on_interrupt() {
    let work = tempfile::tempdir().unwrap();
    let (progress, stop) = (Progress::default(), AtomicBool::new(true));
    let job = Job::new(2, &progress, &stop);
    let mut output = Output::create(&work.path().join("a"), Existing::Refuse).unwrap();
    let error = write(&job, &odd(), &RECIPE, None, OnProblem::Continue, &mut output).unwrap_err();
    assert_eq!(error.kind(), Kind::Interrupted);
}

#[test]
fn what_cannot_be_read_of_an_earlier_image_is_packed_from_the_sources() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("a.sqfs");
    let catalog = || {
        let mut forest = Forest::new();
        for nth in 0..20 {
            forest.bytes(
                InodeId::ROOT,
                format!("noise{nth}").as_bytes(),
                blocks::noise(90_000, nth),
            );
            forest.bytes(InodeId::ROOT, format!("text{nth}").as_bytes(), text(2000, nth as usize));
        }
        forest.finish()
    };
    let recipe = Recipe { profile: Profile::Archive, ..RECIPE };
    let (fresh, _) = pack(&catalog(), &recipe, 2, &path);
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    for is_cut in [false, true] {
        let (base, made) = (work.path().join("base.sqfs"), work.path().join("made.sqfs"));
        std::fs::copy(&path, &base).unwrap();
        let (job, catalog) = (Job::new(2, &progress, &stop), catalog());
        let earlier = Base::open(&job, &base).unwrap();
        // Now its tables are in memory.
        assert_eq!(earlier.unchanged(&job, &catalog, &catalog.files()).unwrap().files.len(), 40);
        if is_cut {
            std::fs::File::options().write(true).open(&base).unwrap().set_len(200_000).unwrap();
        }
        let recipe = earlier.fitted(recipe).unwrap();
        let mut output = Output::create(&made, Existing::Replace).unwrap();
        let layout =
            write(&job, &catalog, &recipe, Some(&earlier), OnProblem::Abort, &mut output).unwrap();
        output.publish().unwrap();
        assert_eq!((layout.files, layout.failed), (40, 0));
        match is_cut {
            true => assert!(layout.reused < 5 && layout.notes[0].contains("could not be read")),
            false => assert_eq!((layout.reused, layout.notes.len()), (40, 0)),
        }
        assert!(layout.plain_blocks + layout.compressed_blocks >= fresh.plain_blocks);
        compare(&catalog, &made, None);
    }
}
