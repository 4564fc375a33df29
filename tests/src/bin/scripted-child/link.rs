//! Child's side of the control socket, without checks of what is sent.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use worker_orcd_ipc::frame::write_frame;
use worker_orcd_ipc::{
    Command, Envelope, Event, ExitCode, FrameReader, Generation, Preamble, decode, encode,
};

/// Clones share the socket, for threads that write beside the main one. Only one of them reads.
#[derive(Clone)]
pub struct Link {
    pub generation: Generation,
    socket: Arc<Mutex<UnixStream>>,
    commands: Arc<Mutex<Receiver<Command>>>,
    reading: Arc<AtomicBool>,
}

impl Link {
    pub fn connect() -> Self {
        let path = argument("--socket").expect("--socket PATH");
        let generation = argument("--generation").expect("--generation N");
        let socket = UnixStream::connect(path).expect("the supervisor listens");
        let reader = socket.try_clone().expect("a socket can be duplicated");
        let (sender, commands) = channel();
        let reading = Arc::new(AtomicBool::new(true));
        let still_reading = Arc::clone(&reading);
        std::thread::spawn(move || read_commands(reader, &sender, &still_reading));
        Self {
            generation: Generation(generation.parse().expect("a number")),
            socket: Arc::new(Mutex::new(socket)),
            commands: Arc::new(Mutex::new(commands)),
            reading,
        }
    }

    pub fn send_preamble(&self) {
        self.send_raw(&Preamble::OURS.to_bytes());
    }

    pub fn send(&self, event: Event) {
        self.send_payload(&self.payload(event));
    }

    pub fn payload(&self, event: Event) -> Vec<u8> {
        encode(&Envelope {
            generation: self.generation,
            event,
        })
        .expect("it fits a frame")
    }

    pub fn send_payload(&self, payload: &[u8]) {
        let mut frame = Vec::new();
        write_frame(&mut frame, payload).expect("it fits a frame");
        self.send_raw(&frame);
    }

    /// Sends bytes. Ends the process when the peer is gone, like the real child.
    pub fn send_raw(&self, bytes: &[u8]) {
        if self
            .socket
            .lock()
            .expect("no writer panics")
            .write_all(bytes)
            .is_err()
        {
            std::process::exit(ExitCode::SupervisorLost.code());
        }
    }

    /// Next command; `None` after `patience`.
    pub fn receive(&self, patience: Duration) -> Option<Command> {
        self.commands
            .lock()
            .expect("no reader panics")
            .recv_timeout(patience)
            .ok()
    }

    pub fn stop_reading(&self) {
        self.reading.store(false, Ordering::Relaxed);
    }

    pub fn close(&self) {
        // First, because the reader exits at the end of the socket.
        self.stop_reading();
        let socket = self.socket.lock().expect("no writer panics");
        socket
            .shutdown(Shutdown::Both)
            .expect("a connected socket can be shut down");
    }

    pub fn duplicate(&self) -> OwnedFd {
        let socket = self.socket.lock().expect("no writer panics");
        socket
            .try_clone()
            .expect("a socket can be duplicated")
            .into()
    }
}

/// Reads commands. The end of the socket ends the process, unless the script stops the reading.
fn read_commands(mut socket: UnixStream, commands: &Sender<Command>, reading: &AtomicBool) {
    let mut frames = FrameReader::new();
    let mut buffer = [0; 4096];
    loop {
        let read = socket.read(&mut buffer).unwrap_or(0);
        while !reading.load(Ordering::Relaxed) {
            std::thread::park();
        }
        if read == 0 {
            std::process::exit(ExitCode::SupervisorLost.code());
        }
        frames.push(&buffer[..read]);
        while let Some(payload) = frames
            .next_frame()
            .expect("the supervisor frames its words")
        {
            let command = decode(payload).expect("the supervisor speaks this protocol");
            if commands.send(command).is_err() {
                return;
            }
        }
    }
}

fn argument(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}
