//! State machine of the worker: devices, drain and exit. Inputs are the time and events, outputs are effects.
//!
//! `tests/golden/worker.txt` is the complete transition table for a worker of one device.
//!
//! One child serves on each device. A device goes out of service ([`DeviceStatus`](crate::DeviceStatus), [`devices`]) if
//! its children keep dying without progress, or if NVIDIA's driver requires a reset or a reboot. The worker continues on
//! the other devices, and fails without any.
//!
//! The deaths of active children of a device count together, since a defect of the device kills each of them. A standby
//! is promoted as soon as the end of the active child begins. Deaths of a standby interrupt no stream, so they only end
//! the attempts to keep one. Deaths with progress between them make a device unsteady, without further consequences.
//! [`accessors`] has the queries on a worker.

mod accessors;
mod devices;

use crate::device_status::OutOfServiceReason;
use crate::device_supervisor::DeviceSupervisor;
use crate::effect::{ChildAction, DeviceId, Effect, EndReason, SeatId, Signal};
use crate::event::{ChildEvent, Event};
use crate::exit::SupervisorExit;
use crate::generations::Generations;
use crate::life::Life;
use crate::phase::{Drain, End, WorkerPhase};
use crate::restart_policy::{RestartPolicy, WorkerFailure};
use crate::watchdog::{Deadlines, SUPERVISOR_PAUSE};
use std::time::Duration;
use worker_orcd_ipc::Generation;

/// Settings of a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    pub deadlines: Deadlines,
    pub restart: RestartPolicy,
    /// Accepted compile-time features of a child.
    pub accept_features: Vec<String>,
    /// Keep a standby on each device.
    pub standby: bool,
    /// Start the next child while the previous one is dying, if there is no standby.
    pub overlap: bool,
}

/// State in which the previous supervisor left a device (upgrade).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PreviousChild {
    /// There was no previous supervisor.
    #[default]
    None,
    /// The latest generation of all devices. A child of this device may still be dying when its first child starts here.
    Dying(Generation),
    /// The serving child, which becomes the first child here.
    Serving(Generation),
    /// The device was out of service, and stays so while another one is in use. `last` is the latest generation of all
    /// devices.
    OutOfService {
        last: Generation,
        reason: OutOfServiceReason,
    },
}

/// State machine of the worker.
#[derive(Debug)]
pub struct Worker {
    settings: Settings,
    /// One per device, in the order of the worker's list.
    device_supervisors: Vec<DeviceSupervisor>,
    generations: Generations,
    phase: WorkerPhase,
    stale_events: u64,
    /// Time of the latest event; a gap shows a pause of the supervisor.
    last_event_at: Duration,
}

type Effects = Vec<Effect>;

impl Worker {
    /// Creates a worker and spawns a child on each device in use, one per item of `devices`. If all devices were out of
    /// service, all are used. An empty list means one device.
    #[must_use]
    pub fn start(now: Duration, settings: Settings, devices: &[PreviousChild]) -> (Self, Effects) {
        let last = devices.iter().map(PreviousChild::last).max();
        let generations = Generations::after(last.unwrap_or(Generation(0)));
        let devices = match devices {
            [] => &[PreviousChild::None],
            devices => devices,
        };
        let device_supervisor = |(device, before): (u8, &PreviousChild)| {
            let (settings, generations) = (settings.clone(), generations.clone());
            DeviceSupervisor::new(now, settings, DeviceId(device), before, generations)
        };
        let mut worker = Self {
            device_supervisors: (0..).zip(devices).map(device_supervisor).collect(),
            settings,
            generations,
            phase: WorkerPhase::Serve,
            stale_events: 0,
            last_event_at: now,
        };
        let is_any_in_use = devices.iter().any(|before| before.reason().is_none());
        let start =
            |(device_supervisor, before): (&mut DeviceSupervisor, &PreviousChild)| match before
                .reason()
            {
                Some(reason) if is_any_in_use => {
                    device_supervisor.start_out_of_service(now, reason.clone())
                }
                _ => device_supervisor.start(now),
            };
        let started = worker.device_supervisors.iter_mut().zip(devices).map(start);
        let effects = started.flatten().collect();
        (worker, effects)
    }

    /// Applies an event. `now` is the time since the supervisor's start.
    pub fn handle(&mut self, now: Duration, event: Event) -> Effects {
        self.compensate_own_pause(now);
        match event {
            Event::Child { generation, event } => self.child(now, generation, event),
            _ if self.is_over() => vec![],
            Event::Tick => self.tick(now),
            Event::DiscountDeaths { device, deaths } => {
                self.device_supervisor_mut(device).discount_deaths(deaths);
                vec![]
            }
            Event::Gpu(device, gpu_verdict) => self.gpu_verdict(now, device, &gpu_verdict),
            Event::Drain { timeout } => self.drain(now, timeout),
            Event::Idle => self.idle(now),
            Event::Replace => self.replace(now),
            Event::Withdraw(device) => self.withdraw(now, device),
            Event::Vacated(seat) => self.in_device(now, seat.device(), |it| it.vacated(now, seat)),
            Event::Readmit(device) => self.readmit(now, device),
            Event::StopNow => self.stop_now(now),
        }
    }

    /// Time of the next [`Event::Tick`]. `None` only if the worker is over.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Duration> {
        if self.is_over() {
            return None;
        }
        let drain = self.phase.drain().map(|drain| drain.until);
        let watches = self.lives().any(|life| life.state().is_watched());
        // Regular calls, by which a pause of the supervisor is distinguished from silence of a child.
        let own_tick = watches.then(|| self.last_event_at + SUPERVISOR_PAUSE / 2);
        let of_lives = self.lives().filter_map(Life::deadline);
        of_lives.chain(drain).chain(own_tick).min()
    }

    // === time ===

    fn compensate_own_pause(&mut self, now: Duration) {
        let pause = now.saturating_sub(self.last_event_at);
        self.last_event_at = self.last_event_at.max(now);
        if pause >= SUPERVISOR_PAUSE {
            let device_supervisors = self.device_supervisors.iter_mut();
            let lives =
                device_supervisors.flat_map(|device_supervisor| device_supervisor.seats.iter_mut());
            lives.for_each(|life| life.extend_deadlines(pause));
        }
    }

    fn tick(&mut self, now: Duration) -> Effects {
        if self.phase.drain().is_some_and(|drain| now >= drain.until) {
            let mut effects = vec![Effect::EndRequests(EndReason::DrainDeadline)];
            effects.extend(self.leave(now, SupervisorExit::DrainIncomplete));
            return effects;
        }
        self.each(|worker, seat| {
            worker.in_device(now, seat.device(), |device_supervisor| {
                device_supervisor.tick(now, seat)
            })
        })
    }

    // === a child ===

    fn child(&mut self, now: Duration, generation: Generation, event: ChildEvent) -> Effects {
        let is_new = matches!(event, ChildEvent::Spawned { .. });
        let is_progress = event == ChildEvent::Progress;
        let mut device_supervisors = self.device_supervisors.iter();
        let seat =
            device_supervisors.find_map(|device_supervisor| device_supervisor.seats.of(generation));
        let handled = seat.filter(|_| !self.is_over()).and_then(|seat| {
            let actions = self.life(seat).handle(now, event)?;
            Some((seat, actions))
        });
        match handled {
            Some((seat, actions)) if is_progress => {
                self.device_supervisor_mut(seat.device()).progressed(seat);
                self.follow(now, seat, actions)
            }
            Some((seat, actions)) if is_new => self.process_spawned(now, seat, actions),
            Some((seat, actions)) => self.follow(now, seat, actions),
            None => self.stale(seat, generation, is_new),
        }
    }

    /// Counts a stale event, and kills the process of a stale `Spawned`. If the seat already has its next child, the spawn
    /// code has ended that process itself.
    fn stale(&mut self, seat: Option<SeatId>, generation: Generation, is_new: bool) -> Effects {
        self.stale_events += 1;
        let kill = Effect::Child {
            seat: seat.unwrap_or(SeatId(0)),
            generation,
            action: ChildAction::Kill(Signal::Kill),
        };
        if is_new { vec![kill] } else { vec![] }
    }

    /// Ends a new process if its worker or device no longer needs it.
    fn process_spawned(
        &mut self,
        now: Duration,
        seat: SeatId,
        mut actions: Vec<ChildAction>,
    ) -> Effects {
        actions.extend(match self.phase {
            WorkerPhase::Leave(_) => self.life(seat).dismiss(now),
            WorkerPhase::Serve | WorkerPhase::Drain(_) => self
                .device_supervisor_mut(seat.device())
                .stop_new_process(now, seat),
            WorkerPhase::Over { .. } => vec![],
        });
        self.follow(now, seat, actions)
    }

    /// Turns actions on a child into effects for its device and the worker.
    fn follow(&mut self, now: Duration, seat: SeatId, actions: Vec<ChildAction>) -> Effects {
        self.in_device(now, seat.device(), |device_supervisor| {
            device_supervisor.follow(now, seat, actions)
        })
    }

    /// Replaces the serving child of each device.
    fn replace(&mut self, now: Duration) -> Effects {
        match self.phase {
            WorkerPhase::Serve => {
                self.each_device(now, |device_supervisor| device_supervisor.replace(now))
            }
            _ => vec![],
        }
    }

    /// Calls the supervisor of a device, then applies the consequences for the worker.
    fn in_device(
        &mut self,
        now: Duration,
        device: DeviceId,
        act: impl FnOnce(&mut DeviceSupervisor) -> Effects,
    ) -> Effects {
        let device_supervisor = self.device_supervisor_mut(device);
        let mut effects = act(device_supervisor);
        effects.extend(match device_supervisor.take_failure() {
            Some(failure) => self.device_failed(now, device, failure),
            None => self.settle(now),
        });
        effects
    }

    // === end ===

    fn drain(&mut self, now: Duration, timeout: Duration) -> Effects {
        let (since, until) = (now, now + timeout);
        match &mut self.phase {
            WorkerPhase::Serve => self.phase = WorkerPhase::Drain(Drain { since, until }),
            // A further drain event can only shorten the drain.
            WorkerPhase::Drain(drain) => {
                drain.until = drain.until.min(until);
                return vec![];
            }
            WorkerPhase::Leave(_) | WorkerPhase::Over { .. } => return vec![],
        }
        vec![Effect::RefuseNewWork]
    }

    fn idle(&mut self, now: Duration) -> Effects {
        match self.phase.drain() {
            Some(_) => self.leave(now, SupervisorExit::Clean),
            None => vec![],
        }
    }

    fn stop_now(&mut self, now: Duration) -> Effects {
        self.end_with(End::Stop(SupervisorExit::StoppedAtOnce));
        let mut effects = vec![
            Effect::RefuseNewWork,
            Effect::EndRequests(EndReason::StoppedAtOnce),
        ];
        effects.extend(self.each(|worker, seat| {
            let actions = worker.life(seat).end_at_once(now);
            worker.follow(now, seat, actions)
        }));
        effects
    }

    fn fail(&mut self, now: Duration, failure: WorkerFailure) -> Effects {
        if self.failure().is_some() {
            return self.settle(now);
        }
        self.end_with(End::Fail(failure));
        let mut effects = vec![
            Effect::RefuseNewWork,
            Effect::EndRequests(EndReason::Failed),
        ];
        effects.extend(self.dismiss(now));
        effects
    }

    fn end_with(&mut self, end: End) {
        self.phase = WorkerPhase::Leave(end);
        self.device_supervisors
            .iter_mut()
            .for_each(DeviceSupervisor::close);
    }

    fn leave(&mut self, now: Duration, exit: SupervisorExit) -> Effects {
        self.end_with(End::Stop(exit));
        self.dismiss(now)
    }

    fn dismiss(&mut self, now: Duration) -> Effects {
        self.each_device(now, |device_supervisor| device_supervisor.dismiss(now))
    }

    /// Ends a stopping worker once no process is left; otherwise settles its devices.
    fn settle(&mut self, now: Duration) -> Effects {
        let end = match &self.phase {
            WorkerPhase::Serve | WorkerPhase::Drain(_) => return self.settle_devices(now),
            WorkerPhase::Over { .. } => return vec![],
            WorkerPhase::Leave(end) => end.clone(),
        };
        self.device_supervisors
            .iter_mut()
            .for_each(DeviceSupervisor::close);
        if !self
            .device_supervisors
            .iter()
            .all(|device_supervisor| device_supervisor.seats.are_over())
        {
            return vec![];
        }
        let (exit, reason) = match &end {
            End::Stop(exit) => (*exit, exit.name().to_owned()),
            End::Fail(failure) => (failure.exit, failure.reason.clone()),
        };
        self.phase = WorkerPhase::Over { since: now, end };
        vec![Effect::End { exit, reason }]
    }

    // === devices ===

    fn device_supervisor(&self, device: DeviceId) -> &DeviceSupervisor {
        &self.device_supervisors[usize::from(device.0)]
    }

    fn device_supervisor_mut(&mut self, device: DeviceId) -> &mut DeviceSupervisor {
        &mut self.device_supervisors[usize::from(device.0)]
    }

    fn lives(&self) -> impl Iterator<Item = &Life> {
        self.device_supervisors
            .iter()
            .flat_map(|device_supervisor| device_supervisor.seats.iter())
    }

    fn life(&mut self, seat: SeatId) -> &mut Life {
        self.device_supervisor_mut(seat.device())
            .seats
            .get_mut(seat)
    }

    fn each(&mut self, mut act: impl FnMut(&mut Self, SeatId) -> Effects) -> Effects {
        let seats = self.seats();
        seats.flat_map(|seat| act(self, seat)).collect()
    }

    fn each_device(
        &mut self,
        now: Duration,
        mut act: impl FnMut(&mut DeviceSupervisor) -> Effects,
    ) -> Effects {
        let devices = self.devices();
        devices
            .flat_map(|device| self.in_device(now, device, &mut act))
            .collect()
    }
}

impl PreviousChild {
    /// Latest generation of the previous supervisor; 0 without one.
    fn last(&self) -> Generation {
        match self {
            Self::None => Generation(0),
            Self::Dying(last) => *last,
            Self::Serving(child) => *child,
            Self::OutOfService { last, .. } => *last,
        }
    }

    fn reason(&self) -> Option<&OutOfServiceReason> {
        match self {
            Self::OutOfService { reason, .. } => Some(reason),
            Self::None | Self::Dying(_) | Self::Serving(_) => None,
        }
    }
}
