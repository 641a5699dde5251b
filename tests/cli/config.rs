//! Configuration files set defaults below the environment and the command line.
//!
//! `ls` of a tar that holds a tar shows which value of `nested` and `offset` holds.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::support::skip::skip_part;
use crate::support::{archfs, run, work_directory};

struct Stage {
    work: TempDir,
    /// Holds `inner.tar`, which holds `file`.
    outer: PathBuf,
    /// The user's file.
    config: PathBuf,
}

fn stage() -> Stage {
    let work = work_directory();
    let tar = |name: &str, member: &str| {
        let path = work.path().join(name);
        run(Command::new("tar").arg("-cf").arg(&path).arg("-C").arg(work.path()).arg(member));
        path
    };
    fs::write(work.path().join("file"), "contents\n").unwrap();
    tar("inner.tar", "file");
    let outer = tar("outer.tar", "inner.tar");
    let config = work.path().join("config/archfs.conf");
    fs::create_dir(config.parent().unwrap()).unwrap();
    Stage { work, outer, config }
}

/// The listing of `outer.tar`, and of the same with --nested.
const PLAIN: &str = "inner.tar\n";
const NESTED: &str = "inner\ninner/file\n";

impl Stage {
    fn command(&self) -> Command {
        let mut command = archfs();
        command.env("XDG_CONFIG_HOME", self.config.parent().unwrap());
        command
    }

    /// Runs `archfs ls -R OPTIONS outer.tar`.
    fn ls(&self, options: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut ls = self.command();
        ls.args(["ls", "-R"]).args(options).arg(&self.outer).envs(variables.iter().copied());
        ls.output().unwrap()
    }

    /// Checks what `ls` prints with `text` as the user's file.
    fn shows(&self, text: &str, variables: &[(&str, &str)], stdout: &str, stderr: &str) {
        fs::write(&self.config, text).unwrap();
        let output = self.ls(&[], variables);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), stdout, "{text}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.replace(self.config.to_str().unwrap(), "CONF"), stderr, "{text}");
        assert_eq!(output.status.code(), Some(0), "{text}");
    }
}

#[test]
fn a_file_sets_defaults_that_variables_and_options_outrank() {
    let stage = stage();
    stage.shows("", &[], PLAIN, "");
    stage.shows("# all of them\nnested = yes\n", &[], NESTED, "");
    stage.shows("ARCHFS_NESTED=1", &[], NESTED, "");
    stage.shows("nested = yes\nnested = no\n", &[], PLAIN, "");
    stage.shows("nested = yes\nnested =\n", &[], PLAIN, "");
    stage.shows("nested = yes\n", &[("ARCHFS_NESTED", "no")], PLAIN, "");
    stage.shows("nested = no\n", &[("ARCHFS_NESTED", "yes")], NESTED, "");
    // The member begins after the first header.
    fs::write(&stage.config, "offset = 512\n").unwrap();
    assert_eq!(stage.ls(&[], &[]).stdout, b"file\n");
    assert_eq!(stage.ls(&["--offset", "0"], &[]).stdout, PLAIN.as_bytes());
    // Commands without such an option read no file.
    fs::write(&stage.config, "no line\n").unwrap();
    assert!(run(stage.command().args(["completions", "bash"])).stderr.is_empty());
}

#[test]
fn mistakes_in_a_file_cost_a_warning_and_the_line() {
    let stage = stage();
    let nested = |line: &str, what: &str| {
        let expected = format!("archfs: warning: CONF: line 1: {what}\n");
        stage.shows(&format!("{line}\nnested = yes\n"), &[], NESTED, &expected);
    };
    nested("nestet = yes", "--nestet is not an option");
    nested("nested yes", "not a line KEY = VALUE");
    nested("offset = 1x", "\"1x\" is not a value of --offset; the line is ignored");
    // What the user typed is an error as always.
    let output = stage.ls(&["--offset=1y"], &[]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--offset: \"1y\" is not a size"), "{said}");
}

#[test]
fn a_file_that_others_can_write_is_ignored() {
    let stage = stage();
    let ignored = "archfs: warning: CONF: ignored, because another user can write it\n";
    fs::write(&stage.config, "").unwrap();
    fs::set_permissions(&stage.config, fs::Permissions::from_mode(0o646)).unwrap();
    stage.shows("nested = yes\n", &[], PLAIN, ignored);
    fs::set_permissions(&stage.config, fs::Permissions::from_mode(0o664)).unwrap();
    stage.shows("nested = yes\n", &[], NESTED, "");
}

/// In a mount namespace with another /etc.
#[test]
fn the_users_file_outranks_that_of_the_site() {
    if !rustix::process::geteuid().is_root() {
        return skip_part("only root can show another /etc");
    }
    let stage = stage();
    let etc = stage.work.path().join("etc");
    run(Command::new("cp").args(["-a", "/etc"]).arg(&etc));
    fs::write(etc.join("archfs.conf"), "nested = yes\nno_such = 1\n").unwrap();
    let shows = |config: Option<&str>| {
        match config {
            Some(text) => fs::write(&stage.config, text).unwrap(),
            None => drop(fs::remove_file(&stage.config)),
        }
        let script = "mount --bind \"$0\" /etc && exec \"$1\" ls -R \"$2\"";
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "bash", "-c", script]).arg(&etc).arg(env!("CARGO_BIN_EXE_archfs"));
        unshare.arg(&stage.outer).env("XDG_CONFIG_HOME", stage.config.parent().unwrap());
        let output = run(&mut unshare);
        let said = String::from_utf8(output.stderr).unwrap();
        let expected = "archfs: warning: /etc/archfs.conf: line 2: --no-such is not an option\n";
        assert_eq!(said, expected);
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(shows(None), NESTED);
    assert_eq!(shows(Some("nested = no\n")), PLAIN);
    assert_eq!(shows(Some("offset = 512\n")), "file\n");
}
