//! The step of a commit that makes the cache's journal durable before the commit.

use std::pin::Pin;
use std::rc::{Rc, Weak};

use super::mark::CacheMark;
use base::Result;

/// A future that makes a journal durable, and returns its state then; `None`: the superblock goes
/// on saying what it said.
pub type JournalDurable = Pin<Box<dyn Future<Output = Result<Option<CacheMark>>>>>;

/// A cache that has a journal.
pub trait CacheJournal {
    /// Makes everything durable that a commit of the pool must not get ahead of. An error is the
    /// commit's: nothing of it is durable then.
    fn make_durable(self: Rc<Self>) -> JournalDurable;
}

/// The cache that commits ask.
#[derive(Clone, Default)]
pub enum Link {
    /// None: the pool alone has everything.
    #[default]
    None,
    /// A cache that is open. The cache holds the pool, so the pool does not hold the cache.
    Live(Weak<dyn CacheJournal>),
    /// A cache that is closed: its journal stays as it is, and this is its last word.
    Closed(Result<Option<CacheMark>>),
}

impl Link {
    /// Makes the journal durable, and returns its state then.
    pub async fn make_durable(self) -> Result<Option<CacheMark>> {
        match self {
            Link::None => Ok(None),
            Link::Live(journal) => match journal.upgrade() {
                Some(journal) => journal.make_durable().await,
                None => Ok(None),
            },
            Link::Closed(last) => last,
        }
    }
}
