//! Agreements of host and kernels. `kernels/cuda` is their only source, and the host reads them from
//! there at compile time: numbers ([`constant!`]), and offsets of the fields of a struct
//! ([`layout!`]), which the compiler of the kernels checks on its side (`kernels/cuda/layout.cuh`).
//! An edit of one side alone either does not compile or changes both.

/// Number in a file of `kernels/cuda`: the text after `NAME =`.
macro_rules! constant {
    ($file:literal, $name:ident) => {
        const {
            $crate::device::cuda::headers::read_constant(
                include_str!(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/../kernels/cuda/",
                    $file
                )),
                stringify!($name),
            )
        }
    };
}

/// Structs with a `LAYOUT` in a file of `kernels/cuda` that has the same size, and the same fields at the same
/// offsets.
macro_rules! layout {
    ($(
        $(#[$attribute:meta])*
        $visible:vis struct $name:ident in $file:literal {
            $($(#[$of_field:meta])* $field_visible:vis $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy)]
        #[repr(C)]
        $visible struct $name {
            $($(#[$of_field])* $field_visible $field: $type,)*
        }

        // An associated constant, so that compiler errors name the struct.
        impl $name {
            const LAYOUT: () = $crate::device::cuda::headers::check_layout(
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/cuda/", $file)),
                stringify!($name),
                size_of::<$name>(),
                &[$((stringify!($field), std::mem::offset_of!($name, $field))),*],
            );
        }
        const _: () = $name::LAYOUT;
    )*};
}

pub(super) use {constant, layout};

/// # Panics
/// If there is no such line, or its value is not a plain number.
pub const fn read_constant(header: &str, name: &str) -> usize {
    let text = header.as_bytes();
    let mut at = 0;
    loop {
        let start = find(text, at, name.as_bytes());
        let end = start + name.len();
        if text[start - 1] == b' ' && stands(text, end, b" = ") {
            let (number, end) = number(text, end + 3);
            assert!(
                matches!(text[end], b';' | b',' | b'u'),
                "more than a number"
            );
            return number;
        }
        at = end;
    }
}

/// # Panics
/// If `LAYOUT(name, ...)` differs.
pub const fn check_layout(header: &str, name: &str, size: usize, fields: &[(&str, usize)]) {
    let text = header.as_bytes();
    let mut at = 0;
    loop {
        at = find(text, at, b"LAYOUT(") + 7;
        if stands(text, at, name.as_bytes()) && text[at + name.len()] == b',' {
            break;
        }
    }
    let (said, end) = number(text, skip(text, at + name.len(), b","));
    assert!(said == size, "another size");
    at = skip(text, end, b",");
    let mut i = 0;
    while i < fields.len() {
        let (field, offset) = fields[i];
        at = skip(text, skip(text, at, b"AT("), field.as_bytes());
        let (said, end) = number(text, skip(text, at, b","));
        assert!(said == offset, "a field lies elsewhere");
        at = skip(text, end, b")");
        i += 1;
    }
    skip(text, at, b")");
}

/// Index of the first `what` at or after `at`.
const fn find(text: &[u8], mut at: usize, what: &[u8]) -> usize {
    while !stands(text, at, what) {
        at += 1;
        assert!(at < text.len(), "it is not in the header");
    }
    at
}

const fn stands(text: &[u8], at: usize, what: &[u8]) -> bool {
    let mut i = 0;
    while i < what.len() {
        if at + i >= text.len() || text[at + i] != what[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Index after `what`, which must be next except for white space, and after the white space that follows
/// it.
const fn skip(text: &[u8], at: usize, what: &[u8]) -> usize {
    let at = behind_space(text, at);
    assert!(stands(text, at, what), "something else is in the header");
    behind_space(text, at + what.len())
}

const fn behind_space(text: &[u8], mut at: usize) -> usize {
    while at < text.len() && text[at].is_ascii_whitespace() {
        at += 1;
    }
    at
}

/// A number, and the index of its end.
const fn number(text: &[u8], start: usize) -> (usize, usize) {
    let (radix, start) = if stands(text, start, b"0x") {
        (16, start + 2)
    } else {
        (10, start)
    };
    let (mut at, mut number) = (start, 0);
    while let Some(digit) = (text[at] as char).to_digit(radix) {
        number = number * radix as usize + digit as usize;
        at += 1;
    }
    assert!(at > start, "no number");
    (number, at)
}

#[cfg(test)]
mod tests;
