//! Status page in a real browser, with a real worker, and a child that is killed.
//!
//! Screenshots of these tests are in `target/tmp/`.

use serde_json::json;
use std::io::Write as _;
use std::path::PathBuf;
use worker_orcd_tests::browser::Browser;
use worker_orcd_tests::{Script, Worker, wait};

fn url(worker: &Worker) -> String {
    format!("http://{}/", worker.client().address)
}

fn picture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("status-page-{name}.png"))
}

/// Resizes the window to this width; the height is the page's.
fn resize(browser: &Browser, width: u32, is_phone: bool) {
    let height = browser.run("return document.documentElement.scrollHeight");
    let metrics =
        json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone});
    browser.command("Emulation.setDeviceMetricsOverride", &metrics);
}

fn prefer(browser: &Browser, scheme: &str) {
    let feature = json!({"name": "prefers-color-scheme", "value": scheme});
    browser.command(
        "Emulation.setEmulatedMedia",
        &json!({"features": [feature]}),
    );
}

/// Requests a long story and kills its child. True if the story went on with the next one.
fn is_interrupted(browser: &Browser, worker: &Worker, death: usize) -> bool {
    let words = || browser.text("article.worker p").chars().count();
    browser.find("#forget").click();
    let wish = "Tell me a very long story of a storm at sea. <b>All of it!</b>";
    browser.find("#message").type_in(&format!("{wish}\u{e007}"));
    wait::until("the answer to begin", || {
        let is_over = browser
            .text("#chat-told")
            .contains("tokens, the first after");
        (is_over || words() > 20).then_some(())
    });
    worker.kill_child();
    let told = wait::until("the death", || {
        let deaths = browser
            .run("return [...document.querySelectorAll('#deaths li')].map((it) => it.innerText)");
        let deaths = deaths.as_array().filter(|it| it.len() == death)?.clone();
        deaths[0]
            .as_str()
            .filter(|it| it.contains("after"))
            .map(str::to_owned)
    });
    assert!(told.contains("signalled"), "{told}");
    let end = browser.wait_for("#chat-told", "tokens, the first after");
    assert!(words() > 0 && !end.starts_with('0'), "{end}");
    told.contains("1 stream")
}

#[test]
fn it_shows_state_memory_and_streams_and_a_chat_that_outlives_its_child() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let markup = "<img src=x onerror=alert(1)>";
    let worker = Worker::shallow()
        .arg("--served-model-name", markup)
        .arg("--max-tokens-out", 200)
        .start();
    browser.go(&url(&worker));
    browser.wait_for("#status", "healthy");
    let state = browser.wait_for("#state", "Child");
    assert!(
        state.contains(markup),
        "what the worker says is text: {state}"
    );
    let memory = browser.wait_for("#memory", "Weights");
    assert!(
        memory.contains("MiB") && memory.contains("KV cache, in use"),
        "{memory}"
    );
    browser.wait_for("#deaths-told", "No reports");

    // A small model may finish before its child is killed.
    let is_interrupted = (1..=5).any(|death| is_interrupted(&browser, &worker, death));
    assert!(is_interrupted, "{}", browser.text("#deaths"));
    let asked = browser.text("article.you p");
    assert!(asked.ends_with("<b>All of it!</b>"), "{asked}");
    browser.wait_for("#streams", "1 (streams resumed on another child)");
    for chart in ["tokens", "streams", "kv", "first"] {
        browser.wait_for(&format!("#chart-{chart}"), "at most");
    }
    let drawn = "return ['line', 'deaths'].map((it) => document.querySelector('path.' + it).getAttribute('d'))";
    let drawn = browser.run(drawn);
    let has = |n: usize, part| drawn[n].as_str().is_some_and(|it| it.contains(part));
    assert!(has(0, "L") && has(1, "V40"), "{drawn}");

    browser.find("#deaths summary").click();
    browser.wait_for("#deaths dl", "first token");
    browser.wait_for("#deaths pre", "flight_recorder");
    for (name, width, is_phone, scheme) in [
        ("light", 1280, false, "light"),
        ("dark", 1280, false, "dark"),
        ("phone", 390, true, "light"),
        ("phone-dark", 390, true, "dark"),
    ] {
        prefer(&browser, scheme);
        resize(&browser, width, is_phone);
        // Repeated: the height depends on the width.
        resize(&browser, width, is_phone);
        let widest = browser.run("return document.documentElement.scrollWidth");
        assert_eq!(widest, width, "it is wider than its window");
        browser.picture(&picture(name));
    }
    let size = browser.run("return getComputedStyle(document.body).backgroundColor");
    assert_eq!(size, "rgb(23, 24, 26)", "dark, where that is preferred");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn it_asks_for_a_key_where_the_worker_does_and_keeps_it_no_longer_than_the_tab() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let mut keys = tempfile::NamedTempFile::new().expect("a temporary file");
    keys.write_all(b"the-operator\na-client\n")
        .expect("it is ours");
    let worker = Worker::scripted(Script::behave())
        .arg("--api-key-file", keys.path().display())
        .arg("--max-tokens-out", 200)
        .start();
    browser.go(&url(&worker));
    browser.wait_for("#key", "API keys");
    browser.wait_for("#status", "healthy");
    let is_seen =
        "return [...document.querySelectorAll('.keyed')].map((it) => it.checkVisibility())";
    assert_eq!(
        browser.run(is_seen),
        json!([false, false, false, false, false])
    );
    browser.find("#key-input").type_in("a-guess\u{e007}");
    browser.wait_for("#key-told", "not accepted");
    browser.picture(&picture("key"));
    browser.find("#key-input").type_in("a-client\u{e007}");
    browser.wait_for("#streams", "Running");
    browser.find("#message").type_in("Hello\u{e007}");
    browser.wait_for("#chat-told", "tokens, the first after");

    browser.go(&url(&worker));
    browser.wait_for("#streams", "Running");
    assert_eq!(browser.run(is_seen), json!([true, true, true, true, true]));
    let kept =
        browser.run("return [sessionStorage.getItem('key'), localStorage.length, document.cookie]");
    assert_eq!(kept, json!(["a-client", 0, ""]));
    // Reports need the operator's key. The browser logs the refusal in any case.
    let mut others = browser.complaints();
    others.retain(|it| !(it.contains("/crashes") && it.contains("403")));
    assert_eq!(others, [""; 0]);
}

/// Pages of another site can neither embed the page nor read it.
#[test]
fn its_policy_lets_nothing_run_that_was_not_compiled_in() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let worker = Worker::scripted(Script::behave()).start();
    browser.go(&url(&worker));
    browser.wait_for("#status", "healthy");
    assert_eq!(browser.complaints(), [""; 0]);
    let _ = browser.run(
        "const script = document.createElement('script');
         try { script.textContent = 'document.title = \"mine\"'; } catch {}
         document.body.append(script);
         const picture = new Image();
         picture.src = '/health';
         document.body.append(picture);
         try { document.body.innerHTML = '<p>markup</p>'; } catch {}",
    );
    let complaints = wait::until("its complaints", || {
        let complaints = browser.complaints();
        (!complaints.is_empty()).then_some(complaints)
    });
    let complaints = complaints.join("\n");
    assert!(
        complaints.contains("TrustedHTML") || complaints.contains("require-trusted-types-for"),
        "{complaints}"
    );
    assert!(complaints.contains("img-src"), "{complaints}");
    assert_ne!(browser.run("return document.title"), "mine");
    browser.wait_for("#status", "healthy");
}

/// A proxy responds in place of the worker.
#[test]
fn it_goes_on_where_crashes_and_metrics_are_blocked() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let worker = Worker::scripted(Script::behave()).start();
    browser.go(&url(&worker));
    browser.wait_for("#deaths-told", "No reports");
    let _ = browser.run(
        "const ask = window.fetch;
         window.fetch = (path, options) => path.startsWith('/crashes')
             ? Promise.resolve(new Response('{}', {status: 403}))
             : path.startsWith('/metrics') ? Promise.reject(new Error('blocked')) : ask(path, options);",
    );
    worker.replace_child();
    let told = browser.wait_for("#deaths-told", "/crashes: status 403");
    assert!(told.contains("signalled"), "{told}");
    browser.wait_for("#state", "number 2");
    browser.wait_for("#status", "healthy");
    browser.wait_for("#chart-streams", "at most");
    let marks = browser.run("return document.querySelector('path.deaths').getAttribute('d')");
    assert!(
        marks.as_str().is_some_and(|it| it.contains("V40")),
        "{marks}"
    );
}

#[test]
fn it_says_so_when_the_worker_is_gone() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let worker = Worker::scripted(Script::behave()).start();
    browser.go(&url(&worker));
    browser.wait_for("#status", "healthy");
    let icon = || browser.run("return document.querySelector('#icon').getAttribute('href')");
    let healthy = icon();
    assert!(
        healthy
            .as_str()
            .is_some_and(|it| it.starts_with("data:image/svg+xml,")),
        "{healthy}"
    );
    drop(worker);
    browser.wait_for("#status", "does not answer");
    assert_ne!(icon(), healthy);
    assert_eq!(
        browser.run("return document.title"),
        "does not answer \u{2013} worker-orcd"
    );
}
