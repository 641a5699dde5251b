//! The arguments of `mount` and `run` as a plan.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{getegid, geteuid};

use super::args::{ArchiveCacheName, MountArgs, ReadaheadName, Summary, TogetherName};
use super::options::MountOptions;
use super::{mistakes, term};
use crate::batch_job;
use crate::error::{Error, Kind, Result};
use crate::formats;
use crate::lifecycle::{self, ArchiveCacheChoice, Layer, Lifetime, MountPlan, ReadaheadChoice};
use crate::log::Verbosity;
use crate::os::processors::{self, Cores};
use crate::together::Settings;
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
        if let Some(error) = mistakes::misplaced(archives, &mount_point) {
            return Err(error);
        }
        let paths = archives.iter().map(absolute).collect::<Result<Vec<_>>>()?;
        let (archives, directories) = match self.recursive {
            true => formats::archives_in(&paths)?,
            false => (paths, Vec::new()),
        };
        if let Some(twice) = named_twice(&archives) {
            let context = format!("{}: the same archive twice", twice.display());
            return Err(Error::new(Kind::Usage, context).with_hint("name each archive once"));
        }
        let offset = self.offset.or(options.offset).unwrap_or(0);
        if let Some(error) = mistakes::needs_one_archive(&archives, offset, self.index.as_deref()) {
            return Err(error.with_hint("run `archfs index` to save an index beside each archive"));
        }
        if self.idle_timeout.is_some_and(|time| time.is_zero()) {
            let context = "--idle-timeout 0: the mount would end before the first read";
            return Err(
                Error::new(Kind::Usage, context).with_hint("leave it out to keep an idle mount")
            );
        }
        let overlay = self.overlay.as_deref().map(layer).transpose()?;
        // Only an owner may change a file.
        let owns_all = overlay.is_some() && !lifecycle::keeps_owners();
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        if overlay.is_some() && options.is_read_only {
            let context = "--overlay and -o ro contradict each other";
            return Err(Error::new(Kind::Usage, context).with_hint("leave one of them out"));
        }
        let subdir = self.subdir.clone().or(options.subdir.map(OsString::from));
        Ok(MountPlan {
            archives,
            directories,
            mount_point,
            covers_files: options.covers_files || self.is_squashfuse,
            offset,
            recursive: self.recursive,
            names: self.names,
            partial: self.partial,
            index: self.index.as_ref().map(absolute).transpose()?,
            view: ViewOptions {
                subdir: subdir.map(OsStringExt::into_vec),
                uid: options.uid.or(owns_all.then_some(uid)),
                gid: options.gid.or(owns_all.then_some(gid)),
                umask: options.umask,
            },
            access: options.access,
            overlay,
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
            readahead: match self.readahead {
                _ if self.preload => ReadaheadChoice::All,
                ReadaheadName::Auto => ReadaheadChoice::Auto,
                ReadaheadName::Off => ReadaheadChoice::Off,
                ReadaheadName::All => ReadaheadChoice::All,
            },
            nodes: batch_job::nodes(),
            together: self.together(batch_job::is_in_step_of_several_nodes())?,
            archive_cache: match self.archive_cache {
                ArchiveCacheName::Auto => ArchiveCacheChoice::Auto,
                ArchiveCacheName::Keep => ArchiveCacheChoice::Keep,
                ArchiveCacheName::Drop => ArchiveCacheChoice::Drop,
            },
            name_readahead: !self.no_name_readahead,
            allow_changes: self.allow_changes || options.allow_changes,
            threads: self.threads.or(options.threads),
            cpus: self.cpus.clone().or_else(cores_of_job),
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

    /// How the nodes of the job share what they read, if archfs runs on several of them.
    pub(super) fn together(&self, is_on_several: bool) -> Result<Option<Settings>> {
        let is_required = match self.together {
            TogetherName::Off => return Ok(None),
            TogetherName::Auto if !is_on_several => return Ok(None),
            TogetherName::Auto => false,
            TogetherName::On => true,
        };
        let Some(job) = batch_job::run_name() else {
            let context = "--together on: not in a batch job";
            let hint = "set SLURM_JOB_ID to the same number on all nodes";
            let error = Error::new(Kind::Usage, context).with_hint(hint);
            return if is_required { Err(error) } else { Ok(None) };
        };
        let directory = self.together_directory.as_ref().map(absolute).transpose()?;
        Ok(Some(Settings {
            is_required,
            directory: directory.map(OsString::from),
            interface: self.together_interface.clone(),
            bandwidth: self.together_bandwidth.unwrap_or_default(),
            job,
            nodes: batch_job::nodes(),
        }))
    }

    /// The mount point, and the archives before it.
    pub(super) fn split_paths(&self) -> Result<(&PathBuf, &[PathBuf])> {
        match self.paths.split_last() {
            Some((mount_point, archives)) if !archives.is_empty() => Ok((mount_point, archives)),
            _ => {
                let error = Error::new(Kind::Usage, "no mount point");
                let archive = self.paths.first().map_or(Path::new("ARCHIVE"), PathBuf::as_path);
                Err(error.with_hint(format!("archfs mount {} MOUNTPOINT", archive.display())))
            }
        }
    }
}

/// All cores of the job, if its control group says which these are: a batch system that starts
/// several tasks on a node binds each to its own, and the daemon serves all of them.
fn cores_of_job() -> Option<Cores> {
    let are_known = batch_job::current().is_some() && processors::are_named_by_group();
    are_known.then_some(Cores::All)
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

/// The absolute path of `path`. A URL stays as it is.
pub(super) fn absolute(path: &PathBuf) -> Result<PathBuf> {
    // A URL that archfs does not read stays as it is for the message about it.
    let has_scheme = path.as_os_str().as_bytes().windows(3).any(|part| part == b"://");
    if url::is_url(path) || (has_scheme && !path.exists()) {
        return Ok(path.clone());
    }
    std::path::absolute(path)
        .map_err(|error| Error::io(format!("{}: invalid path", path.display()), error))
}

/// The layer that `--overlay` names.
fn layer(name: &Path) -> Result<Layer> {
    match name == Path::new("tmp") {
        true => Ok(Layer::Memory),
        false => absolute(&name.to_owned()).map(Layer::Directory),
    }
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
