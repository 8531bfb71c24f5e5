//! Writes the golden images of the version of the format that is built to a directory:
//!
//! ```text
//! cargo run -p pool --example golden -- crates/pool/tests/golden/vN
//! ```

#[path = "../tests/golden/image.rs"]
mod image;

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(directory) = std::env::args().nth(1) else {
        eprintln!("usage: golden DIRECTORY");
        return ExitCode::FAILURE;
    };
    let world = image::make();
    for f in image::files() {
        let path = format!("{directory}/{}.txt", f.path);
        if let Err(e) = std::fs::write(&path, testkit::image_of(&world, f.file, f.size_bytes)) {
            eprintln!("{path}: {e}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
