//! `cargo demo watch`: the alerts and the dashboard, with a real Prometheus.

use anyhow::Result;

use crate::Verdict;
use crate::choice::Choice;
use crate::paths;
use crate::terminal::Terminal;
use crate::watch::Watch;

/// Starts a system and a Prometheus for it, and prints what fired after how long.
pub(crate) async fn run(choice: Choice, watch: Watch, terminal: &Terminal) -> Result<Verdict> {
    terminal.print("Claim  In a calm system no alert fires, and every query of the dashboard has data. Each alert fires under");
    terminal.print("       the fault that it is meant for, within a minute of its stated delay.");
    if watch.fast {
        terminal.print(format!(
            "       Here all delays, windows and thresholds are divided by {}.",
            watch.scale()
        ));
    }
    let Some(watched) = watch.run(choice, terminal).await? else {
        return Ok(Verdict::Interrupted);
    };
    terminal.print("");
    terminal.print(format!("  {} queries of the dashboard had data", watched.queries));
    terminal.print("");
    terminal.print("  alert                        stated     fired after");
    for fired in &watched.fired {
        let after = fired.after.map_or("not at all".to_owned(), |after| format!("{after:>7.0} s"));
        terminal.print(format!("  {:<26} {:>6.0} s     {after}", fired.alert, fired.stated));
    }
    let problems = watched.problems();
    let (verdict, reason) = match problems.first() {
        None => {
            (Verdict::Held, format!("{} alerts fired in time, and none without a fault", watched.fired.len()))
        }
        Some(first) if problems.len() == 1 => (Verdict::Broken, first.clone()),
        Some(first) => (Verdict::Broken, format!("{first}, and {} more", problems.len() - 1)),
    };
    terminal.print("");
    terminal.print_all(problems.iter().map(|problem| format!("  {problem}")));
    terminal.print_verdict(verdict, &reason);
    terminal.print(format!("Panels   {}", paths::home().join("watch/dashboard.html").display()));
    terminal.document(&serde_json::json!({ "verdict": verdict, "reason": reason, "watched": watched }))?;
    Ok(verdict)
}
