//! What to mount, where and how, and how a launcher passes it on to the daemon that it starts.
//!
//! `cli` makes a plan from arguments, variables and configuration files. The daemon, another
//! process, gets it from its launcher as one line of JSON, and reads no variable of archfs and no
//! file. A launcher on the same node writes the line to the socket between the two, that of a job
//! step to the standard input of its tasks. Neither can be read by other users, unlike a command
//! line, so the line also has the URLs with their secrets.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};
use crate::formats::NameEncoding;
use crate::lifecycle::daemon::end_policy::Lifetime;
use crate::log::Verbosity;
use crate::os::processors::Cores;
use crate::storage::FillScope;
use crate::together;
use crate::url;
use crate::vfs::ViewOptions;

/// Where a daemon in the background gets its FUSE connection from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConnectionSource {
    /// The daemon mounts.
    Mount,
    /// The launcher mounts in its own mount namespace and hands over the connection.
    Private,
    /// Another program has mounted, and the launcher hands over the connection.
    Handed,
}

/// What to mount, where and how. Everything is validated except the archives themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPlan {
    /// Archives, shown as one tree. If two have a file with the same path, the later archive wins.
    #[serde(with = "path_bytes")]
    pub archives: Vec<PathBuf>,
    /// Mount point.
    #[serde(with = "path_bytes")]
    pub mount_point: PathBuf,
    /// Whether the mount point may be a directory with files, which the mount then hides.
    pub covers_files: bool,
    /// Offset of the archive in its file, bytes.
    pub offset: u64,
    /// Whether archives inside an archive are shown as directories.
    pub recursive: bool,
    /// Directories of archives: each archive is shown below its path there, without its suffix.
    #[serde(with = "path_bytes")]
    pub directories: Vec<PathBuf>,
    /// The encoding of names in ZIP archives that are not marked as UTF-8.
    pub names: Option<NameEncoding>,
    /// Whether an archive that is cut off or damaged is mounted as far as it goes.
    pub partial: bool,
    /// Saved index of a tar; `None` to look in the usual directories.
    #[serde(with = "path_bytes")]
    pub index: Option<PathBuf>,
    /// Subdirectory and owners to show.
    pub view: ViewOptions,
    /// Which users may access the mount.
    pub access: Access,
    /// A layer over the archives that all processes can change; `None` for a mount that is
    /// read-only.
    pub overlay: Option<Layer>,
    /// Whether the kernel refuses to execute files of the mount.
    pub no_exec: bool,
    /// How long it stays mounted.
    pub lifetime: Lifetime,
    /// Memory for decoded blocks, bytes; `None` for the default.
    pub cache_bytes: Option<u64>,
    /// Time without a request until that memory is freed; `None` for never.
    pub cache_idle: Option<Duration>,
    /// Directory that the archives are copied to while they are served; `None` to read them in
    /// place.
    #[serde(with = "path_bytes")]
    pub stage: Option<PathBuf>,
    /// Whether the copy is complete before they are served.
    pub stage_wait: bool,
    /// Bytes that all copies of this user in that directory may take after their mounts; `None` to
    /// remove the copy with the mount.
    pub stage_keep: Option<u64>,
    /// What is read ahead of readers, in the background.
    pub readahead: ReadaheadChoice,
    /// Nodes of the job.
    pub nodes: u64,
    /// How they share what they read of the archives; `None` if they do not.
    pub together: Option<together::Settings>,
    /// What happens with served pages of the archives.
    pub archive_cache: ArchiveCacheChoice,
    /// Whether all names are read ahead after some lookups.
    pub name_readahead: bool,
    /// Whether to keep serving archives that were rewritten in place.
    pub allow_changes: bool,
    /// Threads that answer requests; `None` for the default.
    pub threads: Option<usize>,
    /// CPU cores that the daemon runs on; `None` for those of the process that starts it.
    pub cpus: Option<Cores>,
    /// File that the daemon logs to; `None` for standard error.
    #[serde(with = "path_bytes")]
    pub log_file: Option<PathBuf>,
    /// File that the daemon writes its statistics to when the mount ends; `None` for none.
    #[serde(with = "path_bytes")]
    pub stats_json: Option<PathBuf>,
    /// Whether a summary is printed when the mount ends.
    pub stats: bool,
    /// How much the daemon logs.
    pub verbosity: Verbosity,
}

impl MountPlan {
    /// Whether the user asked for the summary, by `--stats` or `-v`.
    pub(in crate::lifecycle) fn is_summarized(&self) -> bool {
        self.stats || self.verbosity == Verbosity::Verbose
    }

    /// What is fetched ahead of readers.
    pub(in crate::lifecycle) fn fill_scope(&self) -> FillScope {
        match self.readahead {
            ReadaheadChoice::Auto => FillScope::Demanded { nodes: self.nodes },
            ReadaheadChoice::Off => FillScope::Announced,
            ReadaheadChoice::All => FillScope::Everything,
        }
    }

    /// What the kernel forbids on its mount.
    pub(in crate::lifecycle) fn restrictions(&self) -> Restrictions {
        let allows_changes = self.overlay.is_some();
        Restrictions { access: self.access, no_exec: self.no_exec, allows_changes }
    }

    /// A plan for tests: `archive` at `mount_point`, without any option.
    #[cfg(test)]
    pub(crate) fn without_options(archive: PathBuf, mount_point: PathBuf) -> Self {
        Self {
            archives: vec![archive],
            mount_point,
            covers_files: false,
            offset: 0,
            recursive: false,
            directories: Vec::new(),
            names: None,
            partial: false,
            index: None,
            view: ViewOptions::default(),
            access: Access::Owner,
            overlay: None,
            no_exec: false,
            lifetime: Lifetime::default(),
            cache_bytes: None,
            cache_idle: None,
            stage: None,
            stage_wait: false,
            stage_keep: None,
            readahead: ReadaheadChoice::Auto,
            nodes: 1,
            together: None,
            archive_cache: ArchiveCacheChoice::Auto,
            name_readahead: true,
            allow_changes: false,
            threads: None,
            cpus: None,
            log_file: None,
            stats_json: None,
            stats: false,
            verbosity: Verbosity::Default,
        }
    }
}

/// What the kernel forbids on a mount, apart from set-uid programs and devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restrictions {
    pub(crate) access: Access,
    pub(crate) no_exec: bool,
    /// Whether files can be changed, because fuse-overlayfs serves the mount. Then the kernel
    /// checks the modes of files.
    pub(crate) allows_changes: bool,
}

impl Restrictions {
    /// The options of a FUSE mount with these, each after a comma, apart from those of mount(2).
    pub(crate) fn options(self) -> impl Iterator<Item = &'static str> {
        let is_for_all = self.access == Access::Everybody;
        let checks_modes = is_for_all || self.allows_changes;
        let options = [(is_for_all, ",allow_other"), (checks_modes, ",default_permissions")];
        options.into_iter().filter_map(|(applies, option)| applies.then_some(option))
    }
}

/// Which users may access a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Only its owner. Modes are shown but not enforced.
    #[default]
    Owner,
    /// All users, as far as the modes in the archive allow.
    Everybody,
}

/// Where changes of files go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layer {
    /// To memory. They are gone with the last process that sees them.
    Memory,
    /// To this directory, which keeps them: a new or an empty one, or one with a layer.
    Directory(#[serde(with = "path_bytes")] PathBuf),
}

/// What is read ahead of readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadaheadChoice {
    /// In proportion to what readers ask for, where they wait for storage.
    #[default]
    Auto,
    /// What programs read that read in order.
    Off,
    /// All archives.
    All,
}

/// What the user wants to happen with served pages of the archives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArchiveCacheChoice {
    /// They stay if archives and served data both fit into memory.
    #[default]
    Auto,
    /// They stay.
    Keep,
    /// They are dropped.
    Drop,
}

/// What a daemon gets from its launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonPlan<R> {
    /// The mount.
    pub mount: MountPlan,
    /// How the daemon works with its launcher.
    pub role: R,
    /// The URLs of archives whose names lack their secrets.
    urls: BTreeMap<String, String>,
}

/// A daemon in the background of a launcher on the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Background {
    /// Where it gets its FUSE connection from.
    pub source: ConnectionSource,
    /// Whether the launcher mounts in another way if this daemon cannot.
    pub has_fallback: bool,
}

/// A daemon that is a task of a job step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTask {
    /// The inode and the path of the batch script's output, if tasks can append to it.
    pub(in crate::lifecycle) script_log: Option<(u64, String)>,
    /// The process that holds the mount; `None` for the job.
    pub(in crate::lifecycle) until_pid: Option<i32>,
}

/// The option that marks a daemon, and tells it how its plan arrives. It comes right after `mount`.
pub const DAEMON_OPTION: &str = "--daemon=";

/// Its value for a task of a job step. Any other value is a daemon in the background.
pub const STEP: &str = "step";

impl<R: Serialize + for<'d> Deserialize<'d>> DaemonPlan<R> {
    /// The plan of a daemon with this role.
    pub(in crate::lifecycle) fn new(mount: &MountPlan, role: R) -> Self {
        Self { mount: mount.clone(), role, urls: url::secrets() }
    }

    /// Writes the plan as a line.
    pub(in crate::lifecycle) fn write_to(&self, output: &mut impl Write) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        output.write_all(&line)
    }

    /// Reads the line of a launcher, and the secrets in it; `None` if the launcher has exited.
    pub(in crate::lifecycle) fn read_from(input: &mut impl BufRead) -> Result<Option<Self>> {
        let failed = |error| Error::io("cannot read the plan of the launcher", error);
        let mut line = Vec::new();
        input.read_until(b'\n', &mut line).map_err(failed)?;
        if line.is_empty() {
            return Ok(None);
        }
        let plan: Self = serde_json::from_slice(&line).map_err(|error| {
            Error::new(Kind::InvalidInput, "the launcher sent no plan").with_detail(error)
        })?;
        url::learn(plan.urls.clone());
        Ok(Some(plan))
    }
}

/// The command line of a daemon of `plan`. All but the first two words is for users who look for
/// the mount in a list of processes: the daemon does not read it.
pub(in crate::lifecycle) fn daemon_words(plan: &MountPlan, value: &str) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["mount".into(), format!("{DAEMON_OPTION}{value}").into()];
    if plan.lifetime.detaches_on_signal {
        words.push("--squashfuse_ll".into());
    }
    words.push("--".into());
    words.extend(plan.archives.iter().chain([&plan.mount_point]).map(OsString::from));
    words
}

/// Paths as their bytes, because a path need not be UTF-8.
mod path_bytes {
    use super::{Deserialize, OsString, PathBuf, Serialize};

    /// A field with paths, and its form in a plan.
    pub(super) trait Paths: Sized {
        type Bytes: Serialize + for<'d> Deserialize<'d>;
        fn to_bytes(&self) -> Self::Bytes;
        fn from_bytes(bytes: Self::Bytes) -> Self;
    }

    impl Paths for PathBuf {
        type Bytes = OsString;

        fn to_bytes(&self) -> OsString {
            self.clone().into()
        }

        fn from_bytes(bytes: OsString) -> Self {
            bytes.into()
        }
    }

    impl Paths for Option<PathBuf> {
        type Bytes = Option<OsString>;

        fn to_bytes(&self) -> Option<OsString> {
            self.as_ref().map(Paths::to_bytes)
        }

        fn from_bytes(bytes: Option<OsString>) -> Self {
            bytes.map(PathBuf::from)
        }
    }

    impl Paths for Vec<PathBuf> {
        type Bytes = Vec<OsString>;

        fn to_bytes(&self) -> Vec<OsString> {
            self.iter().map(Paths::to_bytes).collect()
        }

        fn from_bytes(bytes: Vec<OsString>) -> Self {
            bytes.into_iter().map(PathBuf::from).collect()
        }
    }

    pub(super) fn serialize<P: Paths, S: serde::Serializer>(
        paths: &P,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        paths.to_bytes().serialize(serializer)
    }

    pub(super) fn deserialize<'d, P: Paths, D: serde::Deserializer<'d>>(
        deserializer: D,
    ) -> Result<P, D::Error> {
        P::Bytes::deserialize(deserializer).map(P::from_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn sent(plan: &MountPlan) -> MountPlan {
        let role = Background { source: ConnectionSource::Private, has_fallback: true };
        let daemon = DaemonPlan::new(plan, role);
        let mut line = Vec::new();
        daemon.write_to(&mut line).unwrap();
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
        let read = DaemonPlan::<Background>::read_from(&mut line.as_slice()).unwrap().unwrap();
        assert_eq!(read, daemon);
        read.mount
    }

    #[test]
    fn a_daemon_gets_the_plan_of_its_launcher() {
        let mount_point = OsString::from_vec(b"/m\xff\\\n".to_vec()).into();
        let minimal = MountPlan::without_options("/a b,c/-x=\n.sqfs".into(), mount_point);
        let full = MountPlan {
            archives: vec![OsString::from_vec(b"/\xfe".to_vec()).into(), "/b".into()],
            covers_files: true,
            offset: u64::MAX,
            recursive: true,
            directories: vec![OsString::from_vec(b"/\xfd".to_vec()).into()],
            names: Some(NameEncoding::CodePage437),
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
                linger: Duration::from_millis(1500),
                idle: Some(Duration::from_secs(7200)),
                detaches_on_signal: true,
            },
            cache_bytes: Some(u64::MAX),
            cache_idle: Some(Duration::from_secs(90)),
            stage: Some("/s,t\n".into()),
            stage_wait: true,
            stage_keep: Some(7),
            readahead: ReadaheadChoice::All,
            nodes: 16,
            together: Some(together::Settings {
                is_required: true,
                directory: Some(OsString::from_vec(b"/d\xff".to_vec())),
                interface: Some("ib0".into()),
                bandwidth: together::Bandwidth::Rate(u64::MAX),
                job: "slurm-7".into(),
                nodes: 16,
            }),
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
        for plan in [minimal, full] {
            assert_eq!(sent(&plan), plan);
        }
    }

    #[test]
    fn a_launcher_that_has_exited_sends_no_plan() {
        assert!(DaemonPlan::<StepTask>::read_from(&mut &b""[..]).unwrap().is_none());
        let cut = DaemonPlan::<StepTask>::read_from(&mut &b"{\"mount\":"[..]);
        assert_eq!(cut.unwrap_err().kind(), Kind::InvalidInput);
    }
}
