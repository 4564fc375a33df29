//! Thin layer over NVML: one call for each query. Errors become unknown values.

use super::library::{DeviceMemory, Gauges, Gpu, Identity, Process};
use super::selection::Address;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING,
};
use nvml_wrapper::{Device, Nvml};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use worker_orcd_lifecycle::{RecoveryAction, Xid};

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION` of nvml.h, which the bindings lack. Drivers before R565 return an error for
/// it.
const RECOVERY_ACTION: u32 = 230;

struct RealGpu {
    nvml: Nvml,
    index: u32,
}

/// Loads the library and finds the device.
///
/// # Errors
/// If there is no library, no compatible driver, or no such device.
pub(super) fn open(address: &Address) -> Result<Arc<dyn Gpu>, String> {
    let nvml = Nvml::init().map_err(|error| error.to_string())?;
    let count = nvml.device_count().map_err(|error| error.to_string())?;
    let uuid = |index| nvml.device_by_index(index).and_then(|it| it.uuid());
    // A device that does not answer still has its index.
    let uuids: Vec<_> = (0..count)
        .map(|index| uuid(index).unwrap_or_default())
        .collect();
    let index = address.pick(&uuids)?;
    Ok(Arc::new(RealGpu { nvml, index }))
}

impl RealGpu {
    fn device(&self) -> Option<Device<'_>> {
        self.nvml.device_by_index(self.index).ok()
    }

    fn fields<const N: usize>(&self, device: &Device<'_>, ids: [u32; N]) -> [Option<u64>; N] {
        let mut found = [None; N];
        let Ok(samples) = device.field_values_for(&ids.map(FieldId)) else {
            return found;
        };
        for (slot, sample) in found.iter_mut().zip(samples) {
            *slot =
                sample
                    .ok()
                    .and_then(|sample| sample.value.ok())
                    .and_then(|value| match value {
                        SampleValue::U32(value) => Some(u64::from(value)),
                        SampleValue::U64(value) => Some(value),
                        _ => None,
                    });
        }
        found
    }
}

impl Gpu for RealGpu {
    fn identity(&self) -> Identity {
        let device = self.device();
        Identity {
            name: device.as_ref().and_then(|it| it.name().ok()),
            uuid: device.as_ref().and_then(|it| it.uuid().ok()),
            driver: self.nvml.sys_driver_version().ok(),
        }
    }

    fn gauges(&self) -> Gauges {
        let Some(device) = self.device() else {
            return Gauges::default();
        };
        let [pending, failed] = self.fields(
            &device,
            [NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_FAILURE],
        );
        Gauges {
            memory: self.memory(),
            temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
            power_milliwatts: device.power_usage().ok(),
            ecc_enabled: device
                .is_ecc_enabled()
                .ok()
                .map(|mode| mode.currently_enabled),
            ecc_uncorrected: device
                .total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
                .ok(),
            // Cards before Ampere retire pages instead.
            remap_pending: pending
                .map(|it| it != 0)
                .or_else(|| device.are_pages_pending_retired().ok()),
            remap_failed: failed.map(|it| it != 0),
            action: self.recovery_action(),
        }
    }

    fn memory(&self) -> Option<DeviceMemory> {
        let device = self.device()?;
        // Processes come first: memory that a process allocates in between then counts as unowned, and the next sample
        // corrects it.
        let processes = device.running_compute_processes().ok();
        let memory = device.memory_info().ok()?;
        let process = |it: nvml_wrapper::struct_wrappers::device::ProcessInfo| Process {
            pid: it.pid,
            bytes: match it.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
        };
        Some(DeviceMemory {
            total: memory.total,
            free: memory.free,
            used: memory.used,
            processes: processes.map(|list| list.into_iter().map(process).collect()),
        })
    }

    fn recovery_action(&self) -> Option<RecoveryAction> {
        let [action] = self.fields(&self.device()?, [RECOVERY_ACTION]);
        let number = u32::try_from(action?).unwrap_or(u32::MAX);
        Some(RecoveryAction::of_number(number))
    }

    fn listen(
        &self,
        slice: Duration,
        heard: &mut dyn FnMut(Option<Xid>) -> ControlFlow<()>,
    ) -> Result<(), String> {
        let device = self.device().ok_or("the device is gone")?;
        let set = self
            .nvml
            .create_event_set()
            .map_err(|error| error.to_string())?;
        let set = device
            .register_events(EventTypes::CRITICAL_XID_ERROR, set)
            .map_err(|failure| failure.error.to_string())?;
        let slice = u32::try_from(slice.as_millis()).unwrap_or(u32::MAX);
        loop {
            let xid = match set.wait(slice) {
                Ok(event) => event.event_data.map(|data| match data {
                    XidError::Value(number) => Xid(u32::try_from(number).ok()),
                    XidError::Unknown => Xid(None),
                }),
                Err(NvmlError::Timeout) => None,
                Err(error) => return Err(error.to_string()),
            };
            if heard(xid).is_break() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::driver_is_loaded;

    #[test]
    fn without_a_driver_the_library_is_absent_or_says_so() {
        if driver_is_loaded() {
            // With a driver, the first device must be found.
            assert!(open(&Address::Index(0)).is_ok());
            return;
        }
        let reason = open(&Address::Index(0)).err().expect("there is no GPU");
        assert!(!reason.is_empty());
    }
}
