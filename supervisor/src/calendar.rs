//! Dates, in UTC: `strftime_now` of chat templates, and time stamps in answers.

#![expect(clippy::disallowed_methods, reason = "what a log line is stamped with")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// Formats the present; an unknown directive is refused by name.
pub(crate) fn strftime_now(format: &str) -> Result<String, String> {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    strftime(format, since_epoch.as_secs())
}

/// RFC 3339 with milliseconds, such as `2026-11-21T12:00:00.250Z`.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let Moment {
        year,
        month,
        day,
        second_of_day,
        ..
    } = Moment::from_unix(since_epoch.as_secs());
    let (hour, minute, second) = (
        second_of_day / 3600,
        second_of_day / 60 % 60,
        second_of_day % 60,
    );
    let milliseconds = since_epoch.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}

fn strftime(format: &str, unix_seconds: u64) -> Result<String, String> {
    let moment = Moment::from_unix(unix_seconds);
    let mut out = String::with_capacity(format.len() + 16);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        match (c, chars.as_str().chars().next()) {
            ('%', Some(directive)) => {
                chars.next();
                out.push_str(&moment.directive(directive)?);
            }
            (c, _) => out.push(c),
        }
    }
    Ok(out)
}

#[derive(Debug)]
struct Moment {
    year: u64,
    /// 1 to 12.
    month: usize,
    day: u64,
    /// 0 is Sunday.
    weekday: usize,
    second_of_day: u64,
}

impl Moment {
    fn from_unix(seconds: u64) -> Self {
        let days = seconds / 86_400;
        let (year, month, day) = civil_from_days(days);
        // 1 January 1970 was a Thursday.
        let weekday = ((days + 4) % 7) as usize;
        Self {
            year,
            month,
            day,
            weekday,
            second_of_day: seconds % 86_400,
        }
    }

    fn directive(&self, directive: char) -> Result<String, String> {
        let (hour, minute) = (self.second_of_day / 3600, self.second_of_day / 60 % 60);
        Ok(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'B' => MONTHS[self.month - 1].to_owned(),
            'b' => MONTHS[self.month - 1][..3].to_owned(),
            'A' => WEEKDAYS[self.weekday].to_owned(),
            'a' => WEEKDAYS[self.weekday][..3].to_owned(),
            'H' => format!("{hour:02}"),
            'M' => format!("{minute:02}"),
            'S' => format!("{:02}", self.second_of_day % 60),
            '%' => "%".to_owned(),
            unknown => return Err(format!("strftime_now does not know %{unknown}")),
        })
    }
}

/// Year, month and day of a day count from 1 January 1970, by counting four-century cycles
/// from 1 March of year 0, so that the leap day comes last in its year.
fn civil_from_days(days: u64) -> (u64, usize, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let day = days + DAYS_TO_1970;
    let cycle = day / DAYS_IN_400_YEARS;
    let day_of_cycle = day % DAYS_IN_400_YEARS;
    let leap_days = day_of_cycle / 1_460 - day_of_cycle / 36_524 + day_of_cycle / 146_096;
    let year_of_cycle = (day_of_cycle - leap_days) / 365;
    let day_of_year =
        day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = cycle * 400 + year_of_cycle + u64::from(month <= 2);
    (year, month as usize, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_the_calendar_s() {
        let cases = [
            (0, "Thursday 01 January 1970 00:00:00"),
            (951_782_399, "Monday 28 February 2000 23:59:59"),
            (951_782_400, "Tuesday 29 February 2000 00:00:00"),
            (4_107_542_400, "Monday 01 March 2100 00:00:00"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(strftime("%A %d %B %Y %H:%M:%S", seconds).unwrap(), expected);
        }
    }

    #[test]
    fn time_stamps_are_rfc_3339() {
        let time = UNIX_EPOCH + Duration::from_millis(951_782_399_250);
        assert_eq!(rfc3339(time), "2000-02-28T23:59:59.250Z");
    }

    #[test]
    fn an_unknown_directive_is_refused_by_name() {
        assert_eq!(
            strftime("%Q", 0).unwrap_err(),
            "strftime_now does not know %Q"
        );
        assert_eq!(strftime("50 %", 0).unwrap(), "50 %");
    }
}
