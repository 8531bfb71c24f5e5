//! The end of a boot that is not closed.

use rt::Rt;

use crate::env::Env;
use crate::settings::Ending;
use crate::told;

/// Ends the boot, by a cut of power or a kill. It never returns.
pub(crate) async fn end(env: &Env, rt: &Rt, ending: Ending) {
    env.check_patience();
    told::check(env, rt);
    env.take_counters();
    env.model.borrow_mut().look();
    env.note(format!("{ending:?}"));
    env.spoilt.borrow_mut().note_end();
    if ending == Ending::PowerCut {
        env.world.power_cut();
        if env.cache_lies.get() {
            env.count("cuts of power that took what a lying cache had flushed", 1);
            env.cache_lied.set(true);
            env.cache_struck.set(true);
        }
    }
    rt.kill();
    std::future::pending::<()>().await;
}
