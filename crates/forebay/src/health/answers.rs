//! Answers that would not outlive the server's process.

use serde_json::Value;

/// Answers of the pool or of the cache would not outlive the process. A pool that takes no writes
/// gives no answers. Returns the problem, and a remedy.
pub fn problem(of: &Value) -> Option<(String, String)> {
    let why = of["answers_at_risk"].as_str()?;
    let takes_writes = of["trouble"].is_null() && of["state"] != "failed" && of["state"] != "aside";
    let what = format!(
        "a write that is answered and not flushed is lost if the server's process dies: {why}"
    );
    let todo = "make room for it: then the line goes by itself; or name another directory \
                (io.host_log) and restart forebay; clients that flush lose nothing";
    takes_writes.then(|| (what, todo.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_told_while_writes_are_taken() {
        let lost = |state| json!({"state": state, "answers_at_risk": "/dev/shm: no space"});
        let told = problem(&lost("online")).expect("told");
        assert!(told.0.contains("/dev/shm: no space"), "{told:?}");
        assert_eq!(problem(&lost("failed")), None);
        assert_eq!(problem(&lost("aside")), None);
        assert_eq!(problem(&json!({"state": "online"})), None);
    }
}
