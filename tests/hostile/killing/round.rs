//! One round: mount, read, kill, check.
//!
//! After a round: all processes end within LIMIT, and no reader got a wrong byte. Unless SIGKILL
//! ended the daemon, the mount and its directory are gone within AFTER_HOLDERS of the end of the
//! last holder. The same holds if SIGKILL ended only the daemon, and `run` or `mount` was there to
//! notice. The next `run` or `mount` there works, `unmount` and `gc` clear a stale mount, and
//! nothing is left.
//!
//! A failed round is cleaned up by force, so that it does not fail the next one.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::plan::{Phase, Plan, Then, Variant, Victim};
use super::process::{MARK, Role, mounts_below};
use super::{Stage, as_user, reader};

/// A wait longer than this is a hang.
const LIMIT: Duration = Duration::from_secs(15);
/// A mount must end within this time after its last holder.
const AFTER_HOLDERS: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(8);

/// Starts readers and waits for them: the command of `run`, and most of a script.
const COMMAND: &str = "\
for way in $READ_WAYS; do
    READ_WAY=$way \"$READER\" --exact killing::reads --ignored --nocapture > /dev/null &
done
wait
";

const SCRIPT: &str = "\
\"$ARCHFS\" mount -q \"$IMAGE\" \"$READ_MOUNT_POINT\" || exit 9
. \"$COMMAND\"
[ \"$UNMOUNTS\" = 0 ] || \"$ARCHFS\" unmount \"$READ_MOUNT_POINT\"
";

/// Exit status of a script whose mount failed.
const NOT_MOUNTED: i32 = 9;

/// Hides fusermount from its command.
const WITHOUT_HELPER: &str = "\
for directory in /usr/bin /bin /usr/local/bin /usr/sbin; do
    for name in fusermount3 fusermount; do
        [ ! -e $directory/$name ] || mount --bind /dev/null $directory/$name || exit 1
    done
done
exec \"$@\"
";

/// The result of a round.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Number of processes that got the signal.
    pub(crate) hits: usize,
    /// Whether anything was read before the end.
    pub(crate) was_read: bool,
    /// Whether a reader of a first holder read directly.
    pub(crate) was_read_directly: bool,
    /// Whether the mount was stale after all processes had exited.
    pub(crate) dead: bool,
    pub(crate) reads: u64,
    pub(crate) errors: u64,
    /// Upper bound of the time between the end of the last holder and the end of the mount.
    pub(crate) mounted_for: Option<Duration>,
    pub(crate) ended_after: Duration,
}

/// Runs `plan` at a mount point of `worker`.
pub(crate) fn play(stage: &Stage, worker: usize, plan: &Plan) -> Result<Seen, String> {
    let directory = stage.work.join(format!("{worker}/round-{}", plan.number));
    let mount_point = stage.work.join(format!("{worker}/{}/mount", plan.user));
    for part in ["a", "b", "then"] {
        let results = directory.join(part);
        fs::create_dir_all(&results).unwrap();
        fs::set_permissions(&results, Permissions::from_mode(0o777)).unwrap();
    }
    fs::write(directory.join("command.sh"), COMMAND).unwrap();
    fs::write(directory.join("script.sh"), SCRIPT).unwrap();
    let round = Round { stage, plan, directory, mount_point };
    let mut seen = Seen::default();
    let mut holders = Vec::new();
    let outcome = round.play(&mut holders, &mut seen).map_err(|why| {
        let said = fs::read_to_string(round.directory.join("said")).unwrap_or_default();
        let left: Vec<_> =
            round.processes().iter().map(super::process::Process::describe).collect();
        let mounts = mounts_below(&round.mount_point);
        format!("{why}\n  {plan:?}\n  {seen:?}\n  said:\n{said}  left: {left:#?}\n  {mounts:?}")
    });
    if outcome.is_err() {
        round.clear_by_force();
    }
    for mut holder in holders {
        let _ = holder.wait();
    }
    let _ = fs::remove_dir_all(&round.directory);
    outcome.map(|()| seen)
}

pub(super) struct Round<'a> {
    pub(super) stage: &'a Stage,
    pub(super) plan: &'a Plan,
    directory: PathBuf,
    pub(super) mount_point: PathBuf,
}

/// What the signal hit.
#[derive(Default)]
struct Hits {
    count: usize,
    /// Whether it killed the daemon or the mounting process before either could clean up.
    hard: bool,
    command: bool,
}

/// Since when a condition has held, if it holds.
#[derive(Default)]
struct Watch {
    without_holder: Option<Instant>,
    gone: Option<Instant>,
}

impl Round<'_> {
    fn play(&self, holders: &mut Vec<Child>, seen: &mut Seen) -> Result<(), String> {
        let plan = self.plan;
        let is_shared = plan.variant == Variant::Shared;
        holders.push(self.start("a", plan.by_run[0]));
        if is_shared {
            holders.push(self.start("b", plan.by_run[1]));
        }
        if plan.phase != Phase::Mount {
            self.wait_until_read("a", &mut holders[0])?;
        }
        if plan.phase == Phase::Unmount {
            self.stop("a");
        }
        self.wait_for_kill_time();
        let mut hits = Hits::default();
        self.kill(plan.victim, plan.signal, &mut hits);
        seen.hits = hits.count;
        if let Some(after) = plan.kill_after {
            sleep(after);
            self.kill(Victim::All, Signal::KILL, &mut hits);
        }
        let mut watch = Watch::default();
        let stop = Instant::now() + Duration::from_millis(plan.seed % 50);
        while plan.phase != Phase::Unmount && Instant::now() < stop {
            self.update(&mut watch);
            sleep(POLL_INTERVAL);
        }
        if plan.phase != Phase::Unmount {
            self.stop("a");
        }
        if is_shared {
            self.check_other_holder(&mut holders[1])?;
        }
        match plan.then {
            Then::RunAtOnce => self.run_again()?,
            Then::MountAtOnce => self.mount_at_once()?,
            Then::Mount | Then::Unmount | Then::Collect => {}
        }
        self.wait_for_processes(&mut watch, seen)?;
        let ended: Vec<ExitStatus> =
            holders.iter_mut().map(|child| child.wait().unwrap()).collect();
        self.look_at_results(seen, &ended, &hits)?;
        self.check_mount_point(seen, &ended, &hits)?;
        self.use_it_again()?;
        let left = self.remains().or_else(|| self.remaining_file());
        match left {
            Some(left) => Err(format!("at the end of the round there is {left}")),
            None => Ok(()),
        }
    }

    /// Starts a holder of the mount and its readers.
    fn start(&self, part: &str, by_run: bool) -> Child {
        let plan = self.plan;
        let ways = reader::WAYS.iter().cycle().skip(plan.seed as usize % 3);
        let ways: Vec<&str> = ways.copied().take(plan.readers as usize).collect();
        let script = self.directory.join("script.sh");
        let command = self.directory.join("command.sh");
        let mut child = if by_run {
            self.archfs_run(&["bash", command.to_str().unwrap()])
        } else {
            self.command(&["bash", script.to_str().unwrap()])
        };
        self.prepare(&mut child, part);
        child.env("READ_WAYS", ways.join(" ")).env("COMMAND", command);
        child.env("UNMOUNTS", if plan.unmounts { "1" } else { "0" });
        child.spawn().unwrap()
    }

    /// `archfs run` of a command at the mount point.
    pub(super) fn archfs_run(&self, words: &[&str]) -> Command {
        let [image, mount_point] =
            [&self.stage.image, &self.mount_point].map(|path| path.to_str().unwrap());
        let mut run = vec![self.stage.archfs.to_str().unwrap(), "run", "-v"];
        run.extend((self.plan.variant == Variant::RunPrivately).then_some("--private"));
        run.extend(self.plan.is_direct.then_some("--direct"));
        run.extend([image, mount_point, "--"]);
        run.extend(words);
        self.command(&run)
    }

    /// A command of the round's user in a new session, as batch systems start tasks. In the session
    /// of a container's init, `archfs mount` could not distinguish a script killed before archfs
    /// started from a call by init. It would then keep the mount for init.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let command = as_user(self.plan.user, words);
        let mut leader = Command::new("setsid");
        if self.plan.variant == Variant::RunInNamespace {
            leader.args(["unshare", "--mount", "sh", "-c", WITHOUT_HELPER, "sh"]);
        }
        leader.arg(command.get_program()).args(command.get_args());
        leader
    }

    pub(super) fn prepare(&self, command: &mut Command, part: &str) {
        let said = File::options().create(true).append(true).open(self.directory.join("said"));
        command.current_dir(&self.stage.work);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.unwrap());
        for name in ["SLURM_TASK_PID", "SLURM_JOB_ID", "SLURM_STEP_ID"] {
            command.env_remove(name);
        }
        command.env(MARK, self.stage.processes.mark(self.plan.number, part));
        command.env("ARCHFS", &self.stage.archfs).env("IMAGE", &self.stage.image);
        command.env("READER", &self.stage.reader).env("READ_MOUNT_POINT", &self.mount_point);
        command
            .env("READ_SOURCE", &self.stage.source)
            .env("READ_RESULTS", self.directory.join(part));
        command.env("READ_PART", part).env("READ_SEED", self.plan.seed.to_string());
    }

    pub(super) fn processes(&self) -> Vec<super::process::Process> {
        self.stage.processes.of_round(self.plan.number)
    }

    /// Whether a reader of `part` has written a result of that kind.
    fn has(&self, part: &str, kind: &str) -> bool {
        !self.results(part, kind).is_empty()
    }

    fn results(&self, part: &str, kind: &str) -> Vec<String> {
        let entries = fs::read_dir(self.directory.join(part)).unwrap().flatten();
        let of_kind = entries
            .filter(|entry| entry.file_name().to_string_lossy().split('.').next() == Some(kind));
        of_kind.map(|entry| fs::read_to_string(entry.path()).unwrap_or_default()).collect()
    }

    fn wait_until_read(&self, part: &str, holder: &mut Child) -> Result<(), String> {
        self.wait_until(&format!("something is read by {part}"), || {
            // A failed mount is reported later.
            self.has(part, "begun") || holder.try_wait().unwrap().is_some()
        })
    }

    pub(super) fn wait_until(
        &self,
        what: &str,
        mut condition: impl FnMut() -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        while !condition() {
            if Instant::now() >= deadline {
                return Err(format!("HANGS: waited {LIMIT:?} until {what}"));
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn stop(&self, part: &str) {
        File::create(self.directory.join(part).join("stop")).unwrap();
    }

    /// Waits for the chosen moment. `archfs mount` and a daemon that is mounting live so briefly
    /// that a random moment would rarely hit them.
    fn wait_for_kill_time(&self) {
        let role = match (self.plan.phase, self.plan.victim) {
            (Phase::Mount, Victim::Launcher) => Role::Launcher,
            (Phase::Mount, Victim::Daemon) => Role::Daemon,
            _ => return sleep(self.plan.delay),
        };
        let deadline = Instant::now() + Duration::from_secs(1);
        while Instant::now() < deadline
            && !self.processes().iter().any(|process| process.role == role)
        {
            sleep(Duration::from_micros(200));
        }
        sleep(self.plan.delay / 4);
    }

    fn kill(&self, victim: Victim, signal: Signal, hits: &mut Hits) {
        let plan = self.plan;
        let is_victim = |role: Role| match victim {
            Victim::Daemon => role == Role::Daemon,
            Victim::Holder => role == Role::Holder,
            Victim::Command if plan.by_run[0] => role == Role::Command,
            Victim::Command => role == Role::Reader,
            Victim::Launcher => role == Role::Launcher,
            Victim::All => true,
        };
        for process in self.processes() {
            let is_theirs = plan.variant == Variant::Shared && process.part != "a";
            if is_theirs || !is_victim(process.role) || !process.kill(signal) {
                continue;
            }
            hits.count += 1;
            hits.command |= process.role == Role::Command;
            hits.hard |= match process.role {
                Role::Daemon => signal == Signal::KILL,
                // If it is killed after mounting and before passing on the connection, nothing
                // knows of the mount.
                Role::Helper => true,
                // A copy of `run` in the list of processes may have become the daemon since.
                _ => victim == Victim::All && signal == Signal::KILL,
            };
        }
    }

    /// The other holder of a shared mount must not be affected by the kill.
    fn check_other_holder(&self, holder: &mut Child) -> Result<(), String> {
        self.wait_until("all readers of the other have read", || {
            let begun = self.results("b", "begun").len() as u64;
            begun == self.plan.readers || holder.try_wait().unwrap().is_some()
        })?;
        self.wait_until("all killed processes have ended", || {
            let processes = self.processes();
            !processes.iter().any(|other| other.part == "a" && other.role != Role::Daemon)
        })?;
        sleep(Duration::from_millis(50));
        self.stop("b");
        self.wait_until("the other has ended", || holder.try_wait().unwrap().is_some())?;
        let status = holder.wait().unwrap();
        let results = self.results("b", "ended");
        if !status.success() || results.len() as u64 != self.plan.readers {
            return Err(format!("the other ended with {status}, its readers with {results:?}"));
        }
        match results
            .iter()
            .find(|text| !text.contains(" errors 0 ") || text.starts_with("reads 0 "))
        {
            Some(text) => Err(format!("a reader of the other met errors: {text}")),
            None => Ok(()),
        }
    }

    /// Waits until no process of the round is left.
    fn wait_for_processes(&self, watch: &mut Watch, seen: &mut Seen) -> Result<(), String> {
        let since = Instant::now();
        while self.update(watch) {
            if since.elapsed() > LIMIT {
                return Err(format!("HANGS: not all processes have ended within {LIMIT:?}"));
            }
            sleep(POLL_INTERVAL);
        }
        seen.ended_after = since.elapsed();
        seen.dead = !mounts_below(&self.mount_point).is_empty();
        // The command that follows at once also holds the mount.
        if !seen.dead
            && !self.plan.is_used_at_once()
            && let (Some(start), Some(end)) = (watch.without_holder, watch.gone)
        {
            seen.mounted_for = Some(end.saturating_duration_since(start));
        }
        Ok(())
    }

    /// Updates the times since which there is no holder and no mount. Returns whether processes of
    /// the round are left.
    fn update(&self, watch: &mut Watch) -> bool {
        let is_private = self.plan.is_private();
        let processes = self.processes();
        let is_held = processes.iter().any(|process| match process.role {
            Role::Holder | Role::Launcher | Role::Command => true,
            // A process in the private namespace keeps the mount.
            Role::Reader => is_private,
            Role::Daemon | Role::Helper => false,
        });
        let is_mounted = match is_private {
            true => processes.iter().any(|process| process.role == Role::Daemon),
            false => !mounts_below(&self.mount_point).is_empty(),
        };
        let now = Instant::now();
        for (is, since) in [(!is_held, &mut watch.without_holder), (!is_mounted, &mut watch.gone)] {
            match is {
                true => drop(since.get_or_insert(now)),
                false => *since = None,
            }
        }
        !processes.is_empty()
    }

    fn look_at_results(
        &self,
        seen: &mut Seen,
        ended: &[ExitStatus],
        hits: &Hits,
    ) -> Result<(), String> {
        let plan = self.plan;
        for part in ["a", "b", "then"] {
            if let Some(wrong) = self.results(part, "wrong").first() {
                return Err(format!("WRONG BYTES: {wrong}"));
            }
            for result in self.results(part, "ended") {
                let mut numbers = result.split(' ').filter_map(|word| word.parse::<u64>().ok());
                seen.reads += numbers.next().unwrap_or_default();
                seen.errors += numbers.next().unwrap_or_default();
            }
        }
        seen.was_read = self.has("a", "begun");
        seen.was_read_directly = self.has("a", "direct");
        let said = fs::read_to_string(self.directory.join("said")).unwrap_or_default();
        if seen.was_read
            && plan.variant == Variant::RunInNamespace
            && !said.contains("mounting in a namespace that only the command sees")
        {
            return Err("fusermount was not hidden".into());
        }
        if said.contains("panicked") {
            return Err("a panic".into());
        }
        // `run` returns the status of its command in every case.
        let status = ended[0];
        if hits.command
            && (plan.victim, plan.phase, plan.signal)
                == (Victim::Command, Phase::Read, Signal::KILL)
            && plan.kill_after.is_none()
            && status.code() != Some(137)
        {
            return Err(format!("COMMAND was killed, and run ended with {status}"));
        }
        if hits.count == 0 && !status.success() {
            return Err(format!("no process was killed, and it ended with {status}"));
        }
        Ok(())
    }

    /// Checks the mount point after all processes have exited.
    fn check_mount_point(
        &self,
        seen: &Seen,
        ended: &[ExitStatus],
        hits: &Hits,
    ) -> Result<(), String> {
        let plan = self.plan;
        // Another process noticed the end of the daemon and could clean up.
        let was_seen = plan.victim == Victim::Daemon
            && plan.kill_after.is_none()
            && ended[0].signal().is_none()
            && (plan.by_run[0] || ended[0].code() == Some(NOT_MOUNTED));
        let may_be_left = hits.hard && !was_seen && !plan.is_used_at_once();
        if let Some(left) = self.remains().filter(|_| !may_be_left) {
            return Err(format!("when all had ended there was {left}"));
        }
        match seen.mounted_for {
            Some(time) if time > AFTER_HOLDERS && !hits.hard => {
                Err(format!("mounted for {time:?} after the last holder had ended"))
            }
            _ => Ok(()),
        }
    }

    /// A mount or directory at the mount point, if any. Its contents are not accessed, because that
    /// might hang.
    pub(super) fn remains(&self) -> Option<String> {
        if let Some(line) = mounts_below(&self.mount_point).first() {
            return Some(line.clone());
        }
        fs::symlink_metadata(&self.mount_point).is_ok().then(|| "its directory".to_owned())
    }

    /// A file that archfs keeps for the mount point, if any. After an unmount or a completed `run`
    /// there may be none. Exceptions are left to `gc`: anything killed in a private namespace, and
    /// the record of a directory if SIGKILL came between the two removals.
    fn remaining_file(&self) -> Option<String> {
        if self.plan.is_private() {
            return None;
        }
        let (user, start) = &self.stage.mount_points[&self.mount_point];
        let mut files = super::files::about(*user, start, &self.mount_point);
        files.retain(|file| file.extension() != Some("made".as_ref()));
        (!files.is_empty()).then(|| format!("{files:?}"))
    }

    fn clear_by_force(&self) {
        for _ in 0..200 {
            let processes = self.processes();
            for process in &processes {
                process.kill(Signal::KILL);
            }
            if processes.is_empty() {
                break;
            }
            sleep(POLL_INTERVAL);
        }
        while !mounts_below(&self.mount_point).is_empty() && unmount_by_force(&self.mount_point) {}
        let _ = fs::remove_dir(&self.mount_point);
    }
}

fn unmount_by_force(mount_point: &Path) -> bool {
    Command::new("umount").arg("-l").arg(mount_point).status().is_ok_and(|status| status.success())
}
