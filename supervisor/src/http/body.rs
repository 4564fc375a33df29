//! Request bodies: small, on time, a JSON object, and bounded together.
//!
//! ```text
//! bytes ─→ room for them ─→ one text ─→ fields ─→ what the route makes of them
//!            (a budget)          (elsewhere, where it is long)
//! ```
//!
//! * Bytes take room of one budget as they come, so a slow client holds what it sent and no more.
//!   The beginning of every body is free: short requests pass whatever long ones do.
//! * Where there is no room, a body waits a little and is then turned away with what it held, so
//!   nobody waits for ever for somebody who waits as well.
//! * The room is given back with [`Room`], once the request has become tokens or was refused.
//! * A long body is parsed where it holds up nobody, a few at a time.
//! * What is left of a refused body is read and dropped for a while: a client that is still
//!   writing would otherwise find its connection reset, and never the refusal.

use super::error::ApiError;
use super::fields::{Fields, Names};
use super::lanes::aside;
use super::mistakes::Constraint;
use crate::interpreter::MAX_RENDERED_BYTES;
use axum::body::Body;
use axum::http::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Bytes of each body that need no room. With a thousand connections they are a fraction of the
/// budget.
const FREE_BYTES: usize = 16 << 10;

/// Longer bodies are parsed elsewhere: these take well under a millisecond.
const INLINE_BYTES: usize = 32 << 10;

/// Time that a body waits for room, all its waits together.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes that are read of a refused body before its connection is given up.
const DISCARDED_BYTES: usize = 64 << 20;

/// Limits of bodies: how much, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    pub bytes: usize,
    pub time: Duration,
    /// Bytes of all bodies together, beyond what is free.
    pub together: usize,
}

/// The budget that all readers of bodies share.
#[derive(Debug)]
pub struct Bodies {
    limits: BodyLimits,
    room: Arc<Semaphore>,
    /// Room for prompts that templates made and that are not tokenized yet. It is a budget of its
    /// own, because a request that holds room for its body must not wait for more of the same.
    prompts: Arc<Semaphore>,
    /// Room for whole answers that are made of a client's text, until the client has read them. Of its own as well: who
    /// reads slowly keeps no prompt of others waiting.
    answers: Arc<Semaphore>,
    /// One permit for each long body that may be parsed now.
    parsing: Semaphore,
}

/// The part of the budget that a body holds until this is dropped.
#[derive(Debug, Default)]
pub struct Room(Option<OwnedSemaphorePermit>);

impl Bodies {
    #[must_use]
    pub fn new(limits: BodyLimits) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        Self {
            limits,
            // A body that is alone always finds room.
            room: Arc::new(Semaphore::new(limits.together.max(limits.bytes))),
            prompts: Arc::new(Semaphore::new(rendered_together(limits))),
            answers: Arc::new(Semaphore::new(rendered_together(limits))),
            parsing: Semaphore::new(cores.div_ceil(2)),
        }
    }

    /// Reads a body, and what `read` makes of its fields. Keep the room for as long as the
    /// request's text is kept.
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
        // The room goes along: if the client leaves now, its bytes are still being read.
        let parse = move || (parse(&bytes, names, read), room);
        let parsed = aside(parse).await;
        let (read, room) = parsed.ok_or_else(ApiError::unreadable)?;
        read.map(|read| (read, room))
    }

    /// Room for a prompt that a template made, which may be many times the messages it was made of.
    ///
    /// # Errors
    /// 429 when others hold too much.
    pub fn room_for_prompt(&self, bytes: usize) -> Result<Room, ApiError> {
        take_room(&self.prompts, bytes)
    }

    /// Room for an answer that is written as a whole, up to [`Self::longest_answer`].
    ///
    /// # Errors
    /// 429 when others hold too much.
    pub fn room_for_answer(&self, bytes: usize) -> Result<Room, ApiError> {
        take_room(&self.answers, bytes)
    }

    /// Bytes of an answer for which there is room where nobody else holds any.
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
        // Who asked whether to send the body is told no, and sends none.
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
            // The rest at once, so that nothing more is copied; not for those who only announce it.
            if 2 * length >= announced {
                let _ = bytes.try_reserve_exact(announced.saturating_sub(bytes.len()));
            }
            // Copied: a frame of one byte may hold on to a whole buffer.
            bytes.extend_from_slice(&data);
            // Where more is there already, others have their turn between two frames.
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

/// A whole body, and what `read` makes of it.
///
/// # Errors
/// 400, or the error of `read`.
pub fn parse<T>(
    bytes: &[u8],
    names: Names,
    read: impl for<'a> FnOnce(Fields<'a>) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let wrong = |message: String| ApiError::invalid_field("body", Constraint::Json, message);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let place = error.valid_up_to() + 1;
        wrong(format!("is not JSON: byte {place} is not UTF-8"))
    })?;
    match Fields::parse(text, names) {
        Ok(fields) => read(fields),
        Err(error) if error.is_data() => Err(wrong("must be a JSON object".to_owned())),
        // The parser's message may quote the text; its place does not.
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            Err(wrong(format!("is not JSON: line {line}, column {column}")))
        }
    }
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
    // Time is up, or it was read: either way the connection knows what to do.
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
    use super::super::fields::among;
    use super::*;
    use futures_util::{StreamExt as _, stream};
    use std::convert::Infallible;

    const JSON: &str = "application/json; charset=utf-8";
    const NAMES: Names = |name| among(name, &[&["a"]]);

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
        // A second long one finds no room, and gives back what it had.
        let refused = read(&bodies, post(JSON, slowly(90_000))).await;
        let status = refused.unwrap_err().status().as_u16();
        assert_eq!(status, 429);
        // A short one needs none.
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
            // A frame's worth, each time before the patience of one wait is over.
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

    /// A body that comes in frames, as from a socket.
    fn slowly(bytes: usize) -> Body {
        let frames = [b"{\"a\": \"".to_vec()]
            .into_iter()
            .chain((0..bytes / 1000).map(|_| vec![b'x'; 1000]))
            .chain([b"\"}".to_vec()]);
        Body::from_stream(stream::iter(frames).map(Ok::<_, Infallible>))
    }
}
