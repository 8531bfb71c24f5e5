//! `forebay version`: what this program is, and what it can read.

use clap::Args;
use serde_json::{Value, json};

use crate::control;
use crate::error::Result;
use crate::output::{print, print_json};

/// The commit that it was built from; `make build` says it.
const COMMIT: Option<&str> = option_env!("FOREBAY_COMMIT");

/// Print the version, the formats that it reads and writes, and what it was built with
#[derive(Args, Debug)]
pub struct Version {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

impl Version {
    pub fn run(self) -> Result<()> {
        let told = version();
        if self.json { print_json(&told) } else { print(&text(&told)) }
    }
}

fn version() -> Value {
    let format = |newest: u32, features: &[&str]| {
        let reads: Vec<u32> = (1..=newest).collect();
        json!({ "reads": reads, "writes": newest, "features": features })
    };
    let pool = format(format::superblock::VERSION, &[]);
    let cache = format(format::cache::superblock::VERSION, format::cache::superblock::FEATURES);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": COMMIT.filter(|commit| !commit.is_empty()),
        "formats": { "pool": pool, "cache": cache },
        "control_protocol": control::VERSION,
        "features": ["io_uring", "posix", "emulate"],
        "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        "assertions": cfg!(debug_assertions),
    })
}

fn text(told: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let words = |value: &Value| {
        let all = value.as_array().into_iter().flatten();
        all.map(|one| one.as_str().map_or(one.to_string(), str::to_owned)).collect::<Vec<_>>()
    };
    let mut out = format!("forebay {}\n", word(&told["version"]));
    out += &format!("commit: {}\n", word(&told["commit"]));
    for name in ["pool", "cache"] {
        let format = &told["formats"][name];
        let (reads, features) = (words(&format["reads"]), words(&format["features"]));
        out += &format!("{name} format: reads {}, writes {}", reads.join(", "), format["writes"]);
        if !features.is_empty() {
            out += &format!(", features {}", features.join(", "));
        }
        out.push('\n');
    }
    out += &format!("control protocol: {}\n", told["control_protocol"]);
    out + &format!(
        "built with: {} ({})\n",
        words(&told["features"]).join(", "),
        word(&told["target"])
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_what_it_reads() {
        let told = version();
        assert_eq!(told["formats"]["pool"]["writes"], format::superblock::VERSION);
        let text = text(&told);
        assert!(text.starts_with(concat!("forebay ", env!("CARGO_PKG_VERSION"), "\n")), "{text}");
        assert!(text.contains("pool format: reads 1, writes 1\n"), "{text}");
        assert!(text.contains("two-rings"), "{text}");
    }

    #[test]
    fn the_changes_of_this_version_are_told() {
        let changes = include_str!("../../../../CHANGELOG.md");
        assert!(changes.contains(concat!("\n## ", env!("CARGO_PKG_VERSION"))));
    }
}
