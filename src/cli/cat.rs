//! `archfs cat`: writes files of an archive to standard output without mounting it.

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::bar::Bar;
use super::exit;
use super::ls::{self, Pattern};
use super::open_args::OpenArgs;
use super::term::{show_error, written};
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
    let mut status = 0;
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
                    file => {
                        status = cat(tree, open, &found.path, file, &progress)?.max(status);
                        Ok(true)
                    }
                })?;
            }
            file => status = cat(tree, open, path, file, &progress)?.max(status),
        }
    }
    Ok(status)
}

/// Writes the file at `path`, which was looked up. Prints an error of that file alone, and returns
/// its exit status.
fn cat(
    tree: &dyn Tree,
    open: &OpenArgs,
    path: &[u8],
    file: Result<Attr>,
    progress: &Progress,
) -> Result<u8> {
    let read = file.and_then(|attr| read(tree, attr, path, progress));
    match read {
        Ok(Read::Whole) => Ok(0),
        Ok(Read::NotWritten(error)) => written(Err(error)).map(|()| 0),
        Err(error) => {
            let error = open.located(path, error);
            if error.kind() == Kind::Unreachable {
                return Err(error);
            }
            show_error(&error);
            Ok(exit::of(&error))
        }
    }
}

/// A file that was read.
enum Read {
    Whole,
    /// Nothing more can be written to standard output.
    NotWritten(std::io::Error),
}

/// Writes the file `attr`, whose path is `path`.
fn read(tree: &dyn Tree, attr: Attr, path: &[u8], progress: &Progress) -> Result<Read> {
    progress.begin(format!("reading {}", String::from_utf8_lossy(path)));
    progress.expect(attr.size);
    let check = ContentCheck::new(tree.stored_crc32(attr.ino)?, attr.size);
    let mut sum = check.part(0);
    let mut scratch = Scratch::default();
    let mut out = std::io::stdout().lock();
    let mut offset = 0;
    while offset < attr.size {
        let piece = vfs::piece_of(attr.size - offset);
        let bytes = vfs::read_some(tree, attr.ino, offset, piece, &mut scratch)?;
        let bytes = bytes.as_slice();
        sum.update(bytes);
        offset += bytes.len() as u64;
        if offset >= attr.size {
            // Before the last bytes are written: of a small file, none are if it is damaged.
            check.add(sum.clone())?;
        }
        if let Err(error) = out.write_all(bytes) {
            return Ok(Read::NotWritten(error));
        }
        progress.advance(bytes.len() as u64);
    }
    Ok(out.flush().map_or_else(Read::NotWritten, |()| Read::Whole))
}
