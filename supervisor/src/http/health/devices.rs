//! Devices of the worker, in the order of its list.

use super::{Clock, child_report, gpu, memory_report, standby_report};
use serde_json::{Value, json};
use worker_orcd_engine::{DeviceSnapshot, EngineSnapshot};

pub(super) fn report(snapshot: &EngineSnapshot, clock: &Clock) -> Vec<Value> {
    let of_device = |device| of_device(snapshot, device, clock);
    snapshot.devices.iter().map(of_device).collect()
}

fn of_device(snapshot: &EngineSnapshot, device: &DeviceSnapshot, clock: &Clock) -> Value {
    let child = snapshot.child_on(device);
    let gauges = snapshot.load_on(device).map(|(gauges, _)| gauges);
    let identity = device.gpu.identity.as_ref();
    json!({
        "number": device.place,
        "id": device.id,
        "name": identity.and_then(|it| it.name.as_ref()),
        "uuid": identity.and_then(|it| it.uuid.as_ref()),
        "driver": identity.and_then(|it| it.driver.as_ref()),
        "in_use": device.is_in_use(),
        "standing": device.standing,
        "reason": device.reason,
        "out_since": device.out_since.map(|since| clock.stamp(since)),
        "may_readmit": device.may_readmit,
        "serving": device.serving,
        "state": device.state,
        "child": child.map(|child| child_report(child, clock)),
        "standby": device.standby.as_ref().map(|it| standby_report(it, snapshot, device, clock)),
        "vram": memory_report(snapshot, device, clock),
        "gpu": gpu::device(&device.gpu, clock),
        "running": gauges.map(|it| it.running),
        "waiting": gauges.map(|it| it.waiting),
        "kv_used_tokens": gauges.map(|it| it.kv_used_tokens),
        "kv_capacity_tokens": device.kv_capacity_tokens,
        "tokens_per_second": snapshot.tokens_per_second_on(device),
        "deaths_in_window": device.deaths_in_window,
        "deaths_in_a_row": device.deaths_in_a_row,
        "unsteady": device.is_unsteady(clock.now),
    })
}
