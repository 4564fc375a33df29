//! Devices that go out of use while streams run, and return: drained by order, and worn out by kills, alternately.
//!
//! The last device in use is spared. While one is out the worker has to report it, and to serve.

use super::devices::Device;
use super::mix::Random;
use super::pauses::Hit;
use super::storm::{pause, rest};
use super::worker::Worker;
use anyhow::{Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Seconds between two events, on average.
const MEAN_SECONDS: f64 = 4.0;

/// 3 min for an ordered device to lose its child, or to serve again; faults go on meanwhile.
const PATIENCE: Duration = Duration::from_secs(180);

/// 5 ms between two polls of `/health`.
const POLL: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Drained,
    WornOut,
}

/// Outcome of the devices.
#[derive(Debug, Default)]
pub struct Worn {
    /// Devices that were drained, or worn out, and returned.
    drained: u64,
    worn_out: u64,
    readmitted: u64,
    /// Kills that wore devices out.
    pub kills: Vec<Hit>,
    violations: Vec<String>,
}

#[derive(Debug)]
pub struct Wear {
    thread: JoinHandle<Worn>,
    over: Arc<AtomicBool>,
}

impl Wear {
    pub fn start(worker: &Arc<Worker>, seed: u64) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let worker = Arc::clone(worker);
        let thread = thread::spawn(move || {
            let mut random = Random::new(seed, u64::MAX - 2);
            let mut worn = Worn::default();
            let mut ways = [Way::Drained, Way::WornOut].into_iter().cycle();
            // Each once, also in a short run.
            while rest(pause(MEAN_SECONDS, &mut random), &stop) || !worn.has_shown_all() {
                let way = ways.next().expect("without end");
                if let Err(error) = worn.out_and_back(&worker, way, &mut random, &stop) {
                    worn.violations.push(format!("{way:?}: {error:#}"));
                    return worn;
                }
            }
            worn
        });
        Self { thread, over }
    }

    /// Ends with all devices in use.
    pub fn stop(self) -> Worn {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("wear does not panic")
    }
}

impl Worn {
    fn out_and_back(
        &mut self,
        worker: &Worker,
        way: Way,
        random: &mut Random,
        over: &AtomicBool,
    ) -> Result<()> {
        let devices = worker.devices()?;
        ensure!(
            devices.iter().all(Device::is_in_use),
            "devices went out by themselves: {devices:?}"
        );
        let device = random.pick(&devices).number;
        match way {
            Way::Drained => {
                worker.order(device, "drain")?;
                wait(worker, device, |it| it.standing == "drained")?;
                self.drained += 1;
            }
            Way::WornOut => {
                self.wear_out(worker, device)?;
                self.worn_out += 1;
            }
        }
        serves_without(worker, device)?;
        rest(pause(MEAN_SECONDS, random), over);
        serves_without(worker, device)?;
        wait(worker, device, |it| it.may_return)?;
        worker.order(device, "readmit")?;
        wait(worker, device, |it| it.is_in_use() && it.serves)?;
        self.readmitted += 1;
        Ok(())
    }

    /// Kills each child of the device before it can deliver a token. A signal to a child that does not serve counts as
    /// its own fault, and no request is with it that could be suspected.
    fn wear_out(&mut self, worker: &Worker, device: usize) -> Result<()> {
        let mut last = None;
        wait(worker, device, |it| {
            let signal = match it.serves {
                true => Signal::SIGKILL,
                false => Signal::SIGABRT,
            };
            if let Some(child) = it.child.filter(|child| Some(*child) != last)
                && kill(Pid::from_raw(child.cast_signed()), signal).is_ok()
            {
                last = Some(child);
                self.kills
                    .push((signal.as_str().to_owned(), Instant::now()));
            }
            it.standing == "failed"
        })
    }

    fn has_shown_all(&self) -> bool {
        self.drained > 0 && self.worn_out > 0
    }

    /// Violations, and events that never occurred.
    pub fn verdict(&self) -> Vec<String> {
        let mut violations = self.violations.clone();
        if self.drained == 0 {
            violations.push("no device was drained".to_owned());
        }
        if self.worn_out == 0 {
            violations.push("no device was worn out".to_owned());
        }
        violations
    }

    pub fn markdown(&self) -> String {
        format!(
            "Under the streams a device was drained {} times, and worn out {} times by {} kills in all, and used again \
             {} times. In between the worker called itself degraded, with the reason, and served.\n",
            self.drained,
            self.worn_out,
            self.kills.len(),
            self.readmitted,
        )
    }
}

/// Checks that the worker reports the device as out with its reason, and is ready, unless children of all others die in
/// bursts.
fn serves_without(worker: &Worker, device: usize) -> Result<()> {
    let answer = worker.client.try_get("/health")?;
    let (status, health) = (answer.status, answer.try_json()?);
    let told = Device::all(&health).remove(device);
    ensure!(status == 200, "without device {device} it says {status}");
    ensure!(
        health["status"] != "healthy",
        "without device {device} it calls itself healthy"
    );
    ensure!(
        !told.is_in_use() && told.reason.is_some_and(|it| !it.is_empty()),
        "device {device} is out without a reason: {health}"
    );
    let is_steady = |health: &Value| Device::all(health).iter().any(Device::is_steady);
    let ready = worker.client.try_get("/readyz")?.status;
    // A burst may have begun or ended meanwhile.
    let [before, after] = [is_steady(&health), is_steady(&worker.health()?)];
    ensure!(
        before != after || (ready == 200) == before,
        "without device {device} /readyz says {ready}: {health}"
    );
    Ok(())
}

fn wait(worker: &Worker, device: usize, mut is_so: impl FnMut(&Device) -> bool) -> Result<()> {
    let began = Instant::now();
    loop {
        worker.assert_alive()?;
        let devices = worker.devices()?;
        if is_so(&devices[device]) {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            bail!("in vain for {PATIENCE:?}: {:?}", devices[device]);
        }
        thread::sleep(POLL);
    }
}
