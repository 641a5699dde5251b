//! What a reader returns for an archive, as facts: pairs of a key and a value. The oracles print
//! the same keys.
//!
//! Invariant: each fact stands alone. If an archive is damaged in part, its remaining facts can
//! still be compared; what was refused is not a fact.
//!
//! A key is an object and a property: `kind` (a number as in SquashFS), `mode`, `uid`, `gid`,
//! `mtime`, `nlink`, `device`, `size`, `target`, `nNAME:OBJECT:KIND` for an entry, `end` for the
//! number of entries, `xNAME` and `xend` for attributes in the same way, and `cN`, the CRC of a 4
//! KiB piece of the contents. In an image an object is an inode reference, so that directory loops
//! end; in a tar it is a path.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::ControlFlow;

use archfs::vfs::{Attr, Cookie, FileKind, Finding, Ino, Location, Name, Scratch, Tree};

use super::numbers::Numbers;

/// Bytes of a file in one fact. No more than a block, so that a fact covers only one block.
const CHUNK: u64 = 4096;

/// A file is read completely up to this many pieces; of a longer file, its first and last pieces.
const CHUNKS_MAX: u64 = 512;
const TAIL_CHUNKS: u64 = 16;

/// Maximum number of objects that are read.
const OBJECTS_MAX: usize = 1 << 12;

/// Read sizes, some odd, so that reads start and end anywhere in a block.
const STEPS: [u32; 4] = [99_991, 3001, 131_072, 8191];

/// How objects are named.
#[derive(Clone, Copy)]
pub(crate) enum Naming<'n> {
    /// By inode reference, derived from inode numbers.
    Reference(&'n Numbers),
    Path,
}

/// Facts, and refusals with their reasons.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) known: BTreeMap<String, String>,
    pub(crate) refused: BTreeMap<String, String>,
    /// Archive-level messages: damage, and entries left out of the tree.
    pub(crate) findings: Vec<Finding>,
}

impl Facts {
    /// Only the first of several values is kept.
    pub(crate) fn put(&mut self, key: String, value: impl ToString) {
        self.known.entry(key).or_insert_with(|| value.to_string());
    }

    pub(crate) fn refuse(&mut self, key: String, why: impl ToString) {
        self.refused.entry(key).or_insert_with(|| why.to_string());
    }

    /// Whether a message about the archive contains `what`.
    pub(crate) fn has_finding(&self, what: &str) -> bool {
        self.findings.iter().any(|fault| fault.what.contains(what))
    }

    /// Whether a message concerns the whole archive, or `path` (in hex), one of its parents, or
    /// anything below it.
    pub(crate) fn has_finding_at(&self, path: &str) -> bool {
        let leads_to = |above: &str, path: &str| {
            let rest = path.strip_prefix(above);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("2f"))
        };
        self.findings.iter().any(|fault| match &fault.location {
            Location::Path(reported) => {
                let reported = hex(reported);
                leads_to(&reported, path) || leads_to(path, &reported)
            }
            Location::Archive | Location::Inode(_) => true,
        })
    }

    /// All facts that archfs returns for `tree`. `step` chooses the read sizes.
    ///
    /// # Panics
    ///
    /// If two answers about the same thing differ.
    pub(crate) fn of(tree: &dyn Tree, naming: Naming<'_>, step: u64) -> Self {
        let mut walk = Walk { tree, naming, facts: Self::default(), step, seen: HashSet::new() };
        let root = match naming {
            Naming::Reference(numbers) => format!("{:x}", numbers.root),
            Naming::Path => String::from("/"),
        };
        if let Naming::Reference(_) = naming {
            walk.facts.put(String::from("root"), &root);
        }
        let mut due = VecDeque::from([(Ino::ROOT, root)]);
        walk.seen.insert(Ino::ROOT);
        let mut objects = 0;
        while let Some((ino, object)) = due.pop_front() {
            objects += 1;
            if objects > OBJECTS_MAX {
                break;
            }
            walk.object(ino, &object, &mut due);
        }
        if matches!(naming, Naming::Path) {
            tree.audit(&mut |fault| walk.facts.findings.push(fault));
        }
        walk.facts
    }
}

/// A walk through a tree.
struct Walk<'t> {
    tree: &'t dyn Tree,
    naming: Naming<'t>,
    facts: Facts,
    step: u64,
    seen: HashSet<Ino>,
}

impl Walk<'_> {
    fn object(&mut self, ino: Ino, object: &str, due: &mut VecDeque<(Ino, String)>) {
        let attr = match self.tree.attr(ino) {
            Ok(attr) => attr,
            Err(error) => return self.facts.refuse(format!("{object}.kind"), error),
        };
        let mut put = |what: &str, value: String| self.facts.put(format!("{object}.{what}"), value);
        put("kind", kind_number(attr.kind).to_string());
        put("mode", format!("{:o}", attr.permissions));
        put("uid", attr.uid.to_string());
        put("gid", attr.gid.to_string());
        match self.naming {
            Naming::Reference(_) => {
                put("mtime", attr.modified.seconds.to_string());
                put("nlink", attr.nlink.to_string());
            }
            Naming::Path => {
                let modified = attr.modified;
                let nanoseconds = i128::from(modified.seconds) * 1_000_000_000;
                put("mtime", (nanoseconds + i128::from(modified.nanoseconds)).to_string());
            }
        }
        match attr.kind {
            FileKind::Directory => {
                if let Naming::Reference(_) = self.naming {
                    put("size", attr.size.to_string());
                }
                self.listing(ino, object, due);
            }
            FileKind::Regular => {
                put("size", attr.size.to_string());
                self.contents(&attr, object);
            }
            FileKind::Symlink => match self.tree.read_link(ino) {
                Ok(target) => put("target", hex(&target)),
                Err(error) => self.facts.refuse(format!("{object}.target"), error),
            },
            FileKind::BlockDevice | FileKind::CharDevice => put("device", attr.device.to_string()),
            FileKind::Fifo | FileKind::Socket => {}
        }
        self.attributes(ino, object);
    }

    fn listing(&mut self, ino: Ino, object: &str, due: &mut VecDeque<(Ino, String)>) {
        let mut entries = Vec::new();
        let outcome = self.tree.read_dir(ino, Cookie::START, &mut |entry| {
            entries.push((entry.ino, entry.name.as_bytes().to_vec(), entry.kind));
            ControlFlow::Continue(())
        });
        for (child, name, kind) in &entries {
            let kind = kind_number(*kind);
            let name_shown = hex(name);
            let (child_name, key) = match self.naming {
                Naming::Reference(numbers) => {
                    let Some(reference) = numbers.reference(child.number()) else {
                        assert!(self.tree.attr(*child).is_err(), "{object}: {name_shown} is there");
                        let key = format!("{object}.n{name_shown}");
                        self.facts.refuse(key, "leads to no inode");
                        continue;
                    };
                    (
                        format!("{reference:x}"),
                        format!("{object}.n{name_shown}:{reference:x}:{kind}"),
                    )
                }
                Naming::Path => {
                    let path = match object {
                        "/" => name_shown.clone(),
                        _ => format!("{object}2f{name_shown}"),
                    };
                    (path, format!("{object}.n{name_shown}"))
                }
            };
            self.facts.put(key, "");
            let first_time = self.seen.insert(*child);
            if first_time || matches!(self.naming, Naming::Path) {
                due.push_back((*child, child_name));
            }
            self.look_up(ino, name, *child);
        }
        match outcome {
            // Each name in a tar has its own header, so there is no `end` fact.
            Ok(()) if matches!(self.naming, Naming::Path) => {}
            Ok(()) => self.facts.put(format!("{object}.end"), entries.len()),
            Err(error) => self.facts.refuse(format!("{object}.end"), error),
        }
    }

    /// Looks up a listed name: the result is the listed inode or an error.
    fn look_up(&mut self, directory: Ino, name: &[u8], child: Ino) {
        let parsed = Name::parse(name).expect("a name that was listed is a name");
        match self.tree.lookup(directory, parsed) {
            Ok(Some(attr)) => assert_eq!(attr.ino, child, "name {}", hex(name)),
            // The damaged index of a large directory may skip the name.
            Ok(None) => self.facts.refuse(format!("lookup {}", hex(name)), "not found"),
            Err(error) => self.facts.refuse(format!("lookup {}", hex(name)), error),
        }
    }

    fn contents(&mut self, attr: &Attr, object: &str) {
        let chunks = attr.size.div_ceil(CHUNK);
        let whole = self.in_steps(attr, (CHUNKS_MAX * CHUNK).min(attr.size));
        let mut scratch = Scratch::default();
        let mut nth = 0;
        while nth < chunks {
            if nth >= CHUNKS_MAX && nth + TAIL_CHUNKS < chunks {
                nth = chunks - TAIL_CHUNKS;
            }
            let offset = nth * CHUNK;
            let len = CHUNK.min(attr.size - offset);
            let key = format!("{object}.c{nth:x}");
            match self.tree.read(attr.ino, offset, CHUNK as u32, &mut scratch) {
                Ok(bytes) => {
                    let bytes = bytes.as_slice();
                    assert_eq!(bytes.len() as u64, len, "{object}: a short answer at {offset}");
                    let before = whole.get(offset as usize..(offset + len) as usize);
                    if let Some(before) = before {
                        let same = before
                            .iter()
                            .zip(bytes)
                            .all(|(old, new)| old.is_none_or(|old| old == *new));
                        assert!(same, "{object}: two reads at {offset} differ");
                    }
                    self.facts.put(key, format!("{:08x}", crc32fast::hash(bytes)));
                }
                Err(error) => self.facts.refuse(key, error),
            }
            nth += 1;
        }
    }

    /// The first `len` bytes, read in odd steps; `None` for bytes that cannot be read.
    fn in_steps(&self, attr: &Attr, len: u64) -> Vec<Option<u8>> {
        let mut scratch = Scratch::default();
        let mut content: Vec<Option<u8>> = Vec::new();
        let step = STEPS[(self.step % STEPS.len() as u64) as usize];
        while (content.len() as u64) < len {
            let offset = content.len() as u64;
            match self.tree.read(attr.ino, offset, step, &mut scratch) {
                Ok(bytes) => {
                    assert!(!bytes.as_slice().is_empty(), "an empty answer at {offset}");
                    content.extend(bytes.as_slice().iter().copied().map(Some));
                }
                Err(_) => content.resize((offset + u64::from(step)).min(len) as usize, None),
            }
        }
        content
    }

    fn attributes(&mut self, ino: Ino, object: &str) {
        let names = match self.tree.list_xattrs(ino) {
            Ok(names) => names,
            Err(error) => return self.facts.refuse(format!("{object}.xend"), error),
        };
        let names: Vec<_> = names.split(|&byte| byte == 0).collect();
        // Each name ends with a NUL.
        let names = &names[..names.len() - 1];
        for name in names {
            let key = format!("{object}.x{}", hex(name));
            match self.tree.xattr(ino, name) {
                Ok(value) => self.facts.put(key, format!("{:08x}", crc32fast::hash(&value))),
                Err(error) => self.facts.refuse(key, error),
            }
        }
        if let Naming::Reference(_) = self.naming {
            self.facts.put(format!("{object}.xend"), names.len());
        }
    }
}

/// The fact for piece `nth` of a file of `size` bytes if it is all zeros.
pub(crate) fn crc_of_zeros(size: u64, nth: u64) -> String {
    let len = CHUNK.min(size.saturating_sub(nth.saturating_mul(CHUNK)));
    format!("{:08x}", crc32fast::hash(&[0; CHUNK as usize][..len as usize]))
}

/// Whether piece `nth` is the last of a file of `size` bytes.
pub(crate) fn is_last(size: u64, nth: u64) -> bool {
    nth + 1 == size.div_ceil(CHUNK)
}

fn kind_number(kind: FileKind) -> u8 {
    match kind {
        FileKind::Directory => 1,
        FileKind::Regular => 2,
        FileKind::Symlink => 3,
        FileKind::BlockDevice => 4,
        FileKind::CharDevice => 5,
        FileKind::Fifo => 6,
        FileKind::Socket => 7,
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
