//! The judge's entrant `ours` with one part replaced: `RELAY_MISTAKE` is the flaw's name.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    flawed_services::run_relay().await
}
