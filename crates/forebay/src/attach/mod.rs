//! Volumes as disks of this machine: a block device by the kernel's NBD where that is there, else a
//! file by FUSE.
//!
//! An attachment outlives the command that made it: the kernel or a process of `nbdfuse` serves it.
//! A record ([`record`]) has all that is known of an attachment, by which it is listed and
//! detached.
//!
//! Fault model: the process may have died, the machine may have been started anew, the server may
//! be gone. A record of something that is not there any more says so, and is removed by detaching.
//! Two commands at a time cannot make the same attachment: its record is made once.
//!
//! * [`attachment`]: attaching and detaching; [`kernel`]: by the kernel; [`fuse`]: by `nbdfuse`
//! * [`mount`]: a file system on an attachment; [`mounts`]: what is mounted where
//! * [`tool`]: programs of the system

pub mod attachment;
mod fuse;
mod kernel;
pub mod mount;
pub mod mounts;
pub mod record;
pub mod tool;
