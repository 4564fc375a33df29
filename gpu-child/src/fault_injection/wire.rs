//! A writer that misbehaves on command: silent, endless, invalid, slow, or wrong.
//!
//! The link holds its lock during a write, so a writer that never returns silences the heartbeat as well: that is the
//! difference between a stall and a hang.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use worker_orcd_ipc::frame::write_frame;
use worker_orcd_ipc::{
    Envelope, Event, Generation, Heartbeat, Load, MemoryReport, TokenId, decode, encode,
};

/// Five bytes a second: the smallest frame takes longer than any heartbeat deadline.
const DRIP_INTERVAL: Duration = Duration::from_millis(200);

/// Announces a frame of 4 GiB, more than the maximum.
const GARBAGE: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0xde, 0xad, 0xbe, 0xef];

/// Size of the length before a frame's payload.
const HEADER_BYTES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WireFault {
    Stall,
    Flood,
    Garbage,
    Drip,
    WrongToken,
}

/// The fault of the next write.
#[derive(Debug, Default)]
pub(super) struct Wire(Mutex<Option<WireFault>>);

impl Wire {
    pub fn order(&self, fault: WireFault) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }

    fn take(&self) -> Option<WireFault> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Receives whole frames from the link, one per call, and forwards them unless a fault is set.
#[derive(Debug)]
pub struct FaultyWriter<W> {
    socket: W,
    generation: Generation,
    wire: Arc<Wire>,
}

impl<W: Write> FaultyWriter<W> {
    pub(super) fn new(socket: W, generation: Generation, wire: Arc<Wire>) -> Self {
        Self {
            socket,
            generation,
            wire,
        }
    }

    /// Writes until the supervisor closes the socket.
    fn flood(&mut self) -> io::Result<()> {
        let heartbeat = Event::Heartbeat(Heartbeat {
            steps: 0,
            step_elapsed_ms: None,
            step_overdue: false,
            load: Load::default(),
            memory: MemoryReport::default(),
        });
        let frame = frame(&Envelope {
            generation: self.generation,
            event: heartbeat,
        })?;
        loop {
            self.socket.write_all(&frame)?;
        }
    }

    fn drip(&mut self, bytes: &[u8]) -> io::Result<()> {
        for byte in bytes {
            self.socket.write_all(&[*byte])?;
            self.socket.flush()?;
            thread::sleep(DRIP_INTERVAL);
        }
        Ok(())
    }

    /// Writes the frame with an impossible token in it; a frame without tokens postpones the fault to the next.
    fn lie(&mut self, bytes: &[u8]) -> io::Result<()> {
        match with_wrong_token(bytes)? {
            Some(lie) => self.socket.write_all(&lie),
            None => {
                self.wire.order(WireFault::WrongToken);
                self.socket.write_all(bytes)
            }
        }
    }
}

impl<W: Write> Write for FaultyWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.wire.take() {
            None => self.socket.write_all(bytes)?,
            Some(WireFault::Stall) => loop {
                thread::park();
            },
            Some(WireFault::Flood) => self.flood()?,
            Some(WireFault::Garbage) => self.socket.write_all(&GARBAGE)?,
            Some(WireFault::Drip) => self.drip(bytes)?,
            Some(WireFault::WrongToken) => self.lie(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

fn with_wrong_token(bytes: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let payload = bytes.get(HEADER_BYTES..).unwrap_or_default();
    let Ok(mut envelope) = decode::<Envelope>(payload) else {
        return Ok(None);
    };
    let Event::Step(report) = &mut envelope.event else {
        return Ok(None);
    };
    let Some(emitted) = report.drawn.first_mut() else {
        return Ok(None);
    };
    emitted.token = TokenId(u32::MAX);
    frame(&envelope).map(Some)
}

fn frame(envelope: &Envelope) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    write_frame(&mut bytes, &encode(envelope).map_err(io::Error::other)?)
        .map_err(io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_ipc::{Drawn, FrameReader, Preamble, RequestId, StepReport};

    fn step() -> Vec<u8> {
        let token = Drawn {
            request: RequestId(1),
            index: 0,
            token: TokenId(7),
        };
        let report = StepReport {
            step: 1,
            began: vec![],
            scored: vec![],
            drawn: vec![token],
            drafted: vec![],
            logprobs: vec![],
            finished: vec![],
            sealed: vec![],
        };
        frame(&Envelope {
            generation: Generation(3),
            event: Event::Step(report),
        })
        .unwrap()
    }

    fn written(fault: Option<WireFault>, frames: &[Vec<u8>]) -> Vec<u8> {
        let wire = Arc::new(Wire::default());
        let mut writer = FaultyWriter::new(Vec::new(), Generation(3), Arc::clone(&wire));
        if let Some(fault) = fault {
            wire.order(fault);
        }
        frames
            .iter()
            .for_each(|frame| writer.write_all(frame).unwrap());
        writer.socket
    }

    fn reader(bytes: &[u8]) -> FrameReader {
        let mut reader = FrameReader::new();
        reader.push(&Preamble::OURS.to_bytes());
        reader.push(bytes);
        reader
    }

    #[test]
    fn without_an_order_bytes_pass_unchanged() {
        assert_eq!(written(None, &[step()]), step());
    }

    #[test]
    fn garbage_and_drips_are_what_they_say() {
        assert!(
            reader(&written(Some(WireFault::Garbage), &[step()]))
                .next_frame()
                .is_err()
        );
        let short = vec![1, 2, 3];
        assert_eq!(
            written(Some(WireFault::Drip), std::slice::from_ref(&short)),
            short
        );
    }

    #[test]
    fn a_lie_waits_for_a_token() {
        let goodbye = frame(&Envelope {
            generation: Generation(3),
            event: Event::Goodbye,
        })
        .unwrap();
        let bytes = written(
            Some(WireFault::WrongToken),
            &[goodbye.clone(), step(), step()],
        );
        let mut reader = reader(&bytes);
        let mut tokens = Vec::new();
        while let Some(payload) = reader.next_frame().unwrap() {
            if let Event::Step(report) = decode::<Envelope>(payload).unwrap().event {
                tokens.extend(report.drawn.iter().map(|drawn| drawn.token));
            }
        }
        assert_eq!(tokens, [TokenId(u32::MAX), TokenId(7)]);
    }

    #[test]
    fn a_flood_ends_when_nobody_listens() {
        struct Deaf(usize);
        impl Write for Deaf {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += 1;
                if self.0 > 100 {
                    Err(io::ErrorKind::BrokenPipe.into())
                } else {
                    Ok(bytes.len())
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let wire = Arc::new(Wire::default());
        wire.order(WireFault::Flood);
        let mut writer = FaultyWriter::new(Deaf(0), Generation(3), wire);
        assert!(writer.write_all(&step()).is_err());
        assert!(writer.socket.0 > 100);
    }
}
