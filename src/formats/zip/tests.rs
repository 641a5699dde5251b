//! Archives made by hand: what other programs do not write, and each side of each limit.

use std::ops::ControlFlow;

use super::fuzzing::Apart;
use super::{Zip, ZipOptions};
use crate::codecs::{Encoder, Method};
use crate::error::{Kind, Result};
use crate::formats::compressed::ChunkCache;
use crate::formats::index::{Allowance, notes};
use crate::formats::limits::{CHUNK_MAX, DEFLATE_RATIO_MAX, ZIP_WHOLE_MAX};
use crate::progress::Progress;
use crate::storage::{MemStorage, Storage};
use crate::sync::Arc;
use crate::vfs::{self, Cookie, Finding, Ino, Scratch, Tree};

/// An archive that grows by members.
#[derive(Clone, Default)]
struct Maker {
    bytes: Vec<u8>,
    directory: Vec<u8>,
    count: u16,
}

/// The fields of an entry and of its local header.
#[derive(Clone)]
struct Fields {
    name: Vec<u8>,
    system: u8,
    flags: u16,
    method: u16,
    crc32: u32,
    compressed: u32,
    size: u32,
    attributes: u32,
    offset: u32,
    extra: Vec<u8>,
    local_extra: Vec<u8>,
}

impl Maker {
    /// Adds a member with `data`, after `change` has changed its fields.
    fn add(&mut self, name: &str, data: &[u8], change: impl FnOnce(&mut Fields)) -> &mut Self {
        let offset = self.bytes.len() as u32;
        let mut fields = Fields { attributes: 0o100_644 << 16, offset, ..fields_of(name, data) };
        let mut local = fields.clone();
        change(&mut fields);
        local.local_extra = fields.local_extra.clone();
        (local.method, local.crc32) = (fields.method, fields.crc32);
        self.bytes.extend(local.header());
        self.bytes.extend(data);
        self.entry(&fields)
    }

    /// Adds a member compressed by DEFLATE.
    fn deflated(&mut self, name: &str, data: &[u8]) -> &mut Self {
        let packed = deflate(data);
        let (crc32, size) = (crc32fast::hash(data), data.len() as u32);
        self.add(name, &packed, |fields| {
            (fields.method, fields.crc32, fields.size) = (8, crc32, size);
        })
    }

    /// Adds an entry without a local header.
    fn entry(&mut self, fields: &Fields) -> &mut Self {
        let entry = [
            &b"PK\x01\x02\x14"[..],
            &[fields.system],
            &[20, 0],
            &fields.flags.to_le_bytes(),
            &fields.method.to_le_bytes(),
            &[0, 0, 0x21, 0],
            &fields.crc32.to_le_bytes(),
            &fields.compressed.to_le_bytes(),
            &fields.size.to_le_bytes(),
            &(fields.name.len() as u16).to_le_bytes(),
            &(fields.extra.len() as u16).to_le_bytes(),
            &[0; 6],
            &fields.attributes.to_le_bytes(),
            &fields.offset.to_le_bytes(),
            &fields.name,
            &fields.extra,
        ];
        self.directory.extend(entry.concat());
        self.count += 1;
        self
    }

    /// The archive, with `comment`.
    fn finish(&self, comment: &[u8]) -> Vec<u8> {
        let end = end_record(self.count, self.directory.len(), self.bytes.len(), comment);
        [&self.bytes[..], &self.directory, &end].concat()
    }
}

impl Fields {
    fn header(&self) -> Vec<u8> {
        let header = [
            &b"PK\x03\x04\x14\0"[..],
            &self.flags.to_le_bytes(),
            &self.method.to_le_bytes(),
            &[0, 0, 0x21, 0],
            &self.crc32.to_le_bytes(),
            &self.compressed.to_le_bytes(),
            &self.size.to_le_bytes(),
            &(self.name.len() as u16).to_le_bytes(),
            &(self.local_extra.len() as u16).to_le_bytes(),
            &self.name,
            &self.local_extra,
        ];
        header.concat()
    }
}

/// `data` compressed by DEFLATE.
pub(super) fn deflate(data: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::new(Method::Gzip(9)).unwrap();
    let packed = encoder.encode(data, data.len() + 1000).unwrap().unwrap();
    // Without the header of zlib, and its checksum at the end.
    packed[2..packed.len() - 4].to_vec()
}

fn end_record(count: u16, len: usize, offset: usize, comment: &[u8]) -> Vec<u8> {
    let end = [
        &b"PK\x05\x06\0\0\0\0"[..],
        &count.to_le_bytes(),
        &count.to_le_bytes(),
        &(len as u32).to_le_bytes(),
        &(offset as u32).to_le_bytes(),
        &(comment.len() as u16).to_le_bytes(),
        comment,
    ];
    end.concat()
}

fn open_partly(bytes: &[u8], partial: bool) -> Result<Zip> {
    open_storage(Arc::new(MemStorage::new(bytes.to_vec())), partial)
}

fn open_storage(storage: Arc<dyn Storage>, partial: bool) -> Result<Zip> {
    let chunks = Arc::new(ChunkCache::new(64 << 20, CHUNK_MAX, Arc::default()));
    let options = ZipOptions {
        names: None,
        progress: &Progress::default(),
        partial,
        logged: notes::Logged::Nothing,
        chunks: &chunks,
        seek_points: &Arc::new(super::LargeMembers::new(64 << 20)),
        indexes: &Arc::new(Allowance::new(1 << 20)),
    };
    Zip::open("a.zip", storage, &options)
}

fn open(bytes: &[u8]) -> Zip {
    open_partly(bytes, false).unwrap()
}

fn refusal(bytes: &[u8]) -> String {
    let error = open_partly(bytes, false).map(|_| ()).unwrap_err();
    assert!(matches!(error.kind(), Kind::Corrupt | Kind::Truncated | Kind::Unsupported), "{error}");
    error.to_string().replace("a.zip: ", "")
}

/// The names in a directory.
fn names(zip: &Zip, directory: Ino) -> Vec<String> {
    let mut names = Vec::new();
    let visit = &mut |entry: vfs::DirEntry<'_>| {
        names.push(String::from_utf8_lossy(entry.name.as_bytes()).into_owned());
        ControlFlow::Continue(())
    };
    zip.read_dir(directory, Cookie::START, visit).unwrap();
    names
}

fn ino(zip: &Zip, path: &str) -> Ino {
    vfs::resolve(zip, path.as_bytes()).unwrap().ino
}

fn read_at(zip: &Zip, path: &str, offset: u64, size: u32) -> Result<Vec<u8>> {
    let mut scratch = Scratch::default();
    zip.read(ino(zip, path), offset, size, &mut scratch).map(|bytes| bytes.as_slice().to_vec())
}

fn read(zip: &Zip, path: &str) -> Vec<u8> {
    read_at(zip, path, 0, 1 << 20).unwrap()
}

fn audit(bytes: &[u8]) -> Vec<Finding> {
    let zip = open_partly(bytes, true).unwrap();
    let mut findings = Vec::new();
    zip.audit(&mut |finding| findings.push(finding));
    findings
}

#[test]
fn the_end_is_found_with_comments_and_data_around_the_archive() {
    let mut maker = Maker::default();
    maker.add("a", b"one", |_| {}).add("b/c", b"two", |_| {});
    let sound = |bytes: &[u8]| {
        let zip = open(bytes);
        assert_eq!(names(&zip, Ino::ROOT), ["a", "b"]);
        assert_eq!((read(&zip, "a"), read(&zip, "b/c")), (b"one".to_vec(), b"two".to_vec()));
    };
    sound(&maker.finish(b""));
    sound(&maker.finish(&[b'x'; 0xffff]));
    // A comment that holds another end record.
    let false_end = end_record(7, 46, 0, b"");
    sound(&maker.finish(&[&false_end[..], b"and more"].concat()));
    sound(&[&maker.finish(b"x")[..], b"data of another program"].concat());
    let before = [&[0; 1000][..], &maker.finish(b"")].concat();
    sound(&before);
    // A comment that is cut off, as unzip and bsdtar read it too.
    let commented = maker.finish(b"a comment");
    let mut split_end = end_record(7, 46, 0, b"");
    split_end[4] = 1;
    sound(&commented[..commented.len() - 5]);
    // The record of an archive in it is before its own.
    let inner = maker.finish(b"");
    let mut outer = Maker::default();
    outer.add("a", b"one", |_| {}).add("b/c", b"two", |_| {}).add("inner.zip", &inner, |_| {});
    let outer = outer.finish(b"a comment");
    let zip = open(&outer[..outer.len() - 5]);
    assert_eq!(names(&zip, Ino::ROOT), ["a", "b", "inner.zip"]);
    // What looks like an end record in other data is none.
    sound(&[&maker.finish(b"")[..], &end_record(7, 46, 0, b"a comment")[..25]].concat());
    let other = [&b"a program"[..], &split_end, b"more"].concat();
    assert!(!super::directory::has_directory(&MemStorage::new(other)).unwrap());
    // A digital signature between the directory and its end (APPNOTE 4.3.13).
    let end = end_record(2, maker.directory.len(), maker.bytes.len(), b"");
    let signature = b"PK\x05\x05\x04\0sign";
    sound(&[&maker.bytes[..], &maker.directory, signature, &end].concat());
    assert_eq!(names(&open(&Maker::default().finish(b"")), Ino::ROOT), [""; 0]);
    let cut = maker.finish(b"");
    assert_eq!(
        refusal(&cut[..cut.len() - 1]),
        "a ZIP archive without the central directory at its end: cut off"
    );
    let comment_over = maker.finish(&[b'x'; 0xffff]);
    assert!(refusal(&[&comment_over[..], b"x"].concat()).contains("cut off"), "too far away");
}

/// DotNetZip 1.9 wrote a ZIP64 field with a wrong length, so that its rest looks like a second one.
#[test]
fn the_first_zip64_field_counts() {
    let mut maker = Maker::default();
    maker.add("a", b"one", |fields| {
        fields.extra = [&[1, 0, 8, 0, 3, 0, 0, 0, 0, 0, 0, 0][..], &[1, 0, 8, 0], &[9; 8]].concat();
        fields.size = u32::MAX;
    });
    assert_eq!(read(&open(&maker.finish(b"")), "a"), b"one");
}

#[test]
fn the_zip64_end_record_counts() {
    let mut maker = Maker::default();
    maker.add("a", b"one", |_| {});
    let end_64 = |disks: u32, offset: u64| {
        let (start, len) = (maker.bytes.len(), maker.directory.len());
        let record = [
            &b"PK\x06\x06"[..],
            &44_u64.to_le_bytes(),
            &[45, 3, 45, 0],
            &[0; 8],
            &1_u64.to_le_bytes(),
            &1_u64.to_le_bytes(),
            &(len as u64).to_le_bytes(),
            &(start as u64).to_le_bytes(),
        ];
        let locator =
            [&b"PK\x06\x07"[..], &[0; 4], &offset.to_le_bytes(), &disks.to_le_bytes()].concat();
        let mut end = end_record(0xffff, 0, 0, b"");
        end[12..20].fill(0xff);
        [&maker.bytes[..], &maker.directory, &record.concat(), &locator, &end].concat()
    };
    let right = (maker.bytes.len() + maker.directory.len()) as u64;
    assert_eq!(read(&open(&end_64(1, right)), "a"), b"one");
    // As after data before the archive, which the locator does not count.
    assert_eq!(read(&open(&[&[7; 99][..], &end_64(1, right)].concat()), "a"), b"one");
    assert!(refusal(&end_64(2, right)).contains("split"));
    let mut lost = end_64(1, right);
    lost[right as usize] = b'Q';
    assert_eq!(refusal(&lost), "the ZIP64 end record is not where its locator says");
    // A name that looks like a locator.
    let mut maker = Maker::default();
    maker.add("a", b"one", |_| {}).add("PK\x06\x07ABCDEFGHIJKLMNOP", b"two", |_| {});
    assert_eq!(read(&open(&maker.finish(b"")), "a"), b"one");
}

#[test]
fn the_later_of_two_entries_with_a_path_is_shown() {
    let mut maker = Maker::default();
    maker.add("x", b"first", |_| {}).add("x", b"second", |_| {}).add("./y//z", b"", |_| {});
    let zip = open(&maker.finish(b""));
    assert_eq!(read(&zip, "x"), b"second");
    assert_eq!(names(&zip, ino(&zip, "y")), ["z"]);
    assert_eq!(zip.attr(ino(&zip, "y")).unwrap().permissions, 0o755);
}

#[test]
fn attributes_come_from_modes_of_unix_or_dos() {
    let mut maker = Maker::default();
    let mode = |mode: u32| move |fields: &mut Fields| fields.attributes = mode << 16;
    let dos = |attributes: u32| {
        move |fields: &mut Fields| (fields.system, fields.attributes) = (0, attributes)
    };
    maker.add("exe", b"", mode(0o104_755)).add("none", b"", mode(0)).add("bare", b"", mode(0o600));
    maker.add("dir/", b"", mode(0o040_711)).add("link", b"exe", mode(0o120_777));
    maker.add("dos", b"", dos(0)).add("dos-ro", b"", dos(1)).add("dos-dir", b"", dos(0x10));
    // As unzip 6.00 decides, `mapattr` in unix/unix.c.
    maker.add("dos-agreed", b"", dos(0o100_660 << 16));
    maker.add("dos-executable", b"", dos(0o100_755 << 16));
    maker.add("dos-agreed-dir", b"", dos(0o040_750 << 16 | 0x10));
    maker.add("back\\slash", b"", dos(0)).add("owned", b"", |fields| {
        fields.extra = vec![0x75, 0x78, 11, 0, 1, 4, 1, 2, 0, 0, 4, 3, 4, 0, 0];
    });
    let zip = open(&maker.finish(b""));
    let attr = |path: &str| zip.attr(ino(&zip, path)).unwrap();
    let shown = |path| (attr(path).kind.to_string(), attr(path).permissions);
    let (file, directory) = ("a regular file".to_owned(), "a directory".to_owned());
    assert_eq!(shown("exe"), (file.clone(), 0o4755));
    assert_eq!(shown("none"), (file.clone(), 0o644));
    assert_eq!(shown("bare"), (file.clone(), 0o600));
    assert_eq!(shown("dir"), (directory.clone(), 0o711));
    assert_eq!(shown("link"), ("a symbolic link".to_owned(), 0o777));
    assert_eq!(zip.read_link(ino(&zip, "link")).unwrap(), b"exe");
    assert_eq!(shown("dos"), (file.clone(), 0o644));
    assert_eq!(shown("dos-ro"), (file, 0o444));
    assert_eq!(shown("dos-dir"), (directory, 0o755));
    assert_eq!(shown("dos-agreed"), ("a regular file".to_owned(), 0o660));
    assert_eq!(shown("dos-executable"), ("a regular file".to_owned(), 0o644));
    assert_eq!(shown("dos-agreed-dir"), ("a directory".to_owned(), 0o750));
    assert_eq!(names(&zip, ino(&zip, "back")), ["slash"]);
    assert_eq!((attr("owned").uid, attr("owned").gid), (513, 1027));
    let user = rustix::process::geteuid().as_raw();
    assert_eq!(attr("exe").uid, user, "members without an owner belong to the mounting user");
}

#[test]
fn a_local_header_of_any_length_is_skipped() {
    let noise: Vec<u8> = (0..3000_u32).map(|number| ((number * number) >> 3) as u8).collect();
    let mut maker = Maker::default();
    for (nth, len) in [0, 5, 200, 65_535, 0, 40_000, 3].into_iter().enumerate() {
        let longer = |fields: &mut Fields| fields.local_extra = vec![7; len];
        maker.add(&format!("f{nth}"), &noise, longer);
    }
    maker.deflated("deflated", &noise);
    let zip = open(&maker.finish(b""));
    for _ in 0..2 {
        for nth in 0..7 {
            assert_eq!(read(&zip, &format!("f{nth}")), noise, "{nth}");
        }
        assert_eq!(read(&zip, "deflated"), noise);
    }
    let zip = open(&maker.finish(b""));
    for nth in 0..7 {
        assert_eq!(read_at(&zip, &format!("f{nth}"), 2990, 100).unwrap(), noise[2990..], "{nth}");
        assert_eq!(read_at(&zip, &format!("f{nth}"), 3000, 100).unwrap(), b"");
    }
}

#[test]
fn members_that_touch_are_no_overlap_but_those_that_share_a_byte_are() {
    let mut maker = Maker::default();
    maker.add("a", b"0123456789", |_| {}).add("b", b"0123456789", |_| {});
    open(&maker.finish(b""));
    let mut bomb = maker.clone();
    // The data of `a` runs up to the header of `b`, and one byte into it.
    for (longer, is_refused) in [(0, false), (1, false), (2, true)] {
        let mut maker = Maker::default();
        maker.add("a", b"0123456789", |fields| {
            (fields.compressed, fields.size) = (10 + longer, 10 + longer);
        });
        maker.add("b", b"0123456789", |_| {});
        // The name in the local header is not counted, since it may be shorter than in the entry.
        let refused = open_partly(&maker.finish(b""), true).is_err();
        assert_eq!(refused, is_refused, "{longer}");
    }
    let twice = Fields { offset: 0, ..fields_of("a", b"0123456789") };
    open(&bomb.clone().entry(&twice).finish(b""));
    let again = Fields { offset: 0, ..fields_of("c", b"0123456789") };
    bomb.entry(&again);
    assert_eq!(refusal(&bomb.finish(b"")), "members overlap: a ZIP bomb, or damage");
}

fn fields_of(name: &str, data: &[u8]) -> Fields {
    Fields {
        name: name.into(),
        system: 3,
        flags: 0,
        method: 0,
        crc32: crc32fast::hash(data),
        compressed: data.len() as u32,
        size: data.len() as u32,
        attributes: 0,
        offset: 0,
        extra: Vec::new(),
        local_extra: Vec::new(),
    }
}

#[test]
fn a_member_cannot_announce_more_than_its_data_can_hold() {
    let most = 10 * DEFLATE_RATIO_MAX as u32;
    for (size, is_refused) in [(most, false), (most + 1, true)] {
        let mut maker = Maker::default();
        maker.add("a", b"0123456789", |fields| (fields.method, fields.size) = (8, size));
        let outcome = open_partly(&maker.finish(b""), false).map(|_| ());
        assert_eq!(outcome.is_err(), is_refused, "{outcome:?}");
        assert!(open_partly(&maker.finish(b""), true).is_ok());
    }
    let mut maker = Maker::default();
    maker.add("a", b"0123456789", |fields| fields.size = 9);
    assert_eq!(refusal(&maker.finish(b"")), "\"a\": it is stored, but its two lengths differ");
    let mut maker = Maker::default();
    maker.add("a", b"0123456789", |fields| (fields.compressed, fields.size) = (100, 100));
    assert_eq!(refusal(&maker.finish(b"")), "\"a\": its data is not within the archive");
}

#[test]
fn damage_to_a_member_is_an_error_of_its_reads_alone() {
    let text = b"some text that is long enough ".repeat(50);
    let mut maker = Maker::default();
    maker.deflated("a", &text).add("b", &text, |fields| fields.crc32 ^= 1).deflated("c", &text);
    let sound = maker.finish(b"");
    let mut damaged = sound.clone();
    damaged[31 + 10] ^= 0x10;
    let zip = open(&damaged);
    assert!(read_at(&zip, "a", 0, 10).unwrap_err().is_damage());
    assert!(read_at(&zip, "a", 10, 10).unwrap_err().is_damage());
    assert_eq!(read(&zip, "c"), text);
    // A stored member is served unchecked. Its checksum is for verify.
    assert_eq!(read(&zip, "b"), text);
    assert_eq!(zip.stored_crc32(ino(&zip, "b")).unwrap(), Some(crc32fast::hash(&text) ^ 1));
    assert_eq!(zip.stored_crc32(ino(&zip, "a")).unwrap(), None);
    let mut lost = sound;
    lost[0] = b'Q';
    let error = read_at(&open(&lost), "a", 0, 10).unwrap_err();
    assert!(error.to_string().ends_with("there is no local header where its entry says"));
}

#[test]
fn the_audit_compares_both_headers() {
    let of = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut maker = Maker::default();
        maker.add("abc", b"text", |_| {});
        let mut bytes = maker.finish(b"");
        change(&mut bytes);
        let findings = audit(&bytes);
        findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>()
    };
    assert_eq!(of(&|_| {}), [""; 0]);
    assert_eq!(of(&|bytes| bytes[30] = b'x'), ["its local header has another name"]);
    assert_eq!(of(&|bytes| bytes[14] ^= 1), ["its local header has another checksum"]);
    assert_eq!(of(&|bytes| bytes[22] ^= 1), ["its local header has another length"]);
    assert_eq!(of(&|bytes| bytes[8] = 8), ["its local header has another compression method"]);
    assert_eq!(of(&|bytes| bytes[28] = 200), ["its data runs into the central directory"]);
}

#[test]
fn the_audit_finds_data_that_a_long_local_header_moves_into_the_next_member() {
    let mut maker = Maker::default();
    maker.add("a", b"data of a", |_| {}).add("b", b"data of b", |_| {});
    let mut bytes = maker.finish(b"");
    assert_eq!(audit(&bytes), []);
    // The length of the extra fields in the first header.
    bytes[28] = 20;
    let found = audit(&bytes).into_iter().map(|finding| finding.what);
    assert_eq!(found.collect::<Vec<_>>(), ["its data runs into the next member"]);
}

#[test]
fn the_target_of_a_link_has_no_nul() {
    let link = |target: &[u8]| {
        let mut maker = Maker::default();
        maker.add("link", target, |fields| fields.attributes = 0o120_777 << 16);
        let zip = open(&maker.finish(b""));
        zip.read_link(ino(&zip, "link"))
    };
    assert_eq!(link(b"a/b").unwrap(), b"a/b");
    assert_eq!(link(b"a\0b").unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn the_audit_reads_data_descriptors_of_all_four_forms() {
    let crc32 = crc32fast::hash(b"text").to_le_bytes();
    let short = [&crc32[..], &4_u32.to_le_bytes(), &4_u32.to_le_bytes()].concat();
    let long = [&crc32[..], &4_u64.to_le_bytes(), &4_u64.to_le_bytes()].concat();
    let signed = |descriptor: &[u8]| [b"PK\x07\x08", descriptor].concat();
    let mut wrong = short.clone();
    wrong[5] = 1;
    let forms = [
        (short.clone(), 0),
        (long.clone(), 0),
        (signed(&short), 0),
        (signed(&long), 0),
        (wrong, 1),
    ];
    for (descriptor, count) in forms {
        let mut maker = Maker::default();
        maker.add("a", b"text", |fields| fields.flags = 8);
        maker.bytes.extend(&descriptor);
        let mut bytes = maker.finish(b"");
        // The local header has none of the numbers.
        bytes[14..26].fill(0);
        assert_eq!(audit(&bytes).len(), count, "{descriptor:?}");
    }
}

const GIB: u64 = 1 << 30;

/// An archive as the archive program of macOS writes it: stored members one after the other, with
/// numbers modulo 4 GiB. A member has these GiB of zeros after its first 4 bytes.
fn without_zip64(members: &[(&str, &[u8], u64)], is_reversed: bool) -> Apart {
    let (mut maker, mut holes, mut entries) = (Maker::default(), Vec::new(), Vec::new());
    let mut zeros = 0;
    for &(name, data, gib) in members {
        let offset = (maker.bytes.len() as u64 + zeros) as u32;
        maker.add(name, data, |fields| {
            let size = (data.len() as u64 + gib * GIB) as u32;
            (fields.offset, fields.compressed, fields.size) = (offset, size, size);
        });
        let header = maker.bytes.len() - data.len() - name.len() - 30;
        let size = ((data.len() as u64 + gib * GIB) as u32).to_le_bytes();
        maker.bytes[header + 18..header + 26].copy_from_slice(&[size, size].concat());
        if gib > 0 {
            holes.push((maker.bytes.len() - data.len() + 4, gib * GIB));
        }
        zeros += gib * GIB;
        entries.push(std::mem::take(&mut maker.directory));
    }
    if is_reversed {
        entries.reverse();
    }
    let directory = entries.concat();
    let offset = (maker.bytes.len() as u64 + zeros) as u32;
    let end = end_record(maker.count, directory.len(), offset as usize, b"");
    Apart { bytes: [&maker.bytes[..], &directory, &end].concat(), holes }
}

#[test]
fn offsets_and_lengths_modulo_4_gib_are_those_of_members_in_order() {
    for gib in [[0, 0, 5], [3, 3, 3], [4, 0, 0], [1, 9, 1], [0, 4, 8]] {
        let members: [(&str, &[u8], u64); 6] = [
            ("a", b"first", 0),
            ("b", b"1234567", gib[0]),
            ("c", b"", 0),
            ("d", b"abcdefg", gib[1]),
            ("e", b"in between", 0),
            ("f", b"ABCDEFG", gib[2]),
        ];
        let zip = open_storage(Arc::new(without_zip64(&members, false)), false).unwrap();
        for (name, data, gib) in members {
            let size = zip.attr(ino(&zip, name)).unwrap().size;
            assert_eq!(size, data.len() as u64 + gib * GIB, "{name} of {gib:?}");
            let head = read_at(&zip, name, 0, 4).unwrap();
            assert_eq!(head, data[..data.len().min(4)], "{name} of {gib:?}");
            if gib > 0 {
                let tail = read_at(&zip, name, size - 4, 10).unwrap();
                assert_eq!(tail, [0, data[4], data[5], data[6]], "{name} of {gib:?}");
            }
        }
        // The local headers have the lengths modulo 4 GiB as well.
        let mut findings = Vec::new();
        zip.audit(&mut |finding| findings.push(finding));
        assert!(findings.is_empty(), "{findings:?} of {gib:?}");
    }
}

#[test]
fn numbers_modulo_4_gib_in_no_order_are_refused_with_their_cause() {
    let members: [(&str, &[u8], u64); 3] =
        [("a", b"first", 0), ("b", b"1234567", 5), ("c", b"last", 0)];
    for is_reversed in [false, true] {
        let mut archive = without_zip64(&members, is_reversed);
        if !is_reversed {
            // The local header of the last member.
            let at = archive.bytes.windows(4).rposition(|found| found == b"PK\x03\x04").unwrap();
            archive.bytes[at] ^= 1;
        }
        let error = open_storage(Arc::new(archive), true).err().unwrap();
        assert_eq!(error.kind(), Kind::Unsupported, "{error}");
        assert!(error.to_string().contains("archive program of macOS"), "{error}");
        assert!(error.hint().unwrap().contains("ditto"), "{error}");
    }
}

#[test]
fn data_is_decoded_at_most_once_for_lengths_modulo_4_gib() {
    // Enough for 4 GiB of zeros, were it sound.
    let mut maker = Maker::default();
    maker.add("a", &vec![0xff; 4_200_000], |fields| (fields.method, fields.size) = (8, 1));
    let mut fields = fields_of("b", b"");
    (fields.method, fields.compressed, fields.size) = (8, 4_200_000, 1);
    maker.entry(&fields);
    let findings = audit(&maker.finish(b""));
    let is_of = |name: &[u8], what: &str| {
        findings.iter().any(|found| {
            found.what.contains(what)
                && matches!(&found.location, vfs::Location::Path(path) if path == name)
        })
    };
    assert!(!is_of(b"a", "members overlap") && is_of(b"b", "members overlap"), "{findings:?}");
}

#[test]
fn a_count_that_differs_is_noted() {
    let mut maker = Maker::default();
    maker.add("a", b"text", |_| {});
    maker.count = 2;
    let findings = audit(&maker.finish(b""));
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].what, "the number of entries in its end is 2, but there are 1");
    assert_eq!(findings[0].severity, vfs::Severity::Damage, "an entry is missing");
    assert!(refusal(&maker.finish(b"")).contains("in its end is 2"));
    // More than announced are all there.
    maker.count = 0;
    let findings = audit(&maker.finish(b""));
    assert!(findings.len() == 1 && findings[0].severity.is_note(), "{findings:?}");
}

#[test]
fn compressed_data_has_a_length_that_fits_its_size() {
    let most = 4 + 1 + 65_536;
    for (len, is_refused) in [(most, false), (most + 1, true)] {
        let mut maker = Maker::default();
        maker.add("a", &vec![0; len], |fields| (fields.method, fields.size) = (8, 4));
        assert_eq!(open_partly(&maker.finish(b""), false).is_err(), is_refused, "{len}");
    }
    let mut maker = Maker::default();
    maker.add("a", b"", |fields| fields.crc32 = 1);
    assert!(refusal(&maker.finish(b"")).contains("its checksum is not that of nothing"));
}

#[test]
fn large_members_are_read_at_any_offset() {
    let mut bytes = Vec::new();
    let mut number = 1_u64;
    while (bytes.len() as u64) < ZIP_WHOLE_MAX + 3_000_000 {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bytes.extend(number.to_le_bytes());
        bytes.extend([number as u8 & 15; 24]);
    }
    let mut maker = Maker::default();
    maker.deflated("large", &bytes).deflated("limit", &bytes[..ZIP_WHOLE_MAX as usize]);
    let sound = maker.finish(b"");
    let zip = open(&sound);
    for offset in [0, 1, 5_000_000, 8 << 20, bytes.len() - 10, 77] {
        let expected = &bytes[offset..bytes.len().min(offset + 100_000)];
        let found = read_at(&zip, "large", offset as u64, 100_000).unwrap();
        assert!(found == expected, "at {offset}");
    }
    let found = read_at(&zip, "limit", ZIP_WHOLE_MAX - 5, 100).unwrap();
    assert_eq!(found, bytes[ZIP_WHOLE_MAX as usize - 5..ZIP_WHOLE_MAX as usize]);
    zip.release();
    assert_eq!(read_at(&zip, "large", 9, 9).unwrap(), bytes[9..18]);
    let mut damaged = sound;
    let middle = damaged.len() / 4;
    damaged[middle] ^= 1;
    let error = read_at(&open(&damaged), "large", 0, 10).unwrap_err();
    assert!(error.is_damage(), "{error}");
}
