//! Unit under a real systemd. Prints the missing prerequisites of a machine.

use worker_orcd_tests::model::real_model;
use worker_orcd_tests::systemd::{Life, Stay, lack};
use worker_orcd_tests::worker::binary;

/// Unit with this machine's paths, and short times.
fn service(device: &str) -> String {
    let (worker, child) = (
        binary("tested-worker-orcd"),
        binary("tested-worker-orcd-gpu"),
    );
    let (worker, child, model) = (worker.display(), child.display(), real_model());
    format!(
        "ExecStart=\nExecStart={worker} --model {} --device {device} --child-binary {child} \
         --log-format json\nWatchdogSec=5s\nRestartSec=100ms\n",
        model.display()
    )
}

/// `data:` lines of tokens in these streams, in order.
fn tokens(life: &Life, names: &[&str]) -> Vec<String> {
    let text: String = names.iter().map(|name| life.read(name)).collect();
    let lines = text.lines().filter(|line| line.starts_with("data: {\"t\""));
    lines.map(str::to_owned).collect()
}

#[test]
fn the_unit_is_ready_when_it_serves_and_outlives_its_child_and_its_supervisor() {
    if let Some(lack) = lack() {
        println!("SKIPPED: {lack}");
        return;
    }
    let stay = Stay {
        script: "life.sh",
        service: service("cpu"),
        variables: String::new(),
        seconds: 900,
    };
    let life = stay.live();
    println!("{}", life.read("log"));
    let said = &life.said;
    let line = |moment: &str| {
        let mut lines = said.iter().filter_map(|it| it.strip_prefix(moment));
        lines
            .next()
            .unwrap_or_else(|| panic!("{moment}"))
            .to_owned()
    };
    let is = |moment: &str, facts: &str| {
        let line = line(moment);
        assert!(line.starts_with(&format!(": {facts}")), "{moment}{line}");
    };
    is("started", "active=active restarts=0 result=success");
    is(
        "served",
        "active=active restarts=0 result=success status=serving: ",
    );
    let confined = line("confined");
    for fact in [
        "CapBnd: 0000000000000000",
        "NoNewPrivs: 1",
        "Seccomp: 2",
        "; 2 users",
    ] {
        assert!(confined.contains(fact), "{confined}");
    }
    is("child-killed", "active=active restarts=0 result=success");
    assert!(line("child-killed").contains("killed by signal 9"));
    is("supervisor-stopped", "active=active restarts=1");
    assert_eq!(line("between"), ": 200", "its socket outlives a supervisor");
    is("supervisor-killed", "active=active restarts=2");
    assert_eq!(line("stored"), ": 1", "what it would leave");
    is("upgraded", "active=active restarts=2");
    let calm = tokens(&life, &["calm"]);
    assert_eq!(calm.len(), 200);
    assert_eq!(tokens(&life, &["killed", "killed-rest"]), calm);
    assert!(!life.read("killed-rest").contains("event: started"));
    assert_eq!(tokens(&life, &["upgraded"]), calm);
    is("upgraded-and-killed", "active=active restarts=3");
    assert_eq!(line("stored then"), ": 1", "one bundle in place of another");
    assert_eq!(tokens(&life, &["again", "again-rest"]), calm);
    let restored = life.read("log");
    let mut restored = restored
        .lines()
        .filter(|line| line.contains("requests_restored"));
    let kept = |line: &str| line.contains("\"weights_kept\":true");
    assert!(restored.next().is_some_and(kept) && restored.next().is_some_and(kept));
    let stream = life.read("stream");
    assert!(stream.contains("event: end"), "it was drained: {stream}");
    is("stopped", "active=inactive restarts=0 result=success");
    assert!(!said.iter().any(|it| it.starts_with("in vain")), "{said:?}");
    let behind: Vec<_> = said
        .iter()
        .skip_while(|it| !it.starts_with("stopped"))
        .collect();
    assert_eq!(
        behind[1], "0",
        "a clean exit, and nobody is left: {behind:?}"
    );
    let exposure = behind.last().expect("a line");
    assert!(exposure.contains("exposure level"), "{behind:?}");
    assert_eq!(behind.len(), 3, "{behind:?}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_unit_as_it_is_lets_a_confined_child_compute_on_a_card() {
    let lack = lack();
    assert!(lack.is_none(), "{lack:?}");
    let stay = Stay {
        script: "card.sh",
        service: service("cuda:0"),
        variables: String::new(),
        seconds: 900,
    };
    let life = stay.live();
    println!("{}", life.read("log"));
    let line = |name: &str| {
        let mut lines = life.said.iter().filter_map(|it| it.strip_prefix(name));
        lines.next().unwrap_or_else(|| panic!("{name}")).to_owned()
    };
    assert!(line("status: ").starts_with("serving"));
    let confined = line("confined: ");
    for fact in ["NoNewPrivs: 1", "Seccomp: 2"] {
        assert!(confined.contains(fact), "{confined}");
    }
    let calm = tokens(&life, &["calm"]);
    assert!(calm.len() >= 250, "{}", calm.len());
    assert_eq!(tokens(&life, &["killed"]), calm);
    assert_eq!(line("stopped: "), "0");
    let exposure = line("→ Overall exposure level for worker-orcd@cuda.service: ");
    let level: f32 = exposure
        .split_whitespace()
        .next()
        .expect("a number")
        .parse()
        .expect("a number");
    assert!(level <= 3.0, "{exposure}");
}
