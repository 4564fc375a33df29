//! Commands of the supervisor, handled between steps.

use super::super::Doing;
use super::{INSPECTION_INTERVAL, StepLoop};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;
use worker_orcd_ipc::{Command, Fault};

impl StepLoop<'_> {
    /// Handles the commands that have arrived. False if the reader is gone.
    pub(super) fn handle_all(&mut self, commands: &Receiver<Command>) -> Result<bool, Fault> {
        loop {
            match commands.try_recv() {
                Ok(command) => self.handle(command)?,
                Err(TryRecvError::Disconnected) => return Ok(false),
                // Further commands may arrive during an adoption.
                Err(TryRecvError::Empty) if self.adopt()? => {}
                Err(TryRecvError::Empty) => return Ok(true),
            }
        }
    }

    pub(super) fn handle(&mut self, command: Command) -> Result<(), Fault> {
        match command {
            Command::Submit(submission) => self.submit(submission),
            Command::Cancel { request } => {
                self.adopt()?;
                self.scheduler.cancel(request);
                Ok(())
            }
            Command::Promote { traces } => self.promote(traces),
            Command::CopyAhead { pages } => {
                self.ahead.extend(pages);
                Ok(())
            }
            Command::Attach(source) => {
                self.attach(source);
                Ok(())
            }
            Command::ReleaseKv { child } => {
                self.adopt()?;
                self.release_kv(child);
                Ok(())
            }
            // The reader handles these itself.
            Command::Load(_) | Command::Shutdown => Ok(()),
        }
    }

    /// Promotes a standby. It counts as a device call, so a hang is detected.
    fn promote(&mut self, traces: bool) -> Result<(), Fault> {
        self.trace = self.trace.take().filter(|_| traces);
        // Their requests arrive now.
        self.ahead.clear();
        self.inspection_interval = INSPECTION_INTERVAL;
        self.status.step_begins(self.step, Instant::now());
        self.status.does(Doing::TakesOver);
        self.executor.promote()?;
        self.memory = self.executor.memory();
        self.memory_asked = Instant::now();
        self.update_status();
        Ok(())
    }
}
