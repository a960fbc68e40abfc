//! The structures of `<infiniband/verbs.h>` (rdma-core 44) as far as programs and this library
//! share them.
//!
//! Fields have the names of the header, structures those without the prefix `ibv_`. Enumerations
//! are plain integers here: a program may write any value into one.

#![allow(
    dead_code,
    reason = "structures have all their fields, whether this library looks at them or not"
)]

mod attributes;
mod context;
mod objects;
#[cfg(test)]
mod tests;
mod values;
mod work;

pub(crate) use attributes::*;
pub(crate) use context::*;
pub(crate) use objects::*;
pub(crate) use values::*;
pub(crate) use work::*;

/// A `pthread_mutex_t` that only the program's own inline functions would touch, and none does.
pub(crate) type PthreadMutex = [u64; 5];
/// The same of a `pthread_cond_t`.
pub(crate) type PthreadCond = [u64; 6];

/// What the test against the header knows of a structure.
#[cfg(test)]
pub(crate) struct Layout {
    /// Its name in C.
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    /// Its fields, with their offsets.
    pub(crate) fields: &'static [(&'static str, usize)],
}

/// Declares structures with the layout of C. Each says its name and its size there, which is
/// asserted; `LAYOUTS` lists them for the test that asks the compiler of C.
macro_rules! mirror {
    ($(
        $(#[$doc:meta])*
        $name:ident = $c_name:literal [$size:literal] { $($field:ident: $of:ty,)* }
    )*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            pub(crate) struct $name { $(pub(crate) $field: $of,)* }
            const _: () = assert!(size_of::<$name>() == $size);
        )*
        #[cfg(test)]
        pub(crate) const LAYOUTS: &[crate::abi::Layout] = &[$(
            crate::abi::Layout {
                name: $c_name,
                size: $size,
                fields: &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            },
        )*];
    };
}
pub(crate) use mirror;
