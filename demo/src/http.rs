//! The little HTTP that the demo speaks itself.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

const ANSWER_WITHIN: Duration = Duration::from_secs(5);

const ADMIN_WITHIN: Duration = Duration::from_secs(40);

pub(crate) fn client() -> Result<reqwest::Client> {
    // Everything is on this machine: a proxy could only be in the way.
    Ok(reqwest::Client::builder().no_proxy().timeout(ANSWER_WITHIN).build()?)
}

/// The body of a page.
pub(crate) async fn get(url: &str) -> Result<String> {
    let answer = client()?.get(url).send().await.with_context(|| format!("{url} does not answer"))?;
    let (status, body) = (answer.status(), answer.text().await?);
    if !status.is_success() {
        bail!("{url} answers {status}: {body}");
    }
    Ok(body)
}

/// A question to a service's operators' door, and its answer: the status and the body. With a body it is a POST.
pub(crate) async fn ask_admin(url: &str, token: &str, body: Option<&str>) -> Result<(u16, String)> {
    let request = match body {
        None => client()?.get(url),
        Some(body) => client()?.post(url).header("content-type", "application/json").body(body.to_owned()),
    };
    // A replay of many works for longer than a page takes to render.
    let request = request.bearer_auth(token).header("x-operator", "demo").timeout(ADMIN_WITHIN);
    let answer = request.send().await.with_context(|| format!("{url} does not answer"))?;
    Ok((answer.status().as_u16(), answer.text().await?))
}

/// A counter on a Prometheus page, summed over its labels. A counter that was never raised is not on the page: on a
/// page that could be read, absent means zero.
pub(crate) fn counter(page: &str, name: &str) -> u64 {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let ours = rest.starts_with(['{', ' ']);
        ours.then(|| rest.rsplit(' ').next()?.parse::<u64>().ok()).flatten()
    };
    page.lines().filter_map(value).sum()
}

#[cfg(test)]
mod tests {
    use super::counter;

    #[test]
    fn a_counter_is_summed_over_its_labels_and_not_confused_with_a_longer_name() {
        let page = "# TYPE hits counter\nhits{kind=\"a b\"} 3\nhits{kind=\"c\"} 4\nhits_total 50\nhits 1\n";
        assert_eq!(counter(page, "hits"), 8);
        assert_eq!(counter(page, "misses"), 0);
    }
}
