//! Writes the golden image of the version that is built to a directory, which must be there:
//!
//! ```text
//! cargo run -p volume --example golden_cached -- crates/volume/tests/golden/VERSION
//! ```

#[path = "../tests/golden/make.rs"]
mod make;
#[path = "../tests/golden/story.rs"]
#[allow(dead_code, reason = "the example makes images, the test reads them")]
mod story;

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(directory) = std::env::args().nth(1) else {
        eprintln!("usage: golden DIRECTORY");
        return ExitCode::FAILURE;
    };
    let story = ("story".to_owned(), make::story());
    for (name, text) in make::make().into_iter().chain([story]) {
        let path = format!("{directory}/{name}.txt");
        if let Err(e) = std::fs::write(&path, text) {
            eprintln!("{path}: {e}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
