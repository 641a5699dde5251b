//! `archfs ls`: lists directories of an archive without mounting it.
//!
//! `patterns` finds what patterns match; `entry` presents one entry. File data is not read.

use std::io::{BufWriter, IsTerminal, Stdout, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use jiff::tz::TimeZone;
use term_grid::{Direction, Filling, Grid, GridOptions};

use super::open_args::OpenArgs;
use super::term::{columns, name_for_output, show_error, written};
use crate::cli::exit;
use crate::error::{Error, Kind, Result};
use crate::vfs::{self, Cookie, FileKind, Ino, Tree, joined};
use entry::Sizes;

mod entry;
mod patterns;

pub(super) use entry::json_line;
pub(super) use patterns::Pattern;

/// List directories of an archive without mounting it
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "A PATH may be a pattern with *, ?, [...] and {a,b}; ** stands for any number of directories. \
A pattern lists what it matches, without the contents of directories. Times are local (TZ).

Examples:
  archfs ls data.sqfs train
  archfs ls -lh data.sqfs
  archfs ls -l data.sqfs 'train/**/*.jpeg'
  archfs ls -R --json data.tar | jq -r 'select(.size_bytes > 1e6) | .path'"
)]
pub(super) struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// Directories and files in it, or patterns
    #[arg(default_value = "/", value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Also print mode, links, owner, group, size and time
    #[arg(short, long)]
    long: bool,

    /// Print sizes as 1.5 KiB, 2.3 MiB and so on
    #[arg(short, long)]
    human_readable: bool,

    /// Also list names that begin with a dot
    #[arg(short, long)]
    all: bool,

    /// List directories themselves, not their contents
    #[arg(short, long)]
    directory: bool,

    /// Also list subdirectories, one path a line
    #[arg(short = 'R', long)]
    descend: bool,

    /// Print one name a line on a terminal too
    #[arg(short = '1')]
    one_a_line: bool,

    /// Print one JSON object a line
    #[arg(long)]
    json: bool,

    /// Print help
    #[arg(long, action = clap::ArgAction::HelpLong)]
    help: Option<bool>,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    let tree = args.open.open()?;
    let mut listing = Listing {
        tree: tree.as_ref(),
        args,
        zone: TimeZone::system(),
        is_grid: std::io::stdout().is_terminal()
            && !(args.long || args.one_a_line || args.descend || args.json),
        out: BufWriter::new(std::io::stdout()),
    };
    let mut directories = Vec::new();
    let mut status = 0;
    let mut fail = |error: &Error| {
        show_error(error);
        status = status.max(exit::of(error));
    };
    // As in ls(1), directories whose contents are listed come last.
    let mut is_first = true;
    for path in args.paths.iter().map(|path| path.as_os_str().as_bytes()) {
        match listing.named(path, &mut directories) {
            Ok(has_printed) => is_first &= !has_printed,
            Err(error) => fail(&error),
        }
    }
    let has_titles = args.paths.len() > 1 && !args.json;
    for directory in directories {
        if has_titles {
            listing.title(&directory, is_first)?;
        }
        is_first = false;
        if let Err(error) = listing.contents(&directory) {
            fail(&error);
        }
    }
    written(listing.out.flush())?;
    Ok(status.max(exit::of_shown()))
}

struct Listing<'t> {
    tree: &'t dyn Tree,
    args: &'t Args,
    zone: TimeZone,
    /// Whether names are printed in columns.
    is_grid: bool,
    out: BufWriter<Stdout>,
}

impl Listing<'_> {
    /// Lists what `path` names, except directories whose contents are to be listed: it adds those
    /// to `directories`. Returns whether it printed anything.
    fn named(&mut self, path: &[u8], directories: &mut Vec<Found>) -> Result<bool> {
        let attr = match vfs::resolve(self.tree, path) {
            Err(error) if error.kind() == Kind::NotFound && Pattern::is_one(path) => {
                return self.matches(path).map(|()| true);
            }
            attr => attr.map_err(|error| self.args.open.located(path, error))?,
        };
        // As ls(1), which follows a link to a directory unless the link itself is of interest.
        let follows = attr.kind == FileKind::Symlink && self.follows_links();
        let target = follows.then(|| vfs::resolve_through(self.tree, path));
        let attr = match target {
            Some(Ok(target)) if target.kind == FileKind::Directory => target,
            _ => attr,
        };
        let mut found = Found { ino: attr.ino, kind: attr.kind, path: trimmed(path), name_at: 0 };
        if found.kind == FileKind::Directory && !self.args.directory {
            found.name_at = if found.path.is_empty() { 0 } else { found.path.len() + 1 };
            directories.push(found);
            return Ok(false);
        }
        self.print(&found)?;
        Ok(true)
    }

    fn follows_links(&self) -> bool {
        !(self.args.long || self.args.directory || self.args.json)
    }

    /// Lists what `pattern` matches.
    fn matches(&mut self, pattern: &[u8]) -> Result<()> {
        let (tree, open, all) = (self.tree, &self.args.open, self.args.all);
        each_match(tree, open, pattern, all, &mut |found| self.print(found).map(|()| true))
    }

    /// Prints the title of a listing of `directory`.
    fn title(&mut self, directory: &Found, is_first: bool) -> Result<()> {
        let path: &[u8] = if directory.path.is_empty() { b"/" } else { &directory.path };
        let separator: &[u8] = if is_first { b"" } else { b"\n" };
        written(self.out.write_all(&[separator, &name_for_output(path), b":\n"].concat()))
    }

    /// Lists the contents of `directory`; with `--descend` also of those below it.
    fn contents(&mut self, directory: &Found) -> Result<()> {
        let (tree, open, args) = (self.tree, &self.args.open, self.args);
        if self.is_grid {
            let entries = entries(tree, open, directory)?;
            let names = entries.iter().filter(|found| args.all || !found.is_hidden());
            let names = names.map(|found| name_for_output(found.shown()));
            return self
                .grid(names.map(|name| String::from_utf8_lossy(&name).into_owned()).collect());
        }
        walk(tree, open, directory, (), &mut |found, ()| {
            let is_listed = args.all || !found.is_hidden();
            if is_listed {
                self.print(found)?;
            }
            Ok((is_listed && args.descend).then_some(()))
        })
    }

    /// Prints `names` in columns, ordered downwards.
    fn grid(&mut self, names: Vec<String>) -> Result<()> {
        let options = GridOptions {
            direction: Direction::TopToBottom,
            filling: Filling::Spaces(2),
            width: columns(),
        };
        written(write!(self.out, "{}", Grid::new(names, options)))
    }

    /// Prints an entry.
    fn print(&mut self, found: &Found) -> Result<()> {
        let args = self.args;
        let mut line = if args.long || args.json {
            let located = |error| args.open.located(&found.path, error);
            let attr = self.tree.attr(found.ino).map_err(located)?;
            let target = match found.kind {
                FileKind::Symlink => Some(self.tree.read_link(found.ino).map_err(located)?),
                _ => None,
            };
            let sizes = if args.human_readable { Sizes::Rounded } else { Sizes::Bytes };
            match args.json {
                true => json_line(&attr, &found.path, target.as_deref())?,
                false => {
                    entry::long_line(&attr, found.shown(), target.as_deref(), (sizes, &self.zone))
                }
            }
        } else {
            name_for_output(found.shown())
        };
        line.push(b'\n');
        written(self.out.write_all(&line))
    }
}

/// `path` without slashes at its ends, as the paths below it begin.
fn trimmed(path: &[u8]) -> Vec<u8> {
    let parts: Vec<_> =
        path.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    parts.join(&b'/')
}

/// An entry that was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    ino: Ino,
    kind: FileKind,
    /// Its path from the root of the archive, without a leading slash.
    pub(super) path: Vec<u8>,
    /// Where in `path` the part begins that is shown: what is below the listed directory.
    name_at: usize,
}

impl Found {
    /// The part of the path that is shown.
    fn shown(&self) -> &[u8] {
        match self.path.get(self.name_at..) {
            None | Some([]) => b"/",
            Some(shown) => shown,
        }
    }

    /// The last component of the path.
    fn name(&self) -> &[u8] {
        self.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
    }

    /// Whether the name begins with a dot.
    fn is_hidden(&self) -> bool {
        self.name().starts_with(b".")
    }
}

/// Calls `visit` for what `pattern` matches, in the order of the paths. Names that begin with a dot
/// are left out unless `all` is set or the pattern has the dot. Fails if `visit` returned false for
/// all of them.
pub(super) fn each_match(
    tree: &dyn Tree,
    open: &OpenArgs,
    pattern: &[u8],
    all: bool,
    visit: &mut dyn FnMut(&Found) -> Result<bool>,
) -> Result<()> {
    let parsed = Pattern::parse(pattern)?;
    let root = Found { ino: Ino::ROOT, kind: FileKind::Directory, path: Vec::new(), name_at: 0 };
    let mut has_match = false;
    walk(tree, open, &root, parsed.start(), &mut |found, state| {
        let step = parsed.step(state, found.name(), all);
        if step.is_match {
            has_match |= visit(found)?;
        }
        Ok(step.below)
    })?;
    if has_match {
        return Ok(());
    }
    let shown = String::from_utf8_lossy(pattern);
    let error = Error::new(Kind::NotFound, format!("{shown}: nothing in the archive matches"));
    let error = error.with_hint("quote a pattern, so that the shell leaves it alone");
    Err(open.located(pattern, error))
}

/// The entries of `directory`, sorted by byte.
fn entries(tree: &dyn Tree, open: &OpenArgs, directory: &Found) -> Result<Vec<Found>> {
    let mut entries = Vec::new();
    let listed = tree.read_dir(directory.ino, Cookie::START, &mut |entry| {
        let path = joined(&directory.path, entry.name.as_bytes());
        let name_at = directory.name_at;
        entries.push(Found { ino: entry.ino, kind: entry.kind, path, name_at });
        ControlFlow::Continue(())
    });
    listed.map_err(|error| open.located(&directory.path, error))?;
    Ok(entries)
}

/// Calls `visit` for each entry below `root`, with the state that it returned for the directory of
/// the entry. It does not enter a directory for which `visit` returns `None`.
fn walk<S>(
    tree: &dyn Tree,
    open: &OpenArgs,
    root: &Found,
    state: S,
    visit: &mut dyn FnMut(&Found, &S) -> Result<Option<S>>,
) -> Result<()> {
    // The directories from `root` down, each with its remaining entries. A list and not recursion,
    // because an archive may be arbitrarily deep.
    let mut open_directories = vec![(root.ino, entries(tree, open, root)?.into_iter(), state)];
    while let Some((_, remaining, state)) = open_directories.last_mut() {
        let Some(found) = remaining.next() else {
            open_directories.pop();
            continue;
        };
        let Some(below) = visit(&found, state)? else { continue };
        // In a damaged archive a directory may contain itself.
        let is_cycle = || open_directories.iter().any(|(ancestor, ..)| *ancestor == found.ino);
        if found.kind == FileKind::Directory && !is_cycle() {
            let entries = entries(tree, open, &found)?;
            open_directories.push((found.ino, entries.into_iter(), below));
        }
    }
    Ok(())
}
