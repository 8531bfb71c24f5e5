//! `forebay top`: what a server does, second by second.
//!
//! Two statuses of the server, some time apart, make a picture: what lies between their counters is
//! what happened in that time.
//!
//! * [`sample`]: a status as numbers; [`counts`]: counters, and what lies between two of them
//! * [`view`]: two samples as lines; [`cache`]: those of the cache
//! * [`live`]: the loop on a terminal
//! * [`screen`]: the terminal itself, and how it gets back to what it was

mod cache;
mod counts;
pub mod live;
mod sample;
mod screen;
mod view;

pub use sample::Sample;
pub use view::lines;
