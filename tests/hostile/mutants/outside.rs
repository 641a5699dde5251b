//! Compresses a mutant tar again, so that its damage is below a valid compressed stream.

use std::io::Read;

use super::damage;
use super::header::Headers;
use super::random::Random;

/// A tar, compressed or not.
#[derive(Clone, Debug)]
pub(crate) struct Wrapped {
    /// The bytes of the file.
    pub(crate) bytes: Vec<u8>,
    tar: Headers,
    ending: String,
}

impl Wrapped {
    /// Takes `bytes` of a file whose name has `ending`; `tar` is the uncompressed tar.
    pub(crate) fn new(bytes: Vec<u8>, tar: Vec<u8>, ending: &str) -> Self {
        Self { bytes, tar: Headers::parse(tar), ending: ending.to_owned() }
    }

    /// Makes a mutant: of the tar, or of its container.
    pub(crate) fn mutant(&self, other: &Self, random: &mut Random) -> Vec<u8> {
        let pack: fn(&[u8]) -> Vec<u8> = match &*self.ending {
            "tar" => |tar| tar.to_vec(),
            "gz" => gzip,
            "bz2" => bzip2,
            "xz" => xz,
            "zst" => zstd,
            "lz4" => lz4,
            other => panic!("nothing packs {other}"),
        };
        if self.ending != "tar" && random.once_in(2) {
            return self.damaged(other, random);
        }
        pack(&self.tar.mutant(&other.tar.bytes, random))
    }

    fn damaged(&self, other: &Self, random: &mut Random) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        damage::damage(&mut bytes, &other.bytes, random);
        bytes
    }
}

fn gzip(tar: &[u8]) -> Vec<u8> {
    let mut packer = libdeflater::Compressor::new(libdeflater::CompressionLvl::fastest());
    let mut bytes = vec![0; packer.gzip_compress_bound(tar.len())];
    let len = packer.gzip_compress(tar, &mut bytes).expect("room");
    bytes.truncate(len);
    bytes
}

fn bzip2(tar: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut packer = bzip2::read::BzEncoder::new(tar, bzip2::Compression::fast());
    packer.read_to_end(&mut bytes).expect("memory");
    bytes
}

fn xz(tar: &[u8]) -> Vec<u8> {
    liblzma::encode_all(tar, 0).expect("memory")
}

fn zstd(tar: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(tar, 1).expect("memory")
}

/// A frame of uncompressed blocks, without checksums except that of its header (LZ4 Frame Format
/// Description).
fn lz4(tar: &[u8]) -> Vec<u8> {
    let head = [0x60, 0x40];
    let mut bytes = vec![0x04, 0x22, 0x4d, 0x18, head[0], head[1]];
    bytes.push((xxhash_rust::xxh32::xxh32(&head, 0) >> 8) as u8);
    for block in tar.chunks(64 << 10) {
        bytes.extend((block.len() as u32 | 1 << 31).to_le_bytes());
        bytes.extend(block);
    }
    bytes.extend([0; 4]);
    bytes
}
