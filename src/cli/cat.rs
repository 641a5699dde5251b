//! `archfs cat`: writes files of an archive to standard output without mounting it.

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::bar::Bar;
use super::open_args::OpenArgs;
use super::term::written;
use crate::error::Result;
use crate::progress::Progress;
use crate::sync::Arc;
use crate::vfs::{self, ContentCheck, Scratch, Tree};

/// Write files of an archive to standard output without mounting it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  archfs cat data.sqfs train/classes.txt
  archfs cat data.tar.gz a.json b.json | jq .label")]
pub(super) struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// The files in it; symbolic links are followed inside the archive
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    let tree = args.open.open()?;
    let progress = Arc::new(Progress::default());
    // On a terminal a bar would disturb the output.
    let _bar = (!std::io::stdout().is_terminal()).then(|| Bar::watch(&progress));
    for path in &args.paths {
        cat(tree.as_ref(), &args.open, path, &progress)?;
    }
    Ok(0)
}

fn cat(tree: &dyn Tree, open: &OpenArgs, path: &Path, progress: &Progress) -> Result<()> {
    let name = path.display();
    let path_bytes = path.as_os_str().as_bytes();
    let located = |error| open.located(path_bytes, error);
    let attr = vfs::resolve_file(tree, path_bytes).map_err(located)?;
    progress.begin(format!("reading {name}"));
    progress.expect(attr.size);
    let checksum = tree.stored_crc32(attr.ino).map_err(located)?;
    let check = ContentCheck::new(checksum, attr.size);
    let mut sum = check.part(0);
    let mut scratch = Scratch::default();
    let mut out = std::io::stdout().lock();
    let mut offset = 0;
    while offset < attr.size {
        let piece = vfs::piece_of(attr.size - offset);
        let bytes = vfs::read_some(tree, attr.ino, offset, piece, &mut scratch).map_err(located)?;
        let bytes = bytes.as_slice();
        sum.update(bytes);
        offset += bytes.len() as u64;
        if offset >= attr.size {
            // Before the last bytes are written: of a small file, none are if it is damaged.
            check.add(sum.clone()).map_err(located)?;
        }
        match out.write_all(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            result => written(result)?,
        }
        progress.advance(bytes.len() as u64);
    }
    written(out.flush())
}
