//! Downstream half of the connection: parses commands and checks each against the state of the connection.

use super::Link;
use std::io::{ErrorKind, Read};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use worker_orcd_ipc::{Command, ConversationState, Fault, FrameReader, Role, decode};

/// State of the connection. The reader advances it at `Load` and `Promote`, the engine when the model is loaded.
#[derive(Debug)]
pub(super) struct Conversation(Mutex<ConversationState>);

impl Conversation {
    pub(super) fn new() -> Self {
        Self(Mutex::new(ConversationState::AwaitingLoad))
    }

    /// Leaves the loading state. Called before `Ready` is sent, because the answer may arrive immediately.
    pub(super) fn is_ready(&self, role: Role) {
        *self.lock() = match role {
            Role::Active => ConversationState::Serving,
            Role::Standby => ConversationState::StandingBy,
        };
    }

    fn admit(&self, command: &Command) -> Result<(), &'static str> {
        let mut state = self.lock();
        command.check(*state)?;
        match command {
            Command::Load(_) => *state = ConversationState::Loading,
            Command::Promote { .. } => *state = ConversationState::Serving,
            _ => {}
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, ConversationState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads until the connection ends. Exits the process if the peer ended it.
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
    conversation.admit(&command)?;
    match engine.try_send(command) {
        // The engine is gone: the process is about to end.
        Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
        Err(TrySendError::Full(_)) => Err("more commands than the queue holds".to_owned()),
    }
}
