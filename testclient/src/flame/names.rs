//! Names of frames as a person wants them: without hashes, generics, closures and machinery.
//!
//! [`shorten`] turns a demangled name into `module::Type::function`; `None` is a frame that says
//! nothing (thread start-up, the workings of `catch_unwind`, the way into the kernel). Kernel frames
//! keep the mark `_[k]`, which flame graphs colour by.

/// The mark of kernel frames.
pub const KERNEL: &str = "_[k]";
/// A frame without a name.
pub const UNKNOWN: &str = "[unknown]";

/// Beginnings of names that say nothing about the work.
const MACHINERY: &[&str] = &[
    "std::rt",
    "std::sys::backtrace",
    "std::sys::thread",
    "std::sys::pal::unix::thread",
    "std::thread",
    "std::panicking",
    "std::panic::",
    "core::panic::unwind_safe",
    "core::ops::function",
    "alloc::boxed",
    "__rust_try",
    "start_thread",
    "clone3",
    "clone",
    "__clone",
    "_start",
    "__libc_start",
    "main",
    "server::spawn",
    "server::start_data_plane",
];

/// Parts of the standard library that are inlined everywhere, and only say how a loop is written or
/// that a value is wrapped.
const GLUE: &[&str] = &[
    "core::array",
    "core::cell",
    "core::cmp",
    "core::convert",
    "core::hint",
    "core::intrinsics",
    "core::iter",
    "core::mem",
    "core::num",
    "core::ops",
    "core::option",
    "core::pin",
    "core::ptr",
    "core::result",
    "core::slice",
    "core::str",
    "core::sync",
    "core::time",
    "core::net",
    "core::ub_checks",
    "core::hash",
    "core::clone",
    "core::default",
    "core::alloc",
    "core::borrow",
    "core::bool",
    "core::task",
    "core::any",
    "core::marker",
    "alloc::sync",
    "alloc::rc",
    "alloc::slice",
    "alloc::vec",
    "alloc::borrow",
    "alloc::string",
    "std::io::error",
    "std::sync",
    "std::time",
    "std::net",
    "std::cell",
];

/// Kernel frames on the way in and out of it.
const KERNEL_MACHINERY: &[&str] =
    &["entry_SYSCALL", "do_syscall", "x64_sys_call", "asm_", "___", "ret_from_fork", "__do_sys", "__se_sys"];

/// A frame of the program or one of its libraries.
pub fn shorten(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(UNKNOWN) {
        return Some(UNKNOWN.to_owned());
    }
    // Folded files separate frames by semicolons and counts by blanks; array types have both.
    let path = plain_path(name).replace([';', ' '], "_");
    let path = path.trim_end_matches("_[inlined]");
    let segments: Vec<&str> = path.split("::").filter(|segment| is_telling(segment)).collect();
    let short = match segments.split_first() {
        Some((&"violet", inner)) => own(inner),
        Some((first, rest)) if first.starts_with("violet_") => {
            [&[first.trim_start_matches("violet_")], rest].concat().join("::")
        }
        _ => segments.join("::"),
    };
    (!short.is_empty() && !is_machinery(&short)).then_some(short)
}

/// Whether a name says nothing: one of the above, or below one that is a path.
fn is_machinery(short: &str) -> bool {
    let (first, rest) = short.split_once("::").unwrap_or((short, ""));
    // A method of a type parameter or of a slice.
    if !rest.is_empty()
        && (first.starts_with('[') || (first.len() == 1 && first.starts_with(char::is_uppercase)))
    {
        return true;
    }
    if GLUE.iter().any(|start| short.strip_prefix(start).is_some_and(|rest| rest.starts_with("::"))) {
        return true;
    }
    MACHINERY.iter().any(|start| {
        let is_path = start.contains("::") || start.starts_with("__");
        short.strip_prefix(start).is_some_and(|rest| is_path || rest.is_empty())
    })
}

/// A frame of the kernel.
pub fn shorten_kernel(name: &str) -> Option<String> {
    if KERNEL_MACHINERY.iter().any(|start| name.starts_with(start)) {
        return None;
    }
    let name = name.strip_prefix("__x64_").unwrap_or(name);
    // What the compiler has split off still is that function.
    let name = name.split('.').next().unwrap_or(name);
    Some(format!("{name}{KERNEL}"))
}

/// A frame of a C library, of which only exported names are known.
pub fn shorten_library(name: &str, library: &str) -> Option<String> {
    if name.starts_with(UNKNOWN) {
        let library = library.rsplit('/').next().unwrap_or(library);
        // Named after the library, it is still unknown what it does there.
        return Some(format!("{UNKNOWN}_{library}"));
    }
    shorten(name.trim_start_matches("__GI_").trim_start_matches('_').trim_start_matches("libc_"))
}

/// Module, type and function: the first and the last two of the path.
fn own(path: &[&str]) -> String {
    match path {
        [first, .., last_but_one, last] if path.len() > 3 => format!("{first}::{last_but_one}::{last}"),
        _ => path.join("::"),
    }
}

fn is_telling(segment: &str) -> bool {
    let is_hash = segment.len() == 17
        && segment.starts_with('h')
        && segment[1..].bytes().all(|byte| byte.is_ascii_hexdigit());
    !segment.is_empty() && !is_hash && !segment.starts_with("{{") && !segment.starts_with("{closure")
}

/// Removes generics; `<A as B>::f`, `<A>::f` and `m::<impl B for A>::f` become `A::f`.
fn plain_path(name: &str) -> String {
    let Some(open) = name.find('<') else { return name.to_owned() };
    let Some(close) = matching(name, open) else { return name.to_owned() };
    let (inside, rest) = (&name[open + 1..close], plain_path(&name[close + 1..]));
    if open == 0 {
        return plain_path(type_of(inside)) + &rest;
    }
    if let Some(implemented) = inside.strip_prefix("impl ") {
        return plain_path(type_of(implemented)) + &rest;
    }
    name[..open].trim_end_matches("::").to_owned() + &rest
}

/// The type of `A as B`, `B for A`, or `A`.
fn type_of(text: &str) -> &str {
    let text = match find_outside(text, " for ") {
        Some(at) => &text[at + " for ".len()..],
        None => text,
    };
    let text = find_outside(text, " as ").map_or(text, |at| &text[..at]);
    text.trim_start_matches(['&', '*']).trim_start_matches("mut ").trim_start_matches("dyn ")
}

/// Where `wanted` stands outside of brackets.
fn find_outside(text: &str, wanted: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            b'>' if !text[..at].ends_with('-') => depth = depth.saturating_sub(1),
            b' ' if depth == 0 && text[at..].starts_with(wanted) => return Some(at),
            _ => {}
        }
    }
    None
}

/// The bracket that closes the one at `open`; the arrow of a function's type is none.
fn matching(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'<' => depth += 1,
            b'>' if !text[..at].ends_with('-') => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_what_says_nothing() {
        let check =
            |name: &str, expected: &str| assert_eq!(shorten(name).as_deref(), Some(expected), "{name}");
        check("violet::node::Node::handle::h0123456789abcdef", "node::Node::handle");
        check(
            "violet::coordinator::put::<impl violet::coordinator::Coordinator>::on_write",
            "coordinator::Coordinator::on_write",
        );
        check(
            "<violet::storage::ram::Ram as violet::storage::Engine>::get::{{closure}}",
            "storage::Ram::get",
        );
        check("violet::server::listener::Listener<P>::run", "server::Listener::run");
        check("violet::server::job::Runner::run_batch<violet::node::Node>", "server::Runner::run_batch");
        check("violet_client::wire::protobuf::decode_request", "client::wire::protobuf::decode_request");
        check(
            "alloc::collections::btree::map::BTreeMap<K,V,A>::insert",
            "alloc::collections::btree::map::BTreeMap::insert",
        );
        check("core::fmt::write", "core::fmt::write");
        check("x::<impl Wrapped<[T; 3]>>::fill", "Wrapped::fill");
        check("<fn(A) -> B as x::Y<Z>>::f", "fn(A)_->_B::f");
        check("", "[unknown]");
    }

    #[test]
    fn machinery_is_left_out() {
        for name in [
            "std::panicking::try",
            "<core::panic::unwind_safe::AssertUnwindSafe<F> as core::ops::function::FnOnce<()>>::call_once",
            "core::ops::function::FnOnce::call_once{{vtable.shim}}",
            "std::sys::backtrace::__rust_begin_short_backtrace",
            "<std::sys::thread::unix::Thread>::new::thread_start",
            "start_thread",
            "violet::server::spawn::{{closure}}",
            "main",
            "core::iter::adapters::map::Map<A, B>::fold",
            "core::slice::iter::Iter<T>::next",
            "core::slice::<impl [T]>::fill",
            "<&mut F as core::iter::Iterator>::next",
        ] {
            assert_eq!(shorten(name), None, "{name}");
        }
        assert_eq!(shorten("cloned").as_deref(), Some("cloned"));
        assert_eq!(shorten_kernel("entry_SYSCALL_64_after_hwframe"), None);
        assert_eq!(shorten_kernel("__x64_sys_sendmmsg").as_deref(), Some("sys_sendmmsg_[k]"));
        assert_eq!(shorten_kernel("finish_task_switch.isra.0").as_deref(), Some("finish_task_switch_[k]"));
        assert_eq!(shorten_library("__sendmmsg", "/lib/libc.so.6").as_deref(), Some("sendmmsg"));
        assert_eq!(shorten_library("__libc_sendto", "/lib/libc.so.6").as_deref(), Some("sendto"));
        assert_eq!(shorten_library("[unknown]", "/lib/libc.so.6").as_deref(), Some("[unknown]_libc.so.6"));
    }
}
