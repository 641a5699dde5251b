//! Runs the other reader in its own process, because it may crash or hang on a mutant, and restarts
//! it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::facts::Facts;

/// The refusal of an object over which the oracle ended.
pub(crate) const ENDED: &str = "!ended";

/// A reader that answers paths with facts.
pub(crate) struct Oracle {
    command: Vec<String>,
    process: Option<Process>,
}

struct Process {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Oracle {
    pub(crate) fn new(command: &str) -> Self {
        Self { command: command.split(' ').map(str::to_owned).collect(), process: None }
    }

    /// The facts of the archive at `path`. The oracle prints each object before it reads it. If it
    /// ends, that object is refused with the reason `!ended`, and a new process reads the rest.
    pub(crate) fn ask(&mut self, path: &str) -> Facts {
        let mut skipped: Vec<String> = Vec::new();
        loop {
            let skip = match &*skipped {
                [] => String::new(),
                skipped => format!("\t,{},", skipped.join(",")),
            };
            let command = &self.command;
            let process = self.process.get_or_insert_with(|| Process::start(command));
            let mut facts = Facts::default();
            let ended = process.ask(&format!("{path}{skip}"), &mut facts);
            let Err(object) = ended else {
                for object in skipped {
                    facts.refuse(format!("{object}.kind"), ENDED);
                }
                return facts;
            };
            self.process = None;
            assert!(
                skipped.len() < 20 && !skipped.contains(&object),
                "{path}: {object} {skipped:?}"
            );
            skipped.push(object);
        }
    }
}

impl Process {
    fn start(command: &[String]) -> Self {
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let questions = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, questions, answers }
    }

    /// Asks the oracle; `Err` names the object over which it ended.
    fn ask(&mut self, question: &str, facts: &mut Facts) -> Result<(), String> {
        let mut object = String::from("archive");
        let _ = writeln!(self.questions, "{question}");
        let mut line = String::new();
        loop {
            line.clear();
            let _ = self.answers.read_line(&mut line);
            let Some(line) = line.strip_suffix('\n') else {
                return Err(object);
            };
            match line.split_once(' ') {
                Some(("at", name)) => object = name.to_owned(),
                Some((key, value)) if value.starts_with('!') => facts.refuse(key.into(), value),
                Some((key, value)) => facts.put(key.into(), value),
                None if line == "." => return Ok(()),
                None => panic!("the oracle says {line:?}"),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
