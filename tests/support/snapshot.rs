//! A snapshot of everything a user can see in a tree, to compare it with another. Uses no code of
//! archfs.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{lgetxattr, llistxattr};

/// The nodes of a tree by path.
pub type Snapshot = BTreeMap<Vec<u8>, Node>;

/// The visible properties of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// 0 for a directory, whose size differs between file systems.
    pub size: u64,
    pub seconds: i64,
    /// 0 for a directory, like the size.
    pub nlink: u64,
    pub device: u64,
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub content: u64,
    /// All paths of the same inode.
    pub links: BTreeSet<Vec<u8>>,
}

/// What a snapshot includes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    Everything,
    /// Everything except extended attributes, for images without them.
    NoXattrs,
}

/// Takes a snapshot of `root` and everything below it.
pub fn take(root: &Path, depth: Depth) -> Snapshot {
    let mut snapshot = Snapshot::new();
    let mut inodes: BTreeMap<u64, BTreeSet<Vec<u8>>> = BTreeMap::new();
    let mut numbers = BTreeMap::new();
    walk(root, &mut Vec::new(), depth, &mut |path, node, inode| {
        inodes.entry(inode).or_default().insert(path.to_vec());
        numbers.insert(path.to_vec(), inode);
        snapshot.insert(path.to_vec(), node);
    });
    for (path, node) in &mut snapshot {
        node.links = inodes[&numbers[path]].clone();
    }
    snapshot
}

/// Fails with the first few differences, if there are any.
pub fn assert_same(what: &str, expected: &Snapshot, found: &Snapshot) {
    let paths: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let differences: Vec<String> = paths
        .into_iter()
        .filter(|path| expected.get(*path) != found.get(*path))
        .map(|path| {
            let shown = path.escape_ascii();
            format!(
                "{shown}:\n  expected {:?}\n  found    {:?}",
                expected.get(path),
                found.get(path)
            )
        })
        .collect();
    let first: Vec<_> = differences.iter().take(5).map(String::as_str).collect();
    assert!(first.is_empty(), "{what}: {} differ\n{}", differences.len(), first.join("\n"));
}

/// A hash of the file's contents. Of a file of more than 1 GiB, which is mostly holes, one MiB in eight is
/// read, unless ARCHFS_LONG_TESTS is set.
pub fn content(path: &Path) -> u64 {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; 1 << 20];
    let is_large = file.metadata().unwrap().len() > 1 << 30;
    let step =
        if is_large && std::env::var_os("ARCHFS_LONG_TESTS").is_none() { 8 << 20 } else { 1 << 20 };
    for offset in (0..).step_by(step) {
        // Filled completely, so that the hash does not depend on the length of single reads.
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_at(&mut buffer[filled..], offset + filled as u64).unwrap() {
                0 => break,
                count => filled += count,
            }
        }
        hasher.write(&buffer[..filled]);
        if filled < buffer.len() {
            break;
        }
    }
    hasher.finish()
}

fn walk(root: &Path, path: &mut Vec<u8>, depth: Depth, record: &mut dyn FnMut(&[u8], Node, u64)) {
    let here = root.join(std::ffi::OsStr::from_bytes(path));
    let here = if path.is_empty() { root } else { &here };
    let found = fs::symlink_metadata(here).unwrap_or_else(|e| panic!("{}: {e}", here.display()));
    record(path, node(here, &found, depth), found.ino());
    if !found.is_dir() {
        return;
    }
    for entry in fs::read_dir(here).unwrap() {
        let entry = entry.unwrap();
        let before = path.len();
        if before > 0 {
            path.push(b'/');
        }
        path.extend(entry.file_name().as_bytes());
        // The type in the listing must match the inode.
        let listed = entry.file_type().unwrap();
        let real = fs::symlink_metadata(entry.path()).unwrap().file_type();
        assert_eq!(listed, real, "{}", path.escape_ascii());
        walk(root, path, depth, record);
        path.truncate(before);
    }
}

fn node(path: &Path, found: &Metadata, depth: Depth) -> Node {
    let kind = found.file_type();
    let is_device = kind.is_block_device() || kind.is_char_device();
    Node {
        mode: found.mode(),
        uid: found.uid(),
        gid: found.gid(),
        size: if kind.is_dir() { 0 } else { found.size() },
        seconds: found.mtime(),
        nlink: if kind.is_dir() { 0 } else { found.nlink() },
        device: if is_device { found.rdev() } else { 0 },
        target: match kind.is_symlink() {
            true => fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec(),
            false => Vec::new(),
        },
        xattrs: match depth {
            Depth::Everything => xattrs(path),
            Depth::NoXattrs => BTreeMap::new(),
        },
        content: if kind.is_file() { content(path) } else { 0 },
        links: BTreeSet::new(),
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let len = match llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(error) => panic!("{}: {error}", path.display()),
    };
    names[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let len = lgetxattr(path, name, &mut value[..]).unwrap();
            value.truncate(len);
            (name.to_vec(), value)
        })
        .collect()
}
