//! Numbers as people read them, with their units.

/// Milliseconds, or seconds when there are many.
pub fn ms(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(ms) if !ms.is_finite() => "none".to_owned(),
        Some(ms) if ms < 0.1 => format!("{:.0} µs", ms * 1e3),
        Some(ms) if ms < 100.0 => format!("{ms:.1} ms"),
        Some(ms) if ms < 10_000.0 => format!("{ms:.0} ms"),
        Some(ms) => format!("{:.1} s", ms / 1e3),
    }
}

/// A number a second.
pub fn rate(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}/s") } else { format!("{}/s", grouped(value.round() as u64)) }
}

/// A whole number with a comma for each thousand.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if 0 < at && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share as per cent, finer when it is small.
pub fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    match percent {
        _ if percent == 0.0 => "0 %".to_owned(),
        _ if percent < 0.01 => "< 0.01 %".to_owned(),
        _ if percent < 1.0 => format!("{percent:.2} %"),
        _ if percent < 10.0 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_and_few_digits() {
        let times = [0.05, 3.21, 99.96, 150.4, 12_000.0].map(|value| ms(Some(value)));
        assert_eq!(times, ["50 µs", "3.2 ms", "100.0 ms", "150 ms", "12.0 s"]);
        assert_eq!(ms(None), "–");
        assert_eq!([rate(3.04), rate(1_234_567.4)], ["3.0/s", "1,234,567/s"]);
        assert_eq!(
            [0.0, 0.00001, 0.005, 0.051, 0.5].map(percent),
            ["0 %", "< 0.01 %", "0.50 %", "5.1 %", "50 %"]
        );
        assert_eq!([1, 999, 1_000, 12_345_678].map(grouped), ["1", "999", "1,000", "12,345,678"]);
    }
}
