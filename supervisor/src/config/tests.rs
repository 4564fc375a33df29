use super::*;
use std::io::Write;
use worker_orcd_cli::outgoing::Url;

fn gather(flags: &[&str], variables: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
    let command = sources::arguments(clap::Command::new("worker-orcd"));
    let words = std::iter::once("worker-orcd").chain(flags.iter().copied());
    let matches = command.try_get_matches_from(words).unwrap();
    Config::gather(&matches, &environment(variables))
}

fn environment(variables: &[(&str, &str)]) -> Environment {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    variables.iter().map(owned).collect()
}

fn errors(flags: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
    gather(flags, variables).unwrap_err().0
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Any readable file: the supervisor does not parse it.
const MODEL: [&str; 2] = ["--model", "/dev/null"];

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    let toml = file("port = 1000\nmax-queue = 3\nmax-running = 5\nmodel = \"/dev/null\"\n");
    let path = toml.path().to_str().unwrap();
    let config = gather(
        &["--config", path, "--port", "3000"],
        &[("WORKER_ORCD_PORT", "2000"), ("WORKER_ORCD_MAX_QUEUE", "4")],
    )
    .unwrap();
    assert_eq!(config.http.port, 3000);
    assert_eq!(config.life.max_queue, 4);
    assert_eq!(config.load.max_running, 5);
    assert_eq!(config.limits.max_tokens_out, None);
}

#[test]
fn all_mistakes_of_all_sources_are_told_at_once_by_their_names() {
    let toml = file("max-runing = 5\nprefill-chunk = 0\n");
    let path = toml.path().to_str().unwrap();
    let errors = errors(
        &[
            "--config",
            path,
            "--device",
            "tpu",
            "--kv-cache-size",
            "much",
        ],
        &[("WORKER_ORCD_PORT", "70000")],
    );
    let all = errors.join("\n");
    for part in [
        "`max-runing` in",
        "`prefill-chunk` in",
        "--device:",
        "--kv-cache-size:",
    ] {
        assert!(all.contains(part), "{part} is not in:\n{all}");
    }
    assert!(all.contains("WORKER_ORCD_PORT:") && all.contains("--model (or WORKER_ORCD_MODEL)"));
    assert_eq!(errors.len(), 6, "{all}");
}

#[test]
fn a_callback_from_every_address_needs_one_that_can_be_called() {
    let callback = ["--insecure", "--callback-url", "http://localhost:1/r"];
    let flags = |more: &[&'static str]| [&MODEL[..], &callback[..], more].concat();
    let why = errors(&flags(&["--host", "0.0.0.0"]), &[]);
    assert_eq!(why.len(), 1, "{why:?}");
    assert!(why[0].contains("--advertise-url"), "{why:?}");
    let advertised = gather(
        &flags(&["--host", "0.0.0.0", "--advertise-url", "http://gpu-1:8080/"]),
        &[],
    );
    let advertised = advertised.unwrap().advertise_url;
    assert_eq!(advertised.as_deref(), Some("http://gpu-1:8080"));
    assert!(gather(&flags(&[]), &[]).is_ok());
}

#[test]
fn gpu_device_is_another_name_for_cuda_and_contradictions_are_refused() {
    let device =
        |flags: &[&str]| gather(&[&MODEL, flags].concat(), &[]).map(|config| config.device);
    assert_eq!(device(&[]), Ok(DeviceChoice::Auto));
    assert_eq!(device(&["--gpu-device", "2"]), Ok(DeviceChoice::cuda(2)));
    assert_eq!(
        device(&["--gpu-device", "2", "--device", "cuda:2"]),
        Ok(DeviceChoice::cuda(2))
    );
    assert!(device(&["--gpu-device", "2", "--device", "cpu"]).is_err());
}

#[test]
fn sockets_that_are_handed_over_need_a_key_beyond_loopback_and_no_host_beside_them() {
    let http = |flags: &[&str]| gather(&[&MODEL[..], flags].concat(), &[]).unwrap().http;
    let listen_at = |flags: &[&str], address: &str| {
        let mut http = http(flags);
        let refused = http.listen_at(&[address.parse().unwrap()]).err();
        (refused.unwrap_or_default(), http.is_loopback_only())
    };
    assert_eq!(listen_at(&[], "[::1]:80"), (String::new(), true));
    let (refused, _) = listen_at(&[], "10.0.0.1:80");
    assert!(refused.contains("--api-key-file"), "{refused}");
    let open = listen_at(&["--insecure"], "10.0.0.1:80");
    assert_eq!(open, (String::new(), false));
    for (name, value) in [("--host", "localhost"), ("--port", "8080")] {
        let (refused, _) = listen_at(&[name, value], "127.0.0.1:80");
        assert!(refused.starts_with(name), "{refused}");
    }
}

#[test]
fn hosts_add_up_and_an_api_key_file_must_hold_a_key() {
    let keys = file("first\n\n  second \n");
    let path = keys.path().to_str().unwrap();
    let flags = [
        "--host",
        "127.0.0.1",
        "--host",
        "::1",
        "--api-key-file",
        path,
    ];
    let config = gather(&[&MODEL[..], &flags].concat(), &[]).unwrap();
    assert_eq!(config.http.hosts.len(), 2);
    let localhost = gather(&[&MODEL[..], &["--host", "localhost"]].concat(), &[]).unwrap();
    assert!(localhost.http.hosts.is_empty(), "both loopbacks");
    assert_eq!(config.http.keys.clients, ["first", "second"]);

    let empty = file("\n");
    let path = empty.path().to_str().unwrap();
    assert!(errors(&[&MODEL[..], &["--api-key-file", path]].concat(), &[])[0].contains("no key"));
    let missing = errors(&[&MODEL[..], &["--api-key-file", "/nowhere"]].concat(), &[]);
    assert!(missing[0].contains("cannot be read"), "{missing:?}");
}

#[test]
fn threads_are_refused_where_they_would_be_ignored() {
    let with = |device| {
        gather(
            &[&MODEL[..], &["--threads", "2", "--device", device]].concat(),
            &[],
        )
    };
    assert_eq!(with("cpu").unwrap().load.threads, Some(2));
    assert_eq!(with("auto").unwrap().load.threads, Some(2));
    let refused = errors(
        &[&MODEL[..], &["--threads", "2", "--device", "cuda:1"]].concat(),
        &[],
    );
    assert!(
        refused[0].contains("--threads") && refused[0].contains("cuda:1"),
        "{refused:?}"
    );
}

#[test]
fn a_share_of_device_memory_is_refused_where_it_would_be_ignored() {
    let share = ["--gpu-memory-utilization", "0.45"];
    let with = |more: &[&str]| gather(&[&MODEL[..], &share, more].concat(), &[]);
    for device in ["auto", "cuda:0"] {
        let config = with(&["--device", device]).unwrap();
        assert_eq!(config.load.memory_permille, Some(450));
    }
    assert_eq!(gather(&MODEL, &[]).unwrap().load.memory_permille, None);
    for (more, words) in [
        (["--device", "cpu"], "cpu"),
        (["--kv-cache-size", "1GiB"], "--kv-cache-size"),
    ] {
        let refused = errors(&[&MODEL[..], &share, &more].concat(), &[]);
        assert!(
            refused[0].contains("--gpu-memory-utilization") && refused[0].contains(words),
            "{refused:?}"
        );
    }
}

#[test]
fn a_step_budget_is_a_time_that_a_step_could_take() {
    let with = |text: &str| gather(&[&MODEL[..], &["--step-budget", text]].concat(), &[]);
    for (text, us) in [("20ms", 20_000), ("0.1ms", 100), ("1s", 1_000_000)] {
        assert_eq!(with(text).unwrap().load.step_budget_us, Some(us));
    }
    assert_eq!(gather(&MODEL, &[]).unwrap().load.step_budget_us, None);
    for text in ["0", "0ms", "0.05ms", "1.1s", "20", "-1ms", "soon"] {
        let why = with(text).unwrap_err().0;
        assert!(why[0].contains("--step-budget"), "{why:?}");
    }
}

#[test]
fn a_trace_must_be_writable() {
    let trace = file("");
    let path = trace.path().to_str().unwrap();
    let config = gather(&[&MODEL[..], &["--trace-logits", path]].concat(), &[]).unwrap();
    assert_eq!(config.load.trace.unwrap().path, trace.path());
    let nowhere = ["--trace-logits", "/no/such/folder/trace"];
    let refused = errors(&[&MODEL[..], &nowhere].concat(), &[]);
    assert!(
        refused[0].contains("/no/such/folder/trace cannot be written"),
        "{refused:?}"
    );
}

#[test]
fn a_trace_is_of_one_device() {
    let trace = file("");
    let path = trace.path().to_str().unwrap();
    let traced = |device| [&MODEL[..], &["--trace-logits", path, "--device", device]].concat();
    for several in ["cpu,cpu", "cuda:0,cuda:1", "all"] {
        let refused = errors(&traced(several), &[]);
        assert!(
            refused.len() == 1 && refused[0].contains("--trace-logits needs one device"),
            "{refused:?}"
        );
    }
    for one in ["cpu", "cuda:1", "auto"] {
        assert!(gather(&traced(one), &[]).is_ok(), "{one}");
    }
}

#[test]
fn a_trace_and_drafts_exclude_each_other() {
    let trace = file("");
    let path = trace.path().to_str().unwrap();
    let with = |source| {
        [
            &MODEL[..],
            &["--trace-logits", path, "--speculation", source],
        ]
        .concat()
    };
    assert!(gather(&with("off"), &[]).is_ok());
    for (source, message) in [
        (
            "text",
            "steps with drafts compute more; set --speculation to off",
        ),
        ("words", "\"words\" is neither off, text nor auto"),
    ] {
        let refused = errors(&with(source), &[]);
        assert!(
            refused.len() == 1 && refused[0].contains(message),
            "{refused:?}"
        );
    }
}

#[test]
fn a_draft_model_drafts_unless_that_is_contradicted() {
    let with = |more: &[&'static str]| {
        let flags = [&MODEL[..], &["--draft-model", "/dev/null"], more].concat();
        gather(&flags, &[])
    };
    for more in [&[][..], &["--speculation", "auto"]] {
        let config = with(more).unwrap();
        assert_eq!(config.draft_model, Some("/dev/null".into()));
        assert_eq!(config.load.speculation, Speculation::Auto);
    }
    let without = gather(&MODEL, &[]).unwrap();
    assert_eq!(without.draft_model, None);
    assert_eq!(without.load.speculation, Speculation::Off);
    for (more, message) in [
        (&["--speculation", "off"][..], "set it to auto"),
        (&["--speculation", "text"], "set it to auto"),
        (
            &["--device", "cpu", "--trace-logits", "/dev/null"],
            "leave out --draft-model",
        ),
    ] {
        let refused = with(more).unwrap_err().0;
        assert!(
            refused.len() == 1 && refused[0].contains(message),
            "{refused:?}"
        );
    }
}

#[test]
fn callback_urls() {
    let parse = |text| Url::parse(text).map(|url| (url.authority, url.path));
    let ok = |authority: &str, path: &str| Ok((authority.to_owned(), path.to_owned()));
    assert_eq!(parse("http://a.b/c?d=e"), ok("a.b:80", "/c?d=e"));
    assert_eq!(parse("http://127.0.0.1:99"), ok("127.0.0.1:99", "/"));
    assert_eq!(parse("http://[::1]/x"), ok("[::1]:80", "/x"));
    assert_eq!(parse("https://a.b/"), ok("a.b:443", "/"));
    for (url, host) in [
        ("https://a.b/", Some("a.b")),
        ("https://a.b:8443/c", Some("a.b")),
        ("https://[::1]:99", Some("::1")),
        ("https://[::1]", Some("::1")),
        ("http://a.b", None),
    ] {
        let name = Url::parse(url).unwrap().tls;
        assert_eq!(name.map(|it| it.to_str().into_owned()).as_deref(), host);
    }
    assert!(parse("https://a_b!/").is_err());
    assert!(parse("ftp://a.b/").is_err());
    assert!(parse("http:///x").is_err());
    assert!(parse("http://a b/").is_err());
}

#[test]
fn a_model_that_is_neither_file_nor_name_is_refused() {
    let errors = errors(&["--model", "/nowhere.gguf"], &[]);
    assert!(errors[0].contains("/nowhere.gguf"), "{errors:?}");
}

#[test]
fn every_option_can_be_written_as_flag_and_none_is_listed_twice() {
    let command = sources::arguments(clap::Command::new("worker-orcd"));
    command.debug_assert();
}

#[test]
fn crash_reports_are_kept_where_the_flag_or_the_environment_says() {
    let state = ("STATE_DIRECTORY", "/var/lib/worker");
    let config = gather(&MODEL, &[state]).unwrap();
    let directory = config.crashes.directory.unwrap();
    assert_eq!(directory, PathBuf::from("/var/lib/worker/crashes"));
    assert_eq!(config.crashes.max_reports, 50);
    let flags = [
        &MODEL[..],
        &["--crash-dir", "/tmp/here", "--max-crash-reports", "2"],
    ]
    .concat();
    let config = gather(&flags, &[state]).unwrap();
    assert_eq!(config.crashes.directory, Some(PathBuf::from("/tmp/here")));
    assert_eq!(config.crashes.max_reports, 2);
    assert_eq!(gather(&MODEL, &[]).unwrap().crashes.directory, None);
}

#[test]
fn a_clients_key_is_not_the_operators() {
    let (clients, admins) = (file("one\ntwo\n"), file("boss\n two\n"));
    let name = |file: &tempfile::NamedTempFile| file.path().to_str().unwrap().to_owned();
    let (clients, both) = (name(&clients), name(&admins));
    let with = |more: &[&str]| gather(&[&MODEL[..], more].concat(), &[]);
    let alone = with(&["--admin-key-file", &both]).unwrap().http.keys;
    assert_eq!((alone.clients.len(), alone.admins.len()), (0, 2));
    let refused = with(&["--api-key-file", &clients, "--admin-key-file", &both])
        .unwrap_err()
        .0;
    assert_eq!(refused.len(), 1, "{refused:?}");
    for word in ["--admin-key-file", "--api-key-file"] {
        assert!(refused[0].contains(word), "{refused:?}");
    }
    assert!(!refused[0].contains("two"), "{refused:?}");
}

#[test]
fn an_admin_socket_needs_a_place_that_can_hold_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("file"), "").unwrap();
    for (path, word) in [
        (at("absent/admin"), "no directory"),
        (at("file"), "no socket"),
        (at("file/admin"), "no directory"),
        (at(&"x".repeat(108)), "no path of a socket"),
    ] {
        let refused = errors(&[&MODEL[..], &["--admin-socket", &path]].concat(), &[]);
        assert!(refused[0].contains(word), "{refused:?}");
    }
    let path = at("admin");
    let config = gather(&[&MODEL[..], &["--admin-socket", &path]].concat(), &[]).unwrap();
    assert_eq!(config.http.admin_socket, Some(PathBuf::from(path)));
}

#[test]
fn sockets_of_another_supervisor_are_taken_only_where_they_are_asked_for() {
    let asks_for = |flags: &[&str], addresses: &[&str]| {
        let flags = [flags, &MODEL, &["--insecure"]].concat();
        let addresses: Vec<_> = addresses.iter().map(|it| it.parse().unwrap()).collect();
        gather(&flags, &[]).unwrap().http.asks_for(&addresses)
    };
    let both = ["127.0.0.1:8080", "[::1]:8080"];
    assert!(asks_for(&[], &both));
    assert!(asks_for(&["--port", "0"], &both));
    assert!(asks_for(&["--host", "::1,127.0.0.1"], &both));
    for flags in [
        &["--port", "9090"][..],
        &["--host", "127.0.0.1"],
        &["--host", "0.0.0.0"],
    ] {
        assert!(!asks_for(flags, &both), "{flags:?}");
    }
    assert!(!asks_for(&[], &[]), "none were left");
    assert!(!asks_for(&[], &["10.0.0.1:8080"]));
}
