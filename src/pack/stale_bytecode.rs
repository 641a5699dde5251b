//! Notes the compiled files of Python that another time of their sources makes stale.
//!
//! The header of a `.pyc` file is a magic number, flags, and the time and size of the source, four
//! bytes each in little-endian order; with bit 0 of the flags, a hash of the source instead
//! (PEP 552). If the time differs, Python compiles the source again. It cannot save the result in a
//! mount, so every process does.

use std::collections::HashMap;

use super::catalog::{Catalog, InodeId, InodeKind};

/// How many headers are read. Most environments have one kind of compiled files.
const HEADERS_READ: usize = 64;

/// The note, if files in `catalog` become stale because times later than `epoch` become `epoch`.
pub(super) fn note(catalog: &Catalog, epoch: i64) -> Option<String> {
    let (mut count, mut headers_read, mut is_by_time) = (0_u64, 0, false);
    for directory in catalog.named() {
        let caches = catalog.entries(directory).filter(|(name, _)| *name == b"__pycache__");
        for (_, cache) in caches {
            // Times of sources that change, by the beginning of the name.
            let sources: HashMap<_, _> = catalog
                .entries(directory)
                .filter_map(|(name, source)| {
                    let time = catalog.inode(source).meta.modified.seconds;
                    (time > epoch).then_some((name.strip_suffix(b".py")?, time))
                })
                .collect();
            for (name, compiled) in catalog.entries(cache) {
                let Some(time) = source_of(name).and_then(|stem| sources.get(stem)) else {
                    continue;
                };
                count += 1;
                if !is_by_time && headers_read < HEADERS_READ {
                    headers_read += 1;
                    is_by_time = source_time(catalog, compiled) == Some(*time as u32);
                }
            }
        }
    }
    is_by_time.then(|| {
        format!(
            "SOURCE_DATE_EPOCH makes {count} compiled files of Python stale, so each process compiles \
             their sources again; `python -m compileall -f --invalidation-mode unchecked-hash DIR` \
             before packing avoids that"
        )
    })
}

/// The beginning of the name of the source: `a.b` for `a.b.cpython-311.opt-1.pyc`.
fn source_of(name: &[u8]) -> Option<&[u8]> {
    let tag = name.strip_suffix(b".pyc")?;
    let without_level = match tag.windows(5).rposition(|part| part == b".opt-") {
        Some(end) => &tag[..end],
        None => tag,
    };
    let end = without_level.iter().rposition(|&byte| byte == b'.')?;
    Some(&without_level[..end])
}

/// The time in the header of `compiled`; `None` if it has none, or cannot be read.
fn source_time(catalog: &Catalog, compiled: InodeId) -> Option<u32> {
    let InodeKind::File { size, content, .. } = catalog.inode(compiled).kind else { return None };
    let mut header = [0; 12];
    if size < header.len() as u64 {
        return None;
    }
    // An error is reported when the file is packed.
    catalog.content(content).read(content.key, 0, &mut header).ok()?;
    let word = |at: usize| header[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    (word(4)? & 1 == 0).then(|| word(8)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_compiled_file_is_known_by_its_name() {
        for (name, source) in [
            ("a.cpython-311.pyc", Some("a")),
            ("a.b.cpython-311.opt-1.pyc", Some("a.b")),
            ("a.py", None),
            ("a.pyc", None),
        ] {
            assert_eq!(source_of(name.as_bytes()), source.map(str::as_bytes), "{name}");
        }
    }
}
