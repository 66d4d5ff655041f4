//! The black-box test client.
fn main() {}
