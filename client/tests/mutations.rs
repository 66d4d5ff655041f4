//! What damage may and may not do: the vectors, bent in every way a network, a bug or an enemy could
//! bend them, go through both readers. The same seed bends them the same way each time.
//!
//! Most bent envelopes fail their checksum, which would leave the reader of the payload untried, so half
//! of the mutations bend the payload and then make the checksum right again.

#[expect(dead_code, reason = "only the datagrams are bent; their meanings are tested elsewhere")]
mod vector_file;

use violet_client::wire::{
    self, Accept, Context, DATAGRAM_BYTES_MAX, DropReason, Format, Key, MessageId, Operation, Rejected,
    Request, Response, Siblings, Status, Value, protobuf, raw,
};

const MUTATIONS: u32 = 200_000;
const SEED: u64 = 0x5eed_0fa1_1f1a_5000;

#[test]
fn no_mutation_upsets_the_readers() {
    let datagrams = datagrams();
    let mut random = Random(SEED);
    let mut seen = Seen::default();
    for _ in 0..MUTATIONS {
        let datagram = mutate(&datagrams, &mut random);
        check_request(&datagram, &mut seen);
        check_response(&datagram, &mut seen);
    }
    // Each of the paths was taken often, or the mutations would prove nothing.
    for (path, count) in [
        ("raw requests", seen.raw_requests),
        ("protobuf requests", seen.protobuf_requests),
        ("answered rejections", seen.answered),
        ("drops", seen.dropped),
        ("refused destructions", seen.destructions_refused),
        ("responses", seen.responses),
        ("puts with a context", seen.with_context),
        ("replies with siblings", seen.siblings),
    ] {
        assert!(100 < count, "only {count} {path}");
    }
}

/// One flipped bit in a good envelope, wherever it is: a port for envelopes reads the same request or
/// drops it. A port for both may take the ruin for a raw request, but never for one that destroys.
#[test]
fn one_flipped_bit_never_destroys_anything() {
    let mut envelopes: Vec<Vec<u8>> = datagrams();
    envelopes.retain(|datagram| wire::decode_request(datagram, Accept::Protobuf).is_ok());
    envelopes.extend(envelopes_that_are_commands_as_raw());
    let mut ruins_taken_for_raw = 0;
    for envelope in envelopes {
        let original = wire::decode_request(&envelope, Accept::Protobuf);
        // The long values are all alike inside; their ends are enough.
        let (head, tail) = (envelope.len().min(200), envelope.len().saturating_sub(200));
        for bit in (0..8 * head).chain(8 * tail.max(head)..8 * envelope.len()) {
            let mut bent = envelope.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            let read = wire::decode_request(&bent, Accept::Protobuf);
            let is_dropped = matches!(read, Err(Rejected::Drop(_)));
            assert!(is_dropped || read == original, "bit {bit} of {envelope:02x?} gave {read:?}");
            let read = wire::decode_request(&bent, Accept::Auto);
            if let Ok(Request { format: Format::Raw, operation, .. }) = read {
                ruins_taken_for_raw += 1;
                assert!(!is_destructive(&operation), "bit {bit} of {envelope:02x?} gave {read:?}");
            }
        }
    }
    assert!(100 < ruins_taken_for_raw);
}

/// Envelopes whose 17th byte, the command of the raw layout, is each of the commands.
fn envelopes_that_are_commands_as_raw() -> Vec<Vec<u8>> {
    let key = Key::parse(&[0; 32]).unwrap();
    let value = Value::default();
    let context = Context::default();
    let with_context = Operation::PutWithContext { key, context, value };
    let operations =
        [Operation::Put { key, value }, Operation::Get { key }, Operation::IsAlive, with_context];
    let mut envelopes = Vec::new();
    for operation in operations {
        for command in (0..=8).chain(0x22..=0x26) {
            let mut id = MessageId([0; 16]);
            id.0[14] = command;
            let mut envelope = Vec::new();
            wire::encode_request(&Request { format: Format::Protobuf, id, operation }, &mut envelope);
            assert_eq!(envelope[16], command);
            envelopes.push(envelope);
        }
    }
    envelopes
}

fn check_request(datagram: &[u8], seen: &mut Seen) {
    let [as_auto, as_raw, as_protobuf] =
        [Accept::Auto, Accept::Raw, Accept::Protobuf].map(|accept| wire::decode_request(datagram, accept));
    for read in [as_auto, as_raw, as_protobuf] {
        match read {
            Ok(request) => {
                check_request_again(&request);
                let has_context = matches!(request.operation, Operation::PutWithContext { .. });
                seen.with_context += u32::from(has_context);
                match request.format {
                    Format::Raw => seen.raw_requests += 1,
                    Format::Protobuf => seen.protobuf_requests += 1,
                }
            }
            Err(Rejected::Answer { .. }) => seen.answered += 1,
            Err(Rejected::Drop(_)) => seen.dropped += 1,
        }
    }
    if protobuf::Envelope::parse(datagram).is_some_and(|envelope| !envelope.is_intact()) {
        assert_eq!([as_auto, as_protobuf], [Err(Rejected::Drop(DropReason::Checksum)); 2]);
    }
    // A port for both reads what is an envelope as one and all else as raw, unless that destroys.
    if as_protobuf != Err(Rejected::Drop(DropReason::NotProtobuf)) {
        assert_eq!(as_auto, as_protobuf);
    } else if raw::is_doubtful_destruction(datagram) {
        let is_refused = matches!(as_auto, Err(Rejected::Answer { status: Status::Malformed, .. }));
        assert!(is_refused, "{as_auto:?}");
        seen.destructions_refused += 1;
    } else {
        assert_eq!(as_auto, as_raw);
    }
}

/// What was read can be written, and then means the same.
fn check_request_again(request: &Request<'_>) {
    let mut written = Vec::new();
    wire::encode_request(request, &mut written);
    let accept = match request.format {
        Format::Raw => Accept::Raw,
        Format::Protobuf => Accept::Protobuf,
    };
    assert_eq!(wire::decode_request(&written, accept).as_ref(), Ok(request));
}

fn check_response(datagram: &[u8], seen: &mut Seen) {
    for format in [Format::Raw, Format::Protobuf] {
        for command in [1, 2, 7, 8, 0x22, 0x25, 0x26] {
            let Ok(response) = wire::decode_response(format, command, datagram) else { continue };
            let mut written = Vec::new();
            wire::encode_response(format, &response, &mut written);
            assert_eq!(wire::decode_response(format, command, &written), Ok(response));
            seen.responses += 1;
            check_siblings(&response, seen);
        }
    }
}

/// A value field that reads as siblings is written as it was.
fn check_siblings(response: &Response<'_>, seen: &mut Seen) {
    let Some(value) = response.value else { return };
    if let Ok(siblings) = Siblings::decode(value.bytes) {
        let mut written = Vec::new();
        siblings.encode(&mut written).unwrap();
        assert_eq!(written, value.bytes);
        seen.siblings += 1;
    }
}

fn is_destructive(operation: &Operation<'_>) -> bool {
    matches!(operation, Operation::Shutdown | Operation::Wipeout | Operation::Leave)
}

#[derive(Default)]
struct Seen {
    raw_requests: u32,
    protobuf_requests: u32,
    answered: u32,
    dropped: u32,
    destructions_refused: u32,
    responses: u32,
    with_context: u32,
    siblings: u32,
}

fn datagrams() -> Vec<Vec<u8>> {
    let vectors = vector_file::load();
    vectors.into_iter().flat_map(|vector| [Some(vector.request), vector.response]).flatten().collect()
}

fn mutate(datagrams: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let datagram = random.pick(datagrams);
    match protobuf::Envelope::parse(datagram) {
        Some(envelope) if random.below(2) == 0 => {
            let payload = bend(envelope.payload, datagrams, random);
            seal(&envelope.id, &payload)
        }
        _ => bend(datagram, datagrams, random),
    }
}

/// An envelope with a right checksum around any payload.
fn seal(id: &MessageId, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x0a, 16];
    out.extend_from_slice(&id.0);
    out.push(0x12);
    let mut length = payload.len();
    while 0x80 <= length {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(payload);
    out.push(0x19);
    out.extend_from_slice(&protobuf::checksum(&id.0, payload).to_le_bytes());
    out
}

/// Bends bytes in one to three ways.
fn bend(bytes: &[u8], datagrams: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bent = bytes.to_vec();
    for _ in 0..=random.below(3) {
        bend_once(&mut bent, datagrams, random);
    }
    bent.truncate(DATAGRAM_BYTES_MAX);
    bent
}

fn bend_once(bent: &mut Vec<u8>, datagrams: &[Vec<u8>], random: &mut Random) {
    let length = bent.len();
    let at = random.below(length + 1);
    match random.below(64) {
        // The layouts keep their fields in front, so that is where most bits are flipped.
        0..20 if 0 < length => {
            for _ in 0..=random.below(4) {
                let reach = *random.pick(&[80, 80, 80, length]);
                let bit = random.below(8 * length.min(reach));
                bent[bit / 8] ^= 1 << (bit % 8);
            }
        }
        20..28 => bent.truncate(at),
        28..36 => {
            let extra = random.below(64);
            bent.extend((0..extra).map(|_| random.next() as u8));
        }
        36..44 => {
            let other = random.pick(datagrams);
            bent.truncate(at);
            bent.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        // A stretch twice: now and then that is a whole field.
        44..52 => {
            let end = (at + random.below(40)).min(length);
            let stretch = bent[at..end].to_vec();
            bent.splice(at..at, stretch);
        }
        // An entire field of another number, or of the same once more.
        52..60 => {
            let at = *random.pick(&[0, length]);
            let field = [random.below(128) as u8, random.below(4) as u8, random.next() as u8, 0];
            bent.splice(at..at, field);
        }
        60..63 => {
            if let Some(byte) = bent.get_mut(at) {
                *byte = *random.pick(&[0, 1, 4, 5, 0x7f, 0x80, 0xff]);
            }
        }
        _ => {
            let length = random.below(DATAGRAM_BYTES_MAX + 1);
            let filler = random.next() as u8;
            bent.resize(length, filler);
        }
    }
}

/// Marsaglia's xorshift with 64 bits: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 8
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
