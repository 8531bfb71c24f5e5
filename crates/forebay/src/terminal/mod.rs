//! The output that people read on a terminal.
//!
//! Facts go to standard output, and are made by functions of the data and of a [`Look`], so tests
//! need no terminal. Progress goes to standard error, and only if that is a terminal.
//!
//! * [`look`]: how wide lines are, and whether there are colours
//! * [`text`]: widths of texts; shortened, wrapped, without control characters
//! * [`table`]: tables that fit a line
//! * [`progress`]: how far something is; [`interrupted`]: Ctrl-C while one waits for it

pub mod interrupted;
pub mod look;
pub mod progress;
pub mod table;
pub mod text;

pub use look::{Look, Tone, is_piped};
pub use table::{Cell, Column, Table, summary};
