//! The arguments of `mount` and `run` as a plan, and a plan as arguments.
//!
//! The daemon is this program again, started with a plan as arguments. Invariant: a plan that is
//! rendered and parsed is the same plan; a test checks it.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::args::{ArchiveCacheName, MountArgs, Summary};
use super::options::MountOptions;
use super::{mistakes, term};
use crate::error::{Error, Kind, Result};
use crate::lifecycle::{Access, ArchiveCacheChoice, Lifetime, MountPlan};
use crate::log::Verbosity;
use crate::url;
use crate::vfs::ViewOptions;

impl MountArgs {
    /// The named pipe that `-o notify_pipe=` names, as an absolute path.
    pub(super) fn notify_pipe(&self) -> Result<Option<PathBuf>> {
        MountOptions::parse(&self.options)?.notify_pipe.as_ref().map(absolute).transpose()
    }

    /// The plan that the arguments describe. Its last path is the mount point.
    ///
    /// Fails with `Usage` if they contradict each other; `Io` if there is no working directory.
    pub(super) fn plan(&self) -> Result<MountPlan> {
        let (mount_point, archives) = self.split_paths()?;
        self.plan_of(archives, absolute(mount_point)?)
    }

    /// The plan to mount `archives` on `mount_point`, an absolute path, with these options.
    pub(super) fn plan_of(&self, archives: &[PathBuf], mount_point: PathBuf) -> Result<MountPlan> {
        let options = MountOptions::parse(&self.options)?;
        if self.verbose {
            for (option, reason) in &options.without_effect {
                term::print_note(&format!("-o {option} has no effect: {reason}"));
            }
        }
        let offset = self.offset.or(options.offset).unwrap_or(0);
        if let Some(error) = mistakes::needs_one_archive(archives, offset, self.index.as_deref()) {
            return Err(error.with_hint("run `archfs index` to save an index beside each archive"));
        }
        if let Some(error) = mistakes::misplaced(archives, &mount_point) {
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
            mount_point,
            covers_files: options.covers_files || self.is_squashfuse,
            offset,
            recursive: self.recursive,
            partial: self.partial,
            index: self.index.as_ref().map(absolute).transpose()?,
            view: ViewOptions {
                subdir: subdir.map(OsStringExt::into_vec),
                uid: options.uid,
                gid: options.gid,
                umask: options.umask,
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
    pub(super) fn split_paths(&self) -> Result<(&PathBuf, &[PathBuf])> {
        match self.paths.split_last() {
            Some((mount_point, archives)) if !archives.is_empty() => Ok((mount_point, archives)),
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
        mount_point,
        covers_files,
        offset,
        recursive,
        partial,
        index,
        view: ViewOptions { subdir, uid, gid, umask },
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
    add("-oumask=", umask.map(|umask| format!("{umask:o}").into()));
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
    } else if *covers_files {
        arguments.push("-ononempty".into());
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
    arguments.push(mount_point.into());
    arguments
}

/// The absolute path of `path`. A URL stays as it is.
pub(super) fn absolute(path: &PathBuf) -> Result<PathBuf> {
    if url::is_url(path) {
        return Ok(path.clone());
    }
    std::path::absolute(path)
        .map_err(|error| Error::io(format!("{}: invalid path", path.display()), error))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        let mount_point = OsString::from_vec(b"/m\xff\\".to_vec()).into();
        let minimal = MountPlan::without_options("/a b,c/-x=\n.sqfs".into(), mount_point);
        let full = MountPlan {
            covers_files: true,
            offset: u64::MAX,
            recursive: true,
            partial: true,
            index: Some("/i,n d".into()),
            view: ViewOptions {
                subdir: Some(b"-a,b=\xfe".to_vec()),
                uid: Some(0),
                gid: Some(u32::MAX - 1),
                umask: Some(0o27),
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
        let several = MountPlan { archives, covers_files: true, ..minimal.clone() };
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
        assert!(plan.archives[0].is_absolute() && plan.mount_point.is_absolute());
    }
}
