//! Looks at this machine, for the checks: reads files of `/proc` and `/sys`, asks file systems, and
//! makes an io_uring, which is closed at once. Nothing is changed, nothing is locked.
//!
//! Facts that cannot be found out are left out; a check that needs one says nothing then.

pub mod device;
pub mod machine;
mod mounts;
pub mod sockets;
mod sysfs;
