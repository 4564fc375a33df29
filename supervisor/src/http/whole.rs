//! Answers in one piece: reads streams to their ends.
//!
//! The handler's future owns the streams. If the client disconnects, the connection drops the future, the future drops
//! the streams, and the engine cancels the work.

use super::error::ApiError;
use super::generation::Accepted;
use super::job::Job;
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_requests::{Completion, Failure, Piece, StreamEvent, Streams};

/// Reads all choices of an answer to their ends. Calls `take` with the index of a choice and each piece of its text.
///
/// # Errors
/// If a choice fails. The other choices are then cancelled.
pub(super) async fn gather(
    accepted: Vec<Accepted>,
    mut take: impl FnMut(usize, &Piece),
) -> Result<Vec<Completion>, ApiError> {
    let (streams, mut jobs): (Vec<_>, Vec<_>) =
        accepted.into_iter().map(|it| (it.stream, it.job)).unzip();
    let mut ends: Vec<Option<Completion>> = jobs.iter().map(|_| None).collect();
    let (mut streams, mut events) = (Streams::new(streams), Vec::new());
    while streams.next(&mut events).await {
        for (index, event) in events.drain(..) {
            match event {
                StreamEvent::Text(piece) => take(index, &piece),
                StreamEvent::Finished(completion) => {
                    jobs[index].finished(&completion);
                    ends[index] = Some(completion);
                }
                // Unreachable: the journal sends vectors only to embedding requests.
                StreamEvent::Embedded(_) => break,
                StreamEvent::Failed(failure) => {
                    let failed = jobs[index].id().to_owned();
                    let open = jobs.iter_mut().zip(&ends);
                    let open = open.filter(|(_, end)| end.is_none());
                    fail_all(open.map(|(job, _)| job), &failed, &failure);
                    return Err(ApiError::of_failure(&failure));
                }
            }
        }
    }
    let all: Option<Vec<_>> = ends.into_iter().collect();
    all.ok_or_else(|| {
        let failure = Failure::new(ErrorCode::Internal, "the stream ended without an end");
        ApiError::of_failure(&failure)
    })
}

/// [`gather`] for an answer with one choice.
///
/// # Errors
/// If the choice fails.
pub(super) async fn gather_one(
    accepted: Accepted,
    mut take: impl FnMut(&Piece),
) -> Result<Completion, ApiError> {
    let ends = gather(vec![accepted], |_, piece| take(piece)).await?;
    ends.into_iter().next().ok_or_else(ApiError::unreadable)
}

/// Records the failure of the choice `failed`, and the resulting cancellation of the jobs that have not ended.
pub(super) fn fail_all<'a>(jobs: impl Iterator<Item = &'a mut Job>, failed: &str, why: &Failure) {
    for job in jobs {
        if job.id() == failed {
            job.failed(why);
        } else {
            let message = "another choice of the answer has failed";
            job.failed(&Failure::new(ErrorCode::Cancelled, message));
        }
    }
}
