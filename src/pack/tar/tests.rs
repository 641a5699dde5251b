//! Archives read by other tar implementations and by archfs itself.

use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use super::*;
use crate::formats::{self, OpenOptions};
use crate::pack::catalog::{Builder, Content, ContentId, Inode, Meta, Owner};
use crate::pack::output::Existing;
use crate::progress::Progress;
use crate::sync::AtomicBool;
use crate::vfs::{Name, Scratch, resolve};

/// Files in memory: some have holes, some fail from an offset on.
#[derive(Default)]
pub(in crate::pack) struct Memory(pub(in crate::pack) Vec<Stored>);

pub(in crate::pack) struct Stored {
    pub(in crate::pack) bytes: Vec<u8>,
    pub(in crate::pack) data: Vec<Range<u64>>,
    pub(in crate::pack) fails: Option<u64>,
}

impl Content for Memory {
    fn read(&self, key: u64, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let stored = &self.0[key as usize];
        if stored.fails.is_some_and(|from| offset + buffer.len() as u64 > from) {
            return Err(Error::new(crate::error::Kind::Io, format!("{key}: broken")));
        }
        buffer.copy_from_slice(&stored.bytes[offset as usize..offset as usize + buffer.len()]);
        Ok(())
    }

    fn next_data(&self, key: u64, offset: u64) -> Result<Option<Range<u64>>> {
        let data = self.0[key as usize].data.iter().find(|range| range.end > offset);
        Ok(data.map(|range| range.start.max(offset)..range.end))
    }

    fn origin(&self, key: u64) -> String {
        key.to_string()
    }
}

pub(in crate::pack) const META: Meta = Meta {
    permissions: 0o644,
    uid: 1000,
    gid: 2000,
    modified: Timestamp { seconds: 1_500_000_000, nanoseconds: 0 },
    xattrs: None,
};

/// A tree under construction.
struct TestTree {
    builder: Builder,
    memory: Memory,
}

impl TestTree {
    fn file(&mut self, directory: InodeId, path: &[u8], bytes: Vec<u8>, meta: Meta) -> InodeId {
        let data = std::iter::once(0..bytes.len() as u64).collect();
        self.stored(directory, path, Stored { bytes, data, fails: None }, meta)
    }

    fn stored(&mut self, directory: InodeId, path: &[u8], stored: Stored, meta: Meta) -> InodeId {
        let content = ContentId { source: 0, key: self.memory.0.len() as u64 };
        let size = stored.bytes.len() as u64;
        let stored_bytes = stored.data.iter().map(|range| range.end - range.start).sum::<u64>();
        self.memory.0.push(stored);
        let kind = InodeKind::File { size, content, sparse: stored_bytes < size };
        self.other(directory, path, kind, meta)
    }

    fn other(&mut self, directory: InodeId, path: &[u8], kind: InodeKind, meta: Meta) -> InodeId {
        self.builder.add(directory, Name::parse(path).unwrap(), Inode { meta, kind })
    }
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u64).map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn sparse(len: u64, data: &[Range<u64>]) -> Stored {
    let mut bytes = vec![0; len as usize];
    for range in data {
        let range = range.start as usize..range.end as usize;
        bytes[range.clone()].copy_from_slice(&noise(range.len()));
    }
    Stored { bytes, data: data.to_vec(), fails: None }
}

/// One of everything that a tar archive can hold.
fn everything() -> Catalog {
    let mut tree = TestTree { builder: Builder::new(META), memory: Memory::default() };
    let root = InodeId::ROOT;
    let modified_at =
        |seconds, nanoseconds| Meta { modified: Timestamp { seconds, nanoseconds }, ..META };
    let name = |name: &'static [u8]| Name::parse(name).unwrap();
    let directory =
        tree.builder.directory(root, name(b"folder"), Meta { permissions: 0o2750, ..META });
    let long = vec![b'l'; 255];
    let deep = tree.builder.directory(directory, Name::parse(&long).unwrap(), META);
    tree.file(deep, &[b'n'; 200], b"long\n".to_vec(), META);
    tree.file(deep, &[&[0xff; 5][..], &[b'b'; 120]].concat(), b"long bytes\n".to_vec(), META);
    tree.file(root, b"empty", Vec::new(), modified_at(1_600_000_000, 123_456_789));
    tree.file(root, "\u{e9}\u{4e2d}".as_bytes(), b"utf-8\n".to_vec(), META);
    tree.file(root, b"\xff\xfe.bin", b"bytes\n".to_vec(), META);
    tree.file(root, b"a\nb\\c", b"newline\n".to_vec(), META);
    tree.file(root, b"before", noise(512), modified_at(-1, 500_000_000));
    tree.file(root, b"large", noise((3 << 20) + 7), META);
    let ids = Meta { uid: 3_000_000_000, gid: 2_097_152, permissions: 0o4755, ..META };
    tree.file(root, b"ids", noise(513), ids);
    let first = tree.file(root, b"linked-1", noise(1000), META);
    tree.builder.link(root, name(b"linked-2"), first);
    tree.builder.link(directory, name(b"earlier"), first);
    tree.stored(root, b"holes", sparse(5 << 20, &[4096..8192, 2 << 20..(2 << 20) + 9]), META);
    tree.stored(root, b"end", sparse(1 << 20, &[(1 << 20) - 5..1 << 20]), modified_at(7, 1));
    tree.stored(deep, &[b's'; 150], sparse(1 << 20, &[0..5]), META);
    tree.stored(root, b"nothing", sparse(3 << 20, &[]), META);
    tree.stored(root, b"hardly", sparse(2048, std::slice::from_ref(&(0..1024))), META);
    tree.other(root, b"link", InodeKind::Symlink(b"folder/earlier"), META);
    tree.other(root, b"link-far", InodeKind::Symlink(&[b'x'; 200]), META);
    tree.other(
        root,
        b"link-bytes",
        InodeKind::Symlink(&[&[0xfe; 3][..], &[b'y'; 110]].concat()),
        META,
    );
    let device = |kind, number| InodeKind::Device { kind, number };
    tree.other(root, b"char", device(FileKind::CharDevice, 0x45 | 259 << 8 | 0x123 << 20), META);
    tree.other(root, b"block", device(FileKind::BlockDevice, 7 << 8 | 1), META);
    tree.other(root, b"fifo", InodeKind::Fifo, META);
    tree.other(root, b"socket", InodeKind::Socket, META);
    let pair = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
    let xattrs = tree.builder.xattrs(vec![
        pair(b"user.a", b"1"),
        pair(b"user.b=%", b"\0\n=\xff"),
        pair(b"user.long", &noise(3000)),
    ]);
    tree.file(root, b"xattrs", b"x".to_vec(), Meta { xattrs, ..META });
    tree.builder.source(Box::new(tree.memory));
    tree.builder.finish(Owner::default()).unwrap()
}

fn pack(catalog: &Catalog, threads: usize, epoch: Option<i64>, path: &Path) -> (Members, usize) {
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let job = Job::new(threads, &progress, &stop);
    let mut output = Output::create(path, Existing::Replace).unwrap();
    let members = write(&job, catalog, epoch, Holes::LeftOut, &mut output).unwrap();
    output.publish().unwrap();
    (members, job.problems.lock().0.len())
}

fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> Option<String> {
    let Ok(done) = Command::new(program).args(arguments).env("LC_ALL", "C.UTF-8").output() else {
        eprintln!("SKIPPED: there is no {program}");
        return None;
    };
    let printed = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{program}: {printed}");
    Some(String::from_utf8_lossy(&done.stdout).into_owned() + &printed)
}

fn crc(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One line for a path, as tests/python/tar_tree.py prints it.
fn line(path: &[u8], letter: char, meta: &Meta, bytes: &[u8], target: &[u8]) -> String {
    let nanoseconds =
        i128::from(meta.modified.seconds) * 1_000_000_000 + i128::from(meta.modified.nanoseconds);
    let size = if letter == 'l' { target.len() } else { bytes.len() };
    let crc = if letter == '-' { crc(bytes) } else { 0 };
    let Meta { permissions, uid, gid, .. } = meta;
    let target = hex(target);
    format!("{} {letter} {permissions} {uid} {gid} {size} {nanoseconds} {crc} {target}", hex(path))
}

fn letter(kind: FileKind) -> char {
    match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::BlockDevice => 'b',
        FileKind::CharDevice => 'c',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    }
}

/// The contents of the catalog except sockets, sorted.
fn expected(catalog: &Catalog) -> Vec<String> {
    let mut lines = Vec::new();
    let mut walk = Walk::new(catalog);
    while let Some((path, id)) = walk.next() {
        let inode = catalog.inode(id);
        let mut bytes = vec![0; inode.size() as usize];
        if let InodeKind::File { content, .. } = inode.kind {
            catalog.content(content).read(content.key, 0, &mut bytes).unwrap();
        }
        let target: &[u8] = if let InodeKind::Symlink(target) = &inode.kind { target } else { b"" };
        let letter = letter(inode.file_kind());
        if letter != 's' {
            lines.push(line(path, letter, &inode.meta, &bytes, target));
        }
    }
    lines.sort();
    lines
}

/// Everything below a directory, sorted.
fn unpacked(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let found = fs::symlink_metadata(&path).unwrap();
            let kind = found.file_type();
            let letter = match kind {
                kind if kind.is_dir() => 'd',
                kind if kind.is_symlink() => 'l',
                kind if kind.is_block_device() => 'b',
                kind if kind.is_char_device() => 'c',
                kind if kind.is_fifo() => 'p',
                _ => '-',
            };
            let modified =
                Timestamp { seconds: found.mtime(), nanoseconds: found.mtime_nsec() as u32 };
            let permissions = if letter == 'l' { 0o644 } else { found.mode() as u16 & 0o7777 };
            let meta =
                Meta { permissions, uid: found.uid(), gid: found.gid(), modified, xattrs: None };
            let bytes = if letter == '-' { fs::read(&path).unwrap() } else { Vec::new() };
            let target = if letter == 'l' { fs::read_link(&path).unwrap() } else { "".into() };
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes();
            lines.push(line(name, letter, &meta, &bytes, target.as_os_str().as_bytes()));
            if letter == 'd' {
                waiting.push(path);
            }
        }
    }
    lines.sort();
    lines
}

#[test]
fn other_tars_extract_the_archive() {
    let work = tempfile::tempdir().unwrap();
    let catalog = everything();
    let path = work.path().join("a.tar");
    let (members, problems) = pack(&catalog, 4, None, &path);
    assert_eq!(problems, 0);
    assert_eq!((members.files, members.sparse, members.hard_links), (18, 4, 2), "{members:?}");
    assert_eq!((members.directories, members.symlinks, members.devices), (3, 3, 3));
    assert_eq!(members.notes.len(), 1);
    assert_eq!(fs::metadata(&path).unwrap().len() % 10_240, 0);
    let expected = expected(&catalog);
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root unpacks devices and owners");
        return;
    }
    for (program, more) in [("tar", &["--xattrs", "--xattrs-include=*"][..]), ("bsdtar", &[])] {
        let directory = work.path().join(program);
        fs::create_dir(&directory).unwrap();
        let mut arguments: Vec<&std::ffi::OsStr> =
            vec!["-xpf".as_ref(), path.as_ref(), "-C".as_ref(), directory.as_ref()];
        arguments.extend(more.iter().map(std::ffi::OsStr::new));
        let Some(printed) = run(program, &arguments) else { continue };
        // GNU tar warns about hdrcharset=BINARY, but keeps the bytes of such names. It also warns
        // about times before 1970, and keeps them.
        let known = |line: &&str| line.contains("hdrcharset") || line.contains("implausibly old");
        let printed = printed.lines().filter(|line| !known(line)).collect::<String>();
        assert_eq!(printed, "", "{program}");
        // libarchive adds the fraction of a time before 1970 instead of subtracting it.
        let before = hex(b"before");
        let is_read = |line: &&String| program == "tar" || !line.starts_with(&before);
        let found = unpacked(&directory);
        let found: Vec<_> = found.iter().filter(is_read).collect();
        assert_eq!(found, expected.iter().filter(is_read).collect::<Vec<_>>(), "{program}");
        let ino = |name: &str| fs::metadata(directory.join(name)).unwrap().ino();
        assert_eq!(ino("linked-1"), ino("linked-2"));
        assert_eq!(ino("linked-1"), ino("folder/earlier"));
        let char = fs::metadata(directory.join("char")).unwrap().rdev();
        assert_eq!((rustix::fs::major(char), rustix::fs::minor(char)), (259, 0x12345), "{program}");
        let mut value = [0; 4096];
        let file = directory.join("xattrs");
        let mut xattr = |name: &str| {
            let len = rustix::fs::getxattr(&file, name, &mut value).unwrap_or(0);
            value[..len].to_vec()
        };
        if program == "tar" {
            assert_eq!(xattr("user.a"), b"1");
            assert_eq!(xattr("user.b=%"), b"\0\n=\xff");
            assert_eq!(xattr("user.long"), noise(3000));
        }
        let holes = fs::metadata(directory.join("nothing")).unwrap();
        assert!(holes.blocks() * 512 < holes.size() / 2, "{program}: holes are kept");
    }
}

#[test]
fn python_reads_the_archive() {
    let work = tempfile::tempdir().unwrap();
    let catalog = everything();
    let path = work.path().join("a.tar");
    pack(&catalog, 4, None, &path);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/tar_tree.py");
    let Some(printed) = run("python3", &[script.as_ref(), path.as_ref()]) else { return };
    let mut found: Vec<_> = printed.lines().map(|line| line.trim_end().to_owned()).collect();
    found.sort();
    let expected: Vec<_> =
        expected(&catalog).iter().map(|line| line.trim_end().to_owned()).collect();
    assert_eq!(found, expected);
}

#[test]
fn archfs_reads_the_archive() {
    let work = tempfile::tempdir().unwrap();
    let catalog = everything();
    let path = work.path().join("a.tar");
    pack(&catalog, 4, None, &path);
    let tree = formats::open(&[path], &OpenOptions::default(), &Progress::default()).unwrap();
    let mut found = Vec::new();
    let mut walk = Walk::new(&catalog);
    while let Some((path, id)) = walk.next() {
        if catalog.inode(id).file_kind() == FileKind::Socket {
            assert!(resolve(&*tree, path).is_err());
            continue;
        }
        let attr = resolve(&*tree, path).unwrap();
        let crate::vfs::Attr { permissions, uid, gid, modified, .. } = attr;
        let meta = Meta { permissions, uid, gid, modified, xattrs: None };
        let mut bytes = Vec::new();
        while attr.kind == FileKind::Regular && (bytes.len() as u64) < attr.size {
            let mut scratch = Scratch::default();
            let offset = bytes.len() as u64;
            bytes.extend(tree.read(attr.ino, offset, 1 << 20, &mut scratch).unwrap().as_slice());
        }
        let target = match attr.kind {
            FileKind::Symlink => tree.read_link(attr.ino).unwrap(),
            _ => Vec::new(),
        };
        found.push(line(path, letter(attr.kind), &meta, &bytes, &target));
        if path == b"xattrs" {
            assert_eq!(tree.xattr(attr.ino, b"user.long").unwrap(), noise(3000));
            assert_eq!(tree.xattr(attr.ino, b"user.b=%").unwrap(), b"\0\n=\xff");
        }
    }
    found.sort();
    assert_eq!(found, expected(&catalog));
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let work = tempfile::tempdir().unwrap();
    let catalog = everything();
    let archive = |threads, epoch| {
        let path = work.path().join("a.tar");
        pack(&catalog, threads, epoch, &path);
        fs::read(&path).unwrap()
    };
    let one = archive(1, None);
    assert!(one == archive(2, None) && one == archive(7, None));
    assert!(one != archive(2, Some(1_000_000_000)));
}

#[test]
fn a_file_that_fails_is_missing_under_all_its_names() {
    let whole = |len: usize| {
        let data = std::iter::once(0..len as u64).collect();
        Stored { bytes: noise(len), data, fails: None }
    };
    let mut tree = TestTree { builder: Builder::new(META), memory: Memory::default() };
    let root = InodeId::ROOT;
    tree.stored(root, b"a", whole(100), META);
    let early = tree.stored(root, b"b", Stored { fails: Some(0), ..whole(100) }, META);
    tree.builder.link(root, Name::parse(b"y").unwrap(), early);
    // The third batch fails after the header was written, so the header is removed.
    let late = Stored { fails: Some(5 << 19), ..whole(4 << 20) };
    let late = tree.stored(root, b"c", late, META);
    tree.builder.link(root, Name::parse(b"z").unwrap(), late);
    tree.stored(root, b"d", whole(3000), META);
    tree.stored(
        root,
        b"e",
        Stored { fails: Some(0), ..sparse(3 << 20, &[1 << 20..2 << 20]) },
        META,
    );
    tree.other(root, b"f", InodeKind::Fifo, META);
    tree.builder.source(Box::new(tree.memory));
    let catalog = tree.builder.finish(Owner::default()).unwrap();
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("a.tar");
    let (members, problems) = pack(&catalog, 3, None, &path);
    assert_eq!(problems, 3);
    assert_eq!((members.files, members.hard_links, members.sparse), (2, 0, 0));
    let Some(printed) = run("tar", &["-tf".as_ref(), path.as_ref()]) else { return };
    assert_eq!(printed, "a\nd\nf\n");
}
