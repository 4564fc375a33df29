//! `POST /devices/{number}/drain` and `/devices/{number}/readmit`: take a device out of service, with its streams moved
//! to other devices, and return it to service.

use super::App;
use super::correlation::CorrelationId;
use super::error::{ApiError, Dialect, Respond as _};
use super::execute::Accepted;
use axum::extract::{Extension, Path, State};
use axum::response::Response;
use std::sync::Arc;
use worker_orcd_lifecycle::DeviceId;
use worker_orcd_requests::error_code::ErrorCode;

/// Requested action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Drain,
    Readmit,
}

pub async fn drain(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    Path(number): Path<String>,
) -> Response {
    grant(&app, &correlation, &number, Wish::Drain).await
}

pub async fn readmit(
    State(app): State<Arc<App>>,
    Extension(correlation): Extension<CorrelationId>,
    Path(number): Path<String>,
) -> Response {
    grant(&app, &correlation, &number, Wish::Readmit).await
}

async fn grant(app: &App, correlation: &CorrelationId, number: &str, wish: Wish) -> Response {
    let all = app.devices.selectors.len();
    let Some(device) = device(number, all) else {
        let why = format!("there is no device {number}: this worker has {all}, numbered from 0");
        return ApiError::not_found(why).respond(Dialect::Native);
    };
    let answer = match wish {
        Wish::Drain => app.engine.withdraw_device(device).await,
        Wish::Readmit => app.engine.readmit_device(device).await,
    };
    match answer {
        Ok(()) => {
            tracing::info!(
                device = device.0,
                ?wish,
                correlation_id = correlation.0,
                "device"
            );
            Accepted::respond()
        }
        Err(why) => ApiError::of_code(ErrorCode::WorkerUnhealthy, why).respond(Dialect::Native),
    }
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
