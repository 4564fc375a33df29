//! Reader of request bodies, with limits on size, time and total memory.
//!
//! ```text
//! bytes ─→ room (budget) ─→ text ─→ fields (long ones: on another thread) ─→ request of the route
//! ```
//!
//! * Bytes take room from a common budget as they arrive, so a slow client holds room only for what it sent. The first
//!   bytes of every body are free: short requests pass beside any long ones.
//! * A body without room waits a short time and is then refused. It returns its room, so no two bodies can deadlock.
//! * [`Room`] is returned once the request is tokenized or refused.
//! * A long body is parsed on other threads, a few at a time.
//! * The rest of a refused body is read and dropped for a while. Otherwise a client that is still writing would see a
//!   connection reset instead of the refusal.

use super::blocking_pool::on_new_thread;
use super::error::ApiError;
use axum::body::Body;
use axum::http::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use worker_orcd_api::body::parse;
use worker_orcd_api::fields::{Fields, Names};
use worker_orcd_engine::interpreter::MAX_RENDERED_BYTES;

/// Bytes of each body that need no room. With a thousand connections they are a fraction of the budget.
const FREE_BYTES: usize = 16 << 10;

/// Longest body that is parsed on the runtime's thread, in well under 1 ms.
const INLINE_BYTES: usize = 32 << 10;

/// Total time that a body waits for room.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of a refused body that are read before its connection is closed.
const DISCARDED_BYTES: usize = 64 << 20;

/// Limits of bodies: size and time.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    pub bytes: usize,
    pub time: Duration,
    /// Bytes of all bodies together, beyond the free ones.
    pub together: usize,
}

/// Budget of all bodies.
#[derive(Debug)]
pub struct Bodies {
    limits: BodyLimits,
    room: Arc<Semaphore>,
    /// Room for prompts that templates rendered, before tokenization. A separate budget: a request that holds room for
    /// its body must not wait for more of the same budget.
    prompts: Arc<Semaphore>,
    /// Room for complete answers made from text of clients, until the client has read them. A separate budget as well:
    /// a slow reader blocks no prompt of other clients.
    answers: Arc<Semaphore>,
    /// One permit for each long body in parsing.
    parsing: Semaphore,
}

/// Room of a body in the budget, returned when dropped.
#[derive(Debug, Default)]
pub struct Room(Option<OwnedSemaphorePermit>);

impl Bodies {
    #[must_use]
    pub fn new(limits: BodyLimits) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        Self {
            limits,
            // At least the largest body, so that a single body always finds room.
            room: Arc::new(Semaphore::new(limits.together.max(limits.bytes))),
            prompts: Arc::new(Semaphore::new(rendered_together(limits))),
            answers: Arc::new(Semaphore::new(rendered_together(limits))),
            parsing: Semaphore::new(cores.div_ceil(2)),
        }
    }

    /// Reads a body and applies `read` to its fields. The caller keeps the room as long as the request's text.
    ///
    /// # Errors
    /// 415, 413, 408, 429, 400 or the error of `read`, whichever comes first.
    pub async fn read<T: Send + 'static>(
        &self,
        request: Request<Body>,
        names: Names,
        read: impl for<'a> FnOnce(Fields<'a>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Room), ApiError> {
        let (bytes, room) = self.collect(request).await?;
        if bytes.len() <= INLINE_BYTES {
            return parse(&bytes, names, read).map(|read| (read, room));
        }
        let _turn = self.parsing.acquire().await;
        // The closure owns the room: if the client disconnects, its bytes are still in use.
        let parse = move || (parse(&bytes, names, read), room);
        let parsed = on_new_thread(parse).await;
        let (read, room) = parsed.ok_or_else(ApiError::unreadable)?;
        read.map(|read| (read, room))
    }

    /// Room for a rendered prompt, which may be many times longer than its messages.
    ///
    /// # Errors
    /// 429 if other requests hold too much.
    pub fn room_for_prompt(&self, bytes: usize) -> Result<Room, ApiError> {
        take_room(&self.prompts, bytes)
    }

    /// Room for a complete answer of up to [`Self::longest_answer`] bytes.
    ///
    /// # Errors
    /// 429 if other requests hold too much.
    pub fn room_for_answer(&self, bytes: usize) -> Result<Room, ApiError> {
        take_room(&self.answers, bytes)
    }

    /// Bytes of the longest answer, for which an unused budget has room.
    #[must_use]
    pub fn longest_answer(&self) -> usize {
        rendered_together(self.limits)
    }

    async fn collect(&self, request: Request<Body>) -> Result<(Vec<u8>, Room), ApiError> {
        let announced = announced_bytes(&request).unwrap_or(0);
        let refused = if !is_json(&request) {
            Some(ApiError::not_json())
        } else if is_encoded(&request) {
            Some(ApiError::encoded())
        } else if announced > self.limits.bytes as u64 {
            Some(ApiError::too_large(self.limits.bytes))
        } else {
            None
        };
        // A client with `Expect: 100-continue` receives the refusal and sends no body.
        let asks_first = request.headers().contains_key(EXPECT);
        let mut body = request.into_body();
        let collected = match refused {
            Some(error) => Err(error),
            None => tokio::time::timeout(
                self.limits.time,
                self.collect_from(&mut body, announced as usize),
            )
            .await
            .map_err(|_| ApiError::body_timeout())?,
        };
        if collected.is_err() && !asks_first {
            tokio::spawn(discard(body, self.limits.time));
        }
        collected
    }

    async fn collect_from(
        &self,
        body: &mut Body,
        announced: usize,
    ) -> Result<(Vec<u8>, Room), ApiError> {
        let mut bytes = Vec::new();
        let (mut room, mut patience) = (Room::default(), PATIENCE);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| ApiError::cut_short())?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let length = bytes.len() + data.len();
            if length > self.limits.bytes {
                return Err(ApiError::too_large(self.limits.bytes));
            }
            let began = Instant::now();
            self.grow(&mut room, length.saturating_sub(FREE_BYTES), patience)
                .await?;
            patience = patience.saturating_sub(began.elapsed());
            // Reserves the rest at once to avoid further copies, but only after half of the announced bytes have
            // arrived.
            if 2 * length >= announced {
                let _ = bytes.try_reserve_exact(announced.saturating_sub(bytes.len()));
            }
            // Copied: a frame of one byte may keep a whole buffer alive.
            bytes.extend_from_slice(&data);
            // Yields between two frames if more is ready.
            tokio::task::yield_now().await;
        }
        Ok((bytes, room))
    }

    async fn grow(
        &self,
        room: &mut Room,
        bytes: usize,
        patience: Duration,
    ) -> Result<(), ApiError> {
        let held = room.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = u32::try_from(bytes - held).unwrap_or(u32::MAX);
        if missing == 0 {
            return Ok(());
        }
        let more = Arc::clone(&self.room).acquire_many_owned(missing);
        match tokio::time::timeout(patience, more).await {
            Ok(Ok(more)) => {
                match &mut room.0 {
                    Some(held) => held.merge(more),
                    none => *none = Some(more),
                }
                Ok(())
            }
            _ => Err(ApiError::no_room()),
        }
    }
}

fn rendered_together(limits: BodyLimits) -> usize {
    limits.together.max(MAX_RENDERED_BYTES)
}

fn take_room(of: &Arc<Semaphore>, bytes: usize) -> Result<Room, ApiError> {
    let bytes = u32::try_from(bytes.saturating_sub(FREE_BYTES)).unwrap_or(u32::MAX);
    let room = Arc::clone(of).try_acquire_many_owned(bytes);
    room.map(|room| Room(Some(room)))
        .map_err(|_| ApiError::no_room())
}

async fn discard(mut body: Body, time: Duration) {
    let reading = async {
        let mut left = DISCARDED_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, bytes::Bytes::len);
            match left.checked_sub(length) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    // After a timeout or the complete body, the connection handles the rest.
    let _ = tokio::time::timeout(time, reading).await;
}

fn is_json(request: &Request<Body>) -> bool {
    let Some(value) = request.headers().get(CONTENT_TYPE) else {
        return false;
    };
    let media_type = value
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("application/json")
}

fn is_encoded(request: &Request<Body>) -> bool {
    let encodings = request.headers().get_all(CONTENT_ENCODING);
    encodings
        .iter()
        .any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
}

fn announced_bytes(request: &Request<Body>) -> Option<u64> {
    request
        .headers()
        .get(CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::super::error::Dialect;
    use super::*;
    use futures_util::{StreamExt as _, stream};
    use std::convert::Infallible;

    const JSON: &str = "application/json; charset=utf-8";
    const NAMES: Names = &[&["a"]];

    fn bodies(bytes: usize, together: usize) -> Bodies {
        Bodies::new(BodyLimits {
            bytes,
            time: 2 * PATIENCE,
            together,
        })
    }

    fn post(content_type: &str, body: Body) -> Request<Body> {
        Request::post("/")
            .header(CONTENT_TYPE, content_type)
            .body(body)
            .unwrap()
    }

    async fn read(bodies: &Bodies, request: Request<Body>) -> Result<(usize, Room), ApiError> {
        let text = |mut fields: Fields<'_>| {
            let text = fields.text("a", &(0..=usize::MAX));
            Ok(text.unwrap_or_default().len())
        };
        bodies.read(request, NAMES, text).await
    }

    async fn status(content_type: &str, body: Body) -> u16 {
        let mut bodies = bodies(16, 0);
        bodies.limits.time = Duration::from_millis(100);
        match read(&bodies, post(content_type, body)).await {
            Ok(_) => 200,
            Err(error) => error.status().as_u16(),
        }
    }

    fn long(bytes: usize) -> Body {
        Body::from(format!("{{\"a\": \"{}\"}}", "x".repeat(bytes)))
    }

    #[tokio::test]
    async fn each_kind_of_bad_body_has_its_status() {
        assert_eq!(status(JSON, Body::from("{\"a\": \"1\"}")).await, 200);
        assert_eq!(status("text/plain", Body::from("{}")).await, 415);
        assert_eq!(status(JSON, Body::from("{\"a\": ")).await, 400);
        assert_eq!(status(JSON, Body::from("[1]")).await, 400);
        assert_eq!(
            status(JSON, Body::from(&b"{\"a\": \"\xff\"}"[..])).await,
            400
        );
        assert_eq!(status(JSON, long(10)).await, 413);
        let never = stream::pending::<Result<&'static [u8], Infallible>>();
        assert_eq!(status(JSON, Body::from_stream(never)).await, 408);
    }

    #[tokio::test]
    async fn a_syntax_error_tells_its_place_and_not_its_text() {
        let request = post(JSON, Body::from("{\"secret\" 1}"));
        let error = read(&bodies(16, 0), request).await.unwrap_err();
        let body = error.body(Dialect::Native).to_string();
        assert!(
            body.contains("column 11") && !body.contains("secret"),
            "{body}"
        );
    }

    #[tokio::test]
    async fn bodies_share_a_budget_until_their_room_is_given_back() {
        let bodies = bodies(100_000, 100_000);
        let (length, room) = read(&bodies, post(JSON, long(90_000))).await.unwrap();
        assert_eq!(length, 90_000);
        // A second long body finds no room and returns its share.
        let refused = read(&bodies, post(JSON, slowly(90_000))).await;
        let status = refused.unwrap_err().status().as_u16();
        assert_eq!(status, 429);
        // A short body needs no room.
        assert!(read(&bodies, post(JSON, long(10_000))).await.is_ok());
        drop(room);
        assert_eq!(bodies.room.available_permits(), 100_000);
        assert!(read(&bodies, post(JSON, long(90_000))).await.is_ok());
    }

    #[tokio::test]
    async fn a_body_that_finds_room_bit_by_bit_is_told_to_come_back_and_not_that_it_was_slow() {
        let bodies = bodies(100_000, 100_000);
        let all = Arc::clone(&bodies.room).acquire_many_owned(100_000);
        let mut held = all.await.unwrap();
        let trickle = async {
            // Each frame arrives before the timeout of one wait.
            loop {
                tokio::time::sleep(PATIENCE * 2 / 3).await;
                drop(held.split(1000));
            }
        };
        let status = tokio::select! {
            () = trickle => unreachable!(),
            read = read(&bodies, post(JSON, slowly(90_000))) => read.unwrap_err().status(),
        };
        assert_eq!(status.as_u16(), 429);
    }

    #[tokio::test]
    async fn prompts_that_templates_made_share_a_budget_of_their_own() {
        let bodies = bodies(100_000, 0);
        let room = bodies.room_for_prompt(MAX_RENDERED_BYTES).unwrap();
        let refused = bodies.room_for_prompt(1 << 20);
        assert_eq!(refused.unwrap_err().status().as_u16(), 429);
        assert!(bodies.room_for_prompt(FREE_BYTES).is_ok());
        drop(room);
        assert!(bodies.room_for_prompt(1 << 20).is_ok());
    }

    #[tokio::test]
    async fn a_body_alone_finds_room_whatever_the_budget() {
        assert!(
            read(&bodies(100_000, 0), post(JSON, long(99_000)))
                .await
                .is_ok()
        );
    }

    /// A body in frames, as from a socket.
    fn slowly(bytes: usize) -> Body {
        let frames = [b"{\"a\": \"".to_vec()]
            .into_iter()
            .chain((0..bytes / 1000).map(|_| vec![b'x'; 1000]))
            .chain([b"\"}".to_vec()]);
        Body::from_stream(stream::iter(frames).map(Ok::<_, Infallible>))
    }
}
