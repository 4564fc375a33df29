//! Which devices are meant, and what `auto` and `all` come to.
//!
//! It is decided once, before the first child, and is from then on as if the devices had been named: a
//! device that is lost later is a fault, never a reason to compute elsewhere than on the others. The
//! supervisor does not touch CUDA, so it asks the program that can
//! ([`probe`](crate::child::probe)).

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

/// The CUDA device that `auto` asks for.
pub const AUTO_ORDINAL: u32 = 0;

/// Devices of one worker, at most. No host has more cards.
pub const MOST_DEVICES: usize = 64;

/// A choice that will not change while the worker lives, and why it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedDevices {
    /// One at least.
    pub selectors: Vec<DeviceSelector>,
    pub reason: String,
}

impl DeviceChoice {
    /// # Errors
    /// When the text names no device, or one card twice.
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

    /// `None` for `auto` and `all`, for which somebody has to look.
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

    /// Cards are asked for, and nothing but cards will do.
    #[must_use]
    pub fn needs_cards(&self) -> bool {
        match self {
            Self::Auto => false,
            Self::All => true,
            Self::Named(selectors) => selectors.iter().any(|it| *it != DeviceSelector::Cpu),
        }
    }

    /// More than one is meant, or nobody knows yet.
    #[must_use]
    pub fn may_be_several(&self) -> bool {
        match self {
            Self::Auto => false,
            Self::All => true,
            Self::Named(selectors) => selectors.len() > 1,
        }
    }

    /// No card is asked for.
    #[must_use]
    pub fn is_cpu_alone(&self) -> bool {
        match self {
            Self::Auto | Self::All => false,
            Self::Named(_) => !self.needs_cards(),
        }
    }

    /// The cards that are named, or the first.
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

/// Their ordinals.
fn cards(selectors: &[DeviceSelector]) -> Vec<u32> {
    let ordinal = |selector: &DeviceSelector| match selector {
        DeviceSelector::Cpu => None,
        DeviceSelector::Cuda(ordinal) => Some(*ordinal),
    };
    selectors.iter().filter_map(ordinal).collect()
}

impl DecidedDevices {
    /// Those of the supervisor before this one.
    #[must_use]
    pub fn as_before(selectors: Vec<DeviceSelector>) -> Self {
        Self {
            selectors,
            reason: "it was decided before the upgrade".to_owned(),
        }
    }

    /// The device that `auto` means, given what the child's program says of the first CUDA device.
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

    /// What `all` means, given how many CUDA devices the child's program counts.
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

    /// Ordinals of those that are cards.
    #[must_use]
    pub fn cards(&self) -> Vec<u32> {
        cards(&self.selectors)
    }

    /// The first, which speaks for all where one has to.
    #[must_use]
    pub fn first(&self) -> DeviceSelector {
        self.selectors[0]
    }
}

/// The devices as they are written on the command line.
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

/// Prompt tokens of a step where the command line does not name them. On a card, products of fewer rows leave the tensor
/// cores waiting; on a CPU, larger chunks gain nothing.
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
