//! Headless browser, driven through W3C's WebDriver: a separate program takes JSON over HTTP.

use crate::{Client, wait};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::{fs, io, thread};

/// Key of element references in WebDriver.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Chromium in a session of its own, which ends on drop.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    client: Client,
    session: String,
    /// Process of the browser.
    pid: Option<Pid>,
}

/// Element of the page.
#[derive(Debug)]
pub struct Element<'a> {
    browser: &'a Browser,
    id: String,
}

impl Browser {
    /// Starts a browser; prints a notice and returns `None` where there is none.
    #[must_use]
    pub fn open() -> Option<Self> {
        let spawned = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut driver = match spawned {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                eprintln!("SKIPPED: no browser (Debian: chromium, chromium-driver)");
                return None;
            }
            spawned => spawned.expect("chromedriver starts"),
        };
        let mut lines = BufReader::new(driver.stdout.take().expect("piped")).lines();
        let port = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, port) = line.rsplit_once("successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let port: u16 = port.expect("it says on which port it listens");
        // The program blocks when its output is not read.
        thread::spawn(move || lines.for_each(drop));
        let mut browser = Self {
            driver,
            client: Client::new((Ipv4Addr::LOCALHOST, port).into()),
            session: String::new(),
            pid: None,
        };
        let options = json!({
            // Tests may run as root, in a container with a small /dev/shm.
            "args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        });
        let wanted = json!({
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        });
        let asked = json!({"capabilities": {"alwaysMatch": wanted}});
        let begun = browser.ask("POST", "/session", &asked);
        let session = begun["sessionId"].as_str().expect("a session");
        browser.session = format!("/session/{session}");
        let pid = begun["capabilities"]["goog:processID"].as_i64();
        browser.pid = pid.and_then(|it| Some(Pid::from_raw(it.try_into().ok()?)));
        Some(browser)
    }

    pub fn go(&self, url: &str) {
        self.post("/url", &json!({"url": url}));
    }

    /// Return value of a script.
    #[must_use]
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// First element of a CSS selector, once it exists.
    #[must_use]
    pub fn find(&self, selector: &str) -> Element<'_> {
        let id = wait::until(selector, || {
            let asked = json!({"using": "css selector", "value": selector});
            let found = self.post("/elements", &asked);
            Some(found[0][ELEMENT].as_str()?.to_owned())
        });
        Element { browser: self, id }
    }

    /// Visible text at `selector`.
    #[must_use]
    pub fn text(&self, selector: &str) -> String {
        let selector = json!(selector);
        let script = format!("return document.querySelector({selector})?.innerText ?? ''");
        self.run(&script).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the text at `selector` contains `part`.
    pub fn wait_for(&self, selector: &str, part: &str) -> String {
        wait::until(&format!("{part:?} at {selector}"), || {
            Some(self.text(selector)).filter(|text| text.contains(part))
        })
    }

    /// Console messages: script errors, and violations of the page's policy.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let said = self.post("/se/log", &json!({"type": "browser"}));
        let entries = said.as_array().into_iter().flatten();
        let text = |entry: &Value| entry["message"].as_str().unwrap_or_default().to_owned();
        entries.map(text).collect()
    }

    /// Sends a command of the Chrome DevTools protocol.
    pub fn command(&self, name: &str, parameters: &Value) {
        self.post(
            "/goog/cdp/execute",
            &json!({"cmd": name, "params": parameters}),
        );
    }

    /// Saves a screenshot of the whole page.
    pub fn picture(&self, path: &Path) {
        let parameters = json!({"captureBeyondViewport": true, "format": "png"});
        let asked = json!({"cmd": "Page.captureScreenshot", "params": parameters});
        let picture = self.post("/goog/cdp/execute", &asked);
        let picture = picture["data"].as_str().expect("a picture");
        let bytes = BASE64_STANDARD.decode(picture).expect("of base64");
        fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("{}{path}", self.session), body)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let answer = self.client.try_request(method, path, &[], body.as_bytes());
        let answer = answer.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()["value"].take()
    }
}

impl Element<'_> {
    pub fn click(&self) {
        self.post("click", &json!({}));
    }

    /// Types text. `\u{e007}` is the Enter key.
    pub fn type_in(&self, text: &str) {
        self.post("value", &json!({"text": text}));
    }

    fn post(&self, what: &str, body: &Value) {
        let path = format!("/element/{}/{what}", self.id);
        let _ = self.browser.post(&path, body);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Deleting the session ends the browser, unless it hangs.
        let asked = self.client.try_request("DELETE", &self.session, &[], &[]);
        let is_ended = asked.is_ok_and(|answer| answer.status == 200);
        if let Some(pid) = self.pid.filter(|_| !is_ended) {
            let _ = kill(pid, Signal::SIGKILL);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
