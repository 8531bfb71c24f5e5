//! The program `forebay`. All of it is in the library of the same name.

use std::process::ExitCode;

/// The engine allocates and frees a few small things for every request, often many at once; the C
/// library's allocator is slower at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    forebay::main()
}
