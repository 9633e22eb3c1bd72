//! Runs the benchmarks of two builds alternately.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::{
    benchmark::{self, Benchmark},
    comparison::Comparison,
    rig::Setup,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directory with the old build's executables, `load-tests` and the services. The migrations are taken from the checkout
    /// around it, else from the current one
    #[arg(long, value_name = "DIR")]
    old: PathBuf,
    /// Directory with the new build's executables
    #[arg(long, value_name = "DIR")]
    new: PathBuf,
    /// How often each benchmark of each build is run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Benchmarks, each with its own options in quotes, for example `relay 'orders --rate 600'`
    #[arg(required = true, value_parser = line)]
    benchmarks: Vec<String>,
}

/// Checks a benchmark as it is typed, so that a mistake is found before the first run and not after an hour.
fn line(line: &str) -> Result<String, String> {
    let first_line = |error: clap::Error| {
        let text = error.to_string();
        text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
    };
    Benchmark::parse(line).map(|_| line.to_owned()).map_err(first_line)
}

/// Runs all benchmarks of both builds, and prints the comparison. A run that fails does not keep the others from running.
pub(crate) async fn run(options: &Options, setup: &Setup) -> Result<()> {
    let builds = [Executables::find("old", &options.old)?, Executables::find("new", &options.new)?];
    let (mut comparison, mut failed) = (Comparison::default(), Vec::new());
    for round in 1..=options.rounds {
        for line in &options.benchmarks {
            // The second build of a pair may find the machine in another state: the builds take turns at being it.
            for build in if round % 2 == 1 { [0, 1] } else { [1, 0] } {
                let what = format!("round {round} of {}: {} {line}", options.rounds, builds[build].name);
                eprintln!("{what}");
                let output = builds[build].run(line, setup).await;
                let added = output.and_then(|output| comparison.add(line, build, round, &output));
                if let Err(error) = added {
                    eprintln!("{what} failed: {error:#}");
                    failed.push(what);
                }
            }
        }
    }
    println!("{comparison}");
    ensure!(failed.is_empty(), "{} runs failed: {}", failed.len(), failed.join(", "));
    Ok(())
}

/// One build's executables, and the checkout that they belong to.
struct Executables {
    name: &'static str,
    dir: PathBuf,
    source: PathBuf,
}

impl Executables {
    fn find(name: &'static str, dir: &Path) -> Result<Self> {
        let program = dir.join("load-tests");
        ensure!(program.is_file(), "failed to find the {name} build: there is no {}", program.display());
        let dir = dir.canonicalize()?;
        let around = dir.ancestors().find(|dir| dir.join(".sqlx").is_dir()).map(Path::to_owned);
        let source = around
            .or_else(testbed::workspace_root)
            .with_context(|| format!("failed to find the checkout of the {name} build"))?;
        eprintln!("{name}: {} with the migrations of {}", dir.display(), source.display());
        Ok(Self { name, dir, source })
    }

    /// Runs one benchmark and returns the JSON that it prints. Its progress goes to standard error.
    async fn run(&self, line: &str, setup: &Setup) -> Result<Vec<u8>> {
        let mut command = Command::new(self.dir.join("load-tests"));
        command.args(line.split_whitespace()).arg("--json");
        if setup.smoke {
            command.arg("--smoke");
        }
        for (name, value) in &setup.settings {
            command.arg("--set").arg(format!("{name}={value}"));
        }
        // `testbed` takes the checkout from the first, and with the second it starts the services as they are. Without
        // them both builds would use one checkout, and build its services first.
        command.env("CARGO_MANIFEST_DIR", &self.source).env("TESTBED_PREBUILT", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("failed to start {}", self.dir.display()))?;
        // A run ends by itself at the benchmark's own deadline; starting and stopping take more time.
        let deadline = benchmark::DEADLINE + Duration::from_secs(120);
        let output = tokio::time::timeout(deadline, child.wait_with_output()).await;
        let output = output.with_context(|| format!("failed to end within {deadline:?}"))??;
        ensure!(output.status.success(), "it ended with {}", output.status);
        Ok(output.stdout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_the_executable_is_no_build() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let error = Executables::find("old", dir).err().unwrap().to_string();
        assert!(error.contains("the old build") && error.contains("there is no"), "{error}");
    }
}
