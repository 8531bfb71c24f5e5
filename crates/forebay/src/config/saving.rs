//! A setting that is written to the configuration file.
//!
//! Fault model: the file is replaced at once or not at all, and is durable afterwards: the new text
//! stands in a file beside it that is flushed and then takes its place. If the directory cannot be
//! flushed after that, the file is the new one, and a note says that a loss of power may undo it.
//! What would not be accepted at a start is not written. Comments, the order of keys, mode, owner
//! and group stay, as far as the process may set them.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::Path;

use toml_edit::{DocumentMut, Item};

use super::chosen::{ChosenSettings, Source};
use super::file::ConfigFile;
use super::table::Key;
use super::values::Value;

/// Writes a setting to the file at `path`. Returns what else somebody should know of the file.
/// Errors: a text for people; the file is as it was.
pub fn save(path: &Path, key: &Key, value: Value) -> Result<Option<String>, String> {
    let at = path.display();
    let wrong = |e: io::Error| match e.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => format!(
            "{at}: {e}; the server may not write there. Edit the file as root, then type systemctl \
             reload forebay; without --save the value holds until the server ends"
        ),
        _ => format!("{at}: {e}"),
    };
    // A link stays one.
    let path = fs::canonicalize(path).map_err(wrong)?;
    let before = fs::read_to_string(&path).map_err(wrong)?;
    let after = with_setting(&before, key, value).map_err(|e| format!("{at}: {e}"))?;
    check(&after).map_err(|e| format!("{at}, with this setting, would be refused: {e}"))?;
    let notes = replace(&path, &after, |directory| File::open(directory)?.sync_all());
    let notes = notes.map_err(wrong)?;
    Ok((!notes.is_empty()).then(|| format!("{at} {}", notes.join(", and "))))
}

/// The text of a file with another value of a setting.
fn with_setting(text: &str, key: &Key, value: Value) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|e| format!("{e}"))?;
    let section = document.entry(key.section).or_insert_with(toml_edit::table);
    let Some(table) = section.as_table_like_mut() else {
        return Err(format!("{} is no section", key.section));
    };
    let mut new = match value {
        Value::Number(n) => toml_edit::Value::from(i64::try_from(n).map_err(|e| e.to_string())?),
        _ => toml_edit::Value::from(value.to_string()),
    };
    if let Some(old) = table.get(key.name).and_then(Item::as_value) {
        *new.decor_mut() = old.decor().clone();
        if let Some(place) = table.get_mut(key.name) {
            *place = Item::Value(new);
        }
    } else {
        table.insert(key.name, Item::Value(new));
    }
    Ok(document.to_string())
}

/// Whether a server would start with it, as far as settings go.
fn check(text: &str) -> Result<(), String> {
    let mut chosen = ChosenSettings::default();
    for (key, value) in ConfigFile::parse(text)?.sections.in_file {
        chosen.put(key, value, Source::File)?;
    }
    chosen.check(None)
}

/// Puts a new file in the place of that at `path`; returns what is to be said of it. `flush` makes
/// a directory durable.
fn replace(
    path: &Path,
    text: &str,
    flush: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<Vec<String>> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    let beside = directory.join(name);
    // A crash may have left one.
    if let Err(e) = fs::remove_file(&beside)
        && e.kind() != ErrorKind::NotFound
    {
        return Err(e);
    }
    let written = (|| {
        let mut file = File::create_new(&beside)?;
        let old = fs::metadata(path)?;
        let owner = keep_owner(&old, &file.metadata()?, |uid, gid| fchown(&file, uid, gid));
        file.set_permissions(old.permissions())?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        Ok::<_, io::Error>(owner)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    let mut notes: Vec<String> = written?.into_iter().collect();
    if let Err(e) = flush(directory) {
        notes.push(format!("is the new one, but after a loss of power it may be the old one: {e}"));
    }
    Ok(notes)
}

/// Gives a new file the owner and the group of the old one. Returns what is to be said where the
/// process may not do that.
fn keep_owner(
    old: &Metadata,
    new: &Metadata,
    chown: impl Fn(Option<u32>, Option<u32>) -> io::Result<()>,
) -> Option<String> {
    let ((mut uid, mut gid), was) = ((new.uid(), new.gid()), (old.uid(), old.gid()));
    if gid != was.1 && chown(None, Some(was.1)).is_ok() {
        gid = was.1;
    }
    if uid != was.0 && chown(Some(was.0), None).is_ok() {
        uid = was.0;
    }
    ((uid, gid) != was).then(|| {
        format!(
            "belongs to user {uid} and group {gid} now, not to {} and {}: the server may not \
             change that",
            was.0, was.1
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::chosen::known;
    use crate::config::table::KEYS;
    use crate::config::values::Kind;

    const BEFORE: &str = r#"# The pool of the cellar.
devices = ["a.img"] # one for now

[cache]
path = "c.img"
# Slow disks.
max_lag   = "7s"   # seven
dirty_target = 30

# The end.
[pool]
dirty_nodes = 100
"#;

    fn lag() -> (&'static Key, Value) {
        let key = known("cache.max_lag");
        (key, key.kind.parse("90s").unwrap())
    }

    #[test]
    fn comments_and_order_stay() {
        let (key, value) = lag();
        let after = with_setting(BEFORE, key, value).unwrap();
        assert_eq!(after, BEFORE.replace("\"7s\"", "\"90s\""));
        let key = known("cache.dirty_limit");
        let after = with_setting(BEFORE, key, Value::Number(50)).unwrap();
        let added = "dirty_target = 30\ndirty_limit = 50\n";
        assert_eq!(after, BEFORE.replace("dirty_target = 30\n", added));
        let after = with_setting("devices = []\n", key, Value::Number(50)).unwrap();
        assert_eq!(after, "devices = []\n\n[cache]\ndirty_limit = 50\n");
        let dotted = "devices = []\ncache.path = \"c\"\n";
        let after = with_setting(dotted, key, Value::Number(50)).unwrap();
        check(&after).unwrap();
        assert!(after.starts_with(dotted), "{after}");
        with_setting("cache = 1\n", key, Value::Number(50)).unwrap_err();
    }

    #[test]
    fn every_setting_is_read_as_it_was_saved() {
        for key in KEYS {
            let value = match key.kind {
                Kind::Word(words) => Value::Word(words[0]),
                Kind::TimeOfDay => Value::TimeOfDay(Some(61)),
                kind => kind.ends().unwrap().1,
            };
            let text = with_setting("devices = []\n", key, value).unwrap();
            let file = ConfigFile::parse(&text).unwrap();
            let [(found, read)] = &file.sections.in_file[..] else { panic!("{text}") };
            assert!(std::ptr::eq(*found, key) && *read == value, "{text}");
        }
    }

    #[test]
    fn the_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("f.toml"), dir.path().join("l.toml"));
        fs::write(&file, BEFORE).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        // What a crash has left.
        fs::write(dir.path().join(".f.toml.new"), "half").unwrap();
        let (key, value) = lag();
        save(&link, key, value).unwrap();
        assert!(link.is_symlink() && fs::read_to_string(&file).unwrap().contains("\"90s\""));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left beside it");
    }

    #[test]
    fn the_owner_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.toml");
        fs::write(&path, BEFORE).unwrap();
        // Only root may give a file away; of others it is theirs before and after.
        let root = nix::unistd::geteuid().is_root();
        if root {
            std::os::unix::fs::chown(&path, Some(4321), Some(1234)).unwrap();
        }
        let old = fs::metadata(&path).unwrap();
        let (key, value) = lag();
        assert_eq!(save(&path, key, value), Ok(None));
        let new = fs::metadata(&path).unwrap();
        assert_eq!((new.uid(), new.gid()), (old.uid(), old.gid()));

        // What of it may not be set is said.
        let other = fs::metadata("/").unwrap();
        let refused = |_, _| Err(ErrorKind::PermissionDenied.into());
        assert_eq!(keep_owner(&new, &new, refused), None);
        if root {
            let said = "belongs to user 0 and group 0 now, not to 4321 and 1234: ";
            assert!(keep_owner(&new, &other, refused).is_some_and(|note| note.starts_with(said)));
            let group = |uid: Option<u32>, _| uid.map_or(Ok(()), |_| refused(None, None));
            let said = "belongs to user 0 and group 1234 now, not to 4321 and 1234: ";
            assert!(keep_owner(&new, &other, group).is_some_and(|note| note.starts_with(said)));
        }
    }

    #[test]
    fn a_directory_that_cannot_be_flushed_leaves_the_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.toml");
        fs::write(&path, BEFORE).unwrap();
        let notes = replace(&path, "new", |_| Err(io::Error::other("it is gone"))).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(notes[0].starts_with("is the new one") && notes[0].ends_with("it is gone"));
    }

    #[test]
    fn what_would_be_refused_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.toml");
        let (key, value) = lag();
        for (before, word) in [
            (BEFORE.replace("30", "96"), "dirty_target"),
            (BEFORE.replace("dirty_nodes", "dirty_knots"), "dirty_knots"),
            (BEFORE.replace("[cache]", "[cache"), "line 4"),
        ] {
            fs::write(&path, &before).unwrap();
            let e = save(&path, key, value).unwrap_err();
            assert!(e.contains(word) && e.contains("f.toml"), "{e}");
            assert_eq!(fs::read_to_string(&path).unwrap(), before);
        }
        fs::remove_file(&path).unwrap();
        assert!(save(&path, key, value).unwrap_err().contains("f.toml"));
    }
}
