//! The running server.
//!
//! * [`banner`]: the first words of a server
//! * [`cache_life`]: the pool's cache
//! * [`credentials`]: the files of TLS
//! * [`device_places`]: where devices are, as the next start finds them; [`pool_devices`]: devices
//!   that come and go
//! * [`explain`]: the reasons of slow requests
//! * [`health`]: problems, and what to do
//! * [`http`]: the HTTP API and metrics
//! * [`limits`]: limits of volumes
//! * [`mailbox`]: the way of other threads to the shard
//! * [`notify`]: the service manager
//! * [`overcommit`]: volumes that are larger together than the pool
//! * [`shard`]: the server: it answers requests, starts and stops
//! * [`signals`]: the signals that end the server or have it read its configuration again
//! * [`tuning`]: settings, which may change

pub mod banner;
pub mod cache_life;
pub mod credentials;
pub mod device_places;
pub mod explain;
pub mod health;
pub mod http;
pub mod limits;
pub mod mailbox;
pub mod notify;
pub mod overcommit;
pub mod pool_devices;
pub mod shard;
pub mod signals;
pub mod tuning;
