//! Manual pages, shell completions, --help and docs/CLI.md agree, and man and the shells accept
//! them.
//!
//! If such a program is missing, the test says so, and fails in CI.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::support::skip::skip_part;
use crate::support::{archfs, run, work_directory};

/// The commands that --help lists, except `help`.
fn commands() -> Vec<String> {
    let text = help(&[]);
    let list = text.split("\nOptions:\n").next().unwrap();
    let names = list.lines().filter(|line| line.starts_with("  "));
    let names: Vec<_> =
        names.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect();
    assert!(names.len() >= 16, "{names:?}");
    names.into_iter().filter(|name| name != "help").collect()
}

fn help(words: &[&str]) -> String {
    let output = run(archfs().args(words).arg("--help").env("COLUMNS", "100"));
    String::from_utf8(output.stdout).unwrap()
}

/// The long options in a text.
fn options_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let words = text.match_indices("--").map(|(at, _)| &text[at..]);
    let words = words.map(|word| word.split(|c| !is_part(c)).next().unwrap().to_owned());
    let before = |at: usize| text[..at].chars().next_back();
    let starts: BTreeSet<_> = text
        .match_indices("--")
        .filter(|(at, _)| before(*at).is_none_or(|c| !is_part(c)))
        .map(|(at, _)| text[at..].split(|c| !is_part(c)).next().unwrap().to_owned())
        .collect();
    words.filter(|word| word.len() > 2 && starts.contains(word)).collect()
}

/// The options that --help of a command lists.
fn options_of(command: &str) -> BTreeSet<String> {
    let text = help(&[command]);
    let lines = text.lines().filter(|line| line.trim_start().starts_with('-'));
    let heads = lines.map(|line| line.trim_start().split("  ").next().unwrap());
    let all = heads.flat_map(options_in);
    all.filter(|option| option != "--help" && option != "--version").collect()
}

/// Whether the program is installed; prints a note if not.
fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    if !found.status.success() {
        assert!(std::env::var_os("CI").is_none(), "CI must have {program}");
        skip_part(&format!("{program} is not installed"));
    }
    found.status.success()
}

/// The section of docs/CLI.md with this title.
fn section<'a>(document: &'a str, title: &str) -> &'a str {
    let sections = document.split("\n## ").skip(1).filter_map(|text| text.split_once('\n'));
    let found: Vec<_> = sections.filter(|(head, _)| *head == title).collect();
    assert_eq!(found.len(), 1, "docs/CLI.md: sections named {title}");
    found[0].1
}

/// The options in the first column of a section's tables.
fn options_of_rows(section: &str) -> BTreeSet<String> {
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.flat_map(|row| options_in(row.split(" | ").next().unwrap())).collect()
}

#[test]
fn each_command_has_a_section_with_every_option_and_no_other() {
    let document = fs::read_to_string("docs/CLI.md").unwrap();
    for command in commands() {
        let own = section(&document, &command);
        let synopsis = own.lines().find(|line| line.starts_with("    ")).unwrap();
        assert!(
            format!("{synopsis} ").starts_with(&format!("    archfs {command} ")),
            "docs/CLI.md: {command}: {synopsis}"
        );
        let options = options_of(&command);
        let in_synopsis = options_in(synopsis);
        assert!(in_synopsis.is_subset(&options), "docs/CLI.md: {command}: {synopsis}");
        let mut documented = options_of_rows(own);
        if command == "mount" || command == "run" {
            documented.extend(options_of_rows(section(&document, "Options of mount and run")));
        }
        let missing: Vec<_> = options.difference(&documented).collect();
        assert!(missing.is_empty(), "docs/CLI.md: {command}: not documented: {missing:?}");
        let unknown: Vec<_> = documented.difference(&options).collect();
        assert!(unknown.is_empty(), "docs/CLI.md: {command}: no such option: {unknown:?}");
    }
}

/// A command that is added must be put into a group.
#[test]
fn help_lists_each_command_once_on_a_line_of_80_columns() {
    let text = help(&[]);
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    let (list, _) = text.split_once("\nOptions:\n").unwrap();
    assert!(list.lines().all(|line| line.len() <= 80), "{text}");
    let mut listed = commands();
    listed.sort();
    // clap completes every command that is not hidden.
    let script = run(archfs().args(["completions", "bash"])).stdout;
    let script = String::from_utf8(script).unwrap();
    let line = script.lines().find(|line| line.contains("opts=\"-h -V")).unwrap();
    let words = line.split('"').nth(1).unwrap().split(' ');
    let mut known: Vec<_> = words.filter(|word| !word.starts_with('-')).collect();
    known.retain(|word| *word != "help" && *word != "umount");
    known.sort_unstable();
    assert_eq!(listed, known);
}

#[test]
fn every_command_has_a_one_line_summary_and_an_example() {
    for command in commands() {
        let text = help(&[&command]);
        let first = text.lines().next().unwrap();
        assert!(first.starts_with(|c: char| c.is_ascii_uppercase()), "{command}: {first}");
        assert!(!first.ends_with('.'), "{command}: {first}");
        let usage = text.lines().find(|line| line.starts_with("Usage: archfs ")).unwrap();
        assert!(usage.contains(&command), "{command}: {usage}");
        let examples = text.split("\nExamples:\n").nth(1);
        let examples = examples.unwrap_or_else(|| panic!("{command}: no examples"));
        assert!(examples.contains(&format!("archfs {command}")), "{command}: {examples}");
        for line in text.lines() {
            assert!(line.len() <= 100, "{command}: {line}");
        }
    }
}

/// Examples in --help use options of that command.
#[test]
fn examples_use_existing_options() {
    for command in commands() {
        let text = help(&[&command]);
        let examples = text.split("\nExamples:\n").nth(1).unwrap();
        let start = format!("archfs {command}");
        for line in examples.lines().filter(|line| line.contains(&start)) {
            let ours = line.split(&start).nth(1).unwrap();
            let ours = ours.split(['|', '(', ';']).next().unwrap().split(" -- ").next().unwrap();
            let used = options_in(ours.split("&&").next().unwrap());
            let unknown: Vec<_> = used.difference(&options_of(&command)).cloned().collect();
            assert!(unknown.is_empty(), "{command}: {line}: {unknown:?}");
        }
    }
}

#[test]
fn every_command_has_a_manual_page_with_the_usual_sections() {
    let work = work_directory();
    let directory = work.path().join("man/man1");
    run(archfs().args(["man", "--quiet", "--dir"]).arg(&directory));
    let mut names: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut expected: Vec<_> = commands().iter().map(|name| format!("archfs-{name}.1")).collect();
    expected.push("archfs.1".into());
    expected.sort();
    assert_eq!(names, expected);
    for name in &names {
        let page = fs::read_to_string(directory.join(name)).unwrap();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "ENVIRONMENT", "FILES"] {
            assert!(page.contains(&format!(".SH {section}\n")), "{name}: {section}: {page}");
        }
        assert!(page.contains("EXIT STATUS"), "{name}");
        assert!(page.is_ascii(), "{name}");
        assert!(!page.contains("\n\n.TP\n"), "an option without a text: {name}: {page}");
        // Hidden options and steps are not documented.
        for hidden in ["daemon=", "\\-\\-daemon", "\\-\\-step", "help(1)"] {
            assert!(!page.contains(hidden), "{name}: {hidden}");
        }
        let command = name.trim_end_matches(".1").strip_prefix("archfs-");
        let words: Vec<_> = ["man"].into_iter().chain(command).collect();
        let printed = run(archfs().args(words)).stdout;
        assert_eq!(String::from_utf8(printed).unwrap(), page, "{name}");
        for option in command.map(options_of).unwrap_or_default() {
            let shown = option.replace('-', "\\-");
            assert!(page.contains(&shown), "{name}: {option}");
        }
    }
    // -h is short, and says where the other options are.
    for command in ["mount", "run", "pack"] {
        let short = run(archfs().args([command, "-h"]).env("COLUMNS", "80")).stdout;
        let short = String::from_utf8(short).unwrap();
        assert!(short.lines().count() <= 40 && short.contains("see more with '--help'"), "{short}");
    }
    // With an archive, -h of ls is another option.
    let short = String::from_utf8(run(archfs().args(["ls", "-h"])).stdout).unwrap();
    assert_eq!(short, help(&["ls"]));
    for command in ["mount", "run"] {
        for heading in ["Archive:", "Memory:", "Lifetime:", "Logging:"] {
            assert!(help(&[command]).contains(&format!("\n{heading}\n")), "{command}: {heading}");
        }
    }
    assert!(help(&["mount"]).contains("\nSlurm:\n"));
    let mount = fs::read_to_string(directory.join("archfs-mount.1")).unwrap();
    assert!(mount.contains("ARCHFS_CACHE") && mount.contains("Mount archives"));
}

#[test]
fn groff_and_man_accept_the_pages() {
    let work = work_directory();
    run(archfs().args(["man", "--quiet", "--dir"]).arg(work.path()));
    let pages: Vec<_> =
        fs::read_dir(work.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    if has("groff") {
        for page in &pages {
            let output =
                run(Command::new("groff").args(["-man", "-Tascii", "-ww", "-z", "-rF0"]).arg(page));
            assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{page:?}");
        }
    }
    if has("man") {
        for page in &pages {
            let output = run(Command::new("man")
                .args(["--warnings=w", "-l"])
                .arg(page)
                .env("MANWIDTH", "80")
                .env("MANPAGER", "cat")
                .env("LC_ALL", "C"));
            assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{page:?}");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.contains("EXAMPLES") || text.contains("E\u{8}E"), "{page:?}: {text}");
        }
    }
}

#[test]
fn an_unknown_command_has_no_page() {
    let output = archfs().args(["man", "none"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        stderr.contains("none: no such command") && stderr.contains("hint: mount, run"),
        "{stderr}"
    );
    assert_eq!(archfs().args(["completions", "tcsh"]).output().unwrap().status.code(), Some(2));
}

/// The completions of bash at the end of `line`.
fn offered(line: &str) -> BTreeSet<String> {
    let script = r#"
        source <("$ARCHFS" completions bash) || exit 1
        complete -p archfs > /dev/null || exit 1
        COMP_LINE=$1 COMP_POINT=${#1}
        read -ra COMP_WORDS <<< "$1"
        [[ $1 == *' ' ]] && COMP_WORDS+=('')
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        function=$(complete -p archfs | sed 's/.*-F \([^ ]*\).*/\1/')
        "$function" archfs "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", script, "bash", line]).env("ARCHFS", env!("CARGO_BIN_EXE_archfs"));
    let text = String::from_utf8(run(&mut bash).stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options_but_not_hidden_ones() {
    assert_eq!(offered("archfs mou"), BTreeSet::from(["mount".to_owned()]));
    let all = offered("archfs ");
    for command in commands() {
        assert!(all.contains(&command), "{command}: {all:?}");
        let offered = offered(&format!("archfs {command} --"));
        for option in options_of(&command) {
            assert!(offered.contains(&option), "{command} {option}: {offered:?}");
        }
        for hidden in ["--daemon", "--step"] {
            assert!(!offered.contains(hidden), "{command}: {hidden}");
        }
    }
    assert_eq!(offered("archfs mount --kee"), BTreeSet::from(["--keep".to_owned()]));
    let shells = offered("archfs completions ");
    assert!(["bash", "zsh", "fish"].iter().all(|shell| shells.contains(*shell)), "{shells:?}");
}

#[test]
fn zsh_and_fish_accept_their_completions() {
    let work = work_directory();
    for (shell, check) in [("zsh", "-n"), ("fish", "--no-execute"), ("bash", "-n")] {
        let script = run(archfs().args(["completions", shell])).stdout;
        let text = String::from_utf8(script).unwrap();
        assert!(text.contains("until-pid") && text.contains("unmount"), "{shell}");
        for hidden in ["-daemon", "l daemon", "--step", "l step"] {
            assert!(!text.contains(hidden), "{shell}: {hidden}");
        }
        let file = work.path().join(shell);
        fs::write(&file, &text).unwrap();
        if has(shell) {
            let output = run(Command::new(shell).arg(check).arg(&file));
            assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{shell}");
        }
    }
}
