//! FLUSH: it waits for a group commit of the journal ([`super::group_commit`]), and for nothing
//! else.

use base::Result;
use queue::Class;

use crate::Cache;

impl Cache {
    /// Makes all writes that completed before durable.
    pub async fn flush(&self) -> Result<()> {
        let target = self.state().journal().pushed();
        self.durable(target, Class::Foreground).await
    }
}
