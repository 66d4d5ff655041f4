//! What loads ask for: which operations on which keys with which values, and whether the answers can be right.
//!
//! Specifications ([`Mix`], [`KeyOrder`], [`ValueBytes`], [`Route`]) are short texts, the same on the command line and
//! in plan files. [`Keys`] is a set of numbered keys with what is known of each ([`ledger`]), and asks and judges for
//! the load engine ([`keys`]).

pub mod keys;
pub mod ledger;
mod mix;
mod order;
mod sizes;

pub use keys::{Keys, Target};
pub use ledger::{Fault, Faults};
pub use mix::{Mix, Route};
pub use order::KeyOrder;
pub use sizes::ValueBytes;

/// Lets serde read and write a type as the text that it parses and displays.
macro_rules! as_text {
    ($name:ty) => {
        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    };
}
pub(crate) use as_text;
