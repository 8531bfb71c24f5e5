//! Why bytes from a device were not accepted.

use thiserror::Error;

/// What is wrong with a structure read from a device. Whoever reads adds where.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FormatError {
    /// Fewer or more bytes than the structure has.
    #[error("{what}: {got} bytes where {want} were expected")]
    Length {
        /// The structure.
        what: &'static str,
        /// Bytes expected.
        want: usize,
        /// Bytes given.
        got: usize,
    },
    /// Not this structure at all.
    #[error("{0}: no magic number, this is something else")]
    Magic(&'static str),
    /// It is this structure, but damaged.
    #[error("{0}: its crc32c does not match, it is damaged")]
    Checksum(&'static str),
    /// Written by a newer Forebay.
    #[error(
        "{what}: format version {found} is newer than {known}, the newest known here; use a newer forebay"
    )]
    Version {
        /// The structure.
        what: &'static str,
        /// Version found.
        found: u32,
        /// Newest version known.
        known: u32,
    },
    /// Uses features that this program does not know.
    #[error("{what}: uses features unknown here (bits {bits:#x}); use a newer forebay")]
    Features {
        /// The structure.
        what: &'static str,
        /// The unknown bits.
        bits: u64,
    },
    /// Of before the format was released.
    #[error(
        "{0}: made by a forebay from before its format was released; write everything back with that one, and make it anew"
    )]
    Older(&'static str),
    /// Intact, but not the one that was expected (another page, another generation, another pool).
    #[error("{what}: {field} is {found:#x} where {want:#x} was expected")]
    Unexpected {
        /// The structure.
        what: &'static str,
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The value expected.
        want: u64,
    },
    /// A field has a value that cannot be.
    #[error("{what}: {field} cannot be {found:#x}")]
    Value {
        /// The structure.
        what: &'static str,
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
}
