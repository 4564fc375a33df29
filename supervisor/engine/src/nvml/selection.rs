//! Mapping of `cuda:N` to a GPU of the machine.
//!
//! CUDA counts the entries of `CUDA_VISIBLE_DEVICES`. NVML ignores the variable and counts all devices by bus address.
//! Both orders agree unless the machine has different models and `CUDA_DEVICE_ORDER` is unset, which is not visible
//! here. The user of an [`Address`] must therefore compare the UUID that the child reports later.

/// Address of one device in NVML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Index(u32),
    /// Unique prefix of a UUID.
    Uuid(String),
}

impl Address {
    /// Address of `cuda:{ordinal}`. `visible`: value of `CUDA_VISIBLE_DEVICES`, if set.
    ///
    /// # Errors
    /// If the variable hides that device, or names one that NVML cannot monitor.
    pub(super) fn of(ordinal: u32, visible: Option<&str>) -> Result<Self, String> {
        let Some(visible) = visible else {
            return Ok(Self::Index(ordinal));
        };
        // As in CUDA, the list ends at the first invalid entry.
        let mut entries = visible.split(',').map(str::trim).map_while(Entry::parse);
        match entries.nth(ordinal as usize) {
            Some(Entry::Device(address)) => Ok(address),
            Some(Entry::Partition) => Err(format!(
                "CUDA_VISIBLE_DEVICES={visible} names a MIG partition, and only whole devices are \
                 watched"
            )),
            None => Err(format!(
                "CUDA_VISIBLE_DEVICES={visible} has no entry {ordinal}"
            )),
        }
    }

    /// Index of the device among all devices of NVML.
    ///
    /// # Errors
    /// If no device matches, or several.
    pub(super) fn pick(&self, uuids: &[String]) -> Result<u32, String> {
        let count = uuids.len();
        match self {
            Self::Index(index) if (*index as usize) < count => Ok(*index),
            Self::Index(index) => Err(format!("there is no GPU {index} among {count}")),
            Self::Uuid(prefix) => {
                let fits = |(_, uuid): &(u32, &String)| has_prefix(uuid, prefix);
                let mut found = (0..).zip(uuids).filter(fits);
                match (found.next(), found.next()) {
                    (Some((index, _)), None) => Ok(index),
                    (None, _) => Err(format!("none of {count} GPUs is {prefix}")),
                    (Some(_), Some(_)) => Err(format!("several GPUs begin with {prefix}")),
                }
            }
        }
    }
}

enum Entry {
    Device(Address),
    Partition,
}

impl Entry {
    fn parse(text: &str) -> Option<Self> {
        if text.starts_with("MIG-") {
            return Some(Self::Partition);
        }
        if text.starts_with("GPU-") && text.len() > "GPU-".len() {
            return Some(Self::Device(Address::Uuid(text.to_owned())));
        }
        text.parse().ok().map(Address::Index).map(Self::Device)
    }
}

fn has_prefix(uuid: &str, prefix: &str) -> bool {
    uuid.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// True for equal UUIDs. CUDA omits the prefix `GPU-` of NVML.
#[must_use]
pub(crate) fn same_uuid(one: &str, other: &str) -> bool {
    let bare = |uuid: &str| uuid.trim_start_matches("GPU-").to_ascii_lowercase();
    bare(one) == bare(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(number: u32) -> Result<Address, String> {
        Ok(Address::Index(number))
    }

    #[test]
    fn ordinals_count_what_is_visible() {
        assert_eq!(Address::of(1, None), index(1));
        assert_eq!(Address::of(1, Some("3, 5")), index(5));
        let uuid = Ok(Address::Uuid("GPU-8932f937".to_owned()));
        assert_eq!(Address::of(0, Some("GPU-8932f937,1")), uuid);
        for (visible, words) in [
            ("", "no entry 1"),
            ("0", "no entry 1"),
            ("0,-1,1", "no entry 1"),
            ("0,none,1", "no entry 1"),
            ("0,MIG-1c2d", "MIG"),
        ] {
            let refusal = Address::of(1, Some(visible)).unwrap_err();
            assert!(refusal.contains(words), "{visible:?}: {refusal}");
        }
    }

    #[test]
    fn an_address_is_one_device_or_none() {
        let uuids = ["GPU-aa11", "GPU-aa22", "", "GPU-bb33"].map(str::to_owned);
        let pick = |text: &str| Address::Uuid(text.to_owned()).pick(&uuids);
        assert_eq!(Address::Index(3).pick(&uuids), Ok(3));
        assert_eq!(pick("GPU-BB"), Ok(3));
        assert_eq!(pick("GPU-aa22"), Ok(1));
        assert!(
            Address::Index(4)
                .pick(&uuids)
                .unwrap_err()
                .contains("no GPU 4")
        );
        assert!(pick("GPU-aa").unwrap_err().contains("several"));
        assert!(pick("GPU-cc").unwrap_err().contains("none of 4"));
        assert!(pick("GPU-aa11-and-more").is_err());
    }

    #[test]
    fn a_uuid_is_the_same_in_both_spellings() {
        assert!(same_uuid("GPU-8932F937-d72c", "8932f937-d72c"));
        assert!(!same_uuid("GPU-8932f937", "GPU-8932f938"));
    }
}
