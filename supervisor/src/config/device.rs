//! Selection of devices: `--device` and the resolution of `auto` and `all`.
//!
//! The selection is fixed before the first child, as if the devices had been named. A device that is lost later is a
//! fault, and never a reason to use another one. The supervisor does not use CUDA, so it runs the child's program
//! ([`probe`](worker_orcd_process::probe)).

use std::fmt;
use worker_orcd_ipc::DeviceSelector;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceChoice {
    Auto,
    /// Every CUDA device of this machine.
    All,
    /// One at least.
    Named(Vec<DeviceSelector>),
}

/// CUDA device of `auto`.
pub const AUTO_ORDINAL: u32 = 0;

/// Largest number of devices of one worker; more than any host has.
pub const MOST_DEVICES: usize = 64;

/// Fixed selection and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedDevices {
    /// One at least.
    pub selectors: Vec<DeviceSelector>,
    pub reason: String,
}

impl DeviceChoice {
    /// # Errors
    /// If the text names no device, or names one card twice.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "all" => return Ok(Self::All),
            _ => {}
        }
        let selectors: Vec<_> = text.split(',').map(selector).collect::<Result<_, _>>()?;
        let is_card = |it: &DeviceSelector| matches!(it, DeviceSelector::Cuda(_));
        for (place, selector) in selectors.iter().enumerate() {
            if is_card(selector) && selectors[..place].contains(selector) {
                return Err(format!("{text:?} names {selector} twice"));
            }
        }
        match selectors.len() {
            ..=MOST_DEVICES => Ok(Self::Named(selectors)),
            more => Err(format!("{more} devices are more than {MOST_DEVICES}")),
        }
    }

    #[must_use]
    pub fn cuda(ordinal: u32) -> Self {
        Self::Named(vec![DeviceSelector::Cuda(ordinal)])
    }

    /// Selection of named devices. `None` for `auto` and `all`, which need a probe.
    #[must_use]
    pub fn named(&self) -> Option<DecidedDevices> {
        match self {
            Self::Auto | Self::All => None,
            Self::Named(selectors) => Some(DecidedDevices {
                selectors: selectors.clone(),
                reason: "it was asked for".to_owned(),
            }),
        }
    }

    /// Only cards are acceptable.
    #[must_use]
    pub fn needs_cards(&self) -> bool {
        match self {
            Self::Auto => false,
            Self::All => true,
            Self::Named(selectors) => selectors.iter().any(|it| *it != DeviceSelector::Cpu),
        }
    }

    /// Several devices are selected, or the number is not known yet.
    #[must_use]
    pub fn may_be_several(&self) -> bool {
        match self {
            Self::Auto => false,
            Self::All => true,
            Self::Named(selectors) => selectors.len() > 1,
        }
    }

    /// Only the CPU is selected.
    #[must_use]
    pub fn is_cpu_alone(&self) -> bool {
        match self {
            Self::Auto | Self::All => false,
            Self::Named(_) => !self.needs_cards(),
        }
    }

    /// Ordinals of the named cards, or of the first.
    #[must_use]
    pub fn ordinals(&self) -> Vec<u32> {
        match self {
            Self::Auto | Self::All => vec![AUTO_ORDINAL],
            Self::Named(selectors) => cards(selectors),
        }
    }
}

fn selector(text: &str) -> Result<DeviceSelector, String> {
    if text == "cpu" {
        return Ok(DeviceSelector::Cpu);
    }
    let ordinal = text.strip_prefix("cuda:");
    ordinal
        .and_then(|ordinal| ordinal.parse().ok())
        .map(DeviceSelector::Cuda)
        .ok_or_else(|| {
            format!("{text:?} is none of cuda:N, cpu, a list of these with commas, auto, all")
        })
}

/// Ordinals of the cards.
fn cards(selectors: &[DeviceSelector]) -> Vec<u32> {
    let ordinal = |selector: &DeviceSelector| match selector {
        DeviceSelector::Cpu => None,
        DeviceSelector::Cuda(ordinal) => Some(*ordinal),
    };
    selectors.iter().filter_map(ordinal).collect()
}

impl DecidedDevices {
    /// Selection of the previous supervisor.
    #[must_use]
    pub fn as_before(selectors: Vec<DeviceSelector>) -> Self {
        Self {
            selectors,
            reason: "it was decided before the upgrade".to_owned(),
        }
    }

    /// Resolves `auto` with the child's report on the first CUDA device.
    #[must_use]
    pub fn auto(outlook: Result<String, String>) -> Self {
        let (selector, reason) = match outlook {
            Ok(device) => (
                DeviceSelector::Cuda(AUTO_ORDINAL),
                format!("auto: {device} can be used"),
            ),
            Err(why) => (DeviceSelector::Cpu, format!("auto: {why}")),
        };
        let selectors = vec![selector];
        Self { selectors, reason }
    }

    /// Resolves `all` with the number of CUDA devices that the child's program counts.
    ///
    /// # Errors
    /// Why there is none.
    pub fn all(count: Result<u32, String>) -> Result<Self, String> {
        let count = count.map_err(|why| format!("--device all: {why}"))?;
        let cards = (0..count).take(MOST_DEVICES).map(DeviceSelector::Cuda);
        match count {
            0 => Err("--device all: there is no CUDA device".to_owned()),
            _ => Ok(Self {
                selectors: cards.collect(),
                reason: format!("all: the driver counts {count}"),
            }),
        }
    }

    /// Ordinals of the cards.
    #[must_use]
    pub fn cards(&self) -> Vec<u32> {
        cards(&self.selectors)
    }

    /// First device, for properties that have one value per worker.
    #[must_use]
    pub fn first(&self) -> DeviceSelector {
        self.selectors[0]
    }
}

/// Devices in the syntax of the command line.
impl fmt::Display for DecidedDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        DeviceChoice::Named(self.selectors.clone()).fmt(f)
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::All => f.write_str("all"),
            Self::Named(selectors) => {
                let names: Vec<_> = selectors.iter().map(ToString::to_string).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

/// Default prompt tokens of a step. On a card, matrix products of fewer rows leave the tensor cores idle. On a CPU,
/// larger chunks gain nothing.
#[must_use]
pub fn default_prefill_chunk(devices: &[DeviceSelector]) -> u32 {
    let is_cuda = |device: &DeviceSelector| matches!(device, DeviceSelector::Cuda(_));
    if devices.iter().any(is_cuda) {
        1792
    } else {
        512
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_alone_in_a_list_or_all_at_once() {
        for text in [
            "auto",
            "all",
            "cpu",
            "cuda:0,cuda:1",
            "cuda:3,cpu",
            "cpu,cpu",
        ] {
            let choice = DeviceChoice::parse(text).expect(text);
            assert_eq!(choice.to_string(), text);
        }
        for text in [
            "",
            "cuda",
            "cuda:x",
            "gpu:0",
            "cuda:0,",
            "auto,cpu",
            "cuda:1,cuda:1",
        ] {
            assert!(DeviceChoice::parse(text).is_err(), "{text}");
        }
        let many = vec!["cpu"; MOST_DEVICES + 1].join(",");
        assert!(DeviceChoice::parse(&many).is_err());
    }

    #[test]
    fn all_means_as_many_as_the_driver_counts_and_there_must_be_one() {
        let all = DecidedDevices::all(Ok(3)).expect("three");
        assert_eq!(all.to_string(), "cuda:0,cuda:1,cuda:2");
        assert_eq!(all.cards(), [0, 1, 2]);
        assert!(DecidedDevices::all(Ok(0)).is_err());
        let why = DecidedDevices::all(Err("no driver".to_owned())).unwrap_err();
        assert!(why.contains("no driver"));
    }
}
