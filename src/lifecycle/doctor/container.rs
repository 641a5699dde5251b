//! The container that this process runs in, found from variables and files that runtimes set.

use std::env;
use std::fs;
use std::path::Path;

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its runtime, such as `apptainer`.
    pub runtime: String,
    /// The variable or file that shows it.
    pub sign: String,
}

impl Container {
    pub(super) fn around() -> Option<Self> {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let found = |runtime: &str, sign: &str| {
            Some(Self { runtime: runtime.to_owned(), sign: sign.to_owned() })
        };
        for (name, runtime) in
            [("APPTAINER_CONTAINER", "apptainer"), ("SINGULARITY_CONTAINER", "singularity")]
        {
            if variable(name).is_some() {
                return found(runtime, name);
            }
        }
        // Runtimes set this variable by systemd's protocol (systemd.io/CONTAINER_INTERFACE).
        if let Some(runtime) = variable("container") {
            return found(&runtime, "the variable container");
        }
        for (path, runtime) in [
            ("/.singularity.d", "apptainer"),
            ("/run/.containerenv", "podman"),
            ("/.dockerenv", "docker"),
        ] {
            if Path::new(path).exists() {
                return found(runtime, path);
            }
        }
        let first = fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
        ["docker", "kubepods", "libpod", "lxc"]
            .into_iter()
            .find(|name| first.contains(&format!("/{name}")))
            .and_then(|name| found(name, "/proc/1/cgroup"))
    }
}
