//! Opens the paths given as sources: each is a directory, an archive or a plain file.
//!
//! Invariant: a file counts as an archive exactly if `mount` accepts it as one, except for one of
//! several files whose format is built on that of an archive, or that is only compressed.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::stdio;
use rustix::termios::isatty;

use super::disk::{self, DiskDirectory, OpenDirectory, OutputArchive, OutputNames};
use super::placing::{Found, FoundKind};
use super::tree::Archive;
use super::{Sources, XattrRule, is_stdin};
use crate::error::{Error, Kind, Result};
use crate::formats::{self, CompressedFiles, Contents, FindingSink, IndexPolicy, OpenOptions};
use crate::ordered::try_ordered;
use crate::os::directory::parent_of;
use crate::os::unlinked;
use crate::pack::Job;
use crate::progress::Progress;
use crate::storage::{self, FileStorage};
use crate::sync::Arc;
use crate::url;
use crate::vfs::{Finding, Location, Severity, Tree};

/// Archives opened at once, one per thread. On a parallel file system opening is mostly waiting.
const OPENED_AT_ONCE: usize = 8;

/// Bytes of a file that show its format.
const HEAD_LEN: u64 = 16;

pub(super) enum Opened<'s> {
    Directory(DiskDirectory<'s>, Found),
    Archive(Archive),
    PlainFile(PlainFile),
}

impl Opened<'_> {
    pub(super) fn holds_files(&self) -> bool {
        !matches!(self, Self::PlainFile(_))
    }
}

pub(super) struct PlainFile {
    /// Its path. The last component is no symbolic link.
    pub(super) path: PathBuf,
    pub(super) found: Found,
    /// Its key in the source of bytes, once that exists.
    pub(super) key: u64,
}

/// Opens all sources.
///
/// Fails with the first error in the order of the paths. `UnknownFormat` if a single source is a
/// file that is no archive, because the user of a single file means what is in it.
pub(super) fn all<'s>(
    job: &Job<'_>,
    sources: &Sources,
    paths: &[PathBuf],
    output_archive: Option<&'s OutputArchive>,
) -> Result<Vec<Opened<'s>>> {
    let is_single = paths.len() == 1 && sources.list.is_none();
    // `None` for a URL and for standard input until they are known to be archives.
    let mut opened = Vec::with_capacity(paths.len());
    // Indices of regular files in `opened`. They may be archives.
    let mut regular = Vec::new();
    let mut stdin_at = None;
    for path in paths {
        if is_stdin(path) {
            stdin_at = Some(opened.len());
            opened.push(None);
            continue;
        }
        if url::is_url(path) {
            if sources.as_file {
                let context = format!("{}: a URL; --as-file needs a file", path.display());
                return Err(Error::new(Kind::Usage, context).with_hint("download it first"));
            }
            regular.push(opened.len());
            opened.push(None);
            continue;
        }
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                Error::new(Kind::NotFound, format!("{}: no such file", path.display()))
            }
            _ => Error::io(format!("{}: cannot open", path.display()), error),
        };
        if fs::metadata(path).map_err(failed)?.is_dir() {
            let (directory, found) = DiskDirectory::open(
                path,
                sources.other_mounts,
                sources.xattr_rule,
                output_archive,
            )?;
            opened.push(Some(Opened::Directory(directory, found)));
            continue;
        }
        let file = plain_file(path, sources.xattr_rule)?;
        if is_output(path, output_archive) {
            let context = format!("{}: is both a source and the archive to make", path.display());
            return Err(Error::new(Kind::InvalidInput, context));
        }
        if matches!(file.found.kind, FoundKind::File { .. })
            && (is_single || !is_built_on_archive(path)?)
        {
            regular.push(opened.len());
        }
        opened.push(Some(Opened::PlainFile(file)));
    }
    if sources.as_file {
        return Ok(opened.into_iter().flatten().collect());
    }
    let regular_paths: Vec<PathBuf> = regular.iter().map(|&nth| paths[nth].clone()).collect();
    let mut files = Vec::new();
    if !regular.is_empty() {
        files = storage::open_files(&regular_paths, job.progress)?;
    }
    if let Some(nth) = stdin_at {
        files.push(Arc::new(read_stdin(job, sources.output.as_deref())?));
        regular.push(nth);
    }
    let must_be_archive = |nth: usize| is_single || opened[regular[nth]].is_none();
    // Of several sources, one that is only compressed stays a file.
    let compressed_files =
        if is_single { CompressedFiles::Shown } else { CompressedFiles::Refused };
    let trees = trees(job, sources, &files, compressed_files, must_be_archive)?;
    for ((&nth, file), tree) in regular.iter().zip(&files).zip(trees) {
        if let Some(tree) = tree {
            let display = file.path().as_os_str().as_bytes();
            opened[nth] = Some(Opened::Archive(Archive::new(tree, display, sources.xattr_rule)));
        }
    }
    Ok(opened.into_iter().flatten().collect())
}

/// Opens a directory that paths are relative to.
pub(super) fn open_directory(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
        .map_err(|error| Error::io(format!("{}: cannot open", path.display()), error.into()))
}

fn plain_file(path: &Path, xattr_rule: XattrRule) -> Result<PlainFile> {
    let failed = |error: io::Error| Error::io(format!("{}: cannot read", path.display()), error);
    let is_link = fs::symlink_metadata(path).map_err(failed)?.is_symlink();
    let real = if is_link { fs::canonicalize(path).map_err(failed)? } else { path.to_owned() };
    let name = real.file_name().unwrap_or_default().as_bytes();
    let parent = open_directory(parent_of(&real))?;
    let found = disk::examine(&OpenDirectory::new(parent.as_fd(), xattr_rule), name, xattr_rule);
    let found = found.map_err(|error| error.within(path.display()))?;
    Ok(PlainFile { path: real, found, key: 0 })
}

/// Whether one of several files stays a file although its format is built on that of an archive.
fn is_built_on_archive(path: &Path) -> Result<bool> {
    let failed = |error| Error::io(format!("{}: cannot read", path.display()), error);
    let mut head = Vec::new();
    File::open(path).map_err(failed)?.take(HEAD_LEN).read_to_end(&mut head).map_err(failed)?;
    Ok(formats::is_built_on_archive(path, &head))
}

fn is_output(path: &Path, output_archive: Option<&OutputArchive>) -> bool {
    output_archive.is_some()
        && output_archive == OutputArchive::new(path, OutputNames::One).as_ref()
}

/// The tree of each file, or `None` for a file that is no archive.
///
/// Fails with `UnknownFormat` if `must_be_archive` is true of the index of such a file.
fn trees(
    job: &Job<'_>,
    sources: &Sources,
    files: &[Arc<FileStorage>],
    compressed_files: CompressedFiles,
    must_be_archive: impl Fn(usize) -> bool + Sync,
) -> Result<Vec<Option<Arc<dyn Tree>>>> {
    let mut trees = Vec::with_capacity(files.len());
    let mut unopened = Vec::with_capacity(files.len());
    if files.is_empty() {
        return Ok(trees);
    }
    let options = OpenOptions {
        cache_bytes: sources.cache_bytes / files.len() as u64,
        recursive: sources.recursive,
        names: sources.name_encoding,
        // Only making a new index reports the damage of an archive.
        index_policy: IndexPolicy::Ignore,
        findings: FindingSink::Return,
        // What is missing is reported for each source.
        partial: true,
        reads_all: true,
        compressed_files,
        ..OpenOptions::default()
    };
    let within = OpenOptions { recursive: true, ..options.clone() };
    let open = |nth: usize| {
        job.check()?;
        match tree(&files[nth], &options, job.progress)? {
            None if must_be_archive(nth) => Err(no_archive(&files[nth], &options, job.progress)),
            // Unpack an archive that holds only archives, as ImageNet comes.
            Some((outer, _)) if !options.recursive && holds_only_archives(outer.as_ref()) => {
                tree(&files[nth], &within, job.progress)
            }
            tree => Ok(tree),
        }
    };
    try_ordered(files.len(), OPENED_AT_ONCE, open, |opened| {
        let (tree, findings) = opened.unzip();
        trees.push(tree);
        unopened.push(findings.unwrap_or_default());
    })?;
    for ((file, tree), findings) in files.iter().zip(&trees).zip(unopened) {
        let path = file.path();
        if let Some(tree) = tree {
            losses(job, path, tree.as_ref());
        }
        // A finding starts with the path of the archive, which the problem names already.
        let origin = path.display().to_string();
        let archive = format!("{origin}: ");
        for mut finding in findings {
            if let Some(what) = finding.what.strip_prefix(&archive) {
                finding.what = what.to_owned();
            }
            job.loss(&origin, finding);
        }
    }
    Ok(trees)
}

/// Records members that the tree does not show as problems: truncated, damaged or left out.
fn losses(job: &Job<'_>, path: &Path, tree: &dyn Tree) {
    tree.audit(&mut |finding| {
        if finding.severity == Severity::Note {
            return;
        }
        let origin = match &finding.location {
            Location::Path(inner) => format!("{}: {}", path.display(), inner.escape_ascii()),
            Location::Archive | Location::Inode(_) => path.display().to_string(),
        };
        job.loss(origin, finding);
    });
}

/// A tree, and findings about inner archives that could not be opened.
type Partly = (Arc<dyn Tree>, Vec<Finding>);

fn no_archive(file: &Arc<FileStorage>, options: &OpenOptions, progress: &Progress) -> Error {
    let opened = formats::open_partly(&[Arc::clone(file)], options, progress);
    let error = opened.err().unwrap_or_else(|| Error::new(Kind::UnknownFormat, "no archive"));
    // Options cannot help for standard input.
    if file.path() == Path::new(STDIN) {
        return Error::new(error.kind(), error.to_string());
    }
    let as_file = "add --as-file to pack it as one file";
    let hint = match error.hint() {
        // It is an option of other commands.
        Some(hint) if !hint.contains("--offset") => format!("{hint}, or {as_file}"),
        _ => as_file.to_owned(),
    };
    error.with_hint(hint)
}

/// The tree of a file, if the file is an archive.
fn tree(
    file: &Arc<FileStorage>,
    options: &OpenOptions,
    progress: &Progress,
) -> Result<Option<Partly>> {
    match formats::open_partly(&[Arc::clone(file)], options, progress) {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.kind() == Kind::UnknownFormat => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether `tree` has regular files and each of them is an archive that would become a directory.
/// An error is reported when the directory is packed.
fn holds_only_archives(tree: &dyn Tree) -> bool {
    formats::contents(tree, usize::MAX).is_ok_and(|found| found == Contents::OnlyArchives)
}

const STDIN: &str = "standard input";

/// Bytes per read.
const COPY_STEP: usize = 1 << 20;

/// How long one wait for input lasts. After it, the job is checked for an interrupt.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What standard input contains. `archive` is the archive to be made.
///
/// Packing reads files in an order of its own, and reads large ones twice. So what comes from a
/// pipe is first copied to an unlinked file in the directory of the new archive, which needs as
/// much space as the input. A regular file is read where it is.
///
/// Fails with `Usage` if it is a terminal; `Interrupted`; `Io`, also if the directory of `archive`
/// is full.
fn read_stdin(job: &Job<'_>, archive: Option<&Path>) -> Result<FileStorage> {
    let input = stdio::stdin();
    if isatty(input) {
        return Err(Error::new(Kind::Usage, format!("{STDIN}: is a terminal"))
            .with_hint("archfs pack - train.sqfs < train.tar"));
    }
    let mut input = File::from(input.as_fd().try_clone_to_owned().map_err(cannot_read)?);
    let is_regular = input.metadata().map_err(cannot_read)?.is_file();
    if !(is_regular && input.stream_position().map_err(cannot_read)? == 0) {
        input = copied(job, input, archive.map_or(Path::new("."), parent_of))?;
    }
    FileStorage::of(input, PathBuf::from(STDIN)).map_err(cannot_read)
}

/// A copy of the rest of `input`, in an unlinked file in `directory`.
fn copied(job: &Job<'_>, mut input: File, directory: &Path) -> Result<File> {
    job.progress.begin("reading standard input");
    let cannot_write = |error: io::Error| {
        let context = format!("{}: cannot copy {STDIN} to it", directory.display());
        Error::io(context, error)
    };
    let mut copy = unlinked::create(directory).map_err(cannot_write)?;
    let mut buffer = vec![0; COPY_STEP];
    loop {
        job.check()?;
        let mut waiting = [PollFd::new(&input, PollFlags::IN)];
        match poll(&mut waiting, Some(&WAIT)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(cannot_read(error.into())),
        }
        let count = match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(cannot_read(error)),
        };
        copy.write_all(&buffer[..count]).map_err(cannot_write)?;
        job.progress.advance(count as u64);
    }
    copy.seek(SeekFrom::Start(0)).map_err(cannot_write)?;
    Ok(copy)
}

fn cannot_read(error: io::Error) -> Error {
    Error::io(format!("{STDIN}: cannot read"), error)
}
