//! Texts with units: `512MiB`, `1.5s`.

use std::time::Duration;

const BYTE_UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
];

const TIME_UNITS: [(&str, f64); 5] = [
    ("ms", 1e-3),
    ("min", 60.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("s", 1.0),
];

/// Parses bytes. A plain number is bytes; `K`, `M` and `G` are powers of 1024, as in systemd units.
///
/// # Errors
/// If it is no size.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = BYTE_UNITS
        .iter()
        .find_map(|(unit, size)| Some((text.strip_suffix(unit)?, *size)))
        .unwrap_or((text.strip_suffix('B').unwrap_or(text), 1));
    number
        .trim()
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| format!("{text:?} is no size in bytes, such as 512MiB"))
}

/// Parses a share such as 0.9. Returns thousandths.
///
/// # Errors
/// If it is no share.
pub fn permille(text: &str) -> Result<u16, String> {
    text.trim()
        .parse::<f64>()
        .ok()
        .map(|share| (share * 1000.0).round())
        .filter(|permille| (1.0..=1000.0).contains(permille))
        .map(|permille| permille as u16)
        .ok_or_else(|| format!("{text:?} is no share between 0.001 and 1, such as 0.9"))
}

/// Longest duration of an option. It can be multiplied and added to a clock without an overflow.
const MAX_DURATION: Duration = Duration::from_secs(1000 * 24 * 60 * 60);

/// Parses a duration of at most 1,000 days. A plain number is seconds.
///
/// # Errors
/// If it is no duration, or a longer one.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = TIME_UNITS
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)))
        .unwrap_or((text, 1.0));
    number
        .trim()
        .parse::<f64>()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number * unit).ok())
        .ok_or_else(|| format!("{text:?} is no time, such as 500ms, 5s or 10min"))
        .and_then(|time| match time {
            time if time <= MAX_DURATION => Ok(time),
            _ => Err(format!("{text:?} is longer than 1000 days")),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("512MiB"), Ok(512 << 20));
        assert_eq!(bytes("2G"), Ok(2 << 30));
        assert_eq!(bytes("10 MB"), Ok(10_000_000));
        assert_eq!(bytes("77"), Ok(77));
        assert_eq!(bytes("77B"), Ok(77));
        for wrong in ["", "MiB", "-1", "1.5G", "18446744073709551615K"] {
            assert!(bytes(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn shares() {
        assert_eq!(permille("0.9"), Ok(900));
        assert_eq!(permille("1"), Ok(1000));
        assert_eq!(permille(" 0.925 "), Ok(925));
        for wrong in ["", "0", "0.0001", "1.1", "90%", "-0.5", "nan"] {
            assert!(permille(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(duration("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("3"), Ok(Duration::from_secs(3)));
        assert_eq!(duration("24000h"), Ok(MAX_DURATION));
        for wrong in ["", "s", "-1s", "inf", "nan", "1e300h", "24001h"] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
