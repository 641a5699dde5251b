//! The helper that mounts for ordinary users, its version and its configuration.
//!
//! The helper is run only with `--version`, in the environment that it would get for a mount.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::lifecycle::mount::fusermount::Helper;
use crate::os::kernel_file;

/// Why this user cannot use a helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// There is none, or none that is safe to run; the error and its hint.
    NotFound(String, Option<String>),
    /// It is not set-user-ID root.
    NotSetUid(PathBuf),
    /// It is on a file system mounted with nosuid.
    NoSuid(PathBuf),
    /// no_new_privs is set for this process, as in containers and some batch systems.
    NoNewRights(PathBuf),
    /// It does not run.
    DoesNotRun(PathBuf, String),
}

/// The helper and its version.
pub(super) fn probe() -> Result<(PathBuf, String), Unusable> {
    let helper = Helper::find()
        .map_err(|error| Unusable::NotFound(error.to_string(), error.hint().map(str::to_owned)))?;
    let path = helper.path.clone();
    let output = helper.command().arg("--version").stdin(Stdio::null()).output();
    let version = match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Unusable::DoesNotRun(path, format!("{}: {said}", output.status)));
        }
        Err(error) => return Err(Unusable::DoesNotRun(path, error.to_string())),
    };
    if !helper.is_set_uid {
        return Err(Unusable::NotSetUid(path));
    }
    if statvfs(&path).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::NOSUID)) {
        return Err(Unusable::NoSuid(path));
    }
    if kernel_file::own_status("NoNewPrivs").as_deref() == Some("1") {
        return Err(Unusable::NoNewRights(path));
    }
    // fusermount writes `fusermount3 version: 3.14.0`.
    let version = version.rsplit(": ").next().unwrap_or_default().to_owned();
    Ok((path, version))
}

/// /etc/fuse.conf, which the helper reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Whether ordinary users may allow others access to their mounts.
    pub user_allow_other: bool,
    /// The maximum number of mounts of all users other than root, if it is set.
    pub mount_max: Option<u64>,
}

impl Configuration {
    pub(super) fn read() -> Self {
        Self::parse(&fs::read_to_string("/etc/fuse.conf").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let mut found = Self::default();
        // A # starts a comment anywhere in a line (libfuse, util/fusermount.c).
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        for line in lines {
            if line == "user_allow_other" {
                found.user_allow_other = true;
            } else if let Some((name, value)) = line.split_once('=')
                && name.trim() == "mount_max"
            {
                found.mount_max = value.trim().parse().ok();
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_configuration_as_the_helper_does() {
        let found = Configuration::parse("# comment\nmount_max = 30\n #user_allow_other\n");
        assert_eq!(found, Configuration { user_allow_other: false, mount_max: Some(30) });
        assert!(Configuration::parse("\nuser_allow_other\n").user_allow_other);
        let found = Configuration::parse("user_allow_other # for all\nmount_max = 7# few\n");
        assert_eq!(found, Configuration { user_allow_other: true, mount_max: Some(7) });
    }
}
