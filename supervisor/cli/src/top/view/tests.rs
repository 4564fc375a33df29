use super::*;
use serde_json::json;

pub(crate) fn answers(model: &str) -> Answers {
    let metrics = "worker_orcd_time_to_first_token_seconds_bucket{le=\"0.064\"} 7\n\
         worker_orcd_time_to_first_token_seconds_bucket{le=\"+Inf\"} 7\n";
    Answers {
        health: json!({
            "status": "healthy", "state": "serving", "since": "2026-11-24T12:00:00.000Z",
            "reason": "all is well", "version": "0.1.0", "uptime_seconds": 3700, "worker_id": "w",
            "model": {"id": model, "quant_kind": "Q4_1"},
            "device": {"id": "cuda:0", "name": "NVIDIA H100"},
            "child": {
                "generation": 3, "pid": 77, "uptime_ms": 65_000,
                "load_bytes_done": null, "load_bytes_total": null,
            },
            "standby": {"state": "standing_by", "reason": null},
            "load": {
                "running": 4, "waiting": 2, "live": 6, "capacity": 64, "tokens_per_second": 123.45,
                "kv_used_tokens": 250, "kv_capacity_tokens": 1000, "kv_utilisation": 0.25,
                "draft_tokens": 200, "accepted_draft_tokens": 150,
            },
            "connections": {"open": 9, "limit": 1024},
            "vram": {
                "weights_bytes": 100 << 20, "kv_used_bytes": 1 << 20, "kv_capacity_bytes": 4 << 20,
                "scratch_bytes": 2048, "graphs_bytes": 512, "context_bytes": null,
                "custody_bytes": 100 << 20, "free_bytes": 3_u64 << 30, "total_bytes": 8_u64 << 30,
            },
            "faults": {
                "deaths_by_cause": {"signalled": 2, "exited": 1}, "deaths_in_window": 1,
                "deaths_in_a_row": 0, "deaths_allowed": 5, "window_seconds": 60, "restarts": 2, "recoveries": 8,
                "last_death": {"at": "11:59", "age_ms": 66_000, "cause": "killed by signal 9"},
            },
            "impaired": [{"what": "crash_reports", "because": "disk full", "since": "11:58"}],
        }),
        metrics: metrics.to_owned(),
        crashes: Ok(vec![json!({
            "at": "11:59", "cause": "killed by signal 9", "generation": 2, "requests": 5, "ready_ms": 120.0,
        })]),
    }
}

pub(crate) fn view(answers: &Answers) -> View {
    View::new("here", Some(answers), None, vec![Some(1), None, Some(8)])
}

#[test]
fn everything_that_a_worker_tells_is_in_the_text() {
    let view = view(&answers("model.gguf"));
    assert!(view.is_healthy() && view.tone == Tone::Uneasy, "impaired");
    assert_eq!(view.to_string(), TEXT.trim_start());
}

#[test]
fn a_draft_model_is_shown_with_its_memory() {
    let mut told = answers("m");
    told.health["model"]["draft_model"] = json!("a small one\u{1b}");
    told.health["vram"]["draft_bytes"] = json!(3 << 20);
    let text = view(&told).to_string();
    for line in [
        "  model        m (Q4_1)\n  draft model  a small one\\u{1b}\n  device ",
        "  draft model  3.0 MiB\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn nothing_reaches_a_terminal_that_it_would_obey() {
    let mut hostile = answers("a\u{1b}[2J\u{9b}1mb\r\n\u{202e}c");
    hostile.health["reason"] = json!("\u{1b}]0;title\u{7}");
    hostile.health["impaired"][0]["what"] = json!("\u{1b}c");
    hostile.health["faults"]["deaths_by_cause"] = json!({"\u{8}signalled": 1});
    hostile.crashes = Err("\u{1b}[31m".to_owned());
    let text = view(&hostile).to_string();
    let silence = Silence {
        since: "now".to_owned(),
        why: "\u{1b}[0m".to_owned(),
    };
    let silent = View::new("\u{1b}host", None, Some(&silence), Vec::new()).to_string();
    for text in [text, silent] {
        let is_obeyed = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
        assert!(!text.contains(is_obeyed), "{text:?}");
        assert!(text.contains("u{1b}"), "it is told: {text}");
    }
}

#[test]
fn what_is_null_or_not_told_is_unknown_and_who_has_no_key_hears_why() {
    let mut early = answers("m");
    for part in ["child", "standby", "load", "vram", "faults"] {
        early.health[part] = json!(null);
    }
    early.health["status"] = json!("unhealthy");
    early.metrics.clear();
    let view = View::new("here", Some(&early), None, Vec::new());
    assert!(!view.is_healthy() && view.tone == Tone::Bad);
    let text = view.to_string();
    for line in [
        "child    none",
        "standby  none asked for",
        "running      unknown",
        "first token  unknown",
        "tokens/s     unknown",
        "weights   unknown",
        "deaths      unknown",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let outline = Answers {
        health: json!({
            "status": "recovering", "state": "loading", "since": "12:00", "version": "0.1.0",
            "uptime_seconds": 5,
        }),
        metrics: String::new(),
        crashes: Err("not available (401): a valid key is needed".to_owned()),
    };
    let view = View::new("here", Some(&outline), None, Vec::new());
    assert!(!view.is_healthy() && view.tone == Tone::Uneasy);
    let text = view.to_string();
    assert!(
        text.contains("--api-key-file") && text.contains("401"),
        "{text}"
    );
    assert!(
        !text.contains("unknown") && !text.contains("memory"),
        "{text}"
    );
}

#[test]
fn several_devices_have_a_line_each_and_one_that_is_out_says_why() {
    let mut told = answers("m");
    told.health["status"] = json!("degraded");
    told.health["devices"] = json!([{
        "number": 0, "id": "cuda:0", "in_use": true, "standing": "in_use", "state": "serving",
        "running": 3, "waiting": 1, "kv_used_tokens": 500, "kv_capacity_tokens": 2000,
        "tokens_per_second": 99.96,
    }, {
        "number": 1, "id": "cuda:1", "in_use": false, "standing": "condemned",
        "reason": "Xid 79\u{1b}", "out_since": "12:00", "may_readmit": true,
    }]);
    told.crashes = Ok(vec![json!({
        "at": "11:59", "cause": "c", "generation": 2, "requests": 5, "ready_ms": 120.0,
        "device": "cuda:1", "device_number": 1,
    })]);
    let view = view(&told);
    assert!(!view.is_healthy() && view.tone == Tone::Uneasy);
    let text = view.to_string();
    for line in [
        "device   1 of 2 in use",
        "0 cuda:0  serving: 3 running, 1 waiting, 100.0 tokens/s, KV 25 %",
        "1 cuda:1  condemned since 12:00: Xid 79\\u{1b}; POST /devices/1/readmit uses it again",
        "11:59  generation 2 on 1 cuda:1, with 5 requests: c",
        "memory of the first that serves",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    told.health["devices"].as_array_mut().unwrap().pop();
    let alone = self::view(&told).to_string();
    assert!(alone.contains("cuda:0 (NVIDIA"), "{alone}");
    assert!(alone.contains("generation 2, with 5 requests"), "{alone}");
    assert!(!alone.contains("0 cuda:0"), "{alone}");
}

const TEXT: &str = "
worker-orcd at here
healthy: serving since 2026-11-24T12:00:00.000Z: all is well

worker
  model    model.gguf (Q4_1)
  device   cuda:0 (NVIDIA H100)
  version  0.1.0, up for 1 h 1 min
  child    generation 3 for 1 min 5 s, pid 77
  standby  standing_by

load
  running      4
  waiting      2
  live         6 of 64
  tokens/s     123.5, 75 % of drafts accepted
  first token  p50 ≤ 64 ms, p99 ≤ 64 ms
  next token   unknown
  KV tokens    25 %: 250 of 1000
  connections  9 of 1024

memory of the device
  weights   100.0 MiB
  KV cache  1.0 MiB of 4.0 MiB
  scratch   2.0 KiB
  graphs    512 B
  context   unknown
  kept      100.0 MiB
  free      3.0 GiB of 8.0 GiB

deaths of children
  deaths      3 (signalled 2, exited 1)
  lately      1 in 1 min
  in a row    0 without a token, 5 allowed
  the last    1 min 6 s ago (11:59): killed by signal 9
  restarts    2
  recoveries  8

impaired
  crash_reports  since 11:58: disk full

crash reports, the newest first
  11:59  generation 2, with 5 requests: killed by signal 9; the next after 120 ms
";
