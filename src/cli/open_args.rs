//! Opening archives without mounting them, as the arguments of several commands say.

use std::path::PathBuf;
use std::slice;

use clap::builder::FalseyValueParser;

use super::bar::Bar;
use super::values::size;
use crate::error::{Error, Kind, Result};
use crate::formats::{self, NameEncoding, OpenOptions};
use crate::log::Verbosity;
use crate::progress::Progress;
use crate::sync::Arc;
use crate::units::quoted;
use crate::vfs::Tree;

/// What archives contain.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ContentArgs {
    /// The image starts N bytes into the file (suffixes: K, M, G, T)
    #[arg(long, value_name = "N", value_parser = size, default_value = "0", env = "ARCHFS_OFFSET")]
    pub(super) offset: u64,

    /// Show archives inside the archive as directories
    #[arg(
        long = "nested",
        alias = "recursive",
        env = "ARCHFS_NESTED",
        value_parser = FalseyValueParser::new()
    )]
    recursive: bool,

    /// Encoding of names in ZIP archives that are not marked as UTF-8: gbk, shift_jis, cp866, ...
    #[arg(long, value_name = "ENCODING", env = "ARCHFS_NAMES")]
    names: Option<NameEncoding>,

    /// File of the saved index of a tar [default: beside the tar, else in your cache directory]
    #[arg(long, value_name = "FILE", env = "ARCHFS_INDEX")]
    pub(super) index: Option<PathBuf>,
}

impl ContentArgs {
    /// The options for opening archives; `partial` as in `OpenOptions`.
    pub(super) fn options(&self, partial: bool) -> OpenOptions {
        OpenOptions {
            offset: self.offset,
            cache_bytes: crate::cache::default_bytes(),
            recursive: self.recursive,
            names: self.names,
            partial,
            index: self.index.clone(),
            ..OpenOptions::default()
        }
    }
}

/// The archive to open without mounting it.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct OpenArgs {
    /// The archive
    pub(super) archive: PathBuf,

    #[command(flatten)]
    content: ContentArgs,
}

impl OpenArgs {
    pub(super) fn open(&self) -> Result<Arc<dyn Tree>> {
        crate::log::start(Verbosity::Default, None);
        let (mut options, archive) = (self.options(), slice::from_ref(&self.archive));
        if !options.recursive {
            return open_watched(archive, &options);
        }
        let (archives, directories) = formats::archives_in(archive)?;
        options.directories = directories;
        open_watched(&archives, &options)
    }

    /// Adds the archive to an error that `path` in it caused. Also adds the path and a remedy to
    /// damage and to failed reads, which do not name it.
    pub(super) fn located(&self, path: &[u8], error: Error) -> Error {
        let archive = self.archive.display().to_string();
        if error.kind() == Kind::NotFound && error.hint().is_none() {
            return error
                .within(&archive)
                .with_hint(format!("to see its paths: archfs ls {}", quoted(&archive)));
        }
        if error.kind() == Kind::IsADirectory {
            let path = String::from_utf8_lossy(path);
            let command = format!("archfs ls {} {}", quoted(&archive), quoted(path));
            return error.within(&archive).with_hint(format!("to list it: {command}"));
        }
        if !error.is_damage() && !matches!(error.kind(), Kind::Io | Kind::Unreachable) {
            return error.within(&archive);
        }
        let path = if path.is_empty() { "/".into() } else { String::from_utf8_lossy(path) };
        let error = error.within_file(&archive, path);
        match error.hint() {
            None if error.is_damage() => {
                let hint =
                    format!("run `archfs verify {}` to list all damaged files", quoted(&archive));
                error.with_hint(hint)
            }
            _ => error,
        }
    }

    pub(super) fn options(&self) -> OpenOptions {
        // To look into a damaged archive is safe: the damage is printed.
        self.content.options(true)
    }
}

/// Opens archives, with a bar on a terminal if that takes long.
pub(super) fn open_watched(paths: &[PathBuf], options: &OpenOptions) -> Result<Arc<dyn Tree>> {
    let progress = Arc::new(Progress::default());
    let _bar = Bar::watch(&progress);
    formats::open(paths, options, &progress)
}
