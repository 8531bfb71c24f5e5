//! Which file system a path is on, by `/proc/self/mountinfo`.

use std::path::{Path, PathBuf};

/// A file system that is mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// Major and minor number, as `8:1`.
    pub number: String,
    /// The directory where it is mounted.
    pub point: PathBuf,
    /// The type of the file system.
    pub kind: String,
    /// The source of the mount, such as `/dev/sda1`.
    pub source: String,
}

/// All mounted file systems, in the order in which they were mounted.
pub fn all() -> Vec<Mounted> {
    parse(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

fn parse(text: &str) -> Vec<Mounted> {
    text.lines()
        .filter_map(|line| {
            let (of_mount, of_system) = line.split_once(" - ")?;
            let mut fields = of_mount.split(' ');
            let (number, point) = (fields.nth(2)?, fields.nth(1)?);
            let mut system = of_system.split(' ');
            let (kind, source) = (system.next()?, system.next()?);
            Some(Mounted {
                number: number.to_owned(),
                point: PathBuf::from(plain(point)),
                kind: kind.to_owned(),
                source: plain(source),
            })
        })
        .collect()
}

/// Decodes a path: the kernel writes blanks and backslashes as numbers: `\040`.
fn plain(text: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(text.to_owned(), |text, (code, is)| text.replace(code, is))
}

/// The file system that a path without links is on: the last of those that are mounted nearest to
/// it.
pub fn of<'a>(all: &'a [Mounted], path: &Path) -> Option<&'a Mounted> {
    let above = all.iter().filter(|one| path.starts_with(&one.point));
    above.max_by_key(|one| one.point.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_and_last_is_taken() {
        let all = parse(
            "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
             30 22 0:25 / /srv/my\\040data rw - nfs4 box:/x rw\n\
             31 22 0:26 / /srv rw - btrfs /dev/sdb rw\n\
             32 22 0:27 / /srv rw - tmpfs tmpfs rw\n\
             nonsense\n",
        );
        assert_eq!(all.len(), 4);
        let kind = |path: &str| of(&all, Path::new(path)).map(|one| one.kind.as_str());
        assert_eq!(kind("/home/a"), Some("ext4"));
        assert_eq!(kind("/srv/my data/a.img"), Some("nfs4"));
        assert_eq!(kind("/srv/other"), Some("tmpfs"));
        assert_eq!((all[0].number.as_str(), all[0].source.as_str()), ("8:1", "/dev/sda1"));
    }
}
