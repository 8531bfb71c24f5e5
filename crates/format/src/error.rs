//! Errors of decoding: why bytes from a device were not accepted.

use thiserror::Error;

/// The fault of a structure that was read from a device. The reader adds the location.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FormatError {
    /// The number of bytes is not that of the structure.
    #[error("{what}: {got} bytes where {want} were expected")]
    Length {
        /// The structure.
        what: &'static str,
        /// Bytes expected.
        want: usize,
        /// Bytes given.
        got: usize,
    },
    /// The bytes are not this structure at all.
    #[error("{0}: wrong magic number; this is something else")]
    Magic(&'static str),
    /// The bytes are this structure, but damaged.
    #[error("{0}: the crc32c does not match; it is damaged")]
    Checksum(&'static str),
    /// A newer Forebay wrote the structure.
    #[error(
        "{what}: format version {found} is newer than {known}, the newest known here; \
         use a newer forebay"
    )]
    Version {
        /// The structure.
        what: &'static str,
        /// Version found.
        found: u32,
        /// Newest version known.
        known: u32,
    },
    /// The structure uses features that this program does not know.
    #[error("{what}: uses features unknown here (bits {bits:#x}); use a newer forebay")]
    Features {
        /// The structure.
        what: &'static str,
        /// The unknown bits.
        bits: u64,
    },
    /// The structure is older than the release of its format.
    #[error(
        "{0}: written by a forebay from before the format was released; \
         write everything back with that version, then create it anew"
    )]
    Older(&'static str),
    /// The structure is intact, but not the expected one: another page, generation or pool.
    #[error("{what}: {field} is {found:#x} where {want:#x} was expected")]
    Unexpected {
        /// The structure.
        what: &'static str,
        /// The name of the field.
        field: &'static str,
        /// The value of the field.
        found: u64,
        /// The value expected.
        want: u64,
    },
    /// A field has an impossible value.
    #[error("{what}: {field} cannot be {found:#x}")]
    Value {
        /// The structure.
        what: &'static str,
        /// The name of the field.
        field: &'static str,
        /// The value of the field.
        found: u64,
    },
}
