//! The stall ledger: where the time of each request went.
//!
//! A request carries a [`Story`]. Whatever makes it wait is entered there with a [`Reason`], and
//! left when the wait is over. The time between two such moments belongs to one reason: the
//! innermost that is entered. So the parts of a story add up to its length, exactly, however many
//! tasks work for the request.
//!
//! If a request waits for work that others share, such as a commit of the pool, that work has a
//! story too, which never ends: a *job*. The time of the wait is told by what the job waited for
//! meanwhile. So a flush that waits for a commit, which waits for a device, names the device.
//!
//! Stories of requests begin and end in a [`Ledger`]. It knows those that are under way. Ended ones
//! are counted: by minute, volume, kind and length of the request, with the parts; the slowest are
//! kept whole. [`explain`] makes an answer of it. The counters of a volume get the same time
//! ([`Story::count_as`]), so that a latency has one number wherever it is shown.
//!
//! Pure state: time is passed in, and nothing here waits. All times are nanoseconds.

mod advice;
mod counted;
pub mod explain;
mod holder;
mod ledger;
mod open;
mod slowest;
mod story;
mod summary;
mod under_way;
mod words;

pub use advice::advice;
pub use counted::{Operation, RequestCounter};
pub use holder::Holder;
pub use ledger::Ledger;
pub use model::wait::{Layer, Reason, RequestClass};
pub use slowest::SlowRequest;
pub use story::{AwayTimes, Cause, Moment, Part, PlaceId, Story, Token, WaitCause};
pub use summary::Summary;

#[cfg(test)]
#[path = "lib_tests.rs"]
mod tests;
