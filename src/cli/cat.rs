//! `archfs cat`: writes files of an archive to standard output without mounting it.

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::bar::Bar;
use super::ls::{self, Pattern};
use super::open_args::OpenArgs;
use super::term::written;
use crate::error::{Kind, Result};
use crate::progress::Progress;
use crate::sync::Arc;
use crate::vfs::{self, Attr, ContentCheck, Scratch, Tree};

/// Write files of an archive to standard output without mounting it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A PATH may be a pattern as in `archfs ls`: it stands for the files that it matches.

Examples:
  archfs cat data.sqfs train/classes.txt
  archfs cat data.sqfs 'logs/*.csv'
  archfs cat data.tar.gz a.json b.json | jq .label"
)]
pub(super) struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// Files in it, or patterns; symbolic links are followed inside the archive
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    let tree = args.open.open()?;
    let progress = Arc::new(Progress::default());
    // On a terminal a bar would disturb the output.
    let _bar = (!std::io::stdout().is_terminal()).then(|| Bar::watch(&progress));
    let (tree, open) = (tree.as_ref(), &args.open);
    for path in args.paths.iter().map(|path| path.as_os_str().as_bytes()) {
        match vfs::resolve_file(tree, path) {
            Err(error) if error.kind() == Kind::NotFound && Pattern::is_one(path) => {
                ls::each_match(tree, open, path, false, &mut |found| match vfs::resolve_file(
                    tree,
                    &found.path,
                ) {
                    Err(error)
                        if [Kind::IsADirectory, Kind::InvalidInput].contains(&error.kind()) =>
                    {
                        Ok(false)
                    }
                    file => cat(tree, open, &found.path, file, &progress).map(|()| true),
                })?;
            }
            file => cat(tree, open, path, file, &progress)?,
        }
    }
    Ok(0)
}

/// Writes the file at `path`, which was looked up.
fn cat(
    tree: &dyn Tree,
    open: &OpenArgs,
    path: &[u8],
    file: Result<Attr>,
    progress: &Progress,
) -> Result<()> {
    let located = |error| open.located(path, error);
    let attr = file.map_err(located)?;
    progress.begin(format!("reading {}", String::from_utf8_lossy(path)));
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
