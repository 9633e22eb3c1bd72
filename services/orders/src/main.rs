use std::process::ExitCode;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    orders::run(service::Product, |routes, _, _| Ok(routes)).await
}
