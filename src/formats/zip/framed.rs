//! The data of a member with a header and a trailer around it, so that it is a file of the format
//! that its method comes from.

use super::lzma;
use super::method::Method;
use crate::error::{Error, Result};
use crate::formats::bytes::index;
use crate::formats::compressed::Container;
use crate::storage::{FileRange, InMemory, Storage};
use crate::sync::Arc;

/// A gzip header without a name or a time (RFC 1952, 2.3): the method is DEFLATE.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

/// Storage that is the bytes of several storages, one after the other.
struct Framed(Vec<Arc<dyn Storage>>);

/// The data of a member as a compressed file: its container, and its bytes. `size` is the length of
/// the decoded data.
///
/// Fails with `Corrupt` or `Unsupported` if the data does not start as its method demands; `Io`.
pub(super) fn file_of(
    method: Method,
    data: FileRange,
    size: u64,
    crc32: u32,
) -> Result<(Container, Arc<dyn Storage>)> {
    Ok(match method {
        Method::Stored => return Err(Error::corrupt("stored data has no container")),
        Method::Bzip2 => (Container::Bzip2, Arc::new(data)),
        Method::Zstd => (Container::Zstd, Arc::new(data)),
        Method::Xz => (Container::Xz, Arc::new(data)),
        Method::Deflate => {
            // ISIZE: the length modulo 2^32.
            let [a, b, c, d, ..] = size.to_le_bytes();
            let tail = [crc32.to_le_bytes(), [a, b, c, d]].concat();
            (Container::Gzip, framed(GZIP_HEADER.to_vec(), data, tail))
        }
        Method::Lzma => {
            let mut start = [0; 9];
            let len = lzma::PREFIX.min(data.len());
            data.read_exact_at(start.get_mut(..index(len)).unwrap_or_default(), 0)?;
            let (head, _) = lzma::split(&start, size)?;
            let inner = FileRange::new(Arc::new(data), lzma::PREFIX)?;
            (Container::Lzma, framed(head.to_vec(), inner, Vec::new()))
        }
    })
}

fn framed(head: Vec<u8>, data: FileRange, tail: Vec<u8>) -> Arc<dyn Storage> {
    let (head, tail) = (Arc::new(InMemory::new(head)), Arc::new(InMemory::new(tail)));
    Arc::new(Framed(vec![head, Arc::new(data), tail]))
}

impl Storage for Framed {
    fn len(&self) -> u64 {
        self.0.iter().fold(0, |sum: u64, part| sum.saturating_add(part.len()))
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let (mut rest, mut skipped) = (buffer, offset);
        for part in &self.0 {
            let left = part.len().saturating_sub(skipped);
            let len = index(left).min(rest.len());
            let (target, remaining) = rest.split_at_mut_checked(len).unwrap_or_default();
            if !target.is_empty() {
                part.read_contents_at(target, skipped)?;
            }
            skipped = skipped.saturating_sub(part.len());
            rest = remaining;
        }
        match rest.is_empty() {
            true => Ok(()),
            false => Err(Error::truncated("a read past the end of the data")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_across_the_parts() {
        let data: Arc<dyn Storage> = Arc::new(InMemory::new(b"..data..".to_vec()));
        let data = FileRange::new(data, 2).unwrap().cut(4).unwrap();
        let storage = framed(b"head".to_vec(), data, b"tl".to_vec());
        let whole = b"headdatatl";
        assert_eq!(storage.len(), 10);
        for start in 0..=10_usize {
            for end in start..=10 {
                let mut buffer = vec![0; end - start];
                storage.read_exact_at(&mut buffer, start as u64).unwrap();
                assert_eq!(buffer, &whole[start..end]);
            }
        }
        storage.read_exact_at(&mut [0; 2], 9).unwrap_err();
    }
}
