//! The loop of `forebay top` on a terminal.
//!
//! One thread asks the server, one reads keys, and this one draws. A server that does not answer is
//! told of, and the command can be left at any moment.

use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use model::request;

use super::screen::{self, Screen};
use super::{Sample, lines};
use crate::control::client::ask;
use crate::error::{CommandError, Result};
use crate::terminal::text::{LongWord, shortened, wrapped};
use crate::terminal::{Look, Tone};

/// The time for which the first answer is waited for before the terminal changes: where there is no
/// server, it does not change.
const FIRST: Duration = Duration::from_millis(500);
/// The longest time between two looks at the size of the terminal.
const LOOK: Duration = Duration::from_millis(200);
/// Keys that leave the command: Ctrl-C comes as a character.
const LEAVE: &[u8] = b"qQ\x03";
/// Ctrl-Z.
const SUSPEND: u8 = 0x1a;
/// The first byte of what arrows and the like send.
const ESCAPE: u8 = 0x1b;

/// A message to the drawing thread.
enum LiveEvent {
    Sample(Result<Box<Sample>>),
    Key(u8),
    /// There is no more input.
    Closed,
}

/// Asks a server for samples.
pub struct Poller {
    socket: std::path::PathBuf,
    started: Instant,
}

#[allow(clippy::disallowed_methods, reason = "the command is no engine")]
fn now() -> Instant {
    Instant::now()
}

impl Poller {
    /// An asker of the server at this socket.
    pub fn new(socket: &Path) -> Poller {
        Poller { socket: socket.to_owned(), started: now() }
    }

    /// The server as it is now.
    pub fn sample(&self) -> Result<Sample> {
        let status = ask(&self.socket, request::Status {})?;
        Ok(Sample::of(status, now().duration_since(self.started)))
    }

    /// Two samples, so far apart.
    pub fn pair(&self, every: Duration) -> Result<(Sample, Sample)> {
        let before = self.sample()?;
        #[allow(clippy::disallowed_methods, reason = "the command is no engine")]
        std::thread::sleep(every);
        Ok((before, self.sample()?))
    }

    /// Asks again and again, until no one listens.
    fn run(self, every: Duration, news: &Sender<LiveEvent>) {
        while news.send(LiveEvent::Sample(self.sample().map(Box::new))).is_ok() {
            #[allow(clippy::disallowed_methods, reason = "the command is no engine")]
            std::thread::sleep(every);
        }
    }
}

/// Reads keys until there are none any more.
fn read_keys(news: &Sender<LiveEvent>) {
    let mut bytes = [0; 64];
    loop {
        let read = match io::stdin().read(&mut bytes) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => break,
            Ok(n) => &bytes[..n],
        };
        if keys(read).any(|key| news.send(LiveEvent::Key(key)).is_err()) {
            return;
        }
    }
    let _ = news.send(LiveEvent::Closed);
}

/// The keys that were pressed, without what arrows and the like send: an escape, a bracket or an O,
/// figures and a last letter.
fn keys(read: &[u8]) -> impl Iterator<Item = u8> {
    let mut inside = InputState::Text;
    read.iter().copied().filter(move |byte| {
        let (next, is_key) = match (inside, *byte) {
            (_, ESCAPE) => (InputState::Escape, false),
            (InputState::Escape, b'[' | b'O') => (InputState::Sequence, false),
            (InputState::Sequence, 0x40..=0x7e) => (InputState::Text, false),
            (InputState::Sequence, _) => (InputState::Sequence, false),
            (InputState::Escape | InputState::Text, _) => (InputState::Text, true),
        };
        inside = next;
        is_key
    })
}

/// The place of a byte in the input.
#[derive(Clone, Copy)]
enum InputState {
    Text,
    Escape,
    Sequence,
}

/// Shows the server until the user leaves.
pub fn show(socket: &Path, every: Duration, colour: bool) -> Result<()> {
    let asker = Poller::new(socket);
    let (sender, news) = channel();
    let spawn = |name: &str, act: Box<dyn FnOnce() + Send>| {
        let made = std::thread::Builder::new().name(name.to_owned()).spawn(act);
        made.map_err(|e| CommandError::failed("starting a thread", e)).map(|_| ())
    };
    let to_here = sender.clone();
    spawn("ask", Box::new(move || asker.run(every, &to_here)))?;
    let mut picture = Picture { before: None, now: None, heard: now(), trouble: None };
    match news.recv_timeout(FIRST) {
        Ok(LiveEvent::Sample(Err(e))) => return Err(e),
        Ok(LiveEvent::Sample(first)) => picture.take(first, now()),
        // The server stands still, or has much to do.
        Ok(LiveEvent::Key(_) | LiveEvent::Closed) | Err(_) => {}
    }
    let failed = |e: io::Error| CommandError::failed("taking the terminal", e);
    let screen = Screen::take().map_err(failed)?;
    spawn("keys", Box::new(move || read_keys(&sender)))?;
    watch(&screen, &news, &mut picture, colour)
}

/// The samples and the state of the server that are shown.
struct Picture {
    before: Option<Sample>,
    now: Option<Sample>,
    /// When the last sample came; before the first one, when this was begun.
    heard: Instant,
    /// Why the last sample did not come, if it did not.
    trouble: Option<String>,
}

impl Picture {
    fn take(&mut self, sample: Result<Box<Sample>>, at: Instant) {
        match sample {
            Ok(sample) => {
                self.before = self.now.replace(*sample);
                (self.heard, self.trouble) = (at, None);
            }
            Err(e) => self.trouble = Some(e.to_string()),
        }
    }

    /// All lines, the last of which says how to leave.
    fn lines(&self, look: &Look, rows: usize, at: Instant) -> Vec<String> {
        let room = rows.saturating_sub(1);
        let mut out = match (&self.before, &self.now) {
            (Some(before), Some(now)) => lines(before, now, look, Some(room)),
            (_, Some(_)) => vec!["measuring".to_owned()],
            (_, None) => {
                let why =
                    self.trouble.iter().flat_map(|why| wrapped(why, look.columns, LongWord::Whole));
                let head = "waiting for the first answer of the server".to_owned();
                [head, String::new()].into_iter().chain(why).collect()
            }
        };
        out.resize(room, String::new());
        let silent = at.duration_since(self.heard).as_secs();
        let (tone, last) = match &self.trouble {
            Some(why) => (Tone::Bad, format!("no answer for {silent} s: {why}  (q: quit)")),
            None if silent > SILENT_S => {
                (Tone::Bad, format!("no answer for {silent} s  (q: quit)"))
            }
            None => (Tone::Faint, "q: quit".to_owned()),
        };
        out.push(look.paint(tone, &shortened(&last, look.columns)));
        out
    }
}

/// A server that is silent for longer is told of.
const SILENT_S: u64 = 5;

fn size() -> (usize, usize) {
    let size = terminal_size::terminal_size_of(io::stdout());
    size.map_or((80, 24), |(width, height)| (width.0.into(), height.0.into()))
}

fn watch(
    screen: &Screen,
    news: &Receiver<LiveEvent>,
    picture: &mut Picture,
    colour: bool,
) -> Result<()> {
    let mut drawn = (0, 0);
    loop {
        let heard = news.recv_timeout(LOOK);
        let at = now();
        let is_new = match heard {
            Ok(LiveEvent::Key(key)) if LEAVE.contains(&key) => return Ok(()),
            Ok(LiveEvent::Key(SUSPEND)) => {
                screen::suspend();
                true
            }
            Ok(LiveEvent::Closed) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(LiveEvent::Sample(sample)) => {
                picture.take(sample, at);
                true
            }
            Ok(LiveEvent::Key(_)) | Err(RecvTimeoutError::Timeout) => false,
        };
        let is_silent = at.duration_since(picture.heard).as_secs() > SILENT_S;
        let now_is = size();
        if is_new || is_silent || drawn != now_is {
            drawn = now_is;
            let look = Look { columns: now_is.0, colour };
            let shown = screen.draw(&picture.lines(&look, now_is.1, at));
            shown.map_err(|e| CommandError::failed("drawing on the terminal", e))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_are_no_keys() {
        let pressed = |text: &str| keys(text.as_bytes()).collect::<Vec<u8>>();
        assert_eq!(pressed("a\u{1b}[Bq\u{1b}Oq\u{1b}[1;5C\u{3}"), b"aq\x03");
        assert_eq!((pressed("\u{1b}q"), pressed("\u{1b}")), (b"q".to_vec(), Vec::new()));
    }

    #[test]
    fn the_last_line_says_how_to_leave_and_what_is_wrong() {
        let at = now();
        let look = Look { columns: 80, colour: false };
        let mut picture = Picture { before: None, now: None, heard: at, trouble: None };
        let lines = picture.lines(&look, 10, at + Duration::from_secs(9));
        assert!(lines[0].starts_with("waiting for") && lines[9].contains("9 s  (q: quit)"));
        picture.take(Err(CommandError::Failed("a long reason ".repeat(12))), at);
        assert!(picture.lines(&look, 10, at)[3].starts_with("reason a long"), "all of it is shown");
        picture.take(Ok(Box::default()), at);
        let lines = picture.lines(&look, 10, at);
        assert_eq!(
            (lines.len(), lines[0].as_str(), lines[9].as_str()),
            (10, "measuring", "q: quit")
        );
        picture.take(Ok(Box::default()), at);
        assert!(picture.lines(&look, 24, at)[0].starts_with("pool"));
        let silent = picture.lines(&look, 24, at + Duration::from_secs(9));
        assert_eq!(silent[23], "no answer for 9 s  (q: quit)");
        picture.take(Err(CommandError::Failed("no server answers".into())), at);
        assert!(picture.lines(&look, 24, at)[23].starts_with("no answer for 0 s: no"), "trouble");
        assert_eq!(picture.lines(&look, 0, at).len(), 1);
    }
}
