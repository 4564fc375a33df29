//! Devices of the worker under test, from `/health`.

use super::worker::Worker;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use worker_orcd_tests::process;

/// State of a device at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    pub number: usize,
    /// `in_use`, or the reason why it is not.
    pub standing: String,
    pub reason: Option<String>,
    /// True if its child serves.
    pub serves: bool,
    /// True if its children die in a burst.
    pub is_unsteady: bool,
    /// A standby exists, or none is configured.
    pub is_complete: bool,
    /// True if it is empty and can be readmitted.
    pub may_return: bool,
    pub child: Option<u32>,
}

impl Device {
    /// All devices of a worker, in order of their numbers.
    pub fn all(health: &Value) -> Vec<Self> {
        let devices = health["devices"].as_array().into_iter().flatten();
        devices.map(Self::of).collect()
    }

    fn of(told: &Value) -> Self {
        let standby = &told["standby"];
        let words = |field: &str| told[field].as_str().map(str::to_owned);
        Self {
            number: told["number"].as_u64().unwrap_or_default() as usize,
            standing: words("standing").unwrap_or_default(),
            reason: words("reason"),
            serves: told["state"] == "serving",
            is_unsteady: told["unsteady"] == true,
            // A standby that is not ready has fewer descriptors than a ready one.
            is_complete: standby.is_null() || standby["state"] == "standing_by",
            may_return: told["may_readmit"] == true,
            child: told["child"]["pid"].as_u64().map(|pid| pid as u32),
        }
    }

    pub fn is_in_use(&self) -> bool {
        self.standing == "in_use"
    }

    /// True if it is in use without a burst. With one such device `/readyz` succeeds.
    pub fn is_steady(&self) -> bool {
        self.is_in_use() && !self.is_unsteady
    }

    /// True if it is in use and stable, with all its children.
    pub fn is_whole(&self) -> bool {
        self.is_in_use() && self.serves && self.is_complete
    }
}

impl Worker {
    /// # Errors
    /// The worker does not answer.
    pub fn devices(&self) -> Result<Vec<Device>> {
        Ok(Device::all(&self.health()?))
    }

    /// Running child process of each device.
    pub fn children(&self) -> Vec<u32> {
        let devices = self.devices().unwrap_or_default().into_iter();
        let runs = |pid: &u32| process::parent(*pid) == Some(self.pid);
        devices.filter_map(|it| it.child).filter(runs).collect()
    }

    /// Posts an order: `drain` or `readmit`.
    ///
    /// # Errors
    /// The order is refused.
    pub fn order(&self, device: usize, wish: &str) -> Result<()> {
        let path = format!("/devices/{device}/{wish}");
        let body = json!({}).to_string();
        let answer = self
            .client
            .try_request("POST", &path, &[], body.as_bytes())?;
        ensure!(
            answer.status == 202,
            "{path}: {} {}",
            answer.status,
            answer.text()
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_whole_when_it_serves_and_has_the_standby_that_it_is_to_have() {
        let of = |standing: &str, state: &str, standby: Value| {
            Device::of(&json!({
                "number": 1, "standing": standing, "state": state, "standby": standby, "child": {"pid": 7},
            }))
        };
        let standby = |state: &str| json!({"state": state});
        assert!(of("in_use", "serving", Value::Null).is_whole());
        assert!(of("in_use", "serving", standby("standing_by")).is_whole());
        assert!(!of("in_use", "serving", standby("loading")).is_whole());
        assert!(!of("in_use", "loading", Value::Null).is_whole());
        assert!(!of("drained", "serving", Value::Null).is_whole());
        let device = of("in_use", "serving", Value::Null);
        assert_eq!((device.number, device.child), (1, Some(7)));
    }
}
