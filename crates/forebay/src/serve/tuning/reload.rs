//! The configuration file of a running server, read again (SIGHUP).
//!
//! Fault model: the file may be half written, gone, or wrong. Then an error in the log says so, and
//! nothing changes. What it says of settings that can change while the server runs is checked
//! together with those that were set meanwhile, and applied as a whole or not at all.

use model::setting::PlaceValue;
use volume::Volumes;

use super::{Tuning, apply, in_pool};
use crate::config::chosen::{ChosenSettings, Source};
use crate::config::origin::{FileSettings, Origin, Reading};
use crate::config::places::{NamedPlaces, Places};
use crate::config::shown::in_toml;
use crate::config::table::{KEYS, Key};
use crate::config::values::Value;
use crate::serve::mailbox::spawn_blocking;

/// A setting that changes, what it was, and what it is now.
type ChangedSetting = (&'static Key, Value, Value);

/// The changes to which a file that was read again leads.
struct ReloadPlan {
    new: ChosenSettings,
    changes: Vec<ChangedSetting>,
    /// The keys that the file changes in vain, and why.
    notes: Vec<String>,
    /// The devices and the cache that the file names.
    named: NamedPlaces,
}

impl Tuning {
    /// Reads the configuration file again and goes by it, as far as that can be while the server
    /// runs. The log says what came of it. `devices` and `cache` are those that the server has now.
    /// Returns the devices and the cache that the file names; `None` if it cannot be read.
    pub async fn reload(
        &self,
        volumes: &Volumes,
        devices: PlaceValue,
        cache: PlaceValue,
    ) -> Option<NamedPlaces> {
        let origin = self.origin.as_ref()?;
        let at = origin.file().display();
        let _alone = self.one_change.acquire(1).await;
        let now = self.places_now(devices, cache);
        match self.read_again(origin, volumes, &now).await {
            Ok(plan) => {
                plan.notes.iter().for_each(|note| tracing::warn!("{at}: {note}"));
                tracing::info!("{at} was read again: {}", told(&plan.changes));
                Some(plan.named)
            }
            Err(e) => {
                tracing::error!("{at} was read again, and nothing was changed: {e}");
                None
            }
        }
    }

    async fn read_again(
        &self,
        origin: &Origin,
        volumes: &Volumes,
        now: &Places,
    ) -> Result<ReloadPlan, String> {
        let again = origin.clone();
        let read = spawn_blocking(&self.rt, &self.handles, move || again.read()).await;
        let read = read.map_err(|e| e.to_string())?;
        let prefix = format!("{}: ", origin.file().display());
        let read = read.map_err(|e| {
            let text = one_line(&e.to_string());
            text.strip_prefix(&prefix).map_or(text.clone(), str::to_owned)
        })?;
        let before = self.chosen.borrow().clone();
        let mut plan = plan(origin, &self.said.borrow(), &read, &before)?;
        plan.notes.extend(waiting(&read, &before, &self.places, now));
        apply_all(volumes, &plan, &before)?;
        *self.chosen.borrow_mut() = plan.new.clone();
        *self.said.borrow_mut() = read.said;
        Ok(plan)
    }
}

/// Returns the value that a file says.
fn in_file(said: &FileSettings, key: &Key) -> Option<Value> {
    said.iter().find(|one| std::ptr::eq(one.0, key)).map(|one| one.1)
}

/// Returns the plan that follows from a file that said one thing and now says another. A setting of
/// which the file says the same as before stays as it is, also if it was set meanwhile.
fn plan(
    origin: &Origin,
    said: &FileSettings,
    read: &Reading,
    before: &ChosenSettings,
) -> Result<ReloadPlan, String> {
    let mut plan = ReloadPlan {
        new: before.clone(),
        changes: Vec::new(),
        notes: Vec::new(),
        named: read.places.named(),
    };
    let default = ChosenSettings::default();
    for key in KEYS {
        let value = in_file(&read.said, key);
        if value == in_file(said, key) {
            continue;
        }
        if origin.hides(key) {
            let (name, option) = (key.full_name(), key.option);
            plan.notes.push(format!(
                "{name} has changed there, and {option}, which the server was started with, takes \
                 precedence: start it without"
            ));
        } else if key.live {
            let source = if value.is_some() { Source::File } else { Source::Default };
            let value = value.unwrap_or_else(|| key.get(default.settings()));
            plan.new.put(key, value, source)?;
            let (was, is) = (key.get(before.settings()), key.get(plan.new.settings()));
            if was != is {
                plan.changes.push((key, was, is));
            }
        }
    }
    plan.new.check(None).map_err(|e| {
        let set: Vec<String> = before
            .iter()
            .filter(|(.., source)| *source == Source::Set)
            .map(|(key, ..)| key.full_name())
            .collect();
        format!("{e} (set while the server runs: {})", set.join(", "))
    })?;
    Ok(plan)
}

/// Keys of which the file says something else than what holds, and that change with a restart only.
fn waiting(
    read: &Reading,
    before: &ChosenSettings,
    started: &Places,
    now: &Places,
) -> impl Iterator<Item = String> {
    let told = |name: &str, is: String, holds: String| {
        format!("{name} is {is} there, and {holds} until the server is started again")
    };
    let none =
        |value: Option<&PlaceValue>| value.and_then(in_toml).unwrap_or_else(|| "none".to_owned());
    let places = read.places.iter().filter_map(move |given| {
        let value = Some(&given.value);
        // A value that a command has changed meanwhile may stand in the file by now.
        let waits = value != started.get(given.name) && value != now.get(given.name);
        waits.then(|| told(given.name, none(value), none(now.get(given.name))))
    });
    let settings = KEYS.iter().filter(|key| !key.live).filter_map(move |key| {
        let (is, holds) = (key.get(read.chosen.settings()), key.get(before.settings()));
        (is != holds).then(|| told(&key.full_name(), is.to_string(), holds.to_string()))
    });
    let all: Vec<String> = places.chain(settings).collect();
    all.into_iter()
}

/// Tells pool and cache. Where one of them refuses, the other goes on as before.
fn apply_all(volumes: &Volumes, plan: &ReloadPlan, before: &ChosenSettings) -> Result<(), String> {
    let keys = || plan.changes.iter().map(|change| change.0);
    let pools = keys().find(|key| in_pool(key));
    let caches = keys().find(|key| !in_pool(key));
    if let Some(key) = pools {
        apply(volumes, key, &plan.new).map_err(|e| e.message)?;
    }
    let Some(key) = caches else { return Ok(()) };
    apply(volumes, key, &plan.new).map_err(|e| {
        let back = pools.map_or(Ok(()), |key| apply(volumes, key, before));
        match back {
            Ok(()) => e.message,
            Err(also) => format!("{}; {}", e.message, also.message),
        }
    })
}

/// Returns the changes, for people.
fn told(changes: &[ChangedSetting]) -> String {
    if changes.is_empty() {
        return "nothing changed".into();
    }
    let one =
        |(key, was, is): &ChangedSetting| format!("{} = {is} (it was {was})", key.full_name());
    changes.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// An error of a file without the lines that quote it.
fn one_line(text: &str) -> String {
    let numbered = |c: char| c.is_ascii_digit() || c == ' ';
    let lines = text.lines().filter(|line| !line.trim_start_matches(numbered).starts_with('|'));
    let lines = lines.map(str::trim);
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
#[path = "reload_tests.rs"]
mod tests;
