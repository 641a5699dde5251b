//! The arguments of `archfs pack`, and their conversion to a request.
//!
//! Invariant: a request is consistent, as far as the arguments alone show.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clap::builder::FalseyValueParser;

use super::super::term;
use super::super::values::{size, threads};
use crate::cache;
use crate::error::{Error, Kind, Result};
use crate::formats::NameEncoding;
use crate::os::processors;
use crate::pack::{
    Compressor, Excludes, Existing, FileList, Form, Holes, Labels, OnProblem, OtherMounts,
    OutputNames, Owner, Profile, Recipe, Request, Separator, Shards, Sources, XattrRule,
};

/// Make a SquashFS image, a tar or shards for fast reads
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "archfs pack [OPTIONS] SOURCE... ARCHIVE",
    after_help = "Examples:
  archfs pack train/ train.sqfs
  archfs pack ILSVRC2012_img_train.tar imagenet.sqfs         (a tar of tars)
  archfs pack --exclude '*.tmp' --exclude .git/ project/ project.sqfs
  archfs pack --update old.sqfs train/ new.sqfs
  archfs pack --map val.map ILSVRC2012_img_val.tar val.sqfs  (PATH <tab> NEW)
  archfs pack --shards 256M --shuffle 1 train/ shards/train.tar

Exit status: 0 done; 1 failed, or some files could not be packed; 3 a source is damaged."
)]
pub(in crate::cli) struct Args {
    /// Directories, archives and files, then the archive to make: .sqfs or .tar
    ///
    /// -: an archive from standard input.
    #[arg(value_names = ["SOURCE", "ARCHIVE"], num_args = 1.., required = true)]
    paths: Vec<PathBuf>,

    /// Replace an existing archive
    #[arg(short, long)]
    force: bool,

    /// Copy what has not changed since the image OLD, as it is compressed there
    ///
    /// An unchanged file has the same path, size and modification time, and is not read. OLD also
    /// gives the compressor and the block size. To add files, name OLD as a SOURCE as well.
    #[arg(short, long, value_name = "OLD")]
    update: Option<PathBuf>,

    /// Compressor: zstd, gzip, xz, lz4 or none; zstd:19 names a level
    #[arg(short, long, value_name = "NAME", value_parser = compressor)]
    compressor: Option<Compressor>,

    /// Pack quickly (zstd:3), for what is packed often
    ///
    /// For example a Python environment.
    #[arg(long, conflicts_with_all = ["compressor", "profile"])]
    fast: bool,

    /// For reads in any order, or as small as possible
    #[arg(long, value_enum, default_value = "random")]
    profile: ProfileName,

    /// Bytes that may be decompressed to read a small file [default: 32K; one block with --profile
    /// archive]
    #[arg(hide_short_help = true, long, value_name = "SIZE", value_parser = size)]
    read_cost: Option<u64>,

    /// Block size, 4K to 1M [default: chosen by the sizes of the files]
    #[arg(hide_short_help = true, short, long, value_name = "SIZE", value_parser = size)]
    block_size: Option<u64>,

    /// Pack only the paths in FILE, one per line, relative to SOURCE
    ///
    /// Relative to the current directory if SOURCE is missing. -: standard input.
    #[arg(short = 'T', long, value_name = "FILE")]
    files_from: Option<PathBuf>,

    /// Paths in the --files-from file end with NUL, not with a newline
    #[arg(hide_short_help = true, short = '0', long, requires = "files_from")]
    null: bool,

    /// Leave out what matches, as a line of a .gitignore file: *.tmp
    ///
    /// Other examples: cache/, /val, !keep.tmp. May be repeated.
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    exclude: Vec<String>,

    /// Leave out what the patterns in FILE match (-: standard input), one per line; may be repeated
    #[arg(hide_short_help = true, short = 'X', long, value_name = "FILE")]
    exclude_from: Vec<PathBuf>,

    /// Leave out extended attributes
    #[arg(hide_short_help = true, long)]
    no_xattrs: bool,

    /// In a tar, leave out the holes of sparse files; 7-Zip and busybox extract such files wrong
    #[arg(hide_short_help = true, long, conflicts_with = "shards")]
    sparse: bool,

    /// Move files: lines of PATH, a tab and NEW PATH (a directory if it ends in /)
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    map: Option<PathBuf>,

    /// Owner of all files, as numeric ids
    #[arg(long, value_name = "UID[:GID]", value_parser = owner)]
    owner: Option<Owner>,

    /// Pack archives inside an archive as directories [default: if it holds only archives]
    #[arg(
        hide_short_help = true,
        long = "nested",
        alias = "recursive",
        env = "ARCHFS_NESTED",
        value_parser = FalseyValueParser::new()
    )]
    recursive: bool,

    /// Encoding of names in ZIP archives that are not marked as UTF-8: gbk, shift_jis, cp866, ...
    #[arg(hide_short_help = true, long, value_name = "ENCODING", env = "ARCHFS_NAMES")]
    names: Option<NameEncoding>,

    /// Pack a SOURCE that is a file as one file, also an archive
    #[arg(hide_short_help = true, long)]
    as_file: bool,

    /// Leave out file systems mounted below a directory
    #[arg(hide_short_help = true, short = 'x', long)]
    one_file_system: bool,

    /// Make the archive without files that cannot be packed
    ///
    /// The exit status is still 1.
    #[arg(long)]
    keep_going: bool,

    /// Make WebDataset shards of SIZE at most
    ///
    /// They are NAME-000000.tar and so on. Samples stay whole.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    shards: Option<u64>,

    /// Shuffle the samples over all shards; the seed determines the order
    #[arg(hide_short_help = true, long, value_name = "SEED", requires = "shards")]
    shuffle: Option<u64>,

    /// Add to each sample its class, the number of its top directory, as .cls
    #[arg(hide_short_help = true, long, requires = "shards")]
    labels: bool,

    /// Threads that read and compress [default: one for each CPU core]
    #[arg(hide_short_help = true, long, value_name = "N", value_parser = threads, env = "ARCHFS_THREADS")]
    threads: Option<usize>,

    /// Memory for decompressed blocks of sources [default: a quarter of the job's memory, an eighth
    /// if the job has 256M or less; at most 16G and a third of the memory left]
    #[arg(hide_short_help = true, long, value_name = "SIZE", value_parser = size, env = "ARCHFS_CACHE")]
    cache: Option<u64>,

    /// Print one JSON object
    #[arg(hide_short_help = true, long)]
    pub(super) json: bool,

    /// Print the layout of the image, and all files that cannot be packed
    ///
    /// By default only the first 20.
    #[arg(short, long)]
    pub(super) verbose: bool,

    /// Print only errors and warnings
    #[arg(short, long)]
    pub(super) quiet: bool,
}

/// The values of `--profile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProfileName {
    /// For reads in any order: reading one file decompresses little
    Random,
    /// As small as possible
    Archive,
}

impl Args {
    /// The request that the arguments describe.
    pub(super) fn request(&self) -> Result<Request> {
        let (archive, sources) = self.split_paths()?;
        let epoch = epoch(env::var_os("SOURCE_DATE_EPOCH").as_deref())?;
        let separator = if self.null { Separator::Nul } else { Separator::Newline };
        Ok(Request {
            sources: Sources {
                paths: sources.to_vec(),
                list: self.files_from.clone().map(|path| FileList { path, separator }),
                excludes: Excludes {
                    files: self.exclude_from.clone(),
                    patterns: self.exclude.clone(),
                },
                xattr_rule: if self.no_xattrs { XattrRule::Omit } else { XattrRule::Pack },
                map: self.map.clone(),
                owner: self.owner.unwrap_or_default(),
                recursive: self.recursive,
                name_encoding: self.names,
                as_file: self.as_file,
                cache_bytes: self.cache.map_or_else(cache::default_bytes, |wanted| {
                    cache::reduced_to_fit(wanted, term::print_warning)
                }),
                other_mounts: match self.one_file_system {
                    true => OtherMounts::Skip,
                    false => OtherMounts::Enter,
                },
                output: Some(archive.clone()),
                names: if self.shards.is_some() { OutputNames::Shards } else { OutputNames::One },
            },
            archive: archive.clone(),
            existing: if self.force { Existing::Replace } else { Existing::Refuse },
            form: self.form(archive, epoch)?,
            base: self.update.clone(),
            on_problem: if self.keep_going { OnProblem::Continue } else { OnProblem::Abort },
            threads: self.threads.unwrap_or_else(processors::count),
        })
    }

    /// The archive, and the sources before it.
    fn split_paths(&self) -> Result<(&PathBuf, &[PathBuf])> {
        match self.paths.split_last() {
            Some((archive, sources)) if !sources.is_empty() || self.files_from.is_some() => {
                Ok((archive, sources))
            }
            Some((source, _)) if source.is_dir() => {
                let name = source.file_name().unwrap_or("data".as_ref()).display();
                let error = Error::new(Kind::Usage, "no name for the archive");
                Err(error.with_hint(format!("archfs pack {} {name}.sqfs", source.display())))
            }
            Some((archive, _)) => {
                let error = Error::new(Kind::Usage, "nothing to pack: no directory is named");
                Err(error.with_hint(format!("archfs pack DIR {}", archive.display())))
            }
            None => Err(Error::new(Kind::Usage, "nothing to pack")
                .with_hint("archfs pack train/ train.sqfs")),
        }
    }

    fn form(&self, archive: &Path, epoch: Option<i64>) -> Result<Form> {
        let usage = |context: String| Error::new(Kind::Usage, context);
        if archive.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(usage(format!("{}: is the name of a directory", archive.display())));
        }
        let end = archive.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
        let is_tar = match end.as_deref() {
            Some("sqfs" | "squashfs" | "sqsh" | "sfs" | "img") => false,
            Some("tar") => true,
            Some(end @ ("gz" | "tgz" | "bz2" | "xz" | "zst" | "lz4")) => {
                let hint = "make a .sqfs: it is compressed, and its files can be read in any order";
                let context = format!("{}: archfs does not make .{end}", archive.display());
                return Err(usage(context).with_hint(hint));
            }
            _ => {
                let context = format!("{}: the name does not select a format", archive.display());
                let hint = match archive.is_dir() {
                    true => "the archive comes last: archfs pack DIRECTORY data.sqfs",
                    false => "end the name in .sqfs for an image, or in .tar",
                };
                return Err(usage(context).with_hint(hint));
            }
        };
        let random = self.profile == ProfileName::Random;
        let for_images = self.fast
            || self.compressor.is_some()
            || self.block_size.is_some()
            || self.read_cost.is_some()
            || self.update.is_some()
            || !random;
        match (self.shards, is_tar) {
            (_, true) if for_images => Err(usage(
                "--update, --compressor, --fast, --block-size, --read-cost and --profile apply only to images"
                    .into(),
            )
            .with_hint("a tar is not compressed; end the name in .sqfs")),
            (Some(_), false) => {
                Err(usage("--shards makes tars".into()).with_hint("end the name in .tar"))
            }
            (Some(0), true) => Err(usage("--shards 0: a shard has at least 1 byte".into())),
            (Some(bytes), true) => {
                let labels = if self.labels { Labels::ByDirectory } else { Labels::None };
                let shards = Shards { bytes, seed: self.shuffle, labels };
                Ok(Form::Shards { shards, epoch })
            }
            (None, true) => {
                let holes = if self.sparse { Holes::LeftOut } else { Holes::Zeros };
                Ok(Form::Tar { epoch, holes })
            }
            (None, false) if self.sparse => {
                Err(usage("--sparse applies only to tars; an image keeps holes".into()))
            }
            (None, false) => {
                let block_size = self.block_size.map(u32::try_from).transpose();
                let block_size =
                    block_size.map_err(|_| usage("--block-size is at most 1M".into()))?;
                let profile = if random { Profile::Random } else { Profile::Archive };
                let compressor = self.compressor.or(self.fast.then_some(Compressor::Zstd(3)));
                let read_cost = self.read_cost;
                let recipe = Recipe { compressor, profile, read_cost, block_size, epoch };
                Ok(Form::Image(recipe.checked()?))
            }
        }
    }
}

/// The limit of all times in the archive (reproducible-builds.org).
fn epoch(text: Option<&OsStr>) -> Result<Option<i64>> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let parsed = text.to_str().and_then(|text| text.parse::<u32>().ok());
    let wrong = || {
        let context = format!("SOURCE_DATE_EPOCH={}: not a number", text.display());
        Error::new(Kind::Usage, context).with_hint("set it to seconds since 1970")
    };
    parsed.map(|seconds| Some(i64::from(seconds))).ok_or_else(wrong)
}

/// Parses a compressor for clap.
fn compressor(text: &str) -> Result<Compressor> {
    let (name, level) = match text.split_once(':') {
        Some((name, level)) => {
            let wrong = |_| Error::new(Kind::Usage, format!("{level:?} is not a level"));
            (name, Some(level.parse::<u8>().map_err(wrong)?))
        }
        None => (text, None),
    };
    match (name, level) {
        ("zstd", level) => Ok(Compressor::Zstd(level.map_or(Compressor::ZSTD_LEVEL, i32::from))),
        ("gzip", level) => Ok(Compressor::Gzip(level.map_or(Compressor::GZIP_LEVEL, u32::from))),
        ("xz", None) => Ok(Compressor::Xz),
        ("lz4", None) => Ok(Compressor::Lz4),
        ("none", None) => Ok(Compressor::None),
        ("xz" | "lz4" | "none", Some(_)) => {
            Err(Error::new(Kind::Usage, format!("{name} takes no level")))
        }
        _ => Err(Error::new(Kind::Usage, format!("{name:?} is not a compressor"))
            .with_hint("give zstd, gzip, xz, lz4 or none")),
    }
}

/// Parses an owner for clap.
fn owner(text: &str) -> Result<Owner> {
    const HINT: &str = "give UID, UID:GID or :GID";
    let number = |text: &str| match text {
        "" => Ok(None),
        // The largest number means "unchanged" (chown(2)).
        text => match text.parse() {
            Ok(number) if number < u32::MAX => Ok(Some(number)),
            _ => {
                let context = format!("{text:?} is not a numeric ID");
                Err(Error::new(Kind::Usage, context).with_hint(HINT))
            }
        },
    };
    if matches!(text, "" | ":") {
        return Err(Error::new(Kind::Usage, format!("{text:?} is not an owner")).with_hint(HINT));
    }
    let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
    Ok(Owner { uid: number(uid)?, gid: number(gid)? })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        pack: Args,
    }

    fn request(words: &[&str]) -> Result<Request> {
        let line = ["archfs"].iter().chain(words);
        Line::try_parse_from(line).unwrap().pack.request()
    }

    fn recipe(words: &[&str]) -> Recipe {
        match request(words).unwrap().form {
            Form::Image(recipe) => recipe,
            form => panic!("{form:?}"),
        }
    }

    #[test]
    fn the_name_selects_the_format() {
        assert_eq!(recipe(&["a", "b.sqfs"]).compressor, None);
        assert_eq!(recipe(&["--fast", "a", "b.sqfs"]).compressor, Some(Compressor::Zstd(3)));
        assert!(matches!(request(&["a", "b.tar"]).unwrap().form, Form::Tar { .. }));
        let shards = request(&["a", "b.tar", "--shards", "1M", "--shuffle", "7"]).unwrap().form;
        assert!(matches!(
            shards,
            Form::Shards { shards: Shards { bytes: 1_048_576, seed: Some(7), .. }, .. }
        ));
        for words in [
            &["a", "b"][..],
            &["a", "b.tar.gz"],
            &["b.sqfs"],
            &["a", "b.sqfs", "--shards", "1M"],
            &["a", "b.tar", "--shards", "0"],
            &["a", "b.tar", "--compressor", "xz"],
            &["a", "b.tar", "--profile", "archive"],
            &["a", "b.tar", "--fast"],
            &["a", "b.tar", "--update", "c.sqfs"],
            &["a", "b.sqfs", "--sparse"],
            &["a", "b.sqfs", "--block-size", "3K"],
            &["a", "b.sqfs", "--compressor", "zstd:23"],
        ] {
            let error = request(words).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{words:?}: {error}");
        }
    }

    #[test]
    fn parses_compressors_and_owners() {
        assert_eq!(compressor("zstd:3").unwrap(), Compressor::Zstd(3));
        assert_eq!(compressor("gzip").unwrap(), Compressor::Gzip(9));
        for wrong in ["lzo", "zstd:", "zstd:x", "lz4:1", ""] {
            assert!(compressor(wrong).is_err(), "{wrong}");
        }
        assert_eq!(owner("0:7").unwrap(), Owner { uid: Some(0), gid: Some(7) });
        assert_eq!(owner("5").unwrap(), Owner { uid: Some(5), gid: None });
        assert_eq!(owner(":5").unwrap(), Owner { uid: None, gid: Some(5) });
        for wrong in ["me", "", ":", "4294967295", "0:-1"] {
            assert!(owner(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_epoch_is_a_number_of_seconds() {
        assert_eq!(epoch(None).unwrap(), None);
        assert_eq!(epoch(Some(OsStr::new("1700000000"))).unwrap(), Some(1_700_000_000));
        assert!(epoch(Some(OsStr::new("yesterday"))).is_err());
    }
}
