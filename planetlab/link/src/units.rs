//! Times, chances, rates and sizes as people write them: `20ms`, `1.5%`, `10Mbit`, `64KiB`.
//!
//! All of them are whole numbers inside (nanoseconds, parts per million, bits a second, bytes), so that what is
//! printed reads back as the same.

use crate::dice::MILLION;
use std::time::Duration;

/// Units with what one is in the smallest; the first that divides a number evenly is the one it is printed in.
type Units = &'static [(&'static str, u64)];

const TIMES: Units = &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
const RATES: Units = &[("Gbit", 1_000_000_000), ("Mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];
const SIZES: Units = &[("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// `1.5ms`: a number with at most nine digits behind the point, and a unit.
fn parse(text: &str, units: Units) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let (_, factor) = *units.iter().find(|(name, _)| *name == unit)?;
    decimal(digits, factor)
}

/// A decimal number times a factor, if the product is whole.
fn decimal(digits: &str, factor: u64) -> Option<u64> {
    const DIGITS_MAX: usize = 9;
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || DIGITS_MAX < part.len() {
        return None;
    }
    let scale = 10u64.pow(part.len() as u32);
    let product = u128::from(part.parse::<u64>().ok()?) * u128::from(factor);
    let part = (product % u128::from(scale) == 0).then_some((product / u128::from(scale)) as u64)?;
    whole.parse::<u64>().ok()?.checked_mul(factor)?.checked_add(part)
}

fn show(number: u64, units: Units) -> String {
    let (name, factor) =
        units.iter().find(|(_, factor)| number.is_multiple_of(*factor)).expect("the last is 1");
    format!("{}{name}", number / factor)
}

/// `20ms`, `1.5s`, `100us`; 0 needs no unit.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let nanos = if text == "0" { Some(0) } else { parse(text, TIMES) };
    let nanos = nanos.filter(|nanos| *nanos <= 86_400_000_000_000);
    nanos
        .map(Duration::from_nanos)
        .ok_or_else(|| format!("'{text}' is no time; allowed: like 20ms, 1.5s or 100us, up to 86400s"))
}

pub(crate) fn show_time(time: Duration) -> String {
    if time.is_zero() { "0".into() } else { show(time.as_nanos() as u64, TIMES) }
}

/// `1%`, `0.05%`, `300ppm`: parts per million.
pub(crate) fn chance(text: &str) -> Result<u32, String> {
    const PER_PERCENT: u64 = 10_000;
    let parts = match (text.strip_suffix('%'), text.strip_suffix("ppm")) {
        (Some(digits), _) => decimal(digits, PER_PERCENT),
        (None, Some(digits)) => decimal(digits, 1),
        (None, None) => (text == "0").then_some(0),
    };
    let parts = parts.and_then(|parts| u32::try_from(parts).ok()).filter(|parts| *parts <= MILLION);
    parts.ok_or_else(|| {
        format!("'{text}' is no chance; allowed: 0% to 100% in steps of 0.0001%, or like 300ppm")
    })
}

pub(crate) fn show_chance(parts: u32) -> String {
    let (whole, part) = (parts / 10_000, parts % 10_000);
    if part == 0 {
        return format!("{whole}%");
    }
    format!("{}%", format!("{whole}.{part:04}").trim_end_matches('0'))
}

/// `10Mbit` a second; `none` is no limit.
pub(crate) fn rate(text: &str) -> Result<Option<u64>, String> {
    if text == "none" {
        return Ok(None);
    }
    let bits = parse(text, RATES).filter(|bits| (1_000..=1_000_000_000_000).contains(bits));
    bits.map(Some).ok_or_else(|| {
        format!("'{text}' is no rate; allowed: none, or like 64kbit, 10Mbit or 1Gbit, from 1kbit to 1000Gbit")
    })
}

pub(crate) fn show_rate(rate: Option<u64>) -> String {
    rate.map_or("none".into(), |bits| show(bits, RATES))
}

/// `64KiB`, `1MiB`, `1500B` or `1500`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let bytes = parse(text, SIZES).or_else(|| decimal(text, 1)).filter(|bytes| *bytes <= 1 << 40);
    bytes.ok_or_else(|| format!("'{text}' is no size; allowed: like 1500, 64KiB or 1MiB"))
}

pub(crate) fn show_size(bytes: u64) -> String {
    show(bytes, SIZES)
}
