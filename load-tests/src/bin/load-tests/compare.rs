//! Runs the benchmarks of two builds alternately.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::{
    benchmark::Benchmark,
    comparison::{BUILDS, Comparison},
    setup::Setup,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directory with the old build's executables, `load-tests` and the services.
    #[arg(long, value_name = "DIR")]
    old: PathBuf,
    /// Directory with the new build's executables.
    #[arg(long, value_name = "DIR")]
    new: PathBuf,
    /// Checkout of the old build, with its migrations and statements [default: the one around its directory, else the
    /// current one]
    #[arg(long, value_name = "DIR")]
    old_source: Option<PathBuf>,
    /// Checkout of the new build [default: likewise]
    #[arg(long, value_name = "DIR")]
    new_source: Option<PathBuf>,
    /// How often each benchmark of each build is run.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Benchmarks, each with its own options in quotes, for example `relay 'latency --rate 600'` [default: all]
    #[arg(value_parser = line)]
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

/// A run ends by itself at the benchmark's own deadline. This is added for starting and stopping.
const START_AND_STOP: Duration = Duration::from_secs(120);

/// One build's executables, and the checkout that they belong to.
struct Executables {
    /// An index of [`BUILDS`].
    build: usize,
    dir: PathBuf,
    source: PathBuf,
}

/// Runs all benchmarks of both builds, and prints the comparison. A run that fails does not keep the others from running.
pub(crate) async fn run(options: &Options, setup: &Setup, json: bool) -> Result<()> {
    let builds = [
        Executables::find(0, &options.old, options.old_source.as_deref())?,
        Executables::find(1, &options.new, options.new_source.as_deref())?,
    ];
    let all = crate::benchmark::ALL.map(|(line, _)| line.to_owned());
    let lines = if options.benchmarks.is_empty() { &all[..] } else { &options.benchmarks };
    let (mut comparison, mut failed) = (Comparison::default(), Vec::new());
    for round in 1..=options.rounds {
        for line in lines {
            // The second build of a pair may find the machine in another state: the builds take turns at being it.
            let [first, second] = if round % 2 == 1 { [0, 1] } else { [1, 0] };
            for executables in [&builds[first], &builds[second]] {
                let build = BUILDS[executables.build];
                let (start, what) =
                    (Instant::now(), format!("round {round} of {}: {build} {line}", options.rounds));
                eprintln!("{what}");
                let output = executables.run(line, setup).await;
                let added = output.and_then(|output| comparison.add(line, executables.build, round, &output));
                if let Err(error) = added {
                    eprintln!("{what} failed: {error:#}");
                    failed.push(format!("{build} {line} in round {round}"));
                }
                eprintln!("{what}: {:.1} s", start.elapsed().as_secs_f64());
            }
        }
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&comparison.json())?);
    } else {
        println!("{comparison}");
    }
    ensure!(failed.is_empty(), "{} runs failed: {}", failed.len(), failed.join(", "));
    Ok(())
}

impl Executables {
    fn find(build: usize, dir: &Path, source: Option<&Path>) -> Result<Self> {
        let name = BUILDS[build];
        let found = dir.canonicalize().with_context(|| format!("failed to find {}", dir.display()));
        let dir = found.with_context(|| format!("failed to find the {name} build"))?;
        let program = dir.join("load-tests");
        ensure!(program.is_file(), "failed to find the {name} build: there is no {}", program.display());
        let around = || dir.ancestors().find(|dir| dir.join(".sqlx").is_dir()).map(Path::to_owned);
        let source = match source {
            Some(given) => {
                given.canonicalize().with_context(|| format!("failed to find {}", given.display()))?
            }
            None => around().or_else(testbed::workspace_root).with_context(|| {
                format!("failed to find the checkout of the {name} build: give --{name}-source")
            })?,
        };
        eprintln!("{name}: {} with the migrations and statements of {}", dir.display(), source.display());
        Ok(Self { build, dir, source })
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
        let deadline = Benchmark::parse(line)?.deadline() + START_AND_STOP;
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
    fn a_mistyped_benchmark_is_found_before_the_first_run() {
        assert_eq!(line("latency --rate 600").unwrap(), "latency --rate 600");
        assert_eq!(line("rely").unwrap_err(), "unrecognized subcommand 'rely'");
    }

    #[test]
    fn a_directory_without_the_executable_is_no_build() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let error = Executables::find(0, dir, None).err().unwrap().to_string();
        assert!(error.contains("the old build") && error.contains("there is no"), "{error}");
    }
}
