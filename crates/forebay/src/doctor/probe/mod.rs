//! Looks at this machine, for the checks: reads files of `/proc` and `/sys`, asks file systems, and
//! makes an io_uring, which is closed at once. Nothing is changed, nothing is locked.
//!
//! What cannot be found out is left out; a check that needs it says nothing then.

pub mod device;
pub mod machine;
mod mounts;
pub mod sockets;
mod sysfs;
