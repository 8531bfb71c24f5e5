//! The engine, as this crate sees it: it takes a request as JSON, and answers later from its own
//! thread.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::oneshot;

use crate::failure::Failure;

/// What a request leads to.
pub type Answer = Result<Value, Failure>;

/// Takes the answer to a request. It never blocks. Where it is dropped, the engine has ended.
pub type Reply = Box<dyn FnOnce(Answer) + Send>;

/// The engine.
pub trait Engine: Send + Sync + 'static {
    /// Hands a request over: the object of the control protocol, without its version. Never blocks;
    /// where too many requests wait, the reply says `busy`.
    fn ask(&self, request: Value, reply: Reply);
}

/// Asks, and waits for the answer. Errors: those of the request; `stopping` where the engine ended.
pub(crate) async fn ask(engine: &Arc<dyn Engine>, request: Value) -> Answer {
    let (sender, receiver) = oneshot::channel();
    // The client may have gone when the answer comes.
    let reply = move |answer| drop(sender.send(answer));
    engine.ask(request, Box::new(reply));
    receiver.await.unwrap_or_else(|_| Err(Failure::stopping()))
}
