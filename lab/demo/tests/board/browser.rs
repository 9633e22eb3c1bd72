//! A headless Chromium, driven over the WebDriver protocol (<https://www.w3.org/TR/webdriver2/>).

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::{eventually, guard::GuardedProcess};
use tokio::{io::AsyncWriteExt as _, process::Command};

const DEADLINE: Duration = Duration::from_secs(90);
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

/// The key under which the protocol names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

pub(crate) struct Browser {
    client: reqwest::Client,
    /// With the session.
    url: String,
    /// With the browser, which is in its process group.
    _driver: GuardedProcess,
}

impl Browser {
    /// Starts one that shows a page in the size of a projector.
    pub(crate) async fn start(page: &str) -> Result<Self> {
        let port = testbed::free_port()?;
        let mut command = std::process::Command::new("chromedriver");
        command.arg(format!("--port={port}"));
        let driver = GuardedProcess::spawn(&command, Path::new("/dev/null"))
            .context("failed to start chromedriver: `apt-get install -y chromium-driver`")?;
        let client = reqwest::Client::builder().no_proxy().timeout(REQUEST_DEADLINE).build()?;
        let capabilities = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": { "args": [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
            "--hide-scrollbars",
        ] } } } });
        let session = eventually("the browser", DEADLINE, async || {
            let answer =
                client.post(format!("http://127.0.0.1:{port}/session")).json(&capabilities).send().await?;
            let answer: Value = answer.json().await?;
            let id = answer["value"]["sessionId"].as_str().with_context(|| answer.to_string())?;
            Ok(Some(id.to_owned()))
        })
        .await?;
        let url = format!("http://127.0.0.1:{port}/session/{session}");
        let browser = Self { client, url, _driver: driver };
        // Without the window around the page.
        let size = json!({ "width": 1280, "height": 720, "deviceScaleFactor": 1, "mobile": false });
        browser.devtools("Emulation.setDeviceMetricsOverride", size).await?;
        browser.open(page).await?;
        Ok(browser)
    }

    async fn command(&self, path: &str, body: Value) -> Result<Value> {
        let answer = self.client.post(format!("{}/{path}", self.url)).json(&body).send().await?;
        let (status, mut answer) = (answer.status(), answer.json::<Value>().await?);
        ensure!(status.is_success(), "{path}: {answer}");
        Ok(answer["value"].take())
    }

    pub(crate) async fn open(&self, url: &str) -> Result<()> {
        self.command("url", json!({ "url": url })).await.map(drop)
    }

    /// Runs JavaScript, and returns what it returns.
    pub(crate) async fn run(&self, script: &str) -> Result<Value> {
        self.command("execute/sync", json!({ "script": script, "args": [] })).await
    }

    /// Waits until an element is on the page.
    pub(crate) async fn see(&self, what: &str, selector: &str) -> Result<()> {
        self.until(what, &format!("document.querySelector('{selector}')")).await
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&self, what: &str, expression: &str) -> Result<()> {
        self.until_within(what, expression, DEADLINE).await
    }

    pub(crate) async fn until_within(&self, what: &str, expression: &str, deadline: Duration) -> Result<()> {
        eventually(what, deadline, async || {
            Ok((self.run(&format!("return Boolean({expression})")).await? == json!(true)).then_some(()))
        })
        .await
    }

    async fn devtools(&self, command: &str, parameters: Value) -> Result<()> {
        self.command("goog/cdp/execute", json!({ "cmd": command, "params": parameters })).await.map(drop)
    }

    async fn element(&self, selector: &str) -> Result<String> {
        let found = self.command("element", json!({ "using": "css selector", "value": selector })).await?;
        Ok(found[ELEMENT].as_str().with_context(|| format!("no element {selector}"))?.to_owned())
    }

    pub(crate) async fn click(&self, selector: &str) -> Result<()> {
        let element = self.element(selector).await?;
        self.command(&format!("element/{element}/click"), json!({})).await.map(drop)
    }

    pub(crate) async fn focus(&self, selector: &str) -> Result<()> {
        self.run(&format!("document.querySelector('{selector}').focus()")).await.map(drop)
    }

    /// Presses a key where the focus is.
    pub(crate) async fn press(&self, key: &str) -> Result<()> {
        let keys = json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        let actions = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": keys }] });
        self.command("actions", actions).await.map(drop)
    }

    /// With `BOARD_SCREENSHOTS=docs/pictures`, renews the pictures of the docs, light and dark. `top` is the element that they
    /// begin with.
    pub(crate) async fn take_pictures(&self, name: &str, top: &str) -> Result<()> {
        let Some(folder) = std::env::var_os("BOARD_SCREENSHOTS") else { return Ok(()) };
        let folder = testbed::workspace_root().context("no checkout")?.join(folder);
        self.run(&format!("document.querySelector('{top}').scrollIntoView()")).await?;
        for scheme in ["dark", "light"] {
            self.prefer(scheme).await?;
            self.screenshot(&folder.join(format!("{name}-{scheme}.png"))).await?;
        }
        self.run("scrollTo(0, 0)").await.map(drop)
    }

    /// Shows the page as on a machine whose user prefers `light` or `dark` pages.
    async fn prefer(&self, scheme: &str) -> Result<()> {
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", media).await
    }

    /// Writes what the window shows as a PNG file.
    async fn screenshot(&self, file: &Path) -> Result<()> {
        let answer = self.client.get(format!("{}/screenshot", self.url)).send().await?;
        let answer: Value = answer.json().await?;
        let picture = answer["value"].as_str().context("no picture")?;
        let mut decoder = Command::new("base64");
        decoder.arg("-d").stdin(Stdio::piped()).stdout(std::fs::File::create(file)?);
        let mut decoder = decoder.spawn()?;
        decoder.stdin.take().context("no input")?.write_all(picture.as_bytes()).await?;
        ensure!(decoder.wait().await?.success(), "failed to decode a picture");
        Ok(())
    }

    pub(crate) async fn text(&self, selector: &str) -> Result<String> {
        let text = self.run(&format!("return document.querySelector('{selector}').textContent")).await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }
}
