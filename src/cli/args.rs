//! The arguments that `mount` and `run` share.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;

use super::values::{bandwidth, cores, size, threads, time};
use crate::error::{Error, Kind, Result};
use crate::formats::NameEncoding;
use crate::os::processors::Cores;
use crate::together::Bandwidth;

/// Headings of the options of mount and run in --help.
pub(super) const ARCHIVE: &str = "Archive";
pub(super) const MEMORY: &str = "Memory";
pub(super) const LIFETIME: &str = "Lifetime";
pub(super) const SLURM: &str = "Slurm";
pub(super) const LOGGING: &str = "Logging";

/// What to mount, where and how. `-h` shows the options that most users need.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct MountArgs {
    /// The archives, then the directory to mount them on
    ///
    /// It is created if it is missing. `run` chooses one if none is given.
    #[arg(value_name = "PATH", num_args = 1.., required = true)]
    pub(super) paths: Vec<PathBuf>,

    /// archfs was called as squashfuse or squashfuse_ll. `pgrep -f` finds a daemon by this name.
    #[arg(hide = true, long = "squashfuse_ll")]
    pub(super) is_squashfuse: bool,

    /// Options as in fstab: offset=, subdir=, uid=, gid=, allow_other, allow_changes, ...
    #[arg(help_heading = ARCHIVE, hide_short_help = true, short = 'o', value_name = "OPTS")]
    pub(super) options: Vec<String>,

    /// Show only this directory of the archive
    #[arg(help_heading = ARCHIVE, long, value_name = "PATH", env = "ARCHFS_SUBDIR")]
    pub(super) subdir: Option<OsString>,

    /// The image starts N bytes into the file (suffixes: K, M, G, T)
    #[arg(help_heading = ARCHIVE, hide_short_help = true, long, value_name = "N", value_parser = size, env = "ARCHFS_OFFSET")]
    pub(super) offset: Option<u64>,

    /// Show archives inside an archive as directories (ImageNet's tar of tars)
    ///
    /// Also those in a directory that is given as ARCHIVE.
    #[arg(
        help_heading = ARCHIVE,
        long = "nested",
        alias = "recursive",
        env = "ARCHFS_NESTED",
        value_parser = FalseyValueParser::new()
    )]
    pub(super) recursive: bool,

    /// Encoding of names in ZIP archives that are not marked as UTF-8: gbk, shift_jis, cp866, ...
    #[arg(help_heading = ARCHIVE, hide_short_help = true, long, value_name = "ENCODING", env = "ARCHFS_NAMES")]
    pub(super) names: Option<NameEncoding>,

    /// Mount an archive that is cut off or damaged as far as it goes [default: refuse it]
    #[arg(help_heading = ARCHIVE, hide_short_help = true, long, env = "ARCHFS_PARTIAL", value_parser = FalseyValueParser::new())]
    pub(super) partial: bool,

    /// Let programs change files: kept in DIR, or in memory
    ///
    /// archfs writes changes to a layer over the archives. DIR keeps them for the next job; with
    /// `tmp`, they are lost when the mount ends. With `run`, only COMMAND and its children see
    /// them; without root, that needs user namespaces and Linux 5.11 (6.6 for `tmp`). `mount` needs
    /// fuse-overlayfs.
    #[arg(help_heading = ARCHIVE, long, value_name = "DIR|tmp")]
    pub(super) overlay: Option<PathBuf>,

    /// File of the saved index of a tar [default: beside the tar, else in your cache directory]
    #[arg(help_heading = ARCHIVE, hide_short_help = true, long, value_name = "FILE", env = "ARCHFS_INDEX")]
    pub(super) index: Option<PathBuf>,

    /// Memory for decompressed blocks [default: a quarter of the job's memory]
    ///
    /// By default an eighth if the job has 256M or less, and at most 16G and a third of the memory
    /// left.
    #[arg(help_heading = MEMORY, long, value_name = "SIZE", value_parser = size, env = "ARCHFS_CACHE")]
    pub(super) cache: Option<u64>,

    /// Free the cache after this time without a request; 0: never
    #[arg(help_heading = MEMORY, hide_short_help = true, long, value_name = "TIME", value_parser = time, default_value = "30s", env = "ARCHFS_CACHE_IDLE")]
    pub(super) cache_idle: Duration,

    /// Copy the archives to DIR on this node
    ///
    /// In the background, for example to /dev/shm. The copy is removed with the mount.
    #[arg(help_heading = MEMORY, long, value_name = "DIR", env = "ARCHFS_STAGE")]
    pub(super) stage: Option<PathBuf>,

    /// Mount only when the copy of --stage is complete
    #[arg(
        help_heading = MEMORY,
        hide_short_help = true,
        long,
        env = "ARCHFS_STAGE_WAIT",
        value_parser = FalseyValueParser::new()
    )]
    pub(super) stage_wait: bool,

    /// With --stage: leave the copy for your next job; all your copies in DIR take up to SIZE
    #[arg(
        help_heading = MEMORY,
        hide_short_help = true,
        long,
        value_name = "SIZE",
        value_parser = size,
        env = "ARCHFS_STAGE_KEEP"
    )]
    pub(super) stage_keep: Option<u64>,

    /// Read ahead of programs: auto, off or all [default: auto]
    ///
    /// In the background. auto reads ahead where programs wait for storage, in proportion to what
    /// they read. all reads the whole archives.
    #[arg(
        help_heading = MEMORY,
        long,
        value_name = "HOW",
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true,
        env = "ARCHFS_READAHEAD"
    )]
    pub(super) readahead: ReadaheadName,

    /// The same as --readahead all
    #[arg(help_heading = MEMORY, hide_short_help = true, long, env = "ARCHFS_PRELOAD", value_parser = FalseyValueParser::new())]
    pub(super) preload: bool,

    /// Read archives once for all nodes of the job: auto, off or on [default: auto]
    ///
    /// The daemons of the job's nodes send each other what they have read. auto: where srun, or one
    /// `archfs mount` for all nodes, starts archfs on several nodes, for archives on network
    /// storage.
    #[arg(
        help_heading = MEMORY,
        hide_short_help = true,
        long,
        value_name = "HOW",
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true,
        env = "ARCHFS_TOGETHER"
    )]
    pub(super) together: TogetherName,

    /// Directory that the nodes of the job share, for records of their addresses and certificates
    /// [default: your cache directory]
    #[arg(help_heading = MEMORY, hide_short_help = true, long, value_name = "DIR", env = "ARCHFS_TOGETHER_DIRECTORY")]
    pub(super) together_directory: Option<PathBuf>,

    /// Network interface by which other nodes of the job reach this one [default: all, InfiniBand
    /// first]
    #[arg(help_heading = MEMORY, hide_short_help = true, long, value_name = "NAME", env = "ARCHFS_TOGETHER_INTERFACE")]
    pub(super) together_interface: Option<String>,

    /// Most bytes per second that a mount copies from other nodes while no program waits: percent
    /// of the link's speed, such as 50%, or bytes, such as 200M [default: 50%]
    #[arg(
        help_heading = MEMORY,
        hide_short_help = true,
        long,
        value_name = "LIMIT",
        value_parser = bandwidth,
        env = "ARCHFS_TOGETHER_BANDWIDTH"
    )]
    pub(super) together_bandwidth: Option<Bandwidth>,

    /// Whether what was served stays in the page cache of the archives as well [default: drop it
    /// where archives and served data do not both fit into the job's memory]
    #[arg(
        help_heading = MEMORY,
        hide_short_help = true,
        long,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true,
        env = "ARCHFS_ARCHIVE_CACHE"
    )]
    pub(super) archive_cache: ArchiveCacheName,

    /// Do not read all names ahead when processes look up many [default: read them if the job's
    /// memory has room]
    #[arg(help_heading = MEMORY, hide_short_help = true, long, env = "ARCHFS_NO_NAME_READAHEAD", value_parser = FalseyValueParser::new())]
    pub(super) no_name_readahead: bool,

    /// Keep serving an archive that was rewritten in place [default: reads fail with EIO]
    #[arg(help_heading = ARCHIVE, hide_short_help = true, long, env = "ARCHFS_ALLOW_CHANGES", value_parser = FalseyValueParser::new())]
    pub(super) allow_changes: bool,

    /// Threads that answer requests [default: two for each CPU core, 32 to 256]
    #[arg(help_heading = MEMORY, hide_short_help = true, long, value_name = "N", value_parser = threads, env = "ARCHFS_THREADS")]
    pub(super) threads: Option<usize>,

    /// CPU cores that the daemon runs on, such as 0-3,8; all: those of the job, even if this task
    /// is bound to fewer [default: all in a job whose control group names them, else those of this
    /// process]
    #[arg(help_heading = MEMORY, hide_short_help = true, long, value_name = "LIST", value_parser = cores, env = "ARCHFS_CPUS")]
    pub(super) cpus: Option<Cores>,

    /// Keep serving for this time after SIGTERM while the mount is in use (suffixes: s, m, h)
    /// [default: 20s; in Slurm at most two thirds of KillWait]
    #[arg(help_heading = LIFETIME, hide_short_help = true, long, value_name = "TIME", value_parser = time, env = "ARCHFS_GRACE")]
    pub(super) grace: Option<Duration>,

    /// Stay mounted for this time after the last holder exits
    #[arg(help_heading = LIFETIME, hide_short_help = true, long, value_name = "TIME", value_parser = time, default_value = "0", env = "ARCHFS_LINGER")]
    pub(super) linger: Duration,

    /// Unmount after this time without a read, if no file is open
    #[arg(help_heading = LIFETIME, hide_short_help = true, long, value_name = "TIME", value_parser = time, env = "ARCHFS_IDLE_TIMEOUT")]
    pub(super) idle_timeout: Option<Duration>,

    /// Append the daemon's log to this file
    #[arg(help_heading = LOGGING, hide_short_help = true, long, value_name = "FILE", env = "ARCHFS_LOG_FILE")]
    pub(super) log_file: Option<PathBuf>,

    /// Write the counters of the mount (requests, bytes, latencies, memory) to this file at unmount
    #[arg(help_heading = LOGGING, hide_short_help = true, long, value_name = "FILE", env = "ARCHFS_STATS_JSON")]
    pub(super) stats_json: Option<PathBuf>,

    /// Print a summary when the mount ends
    ///
    /// A line, or with run a chart.
    #[arg(
        help_heading = LOGGING,
        long,
        value_name = "line|chart",
        num_args = 0..=1,
        require_equals = true,
        default_value = "no",
        hide_default_value = true,
        default_missing_value = "line",
        value_parser = summary,
        env = "ARCHFS_STATS"
    )]
    pub(super) stats: Summary,

    /// Print details of the mount and of errors
    ///
    /// How it was mounted, how long each step took, and where an archive is damaged.
    #[arg(help_heading = LOGGING, short, long, conflicts_with = "quiet")]
    pub(super) verbose: bool,

    /// Print only errors and warnings
    #[arg(help_heading = LOGGING, short, long)]
    pub(super) quiet: bool,
}

/// What is read ahead, as the user writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ReadaheadName {
    Auto,
    Off,
    All,
}

/// Whether the nodes of a job share what they read, as the user writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum TogetherName {
    Auto,
    Off,
    On,
}

/// What happens with served pages of the archives, as the user writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ArchiveCacheName {
    Auto,
    Keep,
    Drop,
}

/// The summary that is printed when a mount ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Summary {
    None,
    Line,
    Chart,
}

/// Parses the form of a summary for clap. The words for yes and no are those of other variables.
fn summary(text: &str) -> Result<Summary> {
    match text.to_lowercase().as_str() {
        "" | "0" | "n" | "no" | "f" | "false" | "off" => Ok(Summary::None),
        "line" | "1" | "y" | "yes" | "t" | "true" | "on" => Ok(Summary::Line),
        "chart" => Ok(Summary::Chart),
        _ => Err(Error::new(Kind::Usage, format!("{text:?} is not a kind of summary"))
            .with_hint("give line or chart")),
    }
}
