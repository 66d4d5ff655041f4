//! How a member's name is written. A site is written only when there is one, behind a generation whose highest bit says
//! so: a cluster without sites speaks as it always did.

use super::Name;
use crate::ids::Site;
use serde::de::{Error, SeqAccess, Visitor};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Generations are milliseconds since the epoch; none has this bit.
const HAS_SITE: u64 = 1 << 63;

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let has_site = !self.site.is_none();
        let mut tuple = serializer.serialize_tuple(if has_site { 3 } else { 2 })?;
        tuple.serialize_element(&self.address)?;
        let generation = self.generation & !HAS_SITE;
        tuple.serialize_element(&if has_site { generation | HAS_SITE } else { generation })?;
        if has_site {
            tuple.serialize_element(self.site.as_str())?;
        }
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple(3, Parts)
    }
}

struct Parts;

impl<'de> Visitor<'de> for Parts {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address, a generation and perhaps a site")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Name, A::Error> {
        let missing = || Error::custom("a part of a name is missing");
        let address = parts.next_element()?.ok_or_else(missing)?;
        let generation: u64 = parts.next_element()?.ok_or_else(missing)?;
        let site = if generation & HAS_SITE == 0 {
            Site::default()
        } else {
            let text: &str = parts.next_element()?.ok_or_else(missing)?;
            let site = Site::parse(text).filter(|site| !site.is_none());
            site.ok_or_else(|| Error::custom("no name of a site"))?
        };
        Ok(Name { address, generation: generation & !HAS_SITE, site })
    }
}
