//! `archfs cat`: writes files of an archive to standard output without mounting it.

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::bar::Bar;
use super::exit;
use super::ls::{self, Pattern};
use super::open_args::OpenArgs;
use super::term::{print_error, show_error, written};
use crate::error::{Error, Kind, Result};
use crate::progress::Progress;
use crate::sync::Arc;
use crate::units::counted;
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
    let bar = (!std::io::stdout().is_terminal()).then(|| Bar::watch(&progress));
    let mut failures = Failures::default();
    for path in args.paths.iter().map(|path| path.as_os_str().as_bytes()) {
        write(tree.as_ref(), &args.open, path, &progress, &mut failures)?;
    }
    drop(bar);
    Ok(failures.show())
}

/// Files that could not be read.
#[derive(Default)]
struct Failures {
    first: Vec<Error>,
    more: u64,
    status: u8,
}

impl Failures {
    /// Most errors that are printed.
    const MOST: usize = 10;

    fn add(&mut self, error: Error) {
        self.status = self.status.max(exit::of(&error));
        match self.first.len() < Self::MOST {
            true => self.first.push(error),
            false => self.more += 1,
        }
    }

    /// Prints them. Returns the exit status.
    fn show(&self) -> u8 {
        self.first.iter().for_each(show_error);
        if self.more > 0 {
            print_error(&format!("{} could not be read", counted(self.more, "more file")));
        }
        self.status
    }
}

/// Writes the files that `path` stands for. Fails if nothing can be written, or if a server does
/// not answer.
fn write(
    tree: &dyn Tree,
    open: &OpenArgs,
    path: &[u8],
    progress: &Progress,
    failures: &mut Failures,
) -> Result<()> {
    let mut cat = |path: &[u8], file: Result<Attr>| match file
        .and_then(|attr| read(tree, attr, path, progress))
    {
        Ok(Read::Whole) => Ok(()),
        Ok(Read::NotWritten(error)) => written(Err(error)),
        Err(error) if error.kind() == Kind::Unreachable => Err(open.located(path, error)),
        Err(error) => {
            failures.add(open.located(path, error));
            Ok(())
        }
    };
    match vfs::resolve_file(tree, path) {
        Err(error) if error.kind() == Kind::NotFound && Pattern::is_one(path) => {
            // An error of writing, which is none of the pattern.
            let mut ended = None;
            let matched = ls::each_match(tree, open, path, false, &mut |found| {
                let file = vfs::resolve_file(tree, &found.path);
                let is_other =
                    |error: &Error| matches!(error.kind(), Kind::IsADirectory | Kind::InvalidInput);
                if ended.is_some() || file.as_ref().is_err_and(is_other) {
                    return Ok(false);
                }
                ended = cat(&found.path, file).err();
                Ok(true)
            });
            match (ended, matched) {
                (Some(error), _) => Err(error),
                (None, Err(error)) if error.kind() == Kind::Unreachable => Err(error),
                (None, matched) => {
                    matched.unwrap_or_else(|error| failures.add(error));
                    Ok(())
                }
            }
        }
        file => cat(path, file),
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
