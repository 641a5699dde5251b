//! `archfs ls` lists what ls(1), find(1), stat(1) and the patterns of bash list in the directory
//! that was packed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::support::{archfs, image, run, work_directory};

/// Names in two levels, some hidden, some that a pattern would take for its own.
const FILES: [&str; 12] = [
    "top",
    ".hidden",
    "train/n01/a.jpeg",
    "train/n01/b.jpg",
    "train/n01/.c.jpeg",
    "train/n02/a.jpeg",
    "train/n02/deep/er/a.jpeg",
    "train/.cache/a.jpeg",
    "val/a.jpeg",
    "val/[x]",
    "val/\u{e9} {a,b}",
    "val/*",
];

struct Stage {
    work: TempDir,
    source: PathBuf,
    image: PathBuf,
}

fn stage() -> Stage {
    let work = work_directory();
    let source = work.path().join("source");
    for (nth, name) in FILES.iter().enumerate() {
        let path = source.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![b'x'; nth * 999]).unwrap();
    }
    fs::write(source.join(OsStr::from_bytes(b"bytes\xff")), "").unwrap();
    std::os::unix::fs::symlink("train/n01", source.join("link")).unwrap();
    fs::hard_link(source.join("top"), source.join("val/hard")).unwrap();
    let at = |path: &str, time: &str| {
        run(Command::new("touch").args(["-h", "-d", time]).arg(source.join(path)));
    };
    at("top", "1970-01-01T00:00:00Z");
    at("val/a.jpeg", "2024-07-01T23:59:59Z");
    at("link", "2038-01-19T03:14:07Z");
    run(Command::new("chmod").arg("6750").arg(source.join("val/a.jpeg")));
    let image = image::make(work.path(), "data.sqfs", &source, &[]);
    Stage { work, source, image }
}

impl Stage {
    /// The output of `archfs ls OPTIONS data.sqfs PATHS`.
    fn ls(&self, options: &[&str], paths: &[&str]) -> String {
        let mut ls = archfs();
        ls.arg("ls").args(options).arg(&self.image).args(paths).env("TZ", "America/New_York");
        String::from_utf8_lossy(&run(&mut ls).stdout).into_owned()
    }

    /// The output of a script of bash in the directory that was packed.
    fn bash(&self, script: &str) -> String {
        let mut bash = Command::new("bash");
        bash.args(["-c", script]).current_dir(&self.source);
        bash.env("TZ", "America/New_York").env("LC_ALL", "C");
        String::from_utf8_lossy(&run(&mut bash).stdout).into_owned()
    }
}

#[test]
fn lists_what_ls_lists() {
    let stage = stage();
    assert_eq!(stage.ls(&[], &[]), stage.bash("ls"));
    assert_eq!(stage.ls(&["-1"], &["/train/"]), stage.bash("ls -1 train/"));
    assert_eq!(stage.ls(&["-a"], &["."]), stage.bash("ls -A"));
    assert_eq!(stage.ls(&["-d"], &["train"]), "train\n");
    assert_eq!(stage.ls(&["-d"], &["/"]), "/\n");
    let several = ["link", "top", "train/n02", "val"];
    assert_eq!(stage.ls(&[], &several), stage.bash(&format!("ls {}", several.join(" "))));
    assert_eq!(stage.ls(&["-d"], &several), several.join("\n") + "\n");
}

#[test]
fn long_lines_are_those_of_ls() {
    let stage = stage();
    // The size of a directory is that of the file system.
    let words = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with("total "));
        let parts = lines.map(|line| line.split_whitespace().enumerate().collect::<Vec<_>>());
        parts
            .map(|parts| {
                let is_directory = parts[0].1.starts_with('d');
                let kept = parts.iter().filter(|(nth, _)| !is_directory || *nth != 4);
                kept.map(|(_, part)| *part).collect::<Vec<_>>().join(" ")
            })
            .collect()
    };
    let style = "ls -ln --time-style='+%Y-%m-%d %H:%M'";
    assert_eq!(
        words(&stage.ls(&["-la"], &["val"])),
        words(&stage.bash(&format!("{style} -A val")))
    );
    assert_eq!(words(&stage.ls(&["-l"], &[])), words(&stage.bash(style)));
    assert_eq!(words(&stage.ls(&["-l"], &["link"])), words(&stage.bash(&format!("{style} link"))));
    let rounded = stage.ls(&["-lh"], &["val"]);
    assert!(rounded.contains(" 7.8 KiB 2024-07-01 19:59 a.jpeg\n"), "{rounded}");
    // A month before the epoch, and a year that no calendar has.
    let tar = stage.work.path().join("odd.tar");
    let python = "import sys, tarfile\n\
                  tar = tarfile.open(sys.argv[1], 'w', format=tarfile.PAX_FORMAT)\n\
                  for name, time in ('before', -2592000), ('never', 1 << 50):\n \
                  member = tarfile.TarInfo(name); member.mtime = time; tar.addfile(member)\n\
                  tar.close()\n";
    run(Command::new("python3").args(["-c", python]).arg(&tar));
    let listed = run(archfs().args(["ls", "-l"]).arg(&tar).env("TZ", "UTC"));
    let listed = words(&String::from_utf8(listed.stdout).unwrap());
    assert!(listed[0].ends_with(" 1969-12-02 00:00 before"), "{listed:?}");
    assert!(listed[1].ends_with(&format!(" @{} never", 1_u64 << 50)), "{listed:?}");
}

#[test]
fn descends_as_find() {
    let stage = stage();
    let sorted = |text: String| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let all = sorted(stage.bash("find -mindepth 1 -printf '%P\\n'"));
    let listed = stage.ls(&["-aR"], &[]);
    assert_eq!(sorted(listed.clone()), all);
    // A directory comes right before what is in it.
    let at = |line: &str| listed.lines().position(|found| found == line).unwrap();
    assert_eq!(at("train/n02/deep") + 1, at("train/n02/deep/er"));
    let shown = "find train -mindepth 1 -name '.*' -prune -o -mindepth 1 -printf '%P\\n'";
    assert_eq!(sorted(stage.ls(&["-R"], &["train"])), sorted(stage.bash(shown)));
}

#[test]
fn json_has_what_stat_has() {
    let stage = stage();
    let printed =
        stage.bash("find -mindepth 1 -printf '%P\\t%04m\\t%n\\t%U\\t%G\\t%s\\t%T@\\t%l\\0'");
    let mut expected: Vec<Vec<&str>> =
        printed.split_terminator('\0').map(|line| line.split('\t').collect()).collect();
    expected.sort();
    let listed = stage.ls(&["-aR", "--json"], &[]);
    let listed: Vec<serde_json::Value> =
        listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut found: Vec<Vec<String>> = Vec::new();
    for row in &listed {
        let is_directory = row["kind"] == "directory";
        // The size of a directory is that of the file system.
        let size = if is_directory { String::new() } else { row["size_bytes"].to_string() };
        let numbers = ["links", "uid", "gid"].map(|key| row[key].to_string());
        let mut line = vec![text(&row["path"]), text(&row["mode"])];
        line.extend(numbers);
        line.extend([size, row["modified_seconds"].to_string(), text(&row["target"])]);
        found.push(line);
    }
    found.sort();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        let seconds = expected[6].split('.').next().unwrap();
        assert_eq!(found[..5], expected[..5], "{found:?}");
        assert!(found[5].is_empty() || found[5] == expected[5], "{found:?}");
        assert_eq!((&found[6][..], &found[7][..]), (seconds, expected[7]), "{found:?}");
    }
    let odd = listed.iter().find(|row| row.get("path_hex").is_some()).unwrap();
    assert_eq!(odd["path_hex"], "6279746573ff");
    assert_eq!(odd["kind"], "file");
    // Paths are from the root, whatever directory was asked for.
    let inner = stage.ls(&["--json"], &["/train//n02/"]);
    assert!(inner.contains("\"path\":\"train/n02/a.jpeg\""), "{inner}");
}

#[test]
fn patterns_match_what_they_match_in_bash() {
    let stage = stage();
    let options = "shopt -s globstar extglob nullglob; printf '%s\\n'";
    for pattern in [
        "*",
        "train/*",
        "/train/*/*.jpeg",
        "**/a.jpeg",
        "train/n0[12]/?.jp*g",
        "train/n0[!1]",
        "val/\\*",
        "val/[[]*",
        ".h*",
        "t*/.c*",
        "v*/hard",
    ] {
        let expected = stage.bash(&format!("{options} {}", pattern.trim_start_matches('/')));
        let expected: Vec<_> = expected.lines().collect();
        let found = stage.ls(&[], &[pattern]);
        assert_eq!(found.lines().collect::<Vec<_>>(), expected, "{pattern}");
    }
    assert_eq!(stage.ls(&[], &["val/{hard,none,a.jpeg}"]), "val/a.jpeg\nval/hard\n");
    assert_eq!(stage.ls(&["-a"], &["train/**/.c*"]), "train/.cache\ntrain/n01/.c.jpeg\n");
    // All that is below, without the directory itself.
    let below = "train/n02/deep/er\ntrain/n02/deep/er/a.jpeg\n";
    assert_eq!(stage.ls(&[], &["train/**/deep/**"]), below);
    // A name that exists is not a pattern.
    assert_eq!(stage.ls(&[], &["val/*"]), "val/*\n");
    let long = stage.ls(&["-l"], &["**/hard"]);
    assert!(long.ends_with(" val/hard\n") && long.lines().count() == 1, "{long}");
}

#[test]
fn paths_that_are_missing_are_reported_and_the_others_listed() {
    let stage = stage();
    let output = archfs()
        .arg("ls")
        .arg(&stage.image)
        .args(["none", "train/n01", "x*", "top", "a[b"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "the highest: the pattern is wrong");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "top\n\ntrain/n01:\na.jpeg\nb.jpg\n");
    let said = String::from_utf8(output.stderr).unwrap();
    for text in ["none: no such path in the archive", "x*: nothing in the archive matches", "a[b: "]
    {
        assert!(said.contains(text), "{said}");
    }
}

/// Runs at a terminal of that width.
fn at_a_terminal(stage: &Stage, columns: usize, options: &str) -> String {
    let line = format!("stty cols {columns}; $ARCHFS ls {options} $IMAGE val train/n02");
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]);
    script.env("ARCHFS", env!("CARGO_BIN_EXE_archfs")).env("IMAGE", &stage.image);
    String::from_utf8(run(&mut script).stdout).unwrap().replace('\r', "")
}

#[test]
fn messages_have_color_at_a_terminal_that_has_it() {
    let stage = stage();
    let said = |variables: &[(&str, &str)]| {
        let mut script = Command::new("script");
        script.args(["-qec", "$ARCHFS ls $IMAGE none; true", "/dev/null"]);
        script.env("ARCHFS", env!("CARGO_BIN_EXE_archfs")).env("IMAGE", &stage.image);
        script.env("TERM", "xterm").env_remove("NO_COLOR").envs(variables.iter().copied());
        String::from_utf8(run(&mut script).stdout).unwrap()
    };
    let colored = said(&[]);
    assert!(colored.starts_with("archfs: \u{1b}[31merror\u{1b}[0m: "), "{colored}");
    assert!(colored.contains("\narchfs: \u{1b}[36mhint\u{1b}[0m: "), "{colored}");
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "")] {
        let plain = said(&[variable]);
        assert!(plain.starts_with("archfs: error: ") && !plain.contains('\u{1b}'), "{plain}");
    }
    let output = archfs().args(["ls"]).arg(&stage.image).arg("none").output().unwrap();
    assert!(output.stderr.starts_with(b"archfs: error: "), "a pipe has none");
}

#[test]
fn a_terminal_gets_columns() {
    let stage = stage();
    let wide = at_a_terminal(&stage, 80, "");
    let narrow = at_a_terminal(&stage, 20, "");
    assert_eq!(wide.lines().nth(1).unwrap().split_whitespace().count(), 6, "{wide}");
    assert!(narrow.lines().all(|line| line.chars().count() <= 20), "{narrow}");
    assert!(narrow.lines().count() > wide.lines().count(), "{narrow}");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        words(&at_a_terminal(&stage, 80, "-1")),
        words(&stage.ls(&[], &["val", "train/n02"]))
    );
}
