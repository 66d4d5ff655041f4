//! The violet binary.
fn main() {}
