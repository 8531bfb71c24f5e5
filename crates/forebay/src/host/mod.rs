//! The machine that a server runs on: devices, sockets, directories, logs.
//!
//! * [`cache_file`]: the places where a cache may be made
//! * [`calendar`]: dates and times
//! * [`candidates`]: the places where a device may be
//! * [`device_list`]: the list of devices of `forebay up`
//! * [`device_names`]: names that users give devices
//! * [`devices`]: devices as a command line names them
//! * [`discovery`]: the devices of a pool, found where they are
//! * [`emptiness`]: what a device already holds
//! * [`home`]: the directory of `forebay up`
//! * [`home_place`]: the place of that directory
//! * [`host_log`]: directories for the host log
//! * [`logs`]: the log
//! * [`preflight`]: checks before anything is opened
//! * [`rights`]: advice where this user may not do something
//! * [`roles`]: the roles that devices say they have
//! * [`sighting`]: what a file or device says it is
//! * [`sockets`]: the places where a server listens
//! * [`whole_file`]: files that are written as a whole
//! * [`world`]: backend and devices

pub mod cache_file;
pub mod calendar;
pub mod candidates;
pub mod device_list;
pub mod device_names;
pub mod devices;
pub mod discovery;
pub mod emptiness;
pub mod home;
pub mod home_place;
pub mod host_log;
pub mod logs;
pub mod preflight;
pub mod rights;
pub mod roles;
pub mod sighting;
pub mod sockets;
pub mod whole_file;
pub mod world;
