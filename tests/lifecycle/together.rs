//! `--together`: the nodes of a job read an archive once. Each daemon here is a node of its own.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use fuser::FopenFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::faulty::Faulty;
use crate::support::mount::Mounted;
use crate::support::page_cache::IdlePagesStay;
use crate::support::{archfs, image, run, skip_without_mounts, tar, wait_until, work_directory};
use crate::test_server::{Reply, TestServer};

/// Bytes of a file, and of its part of the tar.
const FILE: u64 = 100_000;
const MEMBER: u64 = 512 + FILE.next_multiple_of(512);
const FILES: u64 = 800;

/// A tar of files that each have their number in all of their bytes.
fn archive(directory: &Path) -> PathBuf {
    let path = directory.join("data.tar");
    let out = File::create(&path).unwrap();
    for number in 0..FILES {
        let at = number * MEMBER;
        out.write_all_at(&tar::header(&number.to_string(), b'0', "", FILE), at).unwrap();
        out.write_all_at(&contents(number), at + 512).unwrap();
    }
    out.set_len(FILES * MEMBER + 1024).unwrap();
    // A new FUSE mount may show whole seconds at first, and the index would be made again.
    out.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)).unwrap();
    run(archfs().args(["index", "--quiet"]).arg(&path));
    path
}

fn contents(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(FILE as usize / 8)
}

fn shuffled(seed: u64) -> Vec<u64> {
    let mut numbers: Vec<_> = (0..FILES).collect();
    numbers.sort_unstable_by_key(|number| (number + seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    numbers
}

/// Reads these files from four threads. Returns how long the slowest read took.
fn read(mount_point: &Path, numbers: &[u64]) -> Duration {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut slowest = Duration::ZERO;
        while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
            let start = Instant::now();
            let found = fs::read(mount_point.join(number.to_string())).unwrap();
            assert!(found == contents(*number), "{number}");
            slowest = slowest.max(start.elapsed());
        }
        slowest
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).max().unwrap_or_default()
    })
}

/// A job whose nodes mount the same archive, which is far away.
struct Job {
    index: String,
    /// For each daemon.
    variables: Vec<String>,
    nodes: Vec<Mounted>,
    storage: Faulty,
    // Dropped last: the others are mounted in it.
    work: tempfile::TempDir,
}

impl Job {
    fn new(nodes: usize, options: &[&str]) -> Self {
        let mut job = Self::without_nodes();
        let archive = job.storage.file().to_owned();
        job.start(&archive, nodes, options);
        job
    }

    /// Mounts on all nodes at once: archfs waits for other nodes only for some seconds.
    fn start(&mut self, archive: &Path, nodes: usize, options: &[&str]) {
        let mounted = thread::scope(|scope| {
            let job = &*self;
            let mount = |number| scope.spawn(move || job.mount(archive, number, nodes, options));
            let mounts: Vec<_> = (0..nodes).map(mount).collect();
            mounts.into_iter().map(|mount| mount.join().unwrap()).collect::<Vec<_>>()
        });
        self.nodes.extend(mounted);
    }

    fn without_nodes() -> Self {
        let work = work_directory();
        let archive = archive(work.path());
        let flags = FopenFlags::FOPEN_DIRECT_IO;
        let storage =
            Faulty::distant(&archive, &work.path().join("far"), Duration::from_millis(1), flags);
        let index = format!("--index={}.archfs-index", archive.display());
        Self { work, index, variables: Vec::new(), storage, nodes: Vec::new() }
    }

    fn add_node(&mut self, nodes: usize, options: &[&str]) {
        let archive = self.storage.file().to_owned();
        self.add_node_of(&archive, nodes, options);
    }

    fn add_node_of(&mut self, archive: &Path, nodes: usize, options: &[&str]) {
        let node = self.mount(archive, self.nodes.len(), nodes, options);
        self.nodes.push(node);
    }

    /// The mount of the node with this number.
    fn mount(&self, archive: &Path, number: usize, nodes: usize, options: &[&str]) -> Mounted {
        let variables = [
            format!("XDG_CACHE_HOME={}", self.cache().display()),
            format!("SLURM_JOB_ID={}", self.number()),
            format!("SLURM_STEP_NUM_NODES={nodes}"),
            format!("SLURMD_NODENAME=node{number}"),
        ];
        let variables = variables.iter().chain(&self.variables).map(String::as_str);
        let before: Vec<_> = ["env"].into_iter().chain(variables).collect();
        let options = [&[self.index.as_str(), "--no-name-readahead"], options].concat();
        let mount_point = self.work.path().join(format!("mount{number}"));
        let archives = [archive.to_owned()];
        Mounted::several(&before, &archives, &mount_point, &options)
    }

    fn cache(&self) -> PathBuf {
        self.work.path().join("cache")
    }

    /// Unique, because other tests have jobs at the same time.
    fn number(&self) -> String {
        self.work
            .path()
            .file_name()
            .unwrap()
            .to_string_lossy()
            .replace(|c: char| !c.is_ascii_alphanumeric(), "")
    }

    fn records(&self) -> PathBuf {
        self.cache().join(format!("archfs/jobs/slurm-{}", self.number().to_lowercase()))
    }

    /// Where the daemons listen.
    fn addresses(&self) -> Vec<String> {
        let records = fs::read_dir(self.records()).unwrap();
        let addresses = records.map(|record| {
            let record = fs::read(record.unwrap().path()).unwrap();
            let record: Value = serde_json::from_slice(&record).unwrap();
            record["addresses"][0].as_str().unwrap().to_owned()
        });
        addresses.collect()
    }

    /// What a node has read from where.
    fn counts(&self, node: usize) -> Value {
        let output = run(archfs().args(["stats", "--json"]).arg(self.nodes[node].path()));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["together"].clone()
    }

    /// Waits until each node knows the others.
    fn gather(&self) {
        for node in 0..self.nodes.len() {
            self.wait_for_peers(node, self.nodes.len() - 1);
        }
    }

    fn wait_for_peers(&self, node: usize, count: usize) {
        let known = || self.counts(node)["peers"].as_u64().unwrap() as usize;
        wait_until("a node knows the others", || known() == count);
    }

    /// Reads an epoch in which each node reads its part of a shuffled order.
    fn epoch(&self, seed: u64) {
        let order = shuffled(seed);
        let part = order.len().div_ceil(self.nodes.len());
        thread::scope(|scope| {
            for (node, numbers) in self.nodes.iter().zip(order.chunks(part)) {
                scope.spawn(move || read(node.path(), numbers));
            }
        });
    }

    /// How many times the archive was read from the storage.
    fn times_read(&self) -> f64 {
        self.storage.bytes() as f64 / (FILES * MEMBER) as f64
    }
}

/// > No process and no port outlives the mount.
#[test]
fn nodes_read_an_archive_once_in_all_epochs() {
    if skip_without_mounts() {
        return;
    }
    let _idle_pages_stay = IdlePagesStay::new();
    for options in [&[][..], &["--stage=/dev/shm"]] {
        let mut job = Job::new(4, options);
        job.gather();
        for epoch in 0..3 {
            job.epoch(epoch);
        }
        // To check the index, each node reads two hundred headers before it knows the others, and
        // 16 KiB with each.
        let headers = 4.0 * 0.05;
        let times = job.times_read();
        assert!((0.95..=1.05 + headers).contains(&times), "{options:?}: {times}");
        job.gather();
        let counts: Vec<_> = (0..4).map(|node| job.counts(node)).collect();
        let of = |counts: &Value, key: &str| counts[key].as_u64().unwrap();
        assert!(counts.iter().all(|node| of(node, "from_peers_bytes") > 10 * FILE), "{counts:?}");
        // By chance, a node may own no part.
        let owns = |node: &&Value| of(node, "storage_bytes") > 10 * FILE;
        assert!(counts.iter().filter(owns).count() >= 2, "{counts:?}");
        let sum = |key: &str| counts.iter().map(|node| of(node, key)).sum::<u64>();
        let list = run(archfs().args(["list", "--json"])).stdout;
        let own = job.nodes[0].path().to_str().unwrap();
        let rows =
            str::from_utf8(&list).unwrap().lines().map(|line| line.parse::<Value>().unwrap());
        let row = rows.into_iter().find(|row| row["mountpoint"] == own).unwrap();
        // What is tried again changes other counts.
        for key in ["peers", "peer_names", "archive_bytes"] {
            assert_eq!(row["together"][key], counts[0][key], "as in stats");
        }
        let mut names: Vec<_> =
            counts[0]["peer_names"].as_array().unwrap().iter().map(|name| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["node1", "node2", "node3"].map(Some));
        // All nodes have asked each other since they began to read.
        let (all, read) = (of(&counts[0], "all_storage_bytes"), sum("storage_bytes"));
        assert!((read / 2..=read).contains(&all), "{all} of {read}");
        assert_eq!(of(&counts[0], "archive_bytes"), FILES * MEMBER + 1024);
        // Some were read to compare them, or came too late.
        let [sent, received] = ["to_peers_bytes", "from_peers_bytes"].map(sum);
        assert!((received..2 * received).contains(&sent), "{counts:?}");
        assert!(job.records().is_dir());
        assert_eq!(fs::metadata(job.records()).unwrap().permissions().mode() & 0o777, 0o700);
        let addresses = job.addresses();
        assert!(addresses.iter().any(|address| TcpStream::connect(address).is_ok()));
        let records = job.records();
        job.nodes.clear();
        assert!(!records.exists(), "nothing is left");
        assert!(addresses.iter().all(|address| TcpStream::connect(address).is_err()));
    }
}

/// So later epochs need no network.
#[test]
fn a_second_epoch_makes_each_node_copy_what_others_own() {
    if skip_without_mounts() {
        return;
    }
    let _idle_pages_stay = IdlePagesStay::new();
    let job = Job::new(4, &[]);
    job.gather();
    let copied = |node| {
        let counts = job.counts(node);
        let bytes = ["storage_bytes", "from_peers_bytes"].map(|key| counts[key].as_u64().unwrap());
        bytes.iter().sum::<u64>() as f64 / (FILES * MEMBER) as f64
    };
    // Two epochs ask for less than half of what other nodes own.
    job.epoch(0);
    job.epoch(1);
    wait_until("each node has all", || (0..4).all(|node| copied(node) >= 0.95));
}

/// So the job's own communication has room.
#[test]
fn a_copy_from_other_nodes_is_limited_while_no_program_waits() {
    const RATE: u64 = 8 << 20;
    if skip_without_mounts() {
        return;
    }
    let mut job = Job::without_nodes();
    let archive = job.storage.file().to_owned();
    let start = Instant::now();
    job.start(&archive, 2, &["--stage=/dev/shm", "--together-bandwidth=8M"]);
    let is_copied = |node: usize| {
        let stats = run(archfs().args(["stats", "--json"]).arg(job.nodes[node].path())).stdout;
        let stats: Value = serde_json::from_slice(&stats).unwrap();
        stats["staged"]["copied_bytes"] == stats["staged"]["total_bytes"]
    };
    wait_until("all is copied", || (0..2).all(is_copied));
    let passed = start.elapsed().as_secs_f64();
    let received = [0, 1].map(|node| job.counts(node)["from_peers_bytes"].as_u64().unwrap());
    assert!(received.iter().sum::<u64>() > FILES * MEMBER / 2, "{received:?}");
    for received in received {
        // At first, what this node owns is not limited, if the other one has it already.
        let least = 0.4 * received as f64 / RATE as f64;
        assert!(passed > least, "{passed} {least}");
    }
}

/// An object store counts what it is asked for.
#[test]
fn an_object_store_sends_an_archive_once_to_all_nodes() {
    if skip_without_mounts() {
        return;
    }
    let mut job = Job::without_nodes();
    let source = job.work.path().join("source");
    fs::create_dir(&source).unwrap();
    (0..FILES).for_each(|it| fs::write(source.join(it.to_string()), contents(it)).unwrap());
    let image = image::make(job.work.path(), "data.sqfs", &source, &["-noD", "-noF"]);
    let bytes = fs::read(image).unwrap();
    let len = bytes.len() as f64;
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let server = TestServer::start(move |request| {
        let reply = Reply::part(request, &bytes);
        counted.fetch_add(reply.body.len(), Ordering::Relaxed);
        reply
    });
    job.variables = vec![
        format!("AWS_ENDPOINT_URL=http://{}", server.host()),
        "AWS_ACCESS_KEY_ID=key".into(),
        "AWS_SECRET_ACCESS_KEY=secret".into(),
        "AWS_REGION=here".into(),
    ];
    job.start(Path::new("s3://bucket/data.sqfs"), 4, &[]);
    job.gather();
    for epoch in 0..3 {
        job.epoch(epoch);
    }
    let times = sent.load(Ordering::Relaxed) as f64 / len;
    assert!((0.95..=1.05).contains(&times), "{times}");
    let asked = server.requests();
    assert!(asked.iter().all(|request| request.path == "/bucket/data.sqfs"));
    assert!(asked.len() < FILES as usize, "{} requests", asked.len());
    println!("{} requests, {times:.3} times the archive", asked.len());
}

/// > A read never fails because of another node. It waits for one at most one second, or twice the
/// > time of nine in ten reads of the storage if that is more, and a second more for each 4 MB. It
/// > then reads the storage.
///
/// > If it was killed, the other nodes notice that its port is closed. In both cases they share its
/// > part among themselves.
#[test]
fn a_node_that_is_killed_costs_its_part_once_more() {
    if skip_without_mounts() {
        return;
    }
    let _idle_pages_stay = IdlePagesStay::new();
    let mut job = Job::new(4, &[]);
    let opening = job.times_read();
    job.gather();
    job.epoch(1);
    let part = job.counts(3)["storage_bytes"].as_u64().unwrap() as f64 / (FILES * MEMBER) as f64;
    let killed = job.nodes.pop().unwrap();
    let daemon = Pid::from_raw(killed.daemon().cast_signed()).unwrap();
    let order = shuffled(2);
    thread::scope(|scope| {
        for (node, numbers) in job.nodes.iter().zip(order.chunks(order.len().div_ceil(3))) {
            scope.spawn(move || read(node.path(), numbers));
        }
        kill_process(daemon, Signal::KILL).unwrap();
    });
    let times = job.times_read() - opening;
    assert!(times <= 1.1 + part, "{times}, {part}");
}

/// Daemons are killed, stand still, end and begin while all nodes read. What the others read is
/// right, and nothing is left of those that could clear up.
///
/// ARCHFS_TOGETHER_ROUNDS sets the number of rounds.
#[test]
fn nodes_that_come_and_go_cost_no_wrong_byte() {
    if skip_without_mounts() {
        return;
    }
    let rounds: u64 =
        std::env::var("ARCHFS_TOGETHER_ROUNDS").map_or(4, |text| text.parse().unwrap());
    let mut job = Job::without_nodes();
    let mut killed = 0;
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let chance = (round + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        // Each event with and without a copy of all.
        let is_staged = (round + round / 4) % 2 == 1;
        let options: &[&str] = if is_staged { &["--stage=/dev/shm"] } else { &[] };
        let archive = job.storage.file().to_owned();
        job.start(&archive, 4, options);
        if chance % 3 > 0 {
            job.gather();
        }
        let event = Event::ALL[round as usize % Event::ALL.len()];
        let order = shuffled(round);
        let (nodes, victim) = job.nodes.split_at(3);
        let slowest_now = thread::scope(|scope| {
            let readers: Vec<_> = nodes
                .iter()
                .zip(order.chunks(order.len().div_ceil(3)))
                .map(|(node, numbers)| scope.spawn(|| read(node.path(), numbers)))
                .collect();
            // Its own readers may get errors, but no wrong byte.
            scope.spawn(|| {
                for number in &order {
                    if let Ok(found) = fs::read(victim[0].path().join(number.to_string())) {
                        assert!(found == contents(*number), "{number}");
                    }
                }
            });
            thread::sleep(Duration::from_millis(chance % 200));
            let daemon = Pid::from_raw(victim[0].daemon().cast_signed()).unwrap();
            match event {
                Event::Kill => kill_process(daemon, Signal::KILL).unwrap(),
                Event::StandStill => {
                    kill_process(daemon, Signal::STOP).unwrap();
                    thread::sleep(Duration::from_millis(chance % 2000));
                    kill_process(daemon, Signal::CONT).unwrap();
                }
                // Although its reader uses the mount.
                Event::End => kill_process(daemon, Signal::INT).unwrap(),
                Event::Begin => {
                    let late = job.mount(job.storage.file(), 4, 5, options);
                    read(late.path(), &order[..100]);
                }
            }
            readers.into_iter().map(|reader| reader.join().unwrap()).max().unwrap()
        });
        slowest = slowest.max(slowest_now);
        let records = job.records();
        job.nodes.clear();
        killed += usize::from(event == Event::Kill);
        // Those of killed daemons, which gc removes after a day. Others may go after the mount.
        let left = || fs::read_dir(&records).map_or(0, Iterator::count);
        wait_until("only the records of killed daemons are left", || left() == killed);
    }
    println!("{rounds} rounds: the slowest read took {slowest:.1?}");
}

/// What happens to a node while the others read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Kill,
    StandStill,
    End,
    Begin,
}

impl Event {
    const ALL: [Self; 4] = [Self::Kill, Self::StandStill, Self::End, Self::Begin];
}

/// > Nodes share an archive only if it is the same version on all of them: size, inode and times of
/// > a file, or URL, size and ETag or time. The path may differ.
///
/// > A daemon that unmounts removes its record and closes its port.
#[test]
fn nodes_share_one_version_of_an_archive_at_any_path() {
    if skip_without_mounts() {
        return;
    }
    let mut job = Job::without_nodes();
    let [original, link, copy] =
        ["data.tar", "link.tar", "copy.tar"].map(|name| job.work.path().join(name));
    symlink(&original, &link).unwrap();
    fs::copy(&original, &copy).unwrap();
    let time = fs::metadata(&original).unwrap().modified().unwrap();
    File::options().write(true).open(&copy).unwrap().set_modified(time).unwrap();
    let options = ["--together=on"];
    for archive in [&original, &link, &copy] {
        job.add_node_of(archive, 3, &options);
    }
    job.nodes[..2].iter().enumerate().for_each(|(node, _)| job.wait_for_peers(node, 1));
    // Both files say the same, but could be different.
    assert_eq!(job.counts(2)["peers"], 0);
    job.epoch(1);
    assert!(job.counts(1)["from_peers_bytes"].as_u64().unwrap() > FILE);
    assert_eq!(job.counts(2)["from_peers_bytes"], 0);
    job.nodes.remove(0);
    job.epoch(2);
    job.wait_for_peers(0, 0);
    assert_eq!(job.addresses().len(), 2);
}

#[test]
fn a_job_without_other_nodes_reads_by_itself() {
    if skip_without_mounts() {
        return;
    }
    let mut job = Job::without_nodes();
    job.add_node(2, &[]);
    job.epoch(1);
    let counts = job.counts(0);
    assert_eq!((counts["peers"].as_u64(), counts["from_peers_bytes"].as_u64()), (Some(0), Some(0)));
    // Nothing is shared where the user does not want it.
    let mut job = Job::without_nodes();
    job.add_node(2, &["--together=off"]);
    assert_eq!(job.counts(0), Value::Null);
    assert!(!job.records().exists());
}

/// > A daemon answers only those whose certificates are in records of the job, in TLS 1.3.
#[test]
fn strangers_get_no_byte() {
    if skip_without_mounts() {
        return;
    }
    let job = Job::new(2, &[]);
    job.gather();
    let record = fs::read_dir(job.records()).unwrap().next().unwrap().unwrap();
    assert_eq!(record.metadata().unwrap().permissions().mode() & 0o077, 0);
    let record: Value = serde_json::from_slice(&fs::read(record.path()).unwrap()).unwrap();
    let key = record["archives"][0].as_str().unwrap();
    let script = "\
        cd \"$1\" && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
            -subj /CN=x -addext subjectAltName=DNS:daemon.archfs.invalid -keyout key.pem -out cert.pem 2> /dev/null
        for identity in '' '--cert cert.pem --key key.pem'; do
            curl --silent --insecure $identity --max-time 20 --range 0-99 \"https://$2/$3\" && exit 1
        done
        curl --silent --max-time 20 --range 0-99 \"http://$2/$3\" && exit 1
        exit 0";
    let address = record["addresses"][0].as_str().unwrap();
    let mut attack = Command::new("bash");
    attack.args(["-c", script, "attack"]).arg(job.work.path()).args([address, key]);
    let output = run(&mut attack);
    assert!(output.stdout.is_empty(), "{output:?}");
    job.epoch(1);
    job.wait_for_peers(0, 1);
}

/// > A node is asked only after some of its bytes were compared with those of the storage. If they
/// > differ, archfs logs a warning, and never asks that node.
#[test]
fn a_peer_that_lies_is_found_out_before_a_reader_depends_on_it() {
    reads_beside_a_liar("lie", "asked");
}

#[test]
fn another_daemon_at_the_port_of_a_peer_is_not_believed() {
    reads_beside_a_liar("squat", "connected");
}

/// Reads two epochs after a lying peer in this mode has made this file.
fn reads_beside_a_liar(mode: &str, after: &str) {
    if skip_without_mounts() {
        return;
    }
    let mut job = Job::without_nodes();
    job.add_node(2, &[]);
    let _liar = BadPeer::start(&job, mode, after);
    job.epoch(1);
    job.epoch(2);
    let counts = job.counts(0);
    assert_eq!(job.records().join("asked").exists(), after == "asked");
    assert_eq!((counts["peers"].as_u64(), counts["from_peers_bytes"].as_u64()), (Some(0), Some(0)));
}

#[test]
fn a_peer_that_takes_no_answers_does_not_keep_others_from_theirs() {
    if skip_without_mounts() {
        return;
    }
    let mut job = Job::without_nodes();
    job.add_node(3, &[]);
    // It has all of the archive then, and can answer without the storage.
    job.epoch(0);
    let _frozen = BadPeer::start(&job, "freeze", "frozen");
    job.add_node(3, &[]);
    job.wait_for_peers(1, 1);
    job.epoch(1);
    assert!(job.counts(1)["from_peers_bytes"].as_u64().unwrap() > FILE);
}

/// A bad daemon of a job, until it is dropped.
struct BadPeer(Child);

impl BadPeer {
    /// Starts it in this mode beside the first node, and waits until it has made the file `after`.
    fn start(job: &Job, mode: &str, after: &str) -> Self {
        let own = fs::read_dir(job.records()).unwrap().next().unwrap().unwrap().path();
        let own: Value = serde_json::from_slice(&fs::read(own).unwrap()).unwrap();
        let child = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lifecycle/bad-peer"))
            .arg(mode)
            .arg(job.records())
            .arg(own["archives"][0].as_str().unwrap())
            .arg((FILES * MEMBER + 1024).to_string())
            .args(job.addresses())
            .spawn()
            .unwrap();
        let peer = Self(child);
        let file = job.records().join(after);
        wait_until("a bad peer is ready", || file.exists());
        peer
    }
}

impl Drop for BadPeer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
