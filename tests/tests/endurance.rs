//! Many requests to the unit under a real systemd, while children die of injected faults and the supervisor is killed
//! twice and upgraded twice: none is lost or duplicated, and every stream equals an undisturbed worker's.

use serde_json::Value;
use worker_orcd_tests::oracle;
use worker_orcd_tests::systemd::{Stay, lack};
use worker_orcd_tests::worker::binary;

/// Variable with the number of requests.
const REQUESTS_VARIABLE: &str = "ENDURANCE_REQUESTS";
const REQUESTS: u64 = 3000;

/// Faults of each step of a child, without a limit.
const FAULTS: &str = "any@chance=0.002,seed=20261124";

/// Unit with this machine's paths and short deadlines.
fn service(model: &str) -> String {
    let (worker, child) = (
        binary("tested-worker-orcd"),
        binary("faulty-worker-orcd-gpu"),
    );
    let (worker, child) = (worker.display(), child.display());
    format!(
        "ExecStart=\nExecStart={worker} --model {model} --device cpu --child-binary {child} \
         --log-format json --max-running 16 --max-queue 64 --kv-cache-size 16MiB \
         --heartbeat-timeout 1s --step-timeout 2s \
         --max-crash-reports 3 --quarantine-for 0s --accept-fault-injection\n\
         Environment=WORKER_ORCD_FAULTS={FAULTS}\nRestartSec=100ms\n"
    )
}

#[test]
fn no_request_is_lost_or_told_twice_whoever_dies_or_is_replaced() {
    if let Some(lack) = lack() {
        println!("SKIPPED: {lack}");
        return;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let model = directory.path().join("tiny.gguf");
    oracle::run("tiny_model.py", &[model.as_os_str()]);
    let model = model.display().to_string();
    let requests = std::env::var(REQUESTS_VARIABLE)
        .ok()
        .map_or(REQUESTS, |text| text.parse().expect("a number"));
    let stay = Stay {
        script: "endurance.sh",
        service: service(&model),
        variables: format!(
            "CLIENT={}\nREQUESTS={requests}\nexport MODEL={model}\n",
            binary("endurance").display()
        ),
        seconds: 120 + u32::try_from(requests / 10).expect("not that many"),
    };
    let life = stay.live();
    let log = life.read("log");
    let report = serde_json::from_str(&life.read("report"));
    let report: Value = report.unwrap_or_else(|error| {
        let begins = log.get(..4000).unwrap_or(&log);
        panic!("no report ({error}): {begins}")
    });
    let events = |name: &str| {
        let event = format!("\"event\":\"{name}\"");
        log.lines().filter(|line| line.contains(&event)).count()
    };
    println!(
        "{report}\nchildren died {}, lived on {}, quarantined {}, upgrades {}",
        events("child_death"),
        events("child_kept"),
        events("job_quarantined"),
        events("upgrade"),
    );
    assert_eq!(report["wrong"], 0, "{report}");
    assert_eq!(report["told"], requests, "{report}");
    assert_eq!(events("upgrade"), 2);
    assert!(events("child_death") > 0, "nothing happened");
    let clean = ["NRestarts=2", "ExecMainStatus=0"];
    for fact in clean {
        assert!(life.said.iter().any(|it| it == fact), "{:?}", life.said);
    }
}
