//! `POST /devices/{number}/drain` and `/devices/{number}/readmit`: take a device out of service, with its streams moved
//! to other devices, and return it to service.

use super::App;
use super::correlation::CorrelationId;
use super::error::{Answered, ApiError};
use super::execute::Accepted;
use axum::extract::{Extension, Path, State};
use std::sync::Arc;
use worker_orcd_lifecycle::DeviceId;
use worker_orcd_requests::error_code::ErrorCode;

/// Requested action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Drain,
    Readmit,
}

pub async fn drain(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    Path(number): Path<String>,
) -> Answered {
    grant(&app, &correlation, &number, Action::Drain).await
}

pub async fn readmit(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    Path(number): Path<String>,
) -> Answered {
    grant(&app, &correlation, &number, Action::Readmit).await
}

async fn grant(app: &App, correlation: &CorrelationId, number: &str, action: Action) -> Answered {
    let all = app.devices.selectors.len();
    let device = device(number, all).ok_or_else(|| {
        let why = format!("there is no device {number}: this worker has {all}, numbered from 0");
        ApiError::not_found(why)
    })?;
    let answer = match action {
        Action::Drain => app.engine.withdraw_device(device).await,
        Action::Readmit => app.engine.readmit_device(device).await,
    };
    answer.map_err(|why| ApiError::of_code(ErrorCode::WorkerUnhealthy, why))?;
    let (device, correlation_id) = (device.0, &correlation.0);
    tracing::info!(device, ?action, correlation_id, "device");
    Ok(Accepted::respond())
}

/// Device of that number, out of `devices`.
fn device(number: &str, devices: usize) -> Option<DeviceId> {
    let number: u8 = number.parse().ok()?;
    (usize::from(number) < devices).then_some(DeviceId(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_its_number() {
        assert_eq!(device("1", 2), Some(DeviceId(1)));
        for unknown in ["2", "-1", "cuda:0", "", "256"] {
            assert_eq!(device(unknown, 2), None, "{unknown}");
        }
    }
}
