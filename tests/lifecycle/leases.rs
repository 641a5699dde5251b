//! Leases: which processes keep a mount alive, and for how long.
//!
//! Covers scripts with children that outlive them, terminals, the grace period, the idle timeout,
//! and access to the socket.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::mount::{is_mounted, listed, unmount};
use crate::support::stage::{
    Stage, Talker, end, has_ended, processes_about, said, shell, stage, stage_as_user, stage_with,
    stop, tell,
};
use crate::support::tar::slow_archive;
use crate::support::user::{OpenDevice, User};
use crate::support::{archfs, run, wait_until};

/// A script that holds the mount.
fn holder(stage: &Stage, options: &str) -> std::process::Child {
    let mut script = shell(stage.work.path());
    let line = format!("$ARCHFS mount -q {options} small.sqfs mount");
    assert_eq!(tell(&mut script, &line), "done 0\n");
    script
}

/// > When the last holder of a mount exits, the mount disappears from the directory tree at once.
/// > Open files stay readable until they are closed.
#[test]
fn background_children_of_a_script_keep_open_files_but_not_the_mount() {
    let Some(stage) = stage_as_user() else { return };
    let go = stage.fifo("go");
    let mut script = holder(&stage, "");
    let left = "exec 9<mount/folder/data; (read x <go; wc -c <&9 >out; mv out done) >/dev/null 2>&1 & \
                exec 9<&-";
    assert_eq!(tell(&mut script, left), "done 0\n");
    let daemon = stage.daemon();
    end(script);
    wait_until("the mount is gone", || stage.is_gone());
    assert!(!has_ended(daemon), "it serves what is open");
    fs::write(go, "x\n").unwrap();
    let done = stage.work.path().join("done");
    wait_until("it has read on", || done.exists());
    assert_eq!(fs::read_to_string(done).unwrap(), "300000\n");
    wait_until("the daemon has ended", || has_ended(daemon));
}

/// Runs a line in the shell of a terminal, waits for the shell to exit, and returns its output.
fn at_a_terminal(stage: &Stage, line: &str) -> String {
    let mut terminal = Command::new("script");
    // Not as the last command, which the shell would exec.
    terminal.args(["-qefc", &format!("{line}; echo ended"), "/dev/null"]).stdin(Stdio::null());
    terminal.current_dir(stage.work.path()).env("SHELL", "/bin/bash");
    terminal.env("ARCHFS", env!("CARGO_BIN_EXE_archfs")).env_remove("SLURM_TASK_PID");
    terminal.env("NO_COLOR", "1");
    let output = run(&mut terminal);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.trim_end().ends_with("ended"), "{text}");
    text
}

#[test]
fn a_person_at_a_terminal_keeps_a_mount_until_unmount() {
    let Some(stage) = stage_as_user() else { return };
    let text = at_a_terminal(&stage, "$ARCHFS mount small.sqfs mount");
    let hint = "archfs: hint: use --until-pid PID to unmount when that process exits";
    assert!(text.contains("mount until unmount") && text.contains(hint), "{text}");
    let row = listed(&stage.mount_point).unwrap();
    assert_eq!((&row["kept"], &row["holders"]), (&true.into(), &serde_json::json!([])), "{row}");
    stage.assert_readable();
    unmount(&stage.mount_point);
    assert!(stage.is_gone());
    // A script started there holds its own mount, and so does everything in a batch job.
    let text = at_a_terminal(&stage, "bash -c '$ARCHFS mount small.sqfs mount; true'");
    let hint = "archfs: hint: use --keep to keep it until `archfs unmount`";
    assert!(text.contains("(bash) exits") && text.contains(hint), "{text}");
    wait_until("the mount is gone", || stage.is_gone());
    at_a_terminal(&stage, "export SLURM_JOB_ID=1; $ARCHFS mount small.sqfs mount");
    wait_until("the mount is gone", || stage.is_gone());
    // In the log of a job, which was written once for all of its runs, the hint would only repeat.
    let output = stage.bash("$ARCHFS mount small.sqfs mount; true").output().unwrap();
    assert!(said(&output).contains("(bash) exits\n"), "{}", said(&output));
    assert!(!said(&output).contains("hint: "), "{}", said(&output));
    wait_until("the mount is gone", || stage.is_gone());
}

/// The output of `archfs mount` if the environment names that step of a Slurm job.
fn stderr_in_step(stage: &Stage, step: &str, mount: &str) -> String {
    let script = format!("$ARCHFS mount {mount} $IMAGE mount; : a script that goes on");
    let mut script = stage.bash(&script);
    let output = script.env("SLURM_JOB_ID", "17").env("SLURM_STEP_ID", step).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    wait_until("the mount is gone", || stage.is_gone());
    said(&output)
}

#[test]
fn a_note_in_an_srun_step_says_that_the_daemon_ends_with_it() {
    let Some(stage) = stage_as_user() else { return };
    let warning = ": Slurm ends the daemon with this srun step, which may leave a stale mount\n";
    let hint = "hint: use `srun archfs run`, or `srun archfs mount --foreground` as a step";
    for step in ["0", "4294967290"] {
        let stderr = stderr_in_step(&stage, step, "");
        assert!(stderr.contains("note: mounted "), "{step}: {stderr}");
        assert!(stderr.contains(warning) && stderr.contains(hint), "{step}: {stderr}");
    }
    // The step of a batch script, and a job without a step.
    for step in ["batch", "interactive", ""] {
        let stderr = stderr_in_step(&stage, step, "");
        assert!(!stderr.contains("srun") && stderr.contains("note: mounted "), "{step}: {stderr}");
    }
    assert_eq!(stderr_in_step(&stage, "0", "-q"), "");
    // Joining a mount starts no daemon.
    assert!(stage.mount(&["--keep", "-q"]).status.success());
    let script = "$ARCHFS mount $IMAGE mount; : a script that goes on";
    let joined = stage.bash(script).env("SLURM_STEP_ID", "0").output().unwrap();
    let stderr = said(&joined);
    assert!(stderr.contains("note: sharing ") && !stderr.contains("srun"), "{stderr}");
    unmount(&stage.mount_point);

    // The task of the step itself.
    let mut task = stage.bash("exec $ARCHFS mount --foreground --ready-fd 1 $IMAGE mount 2> told");
    let mut task = Talker::start(task.env("SLURM_STEP_ID", "0"));
    assert_eq!(task.line(), "ready");
    task.signal(Signal::TERM);
    task.end();
    let stderr = fs::read_to_string(stage.work.path().join("told")).unwrap();
    assert!(stage.is_gone() && !stderr.contains("srun"), "{stderr}");
}

/// bash execs the last command of a line, so the process that holds the mount is the one that
/// unmounts it.
#[test]
fn a_script_can_exec_the_unmount_of_its_own_mount() {
    let Some(stage) = stage_as_user() else { return };
    let unmounted =
        stage.bash("$ARCHFS mount -q $IMAGE mount; exec $ARCHFS unmount mount").output();
    let unmounted = unmounted.unwrap();
    assert!(unmounted.status.success(), "{}", said(&unmounted));
    assert!(stage.is_gone());
    // If there are other holders, it releases only its own lease.
    let script = holder(&stage, "");
    let left = stage.bash("$ARCHFS mount -q $IMAGE mount; exec $ARCHFS unmount mount").output();
    let left = left.unwrap();
    assert!(left.status.success() && said(&left).contains("still held by"), "{}", said(&left));
    stage.assert_readable();
    end(script);
    wait_until("the mount is gone", || stage.is_gone());
}

#[test]
fn a_daemon_asked_to_exit_serves_until_its_holder_ends() {
    let Some(stage) = stage_as_user() else { return };
    let script = holder(&stage, "");
    let daemon = stage.daemon();
    for signal in [Signal::CONT, Signal::TERM, Signal::CONT] {
        kill_process(daemon, signal).unwrap();
    }
    let until = Instant::now() + Duration::from_millis(700);
    while Instant::now() < until {
        stage.assert_readable();
    }
    // A new mount must not join a daemon that is about to exit: it waits and mounts again.
    let next =
        archfs().args(["mount", "--keep", "-q"]).args([&stage.image, &stage.mount_point]).spawn();
    let mut next = next.unwrap();
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        assert!(next.try_wait().unwrap().is_none(), "it waits");
    }
    end(script);
    assert!(next.wait().unwrap().success());
    assert!(stage.daemon() != daemon);
    stage.assert_readable();
    wait_until("the daemon has ended", || has_ended(daemon));
}

#[test]
fn a_waiting_mount_does_not_stop_the_holder_from_unmounting() {
    let Some(stage) = stage_as_user() else { return };
    let mut script = holder(&stage, "--grace 1h");
    let daemon = stage.daemon();
    kill_process(daemon, Signal::TERM).unwrap();
    let command = "exec $ARCHFS run $IMAGE mount -- grep -q hello mount/hello";
    let mut newcomers = [(); 2].map(|()| Talker::complaining(&mut stage.bash(command)));
    for newcomer in &mut newcomers {
        newcomer.line_with("mount: waiting until the previous mount is unmounted");
    }
    assert_eq!(tell(&mut script, "$ARCHFS unmount mount"), "done 0\n");
    for newcomer in newcomers {
        assert_eq!(newcomer.end(), Some(0));
    }
    wait_until("the daemon has ended", || has_ended(daemon));
    assert!(stage.is_gone());
    end(script);
}

#[test]
fn an_unmounted_kept_mount_ends_with_its_last_holder() {
    let Some(stage) = stage_as_user() else { return };
    // Kept by a process that is no holder, and by a holder.
    for own in ["", "$ARCHFS mount -q $IMAGE mount;"] {
        assert!(stage.mount(&["-q", "--keep"]).status.success());
        let script = holder(&stage, "");
        let line = format!("{own} $ARCHFS unmount mount; echo $?");
        let left = stage.bash(&line).output().unwrap();
        assert_eq!(left.stdout, b"0\n", "{}", said(&left));
        assert!(said(&left).contains("still held by process"), "{}", said(&left));
        stage.assert_readable();
        end(script);
        wait_until("the mount is gone", || stage.is_gone());
    }
}

fn give_back(stage: &Stage, holder: &std::process::Child) -> std::process::Output {
    let process = holder.id().to_string();
    archfs().args(["unmount", "--held-by", &process]).arg(&stage.mount_point).output().unwrap()
}

#[test]
fn releasing_a_lease_waits_for_a_mount_that_is_starting() {
    // Opening takes about a second.
    let Some(stage) = stage_with(|work| slow_archive(work, 3)) else { return };
    let holder = shell(stage.work.path());
    let mut mount = archfs();
    mount.args(["mount", "-q", "--until-pid", &holder.id().to_string()]);
    mount.args([&stage.image, &stage.mount_point]).stderr(Stdio::null());
    let mut mount = mount.spawn().unwrap();
    let name = stage.image.to_str().unwrap().to_owned();
    wait_until("the daemon is at work", || processes_about(&[&name]).len() == 2);
    assert!(!is_mounted(&stage.mount_point));
    let given = give_back(&stage, &holder);
    // The lease may be given to the holder only after the daemon has answered.
    let is_early = said(&given).contains("is not a holder");
    assert!(is_early || stage.is_gone(), "{}", said(&given));
    mount.wait().unwrap();
    end(holder);
    wait_until("the mount is gone", || stage.is_gone());
}

#[test]
fn unmount_releases_the_lease_of_a_running_process() {
    let Some(stage) = stage_as_user() else { return };
    let (one, other) = (shell(stage.work.path()), shell(stage.work.path()));
    for holder in [&one, &other] {
        let mounted = stage.mount(&["-q", "--until-pid", &holder.id().to_string()]);
        assert!(mounted.status.success(), "{}", said(&mounted));
    }
    let given = give_back(&stage, &one);
    let expected = format!("still held by process {} (", other.id());
    assert!(given.status.success() && said(&given).contains(&expected), "{}", said(&given));
    let again = give_back(&stage, &one);
    assert_eq!(again.status.code(), Some(5), "{}", said(&again));
    assert!(said(&again).contains(&format!("process {} is not a holder", one.id())));
    stage.assert_readable();
    // The last holder's mount is also unmounted if files are open; they stay readable.
    let mut file = File::open(stage.mount_point.join("folder/data")).unwrap();
    let last = give_back(&stage, &other);
    assert!(last.status.success() && said(&last).is_empty(), "{}", said(&last));
    assert!(stage.is_gone());
    assert_eq!(file.read_to_end(&mut Vec::new()).unwrap(), 300_000);
    drop(file);
    // A mount that is kept as well stays.
    assert!(stage.mount(&["-q", "--keep"]).status.success());
    assert!(stage.mount(&["-q", "--until-pid", &one.id().to_string()]).status.success());
    let kept = give_back(&stage, &one);
    assert!(kept.status.success() && said(&kept).contains("stays mounted"), "{}", said(&kept));
    stage.assert_readable();
    unmount(&stage.mount_point);
    assert_eq!(give_back(&stage, &one).status.code(), Some(5), "nothing is mounted");
    end(one);
    end(other);
}

#[test]
fn the_error_names_the_mount_point_of_a_stopped_daemon_and_the_remedy() {
    let Some(stage) = stage_as_user() else { return };
    let script = shell(stage.work.path());
    let mounted = stage.mount(&["-q", "--until-pid", &script.id().to_string()]);
    assert!(mounted.status.success(), "{}", said(&mounted));
    let daemon = stage.daemon();
    stop(daemon);
    let given = give_back(&stage, &script);
    kill_process(daemon, Signal::CONT).unwrap();
    let (stderr, mount_point) = (said(&given), stage.mount_point.display());
    assert_eq!(given.status.code(), Some(6), "{stderr}");
    // It was waited for.
    let error = stderr.lines().find(|line| !line.starts_with("archfs: note: unmounting "));
    assert!(error.unwrap().starts_with(&format!("archfs: error: {mount_point}: ")), "{stderr}");
    assert!(stderr.contains("hint: use --lazy to unmount"), "{stderr}");
    end(script);
    wait_until("the mount is gone", || stage.is_gone());
}

#[test]
fn the_grace_period_ends_a_mount_held_by_a_script() {
    let Some(stage) = stage_as_user() else { return };
    let script = holder(&stage, "--grace 1s");
    let (daemon, before) = (stage.daemon(), Instant::now());
    let mut file = File::open(stage.mount_point.join("folder/data")).unwrap();
    kill_process(daemon, Signal::HUP).unwrap();
    wait_until("the daemon has ended", || has_ended(daemon));
    assert!(before.elapsed() >= Duration::from_millis(990), "{:?}", before.elapsed());
    assert!(stage.is_gone());
    assert!(file.read_to_end(&mut Vec::new()).is_err(), "no daemon answers any more");
    end(script);
}

#[test]
fn continuing_a_job_changes_nothing() {
    let Some(stage) = stage_as_user() else { return };
    let script = holder(&stage, "");
    let daemon = stage.daemon();
    for _ in 0..3 {
        stop(daemon);
        kill_process(daemon, Signal::CONT).unwrap();
        stage.assert_readable();
    }
    assert_eq!(stage.daemon(), daemon);
    end(script);
    wait_until("the mount is gone", || stage.is_gone());
}

#[test]
fn an_idle_mount_is_unmounted_despite_holders() {
    let Some(stage) = stage_as_user() else { return };
    let script = holder(&stage, "--idle-timeout 1s");
    wait_until("the mount of a script is gone", || stage.is_gone());
    end(script);
    let before = Instant::now();
    assert!(stage.mount(&["--keep", "-q", "--idle-timeout", "1s"]).status.success());
    wait_until("a kept mount is gone", || stage.is_gone());
    assert!(before.elapsed() >= Duration::from_secs(1));
}

/// The mount stays while `use_it` uses it for three idle timeouts, and ends afterward.
fn stays_while(stage: &Stage, mut use_it: impl FnMut()) {
    let until = Instant::now() + Duration::from_millis(3500);
    while Instant::now() < until {
        use_it();
        assert!(is_mounted(&stage.mount_point));
    }
}

#[test]
fn a_mount_in_use_is_not_idle() {
    let Some(stage) = stage_as_user() else { return };
    let options = ["--keep", "-q", "--idle-timeout", "1s"];
    assert!(stage.mount(&options).status.success());
    let file = File::open(stage.mount_point.join("folder/data")).unwrap();
    stays_while(&stage, thread::yield_now);
    drop(file);
    wait_until("the mount is gone", || stage.is_gone());

    assert!(stage.mount(&options).status.success());
    let mut within = Command::new("cat");
    let within = within.current_dir(&stage.mount_point).stdin(Stdio::piped()).spawn().unwrap();
    stays_while(&stage, thread::yield_now);
    end(within);
    wait_until("the mount is gone", || stage.is_gone());
}

/// > With `--idle-timeout`, the kernel caches names and attributes for only half of that time.
/// > Reading files from the page cache therefore counts as use.
#[test]
fn reads_from_the_page_cache_count_as_use() {
    let Some(stage) = stage_as_user() else { return };
    let account = stage.work.path().join("stats.json");
    let account_option = format!("--stats-json={}", account.display());
    let options = ["--keep", "-q", "--idle-timeout", "1s", &account_option];
    assert!(stage.mount(&options).status.success());
    let mut opened = 0;
    stays_while(&stage, || {
        stage.assert_readable();
        opened += 1;
    });
    wait_until("the mount is gone", || stage.is_gone());
    wait_until("the account is there", || account.exists());
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(account).unwrap()).unwrap();
    let requests = |name: &str| stats["requests"][name].as_u64().unwrap();
    // A lookup each half second of three and a half, and one read of the file.
    assert!(requests("read") <= 2, "{stats}");
    assert!((5..=20).contains(&requests("lookup")), "{stats}");
    assert!(opened > 40, "{opened}");
}

/// The directory of a user's records and the socket in it, of the only mount.
fn socket_of(user: &User) -> (PathBuf, PathBuf) {
    let directory = user.registry();
    let names = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let sockets: Vec<_> =
        names.filter(|path| path.extension() == Some("socket".as_ref())).collect();
    assert_eq!(sockets.len(), 1, "{sockets:?}");
    (directory, sockets[0].clone())
}

/// The daemon's answer to a line; empty if it closes the connection.
fn ask(socket: &Path, line: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    // The daemon may close before it has read everything.
    let _ = stream.write_all(line.as_bytes());
    let mut answer = String::new();
    let _ = BufReader::new(stream).read_line(&mut answer);
    answer
}

/// Makes the directory private to its user again.
struct Closed(PathBuf);

impl Drop for Closed {
    fn drop(&mut self) {
        let _ = fs::set_permissions(&self.0, fs::Permissions::from_mode(0o700));
    }
}

/// The beginning of an answer about a mount without holders.
const STATUS: &str = "{\"holders\":[],\"kept\":true,";

/// > The daemon answers only the same uid and root at its socket, even if the directory of the
/// > socket was opened to others.
#[test]
fn the_daemon_answers_only_its_user_and_root() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let (user, other) = (User::new(&stage, 4), User::new(&stage, 3));
    let mounted = user.runs("$ARCHFS mount -q --keep $IMAGE mount");
    assert!(mounted.status.success(), "{}", said(&mounted));
    let (directory, socket) = socket_of(&user);
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    for entry in fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
        assert_eq!(mode(&entry) & 0o022, 0, "{}", entry.display());
    }
    assert!(ask(&socket, "status\n").starts_with(STATUS), "root");
    let asks = format!(
        "import socket\nit = socket.socket(socket.AF_UNIX)\nit.settimeout(10)\n\
         it.connect('{}')\nit.sendall(b'status\\n')\nprint(len(it.recv({})))",
        socket.display(),
        STATUS.len()
    );
    fs::write(stage.work.path().join("asks.py"), asks).unwrap();
    // Either the daemon's user has a python3 that everyone may run, or there is none.
    let ask_as = |user: &User| user.runs("/usr/bin/python3 ../asks.py 2>&1");
    let refused = ask_as(&other);
    assert!(String::from_utf8_lossy(&refused.stdout).contains("PermissionError"), "{refused:?}");

    // If the user opens the directory to others, the daemon itself refuses them.
    let _closed = Closed(directory.clone());
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    let own = String::from_utf8_lossy(&ask_as(&user).stdout).into_owned();
    assert_eq!(own, format!("{}\n", STATUS.len()));
    let foreign = String::from_utf8_lossy(&ask_as(&other).stdout).into_owned();
    let is_refused =
        ["ConnectionResetError", "BrokenPipeError"].iter().any(|e| foreign.contains(e));
    assert!(foreign == "0\n" || is_refused, "{foreign}");
    // archfs then rejects the directory with an error.
    let refused = user.runs("$ARCHFS mount -q --keep $IMAGE mount");
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    let unmounted = user.runs("$ARCHFS unmount mount");
    assert!(unmounted.status.success(), "{}", said(&unmounted));
    wait_until("nothing is left", || !directory.exists());
}

#[test]
fn misbehaving_clients_do_not_disturb_the_mount() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 1);
    let mounted = user.runs("$ARCHFS mount -q --keep $IMAGE mount");
    assert!(mounted.status.success(), "{}", said(&mounted));
    let (_, socket) = socket_of(&user);
    for line in ["\0\u{1}garbage\n", "hold on\n", "watch 1\n", "watch 0:0 1\n", "\n", "STATUS\n"] {
        assert_eq!(ask(&socket, line), "", "{line:?}");
    }
    assert_eq!(ask(&socket, "watch 2147483647:1\n"), "no process\n");
    assert_eq!(ask(&socket, "release 2147483647:1\n"), "done\n");
    // A line without an end, and requests until the answers fill the socket buffer.
    assert_eq!(ask(&socket, &"x".repeat(1 << 20)), "");
    let mut deaf = UnixStream::connect(&socket).unwrap();
    deaf.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let many = "status\n".repeat(1000);
    assert!(
        (0..10_000).any(|_| deaf.write_all(many.as_bytes()).is_err()),
        "the connection is closed"
    );
    let one_byte = |byte: u8| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(&[byte]).unwrap();
        stream
    };
    let idle: Vec<_> = (0..200).map(|_| one_byte(b's')).collect();
    let before = Instant::now();
    assert!(ask(&socket, "status\n").starts_with(STATUS));
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    assert_eq!(String::from_utf8_lossy(&user.runs("cat mount/hello").stdout), "hello, world\n");
    drop((idle, deaf));
    // A release without a lease does not affect the holders.
    assert_eq!(ask(&socket, "leave\n"), "held\n");
    assert!(ask(&socket, "status\n").starts_with(STATUS));
    let unmounted = user.runs("$ARCHFS unmount mount");
    assert!(unmounted.status.success(), "{}", said(&unmounted));
    wait_until("nothing is left", || !user.registry().exists());
}

#[test]
fn a_mount_after_an_interrupt_does_not_join_the_ending_daemon() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 8);
    for _ in 0..10 {
        let mounted = user.runs("$ARCHFS mount -q --keep $IMAGE mount");
        assert!(mounted.status.success(), "{}", said(&mounted));
        let (_, socket) = socket_of(&user);
        let stream = UnixStream::connect(&socket).unwrap();
        let daemon = socket_peercred(&stream).unwrap().pid;
        let mut stream = BufReader::new(stream);
        let mut answer = |line: &str| {
            // It may have closed earlier.
            let _ = stream.get_mut().write_all(line.as_bytes());
            let mut answer = String::new();
            let _ = stream.read_line(&mut answer);
            answer
        };
        assert!(answer("status\n").starts_with(STATUS));
        // Until the daemon waits again.
        thread::sleep(Duration::from_millis(20));
        kill_process(daemon, Signal::INT).unwrap();
        assert_ne!(answer("hold\n"), "done\n");
        wait_until("the mount is gone", || !is_mounted(&user.mount_point));
    }
}

/// CPU time that a process has used, in hundredths of a second.
fn used_time(process: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum()
}

#[test]
fn connections_beyond_the_descriptor_limit_wait_without_using_cpu() {
    let Some(stage) = stage() else { return };
    let _device = OpenDevice::new();
    let user = User::new(&stage, 6);
    let mounted = user.runs("ulimit -n 64; $ARCHFS mount -q --keep $IMAGE mount");
    assert!(mounted.status.success(), "{}", said(&mounted));
    let (_, socket) = socket_of(&user);
    let daemon = match processes_about(&[user.mount_point.to_str().unwrap(), "--daemon="])[..] {
        [one] => Pid::from_raw(one).unwrap(),
        ref several => panic!("{several:?}"),
    };
    let many: Vec<_> = (0..100).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let until = Instant::now() + Duration::from_secs(1);
    let before = used_time(daemon);
    while Instant::now() < until {
        let read = user.runs("cat mount/hello").stdout;
        assert_eq!(String::from_utf8_lossy(&read), "hello, world\n");
    }
    assert!(used_time(daemon) - before < 20, "{} {before}", used_time(daemon));
    drop(many);
    assert!(ask(&socket, "status\n").starts_with(STATUS));
    let unmounted = user.runs("$ARCHFS unmount mount");
    assert!(unmounted.status.success(), "{}", said(&unmounted));
    wait_until("nothing is left", || !user.registry().exists());
}
