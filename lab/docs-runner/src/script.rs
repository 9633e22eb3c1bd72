//! The bash script that runs a page: its blocks one after the other, in one shell, until the first that fails.

use std::fmt::Write as _;

use crate::page::{Content, How, Page};

/// How long a block that stays running may take until its output has the text that is waited for. The first one builds.
const START_LIMIT_SECONDS: u32 = 900;

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
"#;

/// The script of a page. It prints `begin N` and `end N CODE` for each block that it runs, and ends at the first block
/// whose code is not the expected one.
pub(crate) fn script(page: &Page) -> String {
    let mut script = HEAD.to_owned();
    for (index, block) in page.blocks.iter().enumerate() {
        let run = match &block.content {
            Content::Commands { how: How::Here { exit_code }, .. } => format!(
                "set {flag}e\nsource \"$outputs/{index}.sh\" >\"$outputs/{index}.out\" 2>&1\ncode=$?\nset +e\n\
                 echo \"end {index} $code\"\n[ $code -eq {exit_code} ] || exit 1\n",
                // The block ends at the first command that fails, unless a failure is what it shows.
                flag = if *exit_code == 0 { '-' } else { '+' },
            ),
            // Bash lets what it starts in the background ignore SIGINT, unless a terminal is there.
            Content::Commands { how: How::StaysRunning { .. }, .. } => format!(
                "setsid env --default-signal=INT bash \"$outputs/{index}.sh\" >\"$outputs/{index}.out\" 2>&1 &\nbackground+=($!)\n\
                 for _ in $(seq {START_LIMIT_SECONDS}); do\n  grep -qFf \"$outputs/{index}.until\" \
                 \"$outputs/{index}.out\" && break\n  kill -0 $! 2>/dev/null || break\n  sleep 1\ndone\n\
                 grep -qFf \"$outputs/{index}.until\" \"$outputs/{index}.out\"\ncode=$?\necho \"end {index} $code\"\n\
                 [ $code -eq 0 ] || exit 1\n"
            ),
            Content::Patch { .. } => format!(
                "git apply \"$outputs/{index}.sh\" >\"$outputs/{index}.out\" 2>&1\ncode=$?\n\
                 echo \"end {index} $code\"\n[ $code -eq 0 ] || exit 1\n"
            ),
            Content::Commands { .. } | Content::Output { .. } => continue,
        };
        // Writing to a string does not fail.
        let _ = write!(script, "\n# {}:{}\necho 'begin {index}'\n{run}", page.path, block.line);
    }
    script
}
