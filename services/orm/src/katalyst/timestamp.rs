//! Times as Go prints them: `2006-01-02 15:04:05.999999999 -0700 MST`.

const DAY_MS: i64 = 86_400_000;

/// Milliseconds since the Unix epoch; `None` if the text is no such time.
pub(super) fn unix_ms(text: &str) -> Option<i64> {
    let mut words = text.split_whitespace();
    let (date, time, zone) = (words.next()?, words.next()?, words.next()?);
    let mut date = date.splitn(3, '-').map(number);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut clock = clock.splitn(3, ':').map(number);
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let in_range = (1..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !in_range {
        return None;
    }
    let millis = match fraction.get(..3.min(fraction.len()))? {
        "" => 0,
        digits => number(digits)? * [100, 10, 1].get(digits.len().checked_sub(1)?)?,
    };
    let seconds = (hour * 60 + minute) * 60 + second - offset_s(zone)?;
    Some(days_since_epoch(year, month, day) * DAY_MS + seconds * 1000 + millis)
}

fn number(digits: &str) -> Option<i64> {
    let plain = (1..=4).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

/// `+0830` in seconds.
fn offset_s(zone: &str) -> Option<i64> {
    let (sign, digits) = match zone.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, zone.strip_prefix('+')?),
    };
    let hhmm = number(digits).filter(|_| digits.len() == 4)?;
    Some(sign * ((hhmm / 100) * 3600 + (hhmm % 100) * 60))
}

/// Of the proleptic Gregorian calendar, counted in years that begin with March, so that the leap day comes last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_of_all_zones_are_read() {
        assert_eq!(unix_ms("1970-01-01 00:00:00 +0000 UTC"), Some(0));
        assert_eq!(unix_ms("2024-02-29 12:34:56.789123456 +0800 CST"), Some(1_709_181_296_789));
        assert_eq!(unix_ms("2023-11-14 15:13:20.5 -0700 MST"), Some(1_700_000_000_500));
        assert_eq!(unix_ms("2000-03-01 00:00:00 +0000 UTC"), Some(951_868_800_000));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in
            ["", "now", "2024-13-01 00:00:00 +0000 UTC", "2024-01-01 00:00:00", "2024-01-01T00:00:00Z x y"]
        {
            assert_eq!(unix_ms(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[0-9]{0,5}-[0-9é]{0,3}-[0-9]{0,3} [0-9]{0,3}:[0-9]{0,3}:[0-9]{0,3}\\.?[0-9é]{0,4} [+-]?[0-9é]{0,5}") {
            let _ = unix_ms(&text);
        }
    }
}
