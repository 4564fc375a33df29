//! The way down: bytes to commands, each checked against the state of the conversation.

use super::Link;
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use worker_orcd_ipc::{Command, Fault, FrameReader, decode};

/// State of the conversation. The reader moves it on when `Load` comes, the engine when it is
/// ready.
#[derive(Debug)]
pub(super) struct Conversation(AtomicU8);

impl Conversation {
    const AWAITING_LOAD: u8 = 0;
    const LOADING: u8 = 1;
    const SERVING: u8 = 2;

    pub(super) fn new() -> Self {
        Self(AtomicU8::new(Self::AWAITING_LOAD))
    }

    /// Moves on to serving. Called before `Ready` is sent, because the answer may come at once.
    pub(super) fn serve(&self) {
        self.0.store(Self::SERVING, Ordering::Release);
    }

    fn is(&self, conversation: u8) -> bool {
        self.0.load(Ordering::Acquire) == conversation
    }

    fn load(&self) {
        self.0.store(Self::LOADING, Ordering::Release);
    }
}

/// Reads until the conversation ends, and ends the process when it is the peer who ended it.
pub(super) fn read_commands(
    mut reader: impl Read,
    link: &Link,
    conversation: &Conversation,
    engine: &SyncSender<Command>,
) {
    let mut frames = FrameReader::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return link.lost(),
            Ok(length) => frames.push(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return link.lost(),
        }
        loop {
            match next_command(&mut frames) {
                Ok(None) => break,
                Ok(Some(Command::Shutdown)) => return link.goodbye(),
                Ok(Some(command)) => {
                    if let Err(message) = forward(command, conversation, engine) {
                        return link.last_words(Fault::Protocol { message });
                    }
                }
                Err(message) => return link.last_words(Fault::Protocol { message }),
            }
        }
    }
}

fn next_command(frames: &mut FrameReader) -> Result<Option<Command>, String> {
    let Some(payload) = frames.next_frame().map_err(|error| error.to_string())? else {
        return Ok(None);
    };
    decode(payload)
        .map(Some)
        .map_err(|error| format!("a command {error}"))
}

fn forward(
    command: Command,
    conversation: &Conversation,
    engine: &SyncSender<Command>,
) -> Result<(), String> {
    match &command {
        Command::Load(_) if conversation.is(Conversation::AWAITING_LOAD) => conversation.load(),
        Command::Load(_) => return Err("a second order to load".to_owned()),
        Command::Submit(_) if !conversation.is(Conversation::SERVING) => {
            return Err("a request before the model is ready".to_owned());
        }
        Command::Cancel { .. } if conversation.is(Conversation::AWAITING_LOAD) => {
            return Err("a cancellation before the order to load".to_owned());
        }
        Command::Submit(_) | Command::Cancel { .. } | Command::Shutdown => {}
    }
    match engine.try_send(command) {
        // The engine is gone: the process is about to end.
        Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
        Err(TrySendError::Full(_)) => Err("more commands than the queue holds".to_owned()),
    }
}
