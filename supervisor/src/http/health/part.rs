//! Parts of the report of `/health`: type and value of a field in one place.

/// Declares structs that are serialized and described, and for each the constructor `of` with these arguments:
///
/// ```text
/// parts! {
///     Child(child: &ChildSnapshot, clock: &Clock) {
///         pid: u32 = child.pid,
///         uptime_ms: u64 = clock.age_ms(child.spawned_at),
///     }
/// }
/// ```
macro_rules! parts {
    ($(
        $(#[$about:meta])*
        $name:ident($($given:ident: $of:ty),+)
        $(let $local:ident = $first:expr;)*
        {
            $($(#[$meta:meta])* $field:ident: $kind:ty = $value:expr,)+
        }
    )+) => {$(
        $(#[$about])*
        #[derive(Debug, serde::Serialize, schemars::JsonSchema)]
        pub(in crate::http) struct $name {
            $($(#[$meta])* $field: $kind,)+
        }

        impl $name {
            pub(in crate::http::health) fn of($($given: $of),+) -> Self {
                $(let $local = $first;)*
                Self { $($field: $value,)+ }
            }
        }
    )+};
}
pub(super) use parts;
