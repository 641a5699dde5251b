//! The arguments that `mount` and `run` share, and their conversion to a plan and back.
//!
//! The daemon is this program again, started with a plan as arguments. Invariant: a plan that is
//! rendered and parsed is the same plan; a test checks it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;

use super::options::MountOptions;
use super::values::{cores, size, threads, time};
use super::{mistakes, term};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::{Access, ArchiveCacheChoice, Lifetime, MountPlan};
use crate::log::Verbosity;
use crate::os::processors::Cores;
use crate::url;
use crate::vfs::ViewOptions;

/// Headings of the options of mount and run in --help.
pub(super) const ARCHIVE: &str = "Archive";
pub(super) const MEMORY: &str = "Memory";
pub(super) const LIFETIME: &str = "Lifetime";
pub(super) const SLURM: &str = "Slurm";
pub(super) const LOGGING: &str = "Logging";

/// What to mount, where and how. `-h` shows the options that most users need.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct MountArgs {
    /// One or more archives, then the directory to mount them on; it is created if missing, and
    /// `run` chooses one if none is given
    #[arg(value_name = "PATH", num_args = 1.., required = true)]
    pub(super) paths: Vec<PathBuf>,

    /// archfs was called as squashfuse or squashfuse_ll. `pgrep -f` finds a daemon by this name.
    #[arg(hide = true, long = "squashfuse_ll")]
    pub(super) is_squashfuse: bool,

    /// Options as in fstab: offset=, subdir=, uid=, gid=, allow_other, allow_changes, ...
    #[arg(help_heading = ARCHIVE, hide_short_help = true, short = 'o', value_name = "OPTS")]
    options: Vec<String>,

    /// Show only this directory of the archive
    #[arg(help_heading = ARCHIVE, long, value_name = "PATH", env = "ARCHFS_SUBDIR")]
    subdir: Option<OsString>,

    /// The image starts N bytes into the file (suffixes: K, M, G, T)
    #[arg(help_heading = ARCHIVE, hide_short_help = true, long, value_name = "N", value_parser = size, env = "ARCHFS_OFFSET")]
    offset: Option<u64>,

    /// Show archives inside an archive as directories (ImageNet's tar of tars)
    #[arg(
        help_heading = ARCHIVE,
        long = "nested",
        alias = "recursive",
        env = "ARCHFS_NESTED",
        value_parser = FalseyValueParser::new()
    )]
    recursive: bool,

    /// Mount an archive that is cut off or damaged as far as it goes [default: refuse it]
    #[arg(help_heading = ARCHIVE, hide_short_help = true, long, env = "ARCHFS_PARTIAL", value_parser = FalseyValueParser::new())]
    partial: bool,

    /// File of the saved index of a tar [default: beside the tar, else in your cache directory]
    #[arg(help_heading = ARCHIVE, hide_short_help = true, long, value_name = "FILE", env = "ARCHFS_INDEX")]
    index: Option<PathBuf>,

    /// Memory for decompressed blocks [default: a quarter of the job's memory, an eighth if the job
    /// has 256M or less; at most 16G and a third of the memory left]
    #[arg(help_heading = MEMORY, long, value_name = "SIZE", value_parser = size, env = "ARCHFS_CACHE")]
    cache: Option<u64>,

    /// Free the cache after this time without a request; 0: never
    #[arg(help_heading = MEMORY, hide_short_help = true, long, value_name = "TIME", value_parser = time, default_value = "30s", env = "ARCHFS_CACHE_IDLE")]
    cache_idle: Duration,

    /// Copy the archives to DIR on this node in the background, for example /dev/shm; removed with
    /// the mount
    #[arg(help_heading = MEMORY, long, value_name = "DIR", env = "ARCHFS_STAGE")]
    stage: Option<PathBuf>,

    /// Mount only when the copy of --stage is complete
    #[arg(
        help_heading = MEMORY,
        hide_short_help = true,
        long,
        env = "ARCHFS_STAGE_WAIT",
        value_parser = FalseyValueParser::new()
    )]
    stage_wait: bool,

    /// With --stage: leave the copy for your next job; all your copies in DIR take up to SIZE
    #[arg(
        help_heading = MEMORY,
        long,
        value_name = "SIZE",
        value_parser = size,
        env = "ARCHFS_STAGE_KEEP"
    )]
    stage_keep: Option<u64>,

    /// Read the archives into the page cache in the background
    #[arg(help_heading = MEMORY, long, env = "ARCHFS_PRELOAD", value_parser = FalseyValueParser::new())]
    preload: bool,

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
    archive_cache: ArchiveCacheName,

    /// Do not read all names ahead when processes look up many [default: read them if the job's
    /// memory has room]
    #[arg(help_heading = MEMORY, hide_short_help = true, long, env = "ARCHFS_NO_NAME_READAHEAD", value_parser = FalseyValueParser::new())]
    no_name_readahead: bool,

    /// Keep serving an archive that was rewritten in place [default: reads fail with EIO]
    #[arg(help_heading = ARCHIVE, hide_short_help = true, long, env = "ARCHFS_ALLOW_CHANGES", value_parser = FalseyValueParser::new())]
    allow_changes: bool,

    /// Threads that answer requests [default: two for each CPU core, 32 to 256]
    #[arg(help_heading = MEMORY, hide_short_help = true, long, value_name = "N", value_parser = threads, env = "ARCHFS_THREADS")]
    threads: Option<usize>,

    /// CPU cores that the daemon runs on, such as 0-3,8; all: those of the job, even if this task
    /// is bound to fewer [default: those of this process]
    #[arg(help_heading = MEMORY, hide_short_help = true, long, value_name = "LIST", value_parser = cores, env = "ARCHFS_CPUS")]
    cpus: Option<Cores>,

    /// Keep serving for this time after SIGTERM while the mount is in use (suffixes: s, m, h)
    /// [default: 20s; in Slurm at most two thirds of KillWait]
    #[arg(help_heading = LIFETIME, hide_short_help = true, long, value_name = "TIME", value_parser = time, env = "ARCHFS_GRACE")]
    grace: Option<Duration>,

    /// Stay mounted for this time after the last holder exits
    #[arg(help_heading = LIFETIME, hide_short_help = true, long, value_name = "TIME", value_parser = time, default_value = "0", env = "ARCHFS_LINGER")]
    linger: Duration,

    /// Unmount after this time without a read, if no file is open
    #[arg(help_heading = LIFETIME, hide_short_help = true, long, value_name = "TIME", value_parser = time, env = "ARCHFS_IDLE_TIMEOUT")]
    idle_timeout: Option<Duration>,

    /// Append the daemon's log to this file
    #[arg(help_heading = LOGGING, hide_short_help = true, long, value_name = "FILE", env = "ARCHFS_LOG_FILE")]
    log_file: Option<PathBuf>,

    /// Write the counters of the mount (requests, bytes, latencies, memory) to this file at unmount
    #[arg(help_heading = LOGGING, hide_short_help = true, long, value_name = "FILE", env = "ARCHFS_STATS_JSON")]
    stats_json: Option<PathBuf>,

    /// Print a summary when the mount ends: a line, or with run a chart
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

    /// Print how it was mounted, how long each step took, and details of errors
    #[arg(help_heading = LOGGING, short, long, conflicts_with = "quiet")]
    verbose: bool,

    /// Print only errors and warnings
    #[arg(help_heading = LOGGING, short, long)]
    pub(super) quiet: bool,
}

/// What happens with served pages of the archives, as the user writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ArchiveCacheName {
    Auto,
    Keep,
    Drop,
}

impl MountArgs {
    /// The named pipe that `-o notify_pipe=` names, as an absolute path.
    ///
    /// # Errors
    /// `Usage` for a wrong `-o`; `Io` if there is no working directory.
    pub(super) fn notify_pipe(&self) -> Result<Option<PathBuf>> {
        MountOptions::parse(&self.options)?.notify_pipe.as_ref().map(absolute).transpose()
    }

    /// The plan that the arguments describe. Its last path is the mount point.
    ///
    /// # Errors
    /// `Usage` if they contradict each other; `Io` if there is no working directory.
    pub(super) fn plan(&self) -> Result<MountPlan> {
        let (mountpoint, archives) = self.split_paths()?;
        self.plan_of(archives, absolute(mountpoint)?)
    }

    /// The plan to mount `archives` on `mountpoint`, an absolute path, with these options.
    ///
    /// # Errors
    /// As `plan`.
    pub(super) fn plan_of(&self, archives: &[PathBuf], mountpoint: PathBuf) -> Result<MountPlan> {
        let options = MountOptions::parse(&self.options)?;
        if self.verbose {
            for (option, reason) in &options.without_effect {
                term::print_note(&format!("-o {option} has no effect: {reason}"));
            }
        }
        let offset = self.offset.or(options.offset).unwrap_or(0);
        if archives.len() > 1 && (offset != 0 || self.index.is_some()) {
            let context = "--offset and --index take one archive, but several are given";
            return Err(Error::new(Kind::Usage, context)
                .with_hint("run `archfs index` to save an index beside each archive"));
        }
        if let Some(error) = mistakes::misplaced(archives, &mountpoint) {
            return Err(error);
        }
        if let Some(twice) = named_twice(archives) {
            let context = format!("{}: the same archive twice", twice.display());
            return Err(Error::new(Kind::Usage, context).with_hint("name each archive once"));
        }
        if self.idle_timeout.is_some_and(|time| time.is_zero()) {
            let context = "--idle-timeout 0: the mount would end before the first read";
            return Err(
                Error::new(Kind::Usage, context).with_hint("leave it out to keep an idle mount")
            );
        }
        let subdir = self.subdir.clone().or(options.subdir.map(OsString::from));
        Ok(MountPlan {
            archives: archives.iter().map(absolute).collect::<Result<_>>()?,
            mountpoint,
            offset,
            recursive: self.recursive,
            partial: self.partial,
            index: self.index.as_ref().map(absolute).transpose()?,
            view: ViewOptions {
                subdir: subdir.map(OsStringExt::into_vec),
                uid: options.uid,
                gid: options.gid,
            },
            access: options.access,
            no_exec: options.no_exec,
            lifetime: Lifetime {
                grace: self.grace,
                linger: self.linger,
                idle: self.idle_timeout.or(options.idle),
                detaches_on_signal: self.is_squashfuse,
            },
            cache_bytes: self.cache,
            cache_idle: Some(self.cache_idle).filter(|time| !time.is_zero()),
            stage: self.stage.as_ref().map(absolute).transpose()?,
            stage_wait: self.stage_wait,
            stage_keep: self.stage_keep,
            preload: self.preload,
            archive_cache: match self.archive_cache {
                ArchiveCacheName::Auto => ArchiveCacheChoice::Auto,
                ArchiveCacheName::Keep => ArchiveCacheChoice::Keep,
                ArchiveCacheName::Drop => ArchiveCacheChoice::Drop,
            },
            name_readahead: !self.no_name_readahead,
            allow_changes: self.allow_changes || options.allow_changes,
            threads: self.threads.or(options.threads),
            cpus: self.cpus.clone(),
            log_file: self.log_file.as_ref().map(absolute).transpose()?,
            stats_json: self.stats_json.as_ref().map(absolute).transpose()?,
            stats: self.stats != Summary::None,
            verbosity: match (self.quiet, self.verbose) {
                (true, _) => Verbosity::Quiet,
                (false, true) => Verbosity::Verbose,
                (false, false) => Verbosity::Default,
            },
        })
    }

    /// The mount point, and the archives before it.
    ///
    /// # Errors
    /// `Usage` if there are fewer than two paths.
    pub(super) fn split_paths(&self) -> Result<(&PathBuf, &[PathBuf])> {
        match self.paths.split_last() {
            Some((mountpoint, archives)) if !archives.is_empty() => Ok((mountpoint, archives)),
            _ => {
                let error = Error::new(Kind::Usage, "no mount point");
                Err(error.with_hint("archfs mount [OPTIONS] ARCHIVE... MOUNTPOINT"))
            }
        }
    }
}

/// An archive that was named before, perhaps by another path.
fn named_twice(archives: &[PathBuf]) -> Option<&PathBuf> {
    let mut seen = HashSet::new();
    let mut urls = HashSet::new();
    let mut is_new = |path: &PathBuf| match url::is_url(path) {
        true => urls.insert(path.clone()),
        // Opening it later reports the error.
        false => fs::metadata(path).map_or(true, |found| seen.insert((found.dev(), found.ino()))),
    };
    archives.iter().find(|path| !is_new(path))
}

/// The arguments that parse to `plan`. Every field is destructured, so that a new one cannot be
/// forgotten.
pub(super) fn render(plan: &MountPlan) -> Vec<OsString> {
    let MountPlan {
        archives,
        mountpoint,
        offset,
        recursive,
        partial,
        index,
        view: ViewOptions { subdir, uid, gid },
        access,
        no_exec,
        lifetime: Lifetime { grace, linger, idle, detaches_on_signal },
        cache_bytes,
        cache_idle,
        stage,
        stage_wait,
        stage_keep,
        preload,
        archive_cache,
        name_readahead,
        allow_changes,
        threads,
        cpus,
        log_file,
        stats_json,
        stats,
        verbosity,
    } = plan;
    let mut arguments = Vec::new();
    let mut add = |name: &str, value: Option<OsString>| {
        if let Some(value) = value {
            let text = [name.as_bytes(), value.as_bytes()].concat();
            arguments.push(OsString::from_vec(text));
        }
    };
    add("--offset=", Some(offset.to_string().into()));
    add("--index=", index.clone().map(OsString::from));
    add("--subdir=", subdir.clone().map(OsString::from_vec));
    add("-ouid=", uid.map(|uid| uid.to_string().into()));
    add("-ogid=", gid.map(|gid| gid.to_string().into()));
    add("--grace=", grace.map(|grace| grace.as_secs().to_string().into()));
    add("--linger=", Some(linger.as_secs().to_string().into()));
    add("--idle-timeout=", idle.map(|idle| idle.as_secs().to_string().into()));
    add("--cache=", cache_bytes.map(|bytes| bytes.to_string().into()));
    add("--cache-idle=", Some(cache_idle.unwrap_or_default().as_secs().to_string().into()));
    add("--stage=", stage.clone().map(OsString::from));
    add("--stage-keep=", stage_keep.map(|bytes| bytes.to_string().into()));
    add("--threads=", threads.map(|threads| threads.to_string().into()));
    add("--cpus=", cpus.as_ref().map(|cpus| cpus.to_string().into()));
    add("--log-file=", log_file.clone().map(OsString::from));
    add("--stats-json=", stats_json.clone().map(OsString::from));
    if *detaches_on_signal {
        arguments.push("--squashfuse_ll".into());
    }
    if *recursive {
        arguments.push("--nested".into());
    }
    if *partial {
        arguments.push("--partial".into());
    }
    if *stage_wait {
        arguments.push("--stage-wait".into());
    }
    if *preload {
        arguments.push("--preload".into());
    }
    arguments.push(match archive_cache {
        ArchiveCacheChoice::Auto => "--archive-cache=auto".into(),
        ArchiveCacheChoice::Keep => "--archive-cache=keep".into(),
        ArchiveCacheChoice::Drop => "--archive-cache=drop".into(),
    });
    if !*name_readahead {
        arguments.push("--no-name-readahead".into());
    }
    if *allow_changes {
        arguments.push("--allow-changes".into());
    }
    if *stats {
        arguments.push("--stats".into());
    }
    match access {
        Access::Owner => {}
        Access::Everybody => arguments.push("-oallow_other".into()),
    }
    if *no_exec {
        arguments.push("-onoexec".into());
    }
    match verbosity {
        Verbosity::Quiet => arguments.push("--quiet".into()),
        Verbosity::Default => {}
        Verbosity::Verbose => arguments.push("--verbose".into()),
    }
    arguments.push("--".into());
    arguments.extend(archives.iter().map(OsString::from));
    arguments.push(mountpoint.into());
    arguments
}

/// The absolute path of `path`. A URL stays as it is.
///
/// # Errors
/// `Io` if there is no working directory, or `path` is empty.
pub(super) fn absolute(path: &PathBuf) -> Result<PathBuf> {
    if url::is_url(path) {
        return Ok(path.clone());
    }
    std::path::absolute(path)
        .map_err(|error| Error::io(format!("{}: invalid path", path.display()), error))
}

/// The summary that is printed when a mount ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Summary {
    None,
    Line,
    Chart,
}

/// Parses the form of a summary for clap. The words for yes and no are those of other variables.
///
/// # Errors
/// `Usage` for any other word.
fn summary(text: &str) -> Result<Summary> {
    match text.to_lowercase().as_str() {
        "" | "0" | "n" | "no" | "f" | "false" | "off" => Ok(Summary::None),
        "line" | "1" | "y" | "yes" | "t" | "true" | "on" => Ok(Summary::Line),
        "chart" => Ok(Summary::Chart),
        _ => Err(Error::new(Kind::Usage, format!("{text:?} is not a kind of summary"))
            .with_hint("give line or chart")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        mount: MountArgs,
    }

    fn parse(arguments: Vec<OsString>) -> MountPlan {
        let line = [vec!["archfs".into()], arguments].concat();
        Line::try_parse_from(line).unwrap().mount.plan().unwrap()
    }

    #[test]
    fn a_plan_rendered_and_parsed_is_the_same_plan() {
        let mountpoint = OsString::from_vec(b"/m\xff\\".to_vec()).into();
        let minimal = MountPlan::without_options("/a b,c/-x=\n.sqfs".into(), mountpoint);
        let full = MountPlan {
            offset: u64::MAX,
            recursive: true,
            partial: true,
            index: Some("/i,n d".into()),
            view: ViewOptions {
                subdir: Some(b"-a,b=\xfe".to_vec()),
                uid: Some(0),
                gid: Some(u32::MAX - 1),
            },
            access: Access::Everybody,
            no_exec: true,
            lifetime: Lifetime {
                grace: Some(Duration::ZERO),
                linger: Duration::from_secs(1),
                idle: Some(Duration::from_secs(7200)),
                detaches_on_signal: true,
            },
            cache_bytes: Some(1),
            cache_idle: Some(Duration::from_secs(90)),
            stage: Some("/s,t\n".into()),
            stage_wait: true,
            stage_keep: Some(7),
            preload: true,
            archive_cache: ArchiveCacheChoice::Drop,
            name_readahead: false,
            allow_changes: true,
            threads: Some(1024),
            cpus: "0-3,8".parse().ok(),
            log_file: Some("/l,o g".into()),
            stats_json: Some("/s=t,a ts".into()),
            stats: true,
            verbosity: Verbosity::Verbose,
            ..minimal.clone()
        };
        let (verbosity, archive_cache) = (Verbosity::Quiet, ArchiveCacheChoice::Keep);
        let quiet = MountPlan { verbosity, archive_cache, ..minimal.clone() };
        let archives = ["/a", "/-b", "/c"].map(PathBuf::from).to_vec();
        let several = MountPlan { archives, ..minimal.clone() };
        for plan in [minimal, full, quiet, several] {
            assert_eq!(parse(render(&plan)), plan);
        }
    }

    #[test]
    fn memory_is_freed_after_30_seconds_or_the_given_time_or_never_for_0() {
        for (option, time) in [(None, Some(30)), (Some("2m"), Some(120)), (Some("0s"), None)] {
            let option = option.map(|time| format!("--cache-idle={time}").into());
            let words = option.into_iter().chain(["a".into(), "b".into()]);
            assert_eq!(parse(words.collect()).cache_idle, time.map(Duration::from_secs));
        }
    }

    #[test]
    fn a_separate_option_overrides_the_one_in_o() {
        let words = ["-ooffset=1,subdir=x", "--offset=2K", "--subdir=y", "a", "b"];
        let plan = parse(words.map(OsString::from).to_vec());
        assert_eq!((plan.offset, plan.view.subdir), (2048, Some(b"y".to_vec())));
        assert!(plan.archives[0].is_absolute() && plan.mountpoint.is_absolute());
    }
}
