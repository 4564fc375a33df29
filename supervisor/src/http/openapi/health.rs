//! Schema of `/health`: the outline, the full report, and each device.

use strum::VariantArray as _;
use utoipa::openapi::Type;
use worker_orcd_api::schema::{
    Shape, boolean, count, list_of, object, object_with, of_type, or_null, text, values,
};
use worker_orcd_engine::Status;
use worker_orcd_lifecycle::DeviceStatus;

/// One device of the worker, in `/health`.
fn device() -> Shape {
    let part = || or_null(of_type(Type::Object));
    let known = |kind: Type| or_null(of_type(kind));
    object_with(
        [
            ("number", count()),
            ("id", text()),
            ("in_use", boolean()),
            ("standing", values(DeviceStatus::NAMES)),
            ("reason", known(Type::String)),
            ("out_since", known(Type::String)),
            ("may_readmit", boolean()),
            ("serving", boolean()),
            ("state", text()),
        ],
        [
            ("name", known(Type::String)),
            ("uuid", known(Type::String)),
            ("driver", known(Type::String)),
            ("child", part()),
            ("standby", part()),
            ("vram", part()),
            ("gpu", part()),
            ("running", known(Type::Integer)),
            ("waiting", known(Type::Integer)),
            ("kv_used_tokens", known(Type::Integer)),
            ("kv_capacity_tokens", known(Type::Integer)),
            ("tokens_per_second", of_type(Type::Number)),
            ("deaths_in_window", count()),
            ("deaths_in_a_row", count()),
            ("unsteady", boolean()),
        ],
    )
}

/// Outline for all callers, full report for authorized ones.
pub(super) fn health() -> Shape {
    let part = || of_type(Type::Object);
    let known_part = || or_null(part());
    object_with(
        [
            (
                "status",
                values(Status::VARIANTS.iter().map(|it| it.as_str())),
            ),
            ("state", text()),
            ("since", text()),
            ("uptime_seconds", count()),
            ("version", text()),
        ],
        [
            ("reason", text()),
            ("child", known_part()),
            ("standby", known_part()),
            ("device", part()),
            ("vram", known_part()),
            ("devices", list_of(device())),
            ("model", part()),
            ("load", part()),
            (
                "connections",
                object([("open", count()), ("limit", count()), ("evicted", count())]),
            ),
            ("faults", part()),
            ("impaired", list_of(part())),
            ("worker_id", text()),
        ],
    )
}
