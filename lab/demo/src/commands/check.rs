//! `cargo demo check` runs the check of a lab, and `cargo demo answer` checks which protection a student has found missing: for
//! people, and with `--json` for autograders.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use flaws::Flaw;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::Verdict;
use crate::alteration::hidden_flaw;
use crate::terminal::Terminal;

/// Labs 7 and 9 compile.
const DEADLINE: Duration = Duration::from_secs(900);

/// Whose format `--json` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Grader {
    /// Gradescope's `results.json`.
    Gradescope,
    /// A result for GitHub Classroom's grading reporter, which wants it encoded: `| base64 -w0`.
    Github,
}

/// The check of a lab: the block of commands below the heading `## Check` of its page.
#[derive(Debug, PartialEq, Eq)]
struct Check {
    title: String,
    commands: String,
    /// Of the heading, from 1.
    line: usize,
}

impl Check {
    fn in_page(page: &str) -> Option<Self> {
        let title = page.lines().next()?.strip_prefix("# ")?.to_owned();
        let (before, section) = page.split_once("\n## Check\n")?;
        let (_, commands) = section.split_once("```sh\n")?;
        let (commands, _) = commands.split_once("```")?;
        Some(Self { title, commands: commands.to_owned(), line: before.lines().count() + 2 })
    }
}

/// What a grader reads of one test, which is worth one point.
#[derive(Clone, Default)]
struct Test<'a> {
    name: &'a str,
    passed: bool,
    output: String,
    code: &'a str,
    path: &'a str,
    line: usize,
    seconds: f64,
}

/// Checks what a student has found out about a system that `drill --student` has broken.
pub(crate) fn answer(
    student: &str,
    flaw: Flaw,
    promise: &str,
    grader: Grader,
    terminal: &Terminal,
) -> Result<Verdict> {
    let hidden = hidden_flaw(student);
    let tests = [
        ("the missing protection", flaw == hidden, flaw.name()),
        ("the broken promise", hidden.row().breaks.contains(&promise), promise),
    ];
    for (name, passed, given) in tests {
        terminal.print(format!("{}: {name} is {given}", if passed { "right" } else { "wrong" }));
    }
    let tests = tests.map(|(name, passed, given)| Test {
        name,
        passed,
        output: given.to_owned(),
        path: "docs/breaking-it.md",
        line: 1,
        ..Test::default()
    });
    terminal.document(&document(grader, &tests))?;
    Ok(if tests.iter().all(|test| test.passed) { Verdict::Held } else { Verdict::Broken })
}

/// Runs the check of a lab. The lab's variables and functions come from the student's terminal, which exports them.
pub(crate) async fn run(lab: u8, grader: Grader, terminal: &Terminal) -> Result<Verdict> {
    let root = testbed::workspace_root().context("failed to find the labs: run this in a checkout")?;
    let prefix = format!("{lab:02}-");
    let pages = fs::read_dir(root.join("docs/labs")).context("failed to read docs/labs")?;
    let name = pages
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|name| name.starts_with(&prefix))
        .with_context(|| format!("failed to find lab {lab}: docs/labs/README.md lists the labs"))?;
    let path = format!("docs/labs/{name}");
    let page = fs::read_to_string(root.join(&path)).with_context(|| format!("failed to read {path}"))?;
    let check = Check::in_page(&page).with_context(|| format!("failed to find the check in {path}"))?;

    let test = run_commands(&check, &path, &root).await?;
    terminal.print(test.output.trim_end());
    terminal.print(format!("{}: {}", check.title, if test.passed { "passed" } else { "not passed" }));
    let verdict = if test.passed { Verdict::Held } else { Verdict::Broken };
    terminal.document(&document(grader, &[test]))?;
    Ok(verdict)
}

/// Runs commands as the labs' pages are run: it ends at the first that fails, and names it. An unset variable is a failure too: the
/// lab was not done in this terminal.
async fn run_commands<'a>(check: &'a Check, path: &'a str, directory: &Path) -> Result<Test<'a>> {
    let Check { title: name, commands: code, line } = check;
    let script = format!("exec 2>&1\nset -euo pipefail\ntrap 'echo \"failed: $BASH_COMMAND\"' ERR\n{code}");
    let began = Instant::now();
    let test = |passed: bool, output: String| {
        let seconds = began.elapsed().as_secs_f64();
        Test { name, passed, output, code, path, line: *line, seconds }
    };
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).current_dir(directory).stdout(Stdio::piped());
    let bash = bash.process_group(0).kill_on_drop(true).spawn().context("failed to run bash")?;
    let group = bash.id().map(|id| format!("-{id}"));
    let Ok(output) = timeout(DEADLINE, bash.wait_with_output()).await else {
        // Whatever it has started holds cargo's lock.
        let _ = Command::new("kill").args(["-KILL", "--"]).args(group).status().await;
        return Ok(test(false, "the check did not end in fifteen minutes\n".to_owned()));
    };
    let output = output.context("failed to wait for bash")?;
    ensure!(output.status.code() != Some(127) || !output.stdout.is_empty(), "bash did not run the check");
    Ok(test(output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

fn document(grader: Grader, tests: &[Test<'_>]) -> Value {
    let one = |test: &Test<'_>| {
        let Test { name, passed, output, code, path, line, seconds } = test;
        let score = u8::from(*passed);
        match grader {
            Grader::Gradescope => json!({
                "name": name, "score": score, "max_score": 1, "output": output, "visibility": "visible",
                "status": if *passed { "passed" } else { "failed" },
            }),
            Grader::Github => json!({
                "name": name, "score": score, "message": output, "test_code": code, "filename": path, "line_no": line,
                "status": if *passed { "pass" } else { "fail" }, "execution_time": format!("{seconds:.1}s"),
            }),
        }
    };
    let all: Vec<_> = tests.iter().map(one).collect();
    match grader {
        Grader::Gradescope => json!({
            "execution_time": tests.iter().map(|test| test.seconds).sum::<f64>().round(),
            "stdout_visibility": "visible",
            "tests": all,
        }),
        Grader::Github => json!({
            "version": 1, "max_score": tests.len(), "tests": all,
            "status": if tests.iter().all(|test| test.passed) { "pass" } else { "fail" },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lab_has_a_check() {
        let labs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/labs");
        let pages: Vec<_> = fs::read_dir(labs).unwrap().map(|entry| entry.unwrap().path()).collect();
        let labs = pages.iter().filter(|path| !path.ends_with("README.md"));
        let checks = labs.map(|path| Check::in_page(&fs::read_to_string(path).unwrap()).unwrap());
        assert_eq!(
            checks.filter(|check| check.title.starts_with("Lab ") && !check.commands.is_empty()).count(),
            10
        );
    }

    #[tokio::test]
    async fn a_check_ends_at_the_first_failure_and_names_it() {
        let run = async |commands: &str| {
            let check = Check { title: String::new(), commands: commands.to_owned(), line: 1 };
            let test = run_commands(&check, "", Path::new(".")).await.unwrap();
            (test.passed, test.output)
        };
        assert_eq!(run("echo first\nfalse\necho second\n").await, (false, "first\nfailed: false\n".into()));
        let (passed, output) = run("test \"$no_such_variable\" = 1\n").await;
        assert!(!passed && output.contains("no_such_variable"), "{output}");
        assert!(run("true | grep -c . || true\ntest 1 = 1\n").await.0);
    }

    #[tokio::test]
    async fn graders_get_the_fields_that_they_read() {
        let check =
            Check::in_page("# Lab 1: lose an order\n\nText.\n\n## Check\n\n```sh\necho why\nfalse\n```\n")
                .unwrap();
        assert_eq!(
            check,
            Check { title: "Lab 1: lose an order".into(), commands: "echo why\nfalse\n".into(), line: 5 }
        );
        let failed = run_commands(&check, "page", Path::new(".")).await.unwrap();
        let passed = Test { passed: true, ..failed.clone() };
        let gradescope = &document(Grader::Gradescope, std::slice::from_ref(&failed))["tests"][0];
        assert_eq!(gradescope["status"], "failed");
        assert_eq!((&gradescope["score"], &gradescope["max_score"]), (&json!(0), &json!(1)));
        let github = document(Grader::Github, &[passed, failed]);
        assert_eq!(
            (&github["version"], &github["status"], &github["max_score"]),
            (&json!(1), &json!("fail"), &json!(2))
        );
        assert_eq!(
            (&github["tests"][0]["score"], &github["tests"][1]["message"]),
            (&json!(1), &json!("why\nfailed: false\n"))
        );
    }
}
