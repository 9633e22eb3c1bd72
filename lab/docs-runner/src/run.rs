//! One page, run in a clone of the repository: every block, its end, and whether the output is what the page shows.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    page::{Block, How, Outcome, Page},
    sources::output_of,
};

/// Makes the clone, in place of the one that an earlier page has used: what a page changes is gone afterwards.
///
/// It has the files of the checkout, uncommitted changes too, with their times: cargo compares times to find what has changed.
/// What cargo has built is linked into it: cargo names its files by paths inside of the workspace, so a page builds only what
/// it changes. Cargo writes into files of `.fingerprint`, so those are copied; it replaces all others.
const CLONE: &str = r#"set -euo pipefail
clone=target/docs-runner/clone
rm -rf $clone
git clone --quiet --shared --no-checkout . $clone
git -C $clone read-tree --empty
git -C $clone rev-parse --quiet --verify HEAD >/dev/null && git -C $clone read-tree HEAD
git ls-files -z --cached --others --exclude-standard |
  while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done |
  xargs -0 cp -a --parents --target-directory $clone
mkdir -p $clone/target/debug
for built in deps build; do [ ! -d target/debug/$built ] || cp -al target/debug/$built $clone/target/debug; done
[ ! -d target/debug/.fingerprint ] || cp -a target/debug/.fingerprint $clone/target/debug"#;

/// What runs before the blocks. Each block is a file that is sourced, so that variables live until the end of the page, as
/// in the terminal of a reader. `$1` is the directory for the blocks' outputs.
const HEAD: &str = r#"outputs=$1
# `curl … | jq …` has failed when curl has.
set -o pipefail
background=()
# As Ctrl-C in a terminal: the signal reaches every process of the block. After fifteen seconds SIGKILL does, before the
# runner kills this script.
stop_background() {
  for process in "${background[@]}"; do kill -INT -- "-$process" 2>/dev/null; done
  for _ in $(seq 30); do
    kill -0 "${background[@]}" 2>/dev/null || break
    sleep 0.5
  done
  for process in "${background[@]}"; do kill -KILL -- "-$process" 2>/dev/null; done
}
trap stop_background EXIT
# Waits until the output of block $1 has its text: at most fifteen minutes, because the first one builds.
await_text() {
  for _ in $(seq 900); do
    grep -qFf "$outputs/$1.until" "$outputs/$1.out" && return
    kill -0 $! 2>/dev/null || break
    sleep 1
  done
  grep -qFf "$outputs/$1.until" "$outputs/$1.out"
}
"#;

/// How long the processes of a page get to end by themselves after SIGTERM.
const END_SECONDS: u64 = 30;

/// Runs a page, and returns the outcome of each of its blocks. `limit` is for the whole page.
pub(crate) fn run_page(page: &Page, checkout: &Path, limit: Duration) -> Result<Vec<Outcome>> {
    let outputs = checkout.join("target/docs-runner/outputs").join(page.path.replace('/', "-"));
    if outputs.exists() {
        fs::remove_dir_all(&outputs).context("failed to delete the outputs of an earlier run")?;
    }
    fs::create_dir_all(&outputs).context("failed to make the directory for outputs")?;
    output_of(checkout, "bash", &["-c", CLONE])?;
    let clone = checkout.join("target/docs-runner/clone");
    let time_is_over = run_script(page, &clone, &outputs, limit)?;

    let (mut outcomes, mut output) = (Vec::new(), None);
    for (index, block) in page.blocks.iter().enumerate() {
        outcomes.push(if let How::Output { texts, .. } = &block.how {
            compare(output.as_deref(), texts).map_or_else(Outcome::Failed, Outcome::OutputIsThere)
        } else {
            let printed = fs::read(outputs.join(format!("{index}.out"))).ok();
            output = printed.map(|text| clean(&String::from_utf8_lossy(&text), &clone));
            // Bash may have been ended before it has written the line.
            let end = fs::read_to_string(outputs.join(format!("{index}.end"))).ok();
            let end = end.filter(|end| end.ends_with('\n'));
            match (&output, end) {
                _ if !block.is_run() => Outcome::NotRunHere,
                (None, _) => Outcome::Failed("a block before it failed".to_owned()),
                (Some(output), Some(end)) => ended(block, &end, output)?,
                (Some(_), None) if time_is_over => {
                    let limit = humantime::format_duration(limit);
                    Outcome::Failed(format!("it ran when the page's {limit} were over"))
                }
                // It has ended the script.
                (Some(output), None) => Outcome::Failed(last_lines(output, "a command failed")),
            }
        });
    }
    Ok(outcomes)
}

/// The outcome of a block that has ended with this code after so many seconds.
fn ended(block: &Block, code_and_seconds: &str, output: &str) -> Result<Outcome> {
    let (code, seconds) = code_and_seconds.trim().split_once(' ').context("failed to read a block's end")?;
    if code == block.exit_code().to_string() {
        return Ok(Outcome::Ran(seconds.parse()?));
    }
    Ok(Outcome::Failed(last_lines(output, &format!("exit code {code}"))))
}

/// The lines of the output that have one of the texts, or why not all of them are there.
fn compare(output: Option<&str>, texts: &[String]) -> Result<Vec<String>, String> {
    let output = output.ok_or("a block before it failed")?;
    let absent: Vec<_> = texts.iter().filter(|text| !output.contains(*text)).collect();
    if !absent.is_empty() {
        return Err(format!("the output has no line with {absent:?}"));
    }
    let lines = output.lines().filter(|line| texts.iter().any(|text| line.contains(text)));
    Ok(lines.map(|line| line.trim_end().to_owned()).collect())
}

/// The script of a page. It writes the code and the seconds of each block that ends into `N.end`, and ends at the first block
/// whose code is not the expected one.
fn script(page: &Page) -> String {
    let mut script = HEAD.to_owned();
    for (index, block) in page.blocks.iter().enumerate().filter(|(_, block)| block.is_run()) {
        let file = format!("\"$outputs/{index}.sh\" >\"$outputs/{index}.out\" 2>&1");
        let run = match &block.how {
            // The block ends at the first command that fails, unless a failure is what it shows.
            How::Run { exit_code: 0 } => format!("set -e\nsource {file}"),
            How::Run { .. } => format!("set +e\nsource {file}"),
            // Bash lets what it starts in the background ignore SIGINT, unless a terminal is there.
            How::StaysRunning { .. } => {
                format!("setsid env --default-signal=INT bash {file} &\nbackground+=($!)\nawait_text {index}")
            }
            _ => format!("git apply {file}"),
        };
        script.push_str(&format!(
            "\n# {}:{}\nSECONDS=0\n{run}\ncode=$?\nset +e\n\
             echo \"$code $SECONDS\" >\"$outputs/{index}.end\"\n[ $code -eq {} ] || exit 1\n",
            page.path,
            block.line,
            block.exit_code()
        ));
    }
    script
}

/// Runs the page's script in a separate process group, ends all of it, and returns whether its time is over.
fn run_script(page: &Page, clone: &Path, outputs: &Path, limit: Duration) -> Result<bool> {
    for (index, Block { text, how, .. }) in page.blocks.iter().enumerate() {
        fs::write(outputs.join(format!("{index}.sh")), text).context("failed to write a block")?;
        if let How::StaysRunning { until } = how {
            fs::write(outputs.join(format!("{index}.until")), until).context("failed to write a block")?;
        }
    }
    let path = outputs.join("page.bash");
    fs::write(&path, script(page)).context("failed to write the page's script")?;
    // Only bash gets the signal: two at once, to it and to its group, would end it before its trap has run.
    let mut child = Command::new("timeout")
        .arg("--foreground")
        .arg(format!("--kill-after={END_SECONDS}"))
        .arg(limit.as_secs().to_string())
        .args(["bash".as_ref(), path.as_os_str(), outputs.as_os_str()])
        .current_dir(clone)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .context("failed to start bash")?;
    let status = child.wait().context("failed to wait for bash")?;
    // What is left behind an `&`, frozen processes too. A group without processes is what is wanted.
    let left =
        Command::new("bash").args(["-c", "kill -KILL -- -$0 2>/dev/null", &child.id().to_string()]).status();
    left.context("failed to end what the page has left running")?;
    stop_what_is_left(clone)?;
    Ok(matches!(status.code(), Some(124 | 137) | None))
}

/// Stops a system that a page has left running, as after a failure.
fn stop_what_is_left(clone: &Path) -> Result<()> {
    let demo = clone.join("target/debug/demo");
    if clone.join("target/demo/state.json").exists() && demo.exists() {
        // The system's processes may be frozen.
        let mut down = Command::new("timeout");
        down.arg("120").arg(demo).arg("down").current_dir(clone).stdout(Stdio::null());
        let down = down.status().context("failed to stop what the page has left running")?;
        ensure!(down.success(), "failed to stop what the page has left running: {down}");
    }
    Ok(())
}

/// What a block printed, with the clone's path made short and without what a terminal shows only for a moment.
fn clean(output: &str, clone: &Path) -> String {
    let lines = output.lines().map(|line| line.rsplit('\r').next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n").replace(&format!("{}/", clone.display()), "")
}

fn last_lines(output: &str, why: &str) -> String {
    let lines: Vec<_> = output.lines().collect();
    format!("{why}; the end of its output:\n{}", lines[lines.len().saturating_sub(25)..].join("\n"))
}
