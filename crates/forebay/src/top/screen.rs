//! The terminal while `forebay top` has it, and how it gets back to what it was.
//!
//! Fault model: the command may end by itself, by a signal, or by a panic. In each case [`leave`]
//! runs before the process ends, on whatever thread that happens; so it takes no lock, and does its
//! work once.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::termios::{self, SetArg, Termios};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// The other screen of the terminal, no cursor, and lines that end at its edge.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// Lines that go on, the cursor again, no colour, and the screen that was there before.
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[0m\x1b[?1049l";
/// To the first line; and from here to the end of the line, or of the screen, nothing.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

/// The terminal, as it was.
struct Terminal {
    input: OwnedFd,
    output: File,
    modes: libc::termios,
}

static TERMINAL: OnceLock<Terminal> = OnceLock::new();
/// Whether the terminal is other than it was.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// While this lives, the terminal shows what is drawn, and keys come at once and unseen.
pub struct Screen(());

impl Screen {
    /// Takes the terminal of standard input and output.
    pub fn take() -> io::Result<Screen> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        let screen = Screen::take_of(input, output)?;
        watch_signals()?;
        Ok(screen)
    }

    fn take_of(input: OwnedFd, output: OwnedFd) -> io::Result<Screen> {
        let modes = termios::tcgetattr(&input)?.into();
        TERMINAL.get_or_init(|| Terminal { input, output: File::from(output), modes });
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            leave();
            usual(info);
        }));
        let screen = Screen(());
        enter()?;
        Ok(screen)
    }

    /// Draws these lines, and nothing else.
    pub fn draw(&self, lines: &[String]) -> io::Result<()> {
        let mut frame = HOME.to_owned();
        for (i, line) in lines.iter().enumerate() {
            if i > 0 {
                frame += "\r\n";
            }
            frame += line;
            frame += CLEAR_LINE;
        }
        frame += CLEAR_REST;
        match TERMINAL.get().filter(|_| TAKEN.load(Ordering::Acquire)) {
            Some(terminal) => (&terminal.output).write_all(frame.as_bytes()),
            None => Ok(()),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    let Some(terminal) = TERMINAL.get() else { return Ok(()) };
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let mut raw = Termios::from(terminal.modes);
    termios::cfmakeraw(&mut raw);
    termios::tcsetattr(&terminal.input, SetArg::TCSANOW, &raw)?;
    (&terminal.output).write_all(ENTER.as_bytes())
}

/// Makes the terminal what it was before. It does nothing where that is so already.
fn leave() {
    let Some(terminal) = TERMINAL.get().filter(|_| TAKEN.swap(false, Ordering::AcqRel)) else {
        return;
    };
    // A terminal that is gone needs none of it.
    let _ = (&terminal.output).write_all(LEAVE.as_bytes());
    let modes = Termios::from(terminal.modes);
    let _ = termios::tcsetattr(&terminal.input, SetArg::TCSANOW, &modes);
}

/// Stops this process as the key for it does; it goes on where it is told to.
pub fn suspend() {
    leave();
    // The shell takes over here.
    let _ = emulate_default_handler(SIGTSTP);
    let _ = enter();
}

/// A signal that ends the process, or stops it, finds the terminal as it was.
fn watch_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP])?;
    let watch = move || {
        for signal in signals.forever() {
            if signal == SIGTSTP {
                suspend();
                continue;
            }
            leave();
            let _ = emulate_default_handler(signal);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use nix::pty::openpty;
    use nix::sys::termios::LocalFlags;

    use super::*;

    fn is_raw(tty: &OwnedFd) -> bool {
        let modes = termios::tcgetattr(tty).unwrap();
        !modes.local_flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG)
    }

    /// One test, as a process has one terminal: it is left by a drop, and by a panic.
    #[test]
    fn the_terminal_gets_back_to_what_it_was() {
        let pty = openpty(None, None).unwrap();
        let (input, output) = (pty.slave.try_clone().unwrap(), pty.slave.try_clone().unwrap());
        assert!(!is_raw(&pty.slave));
        let screen = Screen::take_of(input, output).unwrap();
        assert!(is_raw(&pty.slave));
        screen.draw(&["one".to_owned(), "two".to_owned()]).unwrap();
        drop(screen);
        assert!(!is_raw(&pty.slave));

        let (input, output) = (pty.slave.try_clone().unwrap(), pty.slave.try_clone().unwrap());
        let panics = std::thread::Builder::new().name("panics".into()).spawn(move || {
            let _screen = Screen::take_of(input, output).unwrap();
            panic!("as the test wants it");
        });
        assert!(panics.unwrap().join().is_err());
        assert!(!is_raw(&pty.slave));
        leave();

        let (mut seen, mut master) = (String::new(), File::from(pty.master));
        while seen.matches(LEAVE).count() < 2 {
            let mut some = [0; 4096];
            let n = master.read(&mut some).unwrap();
            seen += &String::from_utf8_lossy(&some[..n]);
        }
        assert!(seen.contains("\x1b[Hone\x1b[K\r\ntwo\x1b[K\x1b[J"), "{seen:?}");
        assert_eq!(seen.matches(ENTER).count(), 2, "{seen:?}");
    }
}
