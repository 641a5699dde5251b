//! `archfs ls`: lists a directory of an archive without mounting it.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::open_args::OpenArgs;
use super::term::{name_for_output, written};
use crate::error::Result;
use crate::vfs::{self, Attr, Cookie, FileKind, Ino, Tree};

/// List a directory of an archive without mounting it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  archfs ls data.sqfs train
  archfs ls -lR data.sqfs")]
pub(super) struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// The directory or file in it
    #[arg(default_value = "/")]
    path: PathBuf,

    /// Also print mode, links, owner, group, size and time (seconds since 1970)
    #[arg(short, long)]
    long: bool,

    /// Also list subdirectories, one path a line
    #[arg(short = 'R', long)]
    descend: bool,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    let tree = args.open.open()?;
    let path = args.path.as_os_str().as_bytes();
    let attr = vfs::resolve(tree.as_ref(), path).map_err(|error| args.open.located(path, error))?;
    let mut listing = Listing { tree: tree.as_ref(), args, out: BufWriter::new(std::io::stdout()) };
    if attr.kind == FileKind::Directory {
        listing.directory(attr.ino, path)?;
    } else {
        listing.line(&attr, path)?;
    }
    written(listing.out.flush())?;
    Ok(0)
}

/// Remaining entries of a directory: inode, kind, path.
type Entries = std::vec::IntoIter<(Ino, FileKind, Vec<u8>)>;

struct Listing<'t> {
    tree: &'t dyn Tree,
    args: &'t Args,
    out: BufWriter<std::io::Stdout>,
}

impl Listing<'_> {
    /// Lists the directory `root` and, with `--descend`, the directories below it. A list and not
    /// recursion, because an archive may be arbitrarily deep.
    fn directory(&mut self, root: Ino, path: &[u8]) -> Result<()> {
        // The directories from `root` down, each with its remaining entries.
        let mut open_directories = vec![(root, self.entries(root, path, b"")?)];
        while let Some((_, entries)) = open_directories.last_mut() {
            let Some((ino, kind, path)) = entries.next() else {
                open_directories.pop();
                continue;
            };
            if self.args.long {
                let attr = self.tree.attr(ino);
                let attr = attr.map_err(|error| self.args.open.located(&path, error))?;
                self.line(&attr, &path)?;
            } else {
                let shown = name_for_output(&path);
                written(self.out.write_all(&[&shown[..], b"\n"].concat()))?;
            }
            // In a damaged archive a directory may contain itself.
            let descends = self.args.descend && kind == FileKind::Directory;
            if descends && !open_directories.iter().any(|&(ancestor, _)| ancestor == ino) {
                let entries = self.entries(ino, &path, &[&path[..], b"/"].concat())?;
                open_directories.push((ino, entries));
            }
        }
        Ok(())
    }

    /// The entries of the directory at `path`, with `prefix` before their names.
    fn entries(&self, directory: Ino, path: &[u8], prefix: &[u8]) -> Result<Entries> {
        let mut entries = Vec::new();
        let listed = self.tree.read_dir(directory, Cookie::START, &mut |entry| {
            entries.push((entry.ino, entry.kind, [prefix, entry.name.as_bytes()].concat()));
            ControlFlow::Continue(())
        });
        listed.map_err(|error| self.args.open.located(path, error))?;
        Ok(entries.into_iter())
    }

    fn line(&mut self, attr: &Attr, path: &[u8]) -> Result<()> {
        let mut line = Vec::new();
        if self.args.long {
            let mode = mode(attr);
            let Attr { nlink, uid, gid, size, .. } = attr;
            let seconds = attr.modified.seconds;
            line.extend(
                format!("{mode} {nlink:3} {uid:5} {gid:5} {size:12} {seconds:10} ").bytes(),
            );
        }
        line.extend(name_for_output(path));
        if self.args.long && attr.kind == FileKind::Symlink {
            line.extend(b" -> ");
            let target = self.tree.read_link(attr.ino);
            let target = target.map_err(|error| self.args.open.located(path, error))?;
            line.extend(name_for_output(&target));
        }
        line.push(b'\n');
        written(self.out.write_all(&line))
    }
}

/// Kind and permissions in the format of ls(1).
fn mode(attr: &Attr) -> String {
    let kind = match attr.kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::BlockDevice => 'b',
        FileKind::CharDevice => 'c',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    let has = |bit: u16| attr.permissions & bit != 0;
    let execute = |bit: u16, special: u16, letter: char| match (has(bit), has(special)) {
        (false, false) => '-',
        (true, false) => 'x',
        (true, true) => letter,
        (false, true) => letter.to_ascii_uppercase(),
    };
    let class = |shift: u16, special: u16, letter: char| {
        let read = if has(0o4 << shift) { 'r' } else { '-' };
        let write = if has(0o2 << shift) { 'w' } else { '-' };
        [read, write, execute(1 << shift, special, letter)]
    };
    let classes = [class(6, 0o4000, 's'), class(3, 0o2000, 's'), class(0, 0o1000, 't')];
    std::iter::once(kind).chain(classes.concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::Timestamp;

    #[test]
    fn shows_modes_as_ls_does() {
        for (kind, permissions, shown) in [
            (FileKind::Regular, 0o644, "-rw-r--r--"),
            (FileKind::Directory, 0o1777, "drwxrwxrwt"),
            (FileKind::Regular, 0o6755, "-rwsr-sr-x"),
            (FileKind::Fifo, 0o7000, "p--S--S--T"),
        ] {
            let attr = Attr {
                ino: Ino::ROOT,
                kind,
                permissions,
                nlink: 1,
                uid: 0,
                gid: 0,
                size: 0,
                allocated: 0,
                device: 0,
                modified: Timestamp { seconds: 0, nanoseconds: 0 },
                block_size: 0,
            };
            assert_eq!(mode(&attr), shown);
        }
    }
}
