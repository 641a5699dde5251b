//! Compares archfs with libsquashfs (crate squashfs-ng) over the whole matrix of images.
//!
//! The crate requires names and link targets in UTF-8; `differential.rs` covers the others.
#![cfg(feature = "oracle")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use archfs::formats::{self, OpenOptions};
use archfs::progress::Progress;
use archfs::vfs::{Attr, Cookie, FileKind, Ino, Scratch, Tree};
use squashfs_ng::read::{Archive, Data, Node, XattrType};

use crate::support::image;
use crate::support::skip::skip_part;

/// The properties of a file that both readers have.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: &'static str,
    mode: u16,
    uid: u32,
    gid: u32,
    seconds: i64,
    /// Contents of a file, target of a link, number of a device.
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

type Listing = BTreeMap<Vec<u8>, Seen>;

#[test]
fn libsquashfs_reads_every_image_alike() {
    let mut compared = 0;
    for compressor in image::COMPRESSORS {
        for options in image::matrix(compressor) {
            let image = image::of_varied(&options);
            let Some(expected) = theirs(&image) else {
                skip_part(&format!("this libsquashfs has no {compressor}"));
                continue;
            };
            let found = ours(&image);
            let what = options.join(" ");
            assert!(expected.len() > 3000, "{what}: only {} entries", expected.len());
            for (path, seen) in &expected {
                let shown = path.escape_ascii();
                assert!(found.get(path) == Some(seen), "{what}: {shown} differs");
            }
            // Only names that the crate cannot represent may be missing.
            let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
            for (path, seen) in found.iter().filter(|(path, _)| !expected.contains_key(*path)) {
                let is_odd = !is_text(path) || seen.kind == "link" && !is_text(&seen.content);
                assert!(is_odd, "{what}: it lacks {}", path.escape_ascii());
            }
            compared += 1;
        }
    }
    assert!(compared > 60, "only {compared} images compared");
}

fn ours(image: &Path) -> Listing {
    let options = OpenOptions { cache_bytes: 64 << 20, ..OpenOptions::default() };
    let tree = formats::open(&[image.to_owned()], &options, &Progress::default()).unwrap();
    let mut listing = Listing::new();
    walk_ours(tree.as_ref(), &tree.attr(Ino::ROOT).unwrap(), Vec::new(), &mut listing);
    listing
}

fn walk_ours(tree: &dyn Tree, attr: &Attr, path: Vec<u8>, listing: &mut Listing) {
    let (kind, content) = match attr.kind {
        FileKind::Regular => ("file", read_ours(tree, attr)),
        FileKind::Directory => ("directory", Vec::new()),
        FileKind::Symlink => ("link", tree.read_link(attr.ino).unwrap()),
        FileKind::BlockDevice => ("block", device(attr.device)),
        FileKind::CharDevice => ("char", device(attr.device)),
        FileKind::Fifo => ("fifo", Vec::new()),
        FileKind::Socket => ("socket", Vec::new()),
    };
    let names = tree.list_xattrs(attr.ino).unwrap();
    let xattrs = names
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| (name.to_vec(), tree.xattr(attr.ino, name).unwrap()))
        .collect();
    let seen = Seen {
        kind,
        mode: attr.permissions,
        uid: attr.uid,
        gid: attr.gid,
        seconds: attr.modified.seconds,
        content,
        xattrs,
    };
    listing.insert(path.clone(), seen);
    if attr.kind != FileKind::Directory {
        return;
    }
    let mut entries = Vec::new();
    tree.read_dir(attr.ino, Cookie::START, &mut |entry| {
        entries.push((entry.ino, entry.name.as_bytes().to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    for (ino, name) in entries {
        let path = if path.is_empty() { name } else { [&path, &b"/"[..], &name].concat() };
        walk_ours(tree, &tree.attr(ino).unwrap(), path, listing);
    }
}

fn read_ours(tree: &dyn Tree, attr: &Attr) -> Vec<u8> {
    let mut scratch = Scratch::default();
    let mut content = Vec::new();
    while content.len() < attr.size as usize {
        // An odd step, so that reads start and end anywhere in a block.
        let offset = content.len() as u64;
        let bytes = tree.read(attr.ino, offset, 99_991, &mut scratch).unwrap();
        content.extend(bytes.as_slice());
    }
    content
}

fn theirs(image: &Path) -> Option<Listing> {
    let archive = Archive::open(image).ok()?;
    let mut listing = Listing::new();
    walk_theirs(archive.get_exists("/").ok()?, Vec::new(), &mut listing);
    Some(listing)
}

fn walk_theirs(node: Node<'_>, path: Vec<u8>, listing: &mut Listing) {
    let data = node.data().unwrap();
    let (kind, content) = match &data {
        Data::File(_) => ("file", node.as_file().unwrap().to_bytes().unwrap()),
        Data::Dir(_) => ("directory", Vec::new()),
        Data::Symlink(target) => ("link", target.as_os_str().as_bytes().to_vec()),
        Data::BlockDev(major, minor) => ("block", numbers(*major, *minor)),
        Data::CharDev(major, minor) => ("char", numbers(*major, *minor)),
        Data::Fifo => ("fifo", Vec::new()),
        Data::Socket => ("socket", Vec::new()),
    };
    let mut xattrs = BTreeMap::new();
    for (prefix, category) in [
        ("user.", XattrType::User),
        ("trusted.", XattrType::Trusted),
        ("security.", XattrType::Security),
    ] {
        for (name, value) in node.xattrs(category).unwrap() {
            xattrs.insert([prefix.as_bytes(), &name].concat(), value);
        }
    }
    let seen = Seen {
        kind,
        mode: node.mode() & 0o7777,
        uid: node.uid().unwrap(),
        gid: node.gid().unwrap(),
        seconds: node.mtime().into(),
        content,
        xattrs,
    };
    let is_lossy =
        seen.kind == "link" && String::from_utf8_lossy(&seen.content).contains('\u{fffd}');
    if !is_lossy {
        listing.insert(path.clone(), seen);
    }
    if let Data::Dir(directory) = data {
        for entry in directory {
            // Names that are not UTF-8 are returned as errors.
            let Ok(child) = entry else { continue };
            let name = child.name().unwrap().into_bytes();
            let path = if path.is_empty() { name } else { [&path, &b"/"[..], &name].concat() };
            walk_theirs(child, path, listing);
        }
    }
}

/// Decodes the kernel's 32-bit encoding of a device number.
fn device(number: u32) -> Vec<u8> {
    numbers((number & 0xfff00) >> 8, (number & 0xff) | ((number >> 12) & 0xfff00))
}

fn numbers(major: u32, minor: u32) -> Vec<u8> {
    format!("{major}:{minor}").into_bytes()
}
