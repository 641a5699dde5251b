//! After a round: `mount`, `run`, `unmount` and `gc` work at its mount point, whatever was killed.

use std::process::Command;
use std::time::Instant;

use super::plan::Then;
use super::process::{Role, mounts_below};
use super::reader;
use super::round::Round;

impl Round<'_> {
    pub(super) fn use_it_again(&self) -> Result<(), String> {
        if self.plan.is_private() {
            return if self.plan.then == Then::RunAtOnce { Ok(()) } else { self.run_again() };
        }
        let mount_point = self.mount_point.to_str().unwrap();
        let image = self.stage.image.to_str().unwrap();
        let dead = !mounts_below(&self.mount_point).is_empty();
        match self.plan.then {
            Then::RunAtOnce | Then::MountAtOnce => return Ok(()),
            Then::Mount => {}
            Then::Unmount => {
                let expected = if dead { 0 } else { 5 };
                self.archfs(&["unmount", mount_point], expected)?;
                if !mounts_below(&self.mount_point).is_empty() {
                    return Err("unmount left it mounted".into());
                }
            }
            Then::Collect => {
                self.archfs(&["gc"], 0)?;
                if let Some(left) = self.remains() {
                    return Err(format!("after gc there is {left}"));
                }
            }
        }
        self.archfs(&["mount", "--keep", "-q", image, mount_point], 0)?;
        let reader = self.reading_once();
        let words: Vec<&str> = reader.iter().map(String::as_str).collect();
        self.finish("reading again", self.command(&words), 0)?;
        self.archfs(&["unmount", mount_point], 0)
    }

    pub(super) fn run_again(&self) -> Result<(), String> {
        let reader = self.reading_once();
        let words: Vec<&str> = reader.iter().map(String::as_str).collect();
        self.finish("run, again", self.archfs_run(&words), 0)
    }

    /// `archfs mount`, a read and `unmount`, while the killed processes still exit: from a script,
    /// or as a user with `--keep`.
    pub(super) fn mount_at_once(&self) -> Result<(), String> {
        let [image, mount_point] =
            [&self.stage.image, &self.mount_point].map(|path| path.to_str().unwrap());
        // Another script of the round may also unmount a kept mount.
        let is_kept = self.plan.by_run[0] || !self.plan.unmounts;
        let mount = ["mount", "-q", image, mount_point, "--keep"];
        self.archfs(if is_kept { &mount } else { &mount[..4] }, 0)?;
        let reader = self.reading_once();
        let words: Vec<&str> = reader.iter().map(String::as_str).collect();
        self.finish("reading at once", self.command(&words), 0)?;
        if is_kept {
            // `unmount` refuses as long as there are other holders.
            self.wait_until("all killed processes have ended", || {
                self.processes().iter().all(|process| process.role == Role::Daemon)
            })?;
        }
        self.archfs(&["unmount", mount_point], 0)
    }

    fn archfs(&self, words: &[&str], expected: i32) -> Result<(), String> {
        let mut all = vec![self.stage.archfs.to_str().unwrap()];
        all.extend(words);
        self.finish(words[0], self.command(&all), expected)
    }

    fn reading_once(&self) -> Vec<String> {
        let reader = self.stage.reader.to_str().unwrap();
        let once = format!("READ_WAY={}", reader::ONCE);
        let words = ["env", &once, reader, "--exact", "killing::reads", "--ignored", "--nocapture"];
        words.map(str::to_owned).to_vec()
    }

    /// Runs `command`, which must end with status `expected`.
    fn finish(&self, what: &str, mut command: Command, expected: i32) -> Result<(), String> {
        self.prepare(&mut command, "then");
        let mut child = command.spawn().unwrap();
        let since = Instant::now();
        let ended =
            self.wait_until(&format!("{what} has ended"), || child.try_wait().unwrap().is_some());
        if let Err(hang) = ended {
            let left: Vec<_> = self.processes().iter().map(|left| left.describe()).collect();
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("{hang}\n{}", left.join("\n")));
        }
        let status = child.wait().unwrap();
        if status.code() == Some(expected) {
            return Ok(());
        }
        Err(format!(
            "{what} ended with {status} instead of {expected}, after {:?}",
            since.elapsed()
        ))
    }
}
