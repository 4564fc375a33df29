//! Announcement that the model is ready.

use crate::callback::{Registration, register};
use crate::commands::end_with;
use crate::config::Config;
use crate::exit::WorkerExit;
use crate::http::App;
use crate::logging;
use std::net::SocketAddr;
use worker_orcd_ipc::DeviceSelector;
use worker_orcd_text::tools::ReasoningFormat;

/// Announces that the model is ready: in the log, and to `--callback-url`. False if the callback failed.
pub(super) async fn announce(config: &Config, app: &App, addresses: &[SocketAddr]) -> bool {
    if app.engine.wait_ready().await.is_err() {
        // The engine has ended and logs the reason itself.
        return true;
    }
    let Some(model) = app.engine.model() else {
        return true;
    };
    let uri = config.advertise_url.clone().unwrap_or_else(|| {
        let first = addresses.first();
        first.map_or_else(String::new, |address| {
            format!("{}://{address}", scheme(app))
        })
    });
    let parsing = &model.chat_terms.parsing;
    tracing::info!(
        model = app.model_id,
        architecture = model.facts.architecture,
        quant_kind = model.facts.quant_kind,
        device = model.device.id,
        device_name = model.device.name,
        generation = app.engine.snapshot().child().map(|child| child.generation),
        tool_call_parser = parsing.calls.map_or("none", <&str>::from),
        reasoning_parser = parsing.thinking.map_or("none", ReasoningFormat::word),
        uri,
        "ready"
    );
    logging::print_on_terminal(&first_request(addresses, app));
    let Some(url) = &config.callback_url else {
        return true;
    };
    let registration = Registration {
        worker_id: app.worker_id.to_string(),
        model_ref: app.model_ref.clone(),
        memory_bytes: app.device_bytes_in_use().unwrap_or(model.facts.file_bytes),
        memory_architecture: match app.devices.first() {
            DeviceSelector::Cpu => "host",
            DeviceSelector::Cuda(_) => "vram-only",
        },
        uri,
        worker_type: "worker-orcd",
        capabilities: capabilities(model.has_chat_template()),
    };
    match register(url, &registration).await {
        Ok(()) => {
            tracing::info!("callback_delivered");
            true
        }
        Err(error) => {
            end_with(WorkerExit::Callback, &error);
            false
        }
    }
}

fn scheme(app: &App) -> &'static str {
    match app.tls {
        Some(_) => "https",
        None => "http",
    }
}

/// Example command for a first request.
fn first_request(addresses: &[SocketAddr], app: &App) -> String {
    let host = match addresses.first() {
        Some(address) if address.ip().is_loopback() || address.ip().is_unspecified() => {
            format!("localhost:{}", address.port())
        }
        Some(address) => address.to_string(),
        None => return String::new(),
    };
    let host = match scheme(app) {
        "http" => host,
        scheme => format!("{scheme}://{host}"),
    };
    let key = if app.keys.are_asked_for() {
        " -H 'Authorization: Bearer KEY'"
    } else {
        ""
    };
    format!(
        "\nTry it, from another terminal:\n  curl -N {host}/v1/completions{key} \
         -H 'Content-Type: application/json' -d '{{\"prompt\": \"Once upon a time\", \
         \"max_tokens\": 64, \"stream\": true}}'\n"
    )
}

fn capabilities(chat: bool) -> Vec<&'static str> {
    let mut capabilities = vec!["text-gen", "streaming", "cancel"];
    if chat {
        capabilities.push("chat");
    }
    capabilities
}
