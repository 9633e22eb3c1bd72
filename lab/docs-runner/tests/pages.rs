//! Pages that hold and pages that do not, in a repository of their own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and end")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// A repository in the temporary directory, which is deleted at the end.
struct Repository(PathBuf);

impl Repository {
    fn with(name: &str, page: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("docs-runner-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        assert!(
            Command::new("git").args(["init", "--quiet"]).current_dir(&directory).status().unwrap().success()
        );
        fs::write(directory.join(".gitignore"), "/target\n").unwrap();
        fs::write(directory.join("page.md"), page).unwrap();
        Self(directory)
    }

    /// Runs all pages. Returns whether they hold, and what was printed.
    fn run(&self, options: &[&str]) -> (bool, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_docs-runner"))
            .args(options)
            .current_dir(&self.0)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn blocks_share_a_shell_and_change_only_the_clone() {
    let repository = Repository::with(
        "hold",
        "<!-- stays running until: ready -->\n```sh\necho ready; exec sleep 600\n```\n\n\
         ```sh\nname=outbox\ntouch made\n```\n\n\
         ```diff\n--- a/.gitignore\n+++ b/.gitignore\n@@ -1 +1,2 @@\n /target\n+/other\n```\n\n\
         <!-- exit code: 3 -->\n<!-- run as: seconds => 0 -->\n```sh\nsleep seconds\necho \"the $name\"; cat .gitignore; (exit 3)\n```\n\n\
         <!-- shows: the outbox; /other -->\n```text\nnot yet\n```\n",
    );
    let (holds, printed) = repository.run(&["--paste"]);
    assert!(holds, "{printed}");
    assert!(
        printed
            .contains("blocks: 4 run, 0 run by another step of CI, 0 not run, 1 outputs compared, 0 failed")
    );
    assert!(!repository.path().join("made").exists(), "{printed}");
    let page = fs::read_to_string(repository.path().join("page.md")).unwrap();
    assert!(page.ends_with("```text\nthe outbox\n/other\n```\n"), "{page}");
}

#[test]
fn failures_are_found_and_end_the_page() {
    for (name, page, expected) in [
        ("command", "```sh\nfalse\necho reached\n```\n", "a command failed"),
        ("pipe", "```sh\nfalse | cat\necho reached\n```\n", "a command failed"),
        ("code", "<!-- exit code: 1 -->\n```sh\ntrue\n```\n", "exit code 0"),
        ("stale", "```sh\necho one\n```\n\n<!-- shows: one -->\n```text\ntwo\n```\n", "shows other lines"),
        ("output", "```sh\necho one\n```\n\n<!-- shows: two -->\n```text\ntwo\n```\n", "no line with"),
        ("after", "```sh\nfalse\n```\n\n```sh\ntrue\n```\n", "a block before it failed"),
        ("patch", "```diff\n--- a/none\n+++ b/none\n@@ -1 +1 @@\n-a\n+b\n```\n", "does not fit"),
        ("ended", "<!-- stays running until: ready -->\n```sh\ntrue\n```\n", "exit code 1"),
        (
            "ci",
            "<!-- run by CI: page.md -->\n```sh\necho twice \\\n  over\n```\n\n```sh\necho twice over\n```\n",
            "",
        ),
        (
            "prose",
            "`echo one`\n\n<!-- run by CI: page.md -->\n```sh\necho one\n```\n",
            "has no line `echo one`",
        ),
        ("absent", "<!-- run by CI: .gitignore -->\n```sh\necho one\n```\n", "has no line `echo one`"),
        ("suite", "<!-- part of the suite -->\n```sh\ncargo test --test none\n```\n", "there is no --test"),
        ("link", "[there](none.md#at-all)\n", "there is no none.md"),
        ("anchor", "[there](#at-all)\n", "there is no such heading"),
        ("name", "The test `a_name_that_no_source_has`.\n", "no source has"),
        ("comment", "<!-- exit code: 1 -->\n\nText.\n", "stands before something else"),
        ("nothing", "<!-- run as: 30s => 5s -->\n```sh\nwait\n```\n", "the block has no \"30s\""),
        ("two", "<!-- not run: why -->\n<!-- exit code: 1 -->\n```sh\nwait\n```\n", "two comments"),
        ("shown", "<!-- shows: line -->\n```sh\nwait\n```\n", "belongs to a block of `text`"),
        ("unknown", "<!-- show: line -->\n```text\nline\n```\n", "unknown comment"),
    ] {
        let repository = Repository::with(name, page);
        let (holds, printed) = repository.run(&[]);
        assert_eq!(holds, expected.is_empty(), "{name}: {printed}");
        assert!(printed.contains(expected), "{name}: {printed}");
        assert!(!printed.contains("reached"), "{name}: {printed}");
    }
}

#[test]
fn page_that_takes_too_long_is_ended_with_all_its_processes() {
    let repository = Repository::with(
        "long",
        "<!-- stays running until: up -->\n```sh\ntrap '' INT\necho up; sleep 987; sleep 987\n```\n\n\
         ```sh\nsleep 987 & kill -STOP $!; sleep 986\n```\n",
    );
    let began = Instant::now();
    let (holds, printed) = repository.run(&["--limit", "3s"]);
    assert!(!holds && printed.contains("it ran when the page's 3s were over"), "{printed}");
    assert!(began.elapsed() < Duration::from_secs(300), "{printed}");
    let left = Command::new("pgrep").args(["-f", "^sleep 98[67]$"]).output().unwrap();
    assert!(left.stdout.is_empty(), "{}", String::from_utf8_lossy(&left.stdout));
}
