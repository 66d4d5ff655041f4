//! The plans that come with the program, by name.

/// Name and text of each, in the order of `run --list`.
pub const SHIPPED: [(&str, &str); 7] = [
    ("smoke", include_str!("shipped/smoke.toml")),
    ("grade-2015", include_str!("shipped/grade-2015.toml")),
    ("grade-2016", include_str!("shipped/grade-2016.toml")),
    ("grade-2019", include_str!("shipped/grade-2019.toml")),
    ("grade-2023", include_str!("shipped/grade-2023.toml")),
    ("honest-2009", include_str!("shipped/honest-2009.toml")),
    ("scaling", include_str!("shipped/scaling.toml")),
];

/// The text of a shipped plan.
pub fn text(name: &str) -> Option<&'static str> {
    SHIPPED.iter().find(|(shipped, _)| *shipped == name).map(|&(_, text)| text)
}

/// What messages call a shipped plan.
pub fn file_name(name: &str) -> String {
    format!("{name} (shipped)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::file;

    #[test]
    fn every_shipped_plan_is_right_and_has_its_name() {
        for (name, text) in SHIPPED {
            let plan = file::parse(&file_name(name), text, &[]).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(plan.name, name);
            assert!(!plan.description.is_empty() && plan.description.lines().count() <= 8, "{name}");
        }
    }
}
