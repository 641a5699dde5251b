//! `archfs index`: saves the index of a tar before jobs need it.

use std::path::PathBuf;
use std::slice;

use clap::builder::FalseyValueParser;

use super::open_args::open_watched;
use super::term;
use crate::error::{Error, Kind, Result};
use crate::formats::{IndexPolicy, OpenOptions};
use crate::log::Verbosity;
use crate::os::heap;

/// Save the index of tars, so that later mounts start at once
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  archfs index data.tar
  archfs index --nested ILSVRC2012_img_train.tar    (for mounts with --nested)")]
pub(super) struct Args {
    /// The tars
    #[arg(required = true, value_name = "ARCHIVE")]
    archives: Vec<PathBuf>,

    /// Make the index for mounts with --nested
    #[arg(
        long = "nested",
        alias = "recursive",
        env = "ARCHFS_NESTED",
        value_parser = FalseyValueParser::new()
    )]
    recursive: bool,

    /// File to save it to [default: beside the archive, else in your cache directory]
    #[arg(long, value_name = "FILE", env = "ARCHFS_INDEX")]
    index: Option<PathBuf>,

    /// Print only errors and warnings
    #[arg(short, long)]
    quiet: bool,
}

pub(super) fn run(args: &Args) -> Result<u8> {
    if args.archives.len() > 1 && args.index.is_some() {
        let context = "--index takes one archive, but several are given";
        return Err(Error::new(Kind::Usage, context));
    }
    crate::log::start(if args.quiet { Verbosity::Quiet } else { Verbosity::Default }, None);
    heap::use_one_heap();
    for archive in &args.archives {
        let options = OpenOptions {
            recursive: args.recursive,
            partial: true,
            index: args.index.clone(),
            index_policy: IndexPolicy::Save,
            cache_bytes: crate::cache::default_bytes(),
            ..OpenOptions::default()
        };
        let tree = open_watched(slice::from_ref(archive), &options)?;
        if !args.quiet {
            let indexed = match tree.totals().inodes {
                1 => "1 file or directory".to_owned(),
                count => format!("{count} files and directories"),
            };
            term::print_note(&format!("{}: {indexed} indexed", archive.display()));
        }
    }
    Ok(0)
}
