//! The engine, as this crate sees it: it takes a request, and answers later from its own thread.

use std::sync::Arc;

use model::{Answer, Failure, FailureKind, Request, Verb};
use tokio::sync::oneshot;

/// The end of a request: an answer or a failure.
pub type Outcome = Result<Answer, Failure>;

/// Takes the answer to a request. It never blocks. Where it is dropped, the engine has ended.
pub type Reply = Box<dyn FnOnce(Outcome) + Send>;

/// The engine.
pub trait Engine: Send + Sync + 'static {
    /// Hands a request over. Never blocks; where too many requests wait, the reply says `busy`.
    fn ask(&self, request: Request, reply: Reply);
}

/// Asks, and waits for the answer. Errors: those of the request; `stopping` where the engine ended.
pub(crate) async fn ask(engine: &Arc<dyn Engine>, request: Request) -> Outcome {
    let (sender, receiver) = oneshot::channel();
    // The client may have gone when the answer comes.
    let reply = move |answer| drop(sender.send(answer));
    engine.ask(request, Box::new(reply));
    receiver.await.unwrap_or_else(|_| Err(Failure::stopping()))
}

/// The same for a request whose verb is known, and with it the type of the answer.
pub(crate) async fn ask_for<R: Verb>(
    engine: &Arc<dyn Engine>,
    request: R,
) -> Result<R::Answer, Failure> {
    let answer = ask(engine, request.into()).await?;
    R::Answer::try_from(answer).map_err(|_| {
        let text = format!("the engine gave another answer than one to {}", R::WORD);
        Failure::new(FailureKind::Failed, text)
    })
}
