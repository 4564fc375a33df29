//! Devices of the worker, in the order of its list.

use super::part::parts;
use super::{Child, Clock, Gpu, Standby, Vram};
use worker_orcd_engine::{DeviceSnapshot, EngineSnapshot};
use worker_orcd_lifecycle::DeviceStatus;

parts! {
    Device(snapshot: &EngineSnapshot, device: &DeviceSnapshot, clock: &Clock)
    let gauges = snapshot.load_on(device).map(|(gauges, _)| gauges);
    let identity = device.gpu.identity.as_ref();
    {
        number: u8 = device.place,
        id: String = device.id.clone(),
        name: Option<String> = identity.and_then(|it| it.name.clone()),
        uuid: Option<String> = identity.and_then(|it| it.uuid.clone()),
        driver: Option<String> = identity.and_then(|it| it.driver.clone()),
        in_use: bool = device.is_in_use(),
        #[schemars(extend("enum" = DeviceStatus::NAMES))]
        standing: &'static str = device.status,
        reason: Option<String> = device.reason.clone(),
        out_since: Option<String> = device.out_since.map(|since| clock.stamp(since)),
        may_readmit: bool = device.may_readmit,
        serving: bool = device.serving,
        state: &'static str = device.state,
        child: Option<Child> = snapshot.child_on(device).map(|child| Child::of(child, clock)),
        standby: Option<Standby> = Standby::on(snapshot, device, clock),
        vram: Option<Vram> = Vram::on(snapshot, device, clock),
        gpu: Gpu = Gpu::of(&device.gpu, clock),
        running: Option<u32> = gauges.map(|it| it.running),
        waiting: Option<u32> = gauges.map(|it| it.waiting),
        kv_used_tokens: Option<u64> = gauges.map(|it| it.kv_used_tokens),
        kv_capacity_tokens: Option<u64> = device.kv_capacity_tokens,
        tokens_per_second: f64 = snapshot.tokens_per_second_on(device),
        deaths_in_window: u32 = device.deaths_in_window,
        deaths_in_a_row: u32 = device.deaths_in_a_row,
        unsteady: bool = device.is_unsteady(clock.now),
    }
}
