//! Verifies a tree whose reads fail in known ways.

use std::io;
use std::ops::ControlFlow;

use super::super::{
    Attr, Cookie, DirEntry, FileKind, Finding, Ino, Location, Name, ReadBytes, Scratch, SeekTarget,
    Severity, Timestamp, Totals, Tree,
};
use super::{Counts, verify};
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::sync::{AtomicU64, Ordering};

/// Size of each file in bytes; the hole is as large as the largest file size.
const SIZE: u64 = 100 << 20;
const HOLE: u64 = i64::MAX as u64;

/// A directory of four files: intact, unreadable in the middle, damaged in two locations, and a
/// hole with one byte at its end.
#[derive(Default)]
struct Failing {
    read: AtomicU64,
    /// Whether the second file is on a server that does not answer.
    is_unreachable: bool,
}

const NAMES: [&str; 4] = ["sound", "refused", "damaged", "hole"];

fn ino(nth: usize) -> Ino {
    Ino::new(nth as u64 + 2).unwrap()
}

impl Tree for Failing {
    fn attr(&self, ino: Ino) -> Result<Attr> {
        let kind = if ino == Ino::ROOT { FileKind::Directory } else { FileKind::Regular };
        Ok(Attr {
            ino,
            kind,
            permissions: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: if ino.number() == 5 { HOLE } else { SIZE },
            allocated: 0,
            device: 0,
            modified: Timestamp { seconds: 0, nanoseconds: 0 },
            block_size: 0,
        })
    }

    fn lookup(&self, _: Ino, name: Name<'_>) -> Result<Option<Attr>> {
        let nth = NAMES.iter().position(|known| known.as_bytes() == name.as_bytes());
        nth.map(|nth| self.attr(ino(nth))).transpose()
    }

    fn read_dir(
        &self,
        _: Ino,
        _: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        for (nth, name) in NAMES.iter().enumerate() {
            let name = Name::parse(name.as_bytes()).unwrap();
            let (ino, kind) = (ino(nth), FileKind::Regular);
            let _ = visit(DirEntry { ino, kind, name, next: Cookie::START });
        }
        Ok(())
    }

    fn read_link(&self, _: Ino) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn read<'s>(
        &self,
        ino: Ino,
        offset: u64,
        size: u32,
        scratch: &'s mut Scratch,
    ) -> Result<ReadBytes<'s>> {
        let end = offset + u64::from(size);
        let holds = |position: u64| (offset..end).contains(&position);
        match ino.number() {
            3 if self.is_unreachable => Err(Error::new(Kind::Unreachable, "no answer")),
            3 if holds(SIZE / 2) => Err(Error::io("reading", io::Error::other("disk on fire"))),
            4 if holds(SIZE / 3) || holds(SIZE - 1) => {
                Err(Error::corrupt(format!("wrong bit behind {offset}")))
            }
            _ => {
                self.read.fetch_add(u64::from(size), Ordering::Relaxed);
                Ok(ReadBytes::Scratch(scratch.answer(size as usize)))
            }
        }
    }

    fn seek(&self, ino: Ino, offset: u64, _: SeekTarget) -> Result<u64> {
        match ino.number() {
            5 if offset > HOLE - 2 => Err(Error::new(Kind::PastEnd, "nothing")),
            5 => Ok(offset.max(HOLE - 2)),
            _ => Ok(offset),
        }
    }

    fn has_xattrs(&self) -> bool {
        false
    }

    fn list_xattrs(&self, _: Ino) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn xattr(&self, _: Ino, _: &[u8]) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn totals(&self) -> Totals {
        Totals { bytes: 0, inodes: 5, block_size: 512 }
    }

    fn release(&self) {}
}

#[test]
fn system_errors_are_not_damage_and_each_file_is_reported_once() {
    for threads in [1, 4] {
        let (tree, progress) = (Failing::default(), Progress::default());
        let verified = verify(&tree, threads, &progress);
        let bytes = 3 * SIZE + HOLE;
        let counts = Counts { files: 4, directories: 1, bytes, ..Counts::default() };
        assert_eq!(verified.counts, counts);
        let [damage, refusal] = verified.findings.as_slice() else {
            panic!("{:?}", verified.findings);
        };
        let path = |path: &str| Location::Path(path.as_bytes().to_vec());
        let first = SIZE / 3 / (1 << 20) * (1 << 20);
        let what = format!("from byte {first}: wrong bit behind {first}");
        assert_eq!(*damage, Finding::damage(path("damaged"), what));
        assert_eq!((refusal.severity, &refusal.location), (Severity::Unreadable, &path("refused")));
        assert!(refusal.what.ends_with("reading: disk on fire"), "{}", refusal.what);
        // Everything but the rest of the parts in which a read failed, and nothing of the hole.
        let read = tree.read.into_inner();
        assert!((2 * SIZE..3 * SIZE).contains(&read), "{read}");
    }
}

/// > `extract`, `pack` and `verify` stop at the first read that a server does not answer in
/// > time.
#[test]
fn nothing_more_is_read_from_a_server_that_does_not_answer() {
    let tree = Failing { is_unreachable: true, ..Failing::default() };
    let verified = verify(&tree, 1, &Progress::default());
    let [rest, finding] = verified.findings.as_slice() else { panic!("{:?}", verified.findings) };
    assert_eq!(
        (&rest.location, rest.what.as_str()),
        (&Location::Archive, "not all of it was read")
    );
    assert_eq!(verified.counts.bytes, SIZE);
    assert_eq!(
        (finding.severity, finding.what.as_str()),
        (Severity::Unreadable, "from byte 0: no answer")
    );
    assert_eq!(tree.read.into_inner(), SIZE, "the file before it");
}
