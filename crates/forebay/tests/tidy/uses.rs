//! The graph of uses between the files of one crate, read from the sources.
//!
//! An arrow goes from file `c` to file `a` if `c` names an item of `a`, in a `use` or by a path in
//! its code. Only paths inside the crate count: those that begin with `crate`, `super`, `self` or a
//! child module. The rules:
//!
//! * `use crate::a::b` is an arrow to the file of module `a`, or to that of `b` if `b` is a module.
//! * An item of the crate root is an arrow to `lib.rs`.
//! * A re-export (`pub use`) is not an arrow, and arrows to it lead to the file that it names. So a
//!   module may present the items of its children. If the file uses the item itself, that is an
//!   arrow.
//! * `mod x;` is not an arrow. Items and files under `#[cfg(test)]` are left out.
//!
//! A path into another crate that `c` re-exports counts as an item of `c`.

use std::collections::{BTreeMap, BTreeSet};

/// The files of a crate, and for each of them the files that it uses.
pub struct Graph {
    files: Vec<String>,
    arrows: Vec<BTreeSet<usize>>,
}

impl Graph {
    /// The graph of a crate's files: pairs of the path below `src` and the text.
    pub fn new(sources: &[(String, String)]) -> Graph {
        let mut files: Vec<File> = sources.iter().filter_map(|(p, t)| File::read(p, t)).collect();
        let left_out: BTreeSet<String> =
            files.iter().flat_map(|f| f.test_files.iter().cloned()).collect();
        let test_modules: Vec<Path> = files.iter().flat_map(|f| f.test_modules.clone()).collect();
        files.retain(|f| {
            !left_out.contains(&f.name) && !test_modules.iter().any(|m| f.module.starts_with(m))
        });
        let names = files.iter().map(|f| f.name.clone()).collect();
        let krate = Crate::new(&files);
        let arrows = (0..files.len()).map(|i| krate.arrows_of(i)).collect();
        Graph { files: names, arrows }
    }

    /// The largest set of files that all reach each other, and the arrows between them. Empty if
    /// the graph has no cycle.
    pub fn largest_cycle(&self) -> (Vec<&str>, Vec<String>) {
        let reach: Vec<BTreeSet<usize>> = (0..self.files.len()).map(|i| self.reach(i)).collect();
        let mut largest = Vec::new();
        for (i, reached) in reach.iter().enumerate() {
            let cycle: Vec<usize> =
                reached.iter().copied().filter(|&j| reach[j].contains(&i)).collect();
            if cycle.len() > largest.len() {
                largest = cycle;
            }
        }
        let mut arrows = Vec::new();
        for &i in &largest {
            for j in self.arrows[i].iter().filter(|j| largest.contains(j)) {
                arrows.push(format!("{} -> {}", self.files[i], self.files[*j]));
            }
        }
        (largest.iter().map(|&i| self.files[i].as_str()).collect(), arrows)
    }

    /// The arrows to a folder that comes later in `order`, and the files that are not in it or
    /// `beside` it.
    pub fn upward(&self, order: &[&str], beside: &[&str]) -> Vec<String> {
        let folder =
            |i: usize| self.files[i].split('/').next().unwrap_or_default().trim_end_matches(".rs");
        let rank = |i: usize| order.iter().position(|f| *f == folder(i));
        let mut found = Vec::new();
        for (i, arrows) in self.arrows.iter().enumerate() {
            if rank(i).is_none() && !beside.contains(&folder(i)) {
                found.push(format!("{} is in no folder of the order", self.files[i]));
            }
            for j in arrows
                .iter()
                .filter(|j| rank(i).zip(rank(**j)).is_some_and(|(own, other)| other > own))
            {
                found.push(format!("{} -> {}", self.files[i], self.files[*j]));
            }
        }
        found
    }

    /// The files that can be reached from `start` by one arrow or more.
    fn reach(&self, start: usize) -> BTreeSet<usize> {
        let mut seen = BTreeSet::new();
        let mut next = vec![start];
        while let Some(i) = next.pop() {
            next.extend(self.arrows[i].iter().copied().filter(|&j| seen.insert(j)));
        }
        seen
    }
}

/// The names of nested modules, from the crate root down; or those of a path in the code.
type Path = Vec<String>;

/// A path that is named somewhere.
struct Mention {
    /// The module that names it.
    from: Path,
    path: Path,
}

/// A `use` that gives a name to a path. The name is `*` if it takes all names.
struct Import {
    mention: Mention,
    name: String,
    public: bool,
}

/// What the code of one file says.
struct File {
    name: String,
    module: Path,
    /// Modules whose code is in this file: its own, and those with a body.
    modules: Vec<Path>,
    imports: Vec<Import>,
    /// Paths of two names or more, outside of `use`.
    paths: Vec<Mention>,
    /// Single names, outside of `use`, that could be items.
    names: BTreeSet<String>,
    /// Names of items that are defined here.
    defines: BTreeSet<String>,
    /// Files and modules that this file declares under `#[cfg(test)]`.
    test_files: Vec<String>,
    test_modules: Vec<Path>,
}

const ITEMS: &[&str] = &["fn", "struct", "enum", "trait", "type", "const", "static", "union"];

impl File {
    /// Reads a file. Returns `None` if all of it is under `#![cfg(test)]`.
    fn read(name: &str, text: &str) -> Option<File> {
        let mut file = File {
            name: name.to_owned(),
            module: module_of(name),
            modules: vec![module_of(name)],
            imports: Vec::new(),
            paths: Vec::new(),
            names: BTreeSet::new(),
            defines: BTreeSet::new(),
            test_files: Vec::new(),
            test_modules: Vec::new(),
        };
        let code = without_comments(text);
        let tokens = file.without_tests(text, &tokens_of(&code))?;
        file.walk(&tokens);
        Some(file)
    }

    /// Removes items under `#[cfg(test)]`, and notes the modules among them.
    fn without_tests<'a>(&mut self, text: &str, all: &[Token<'a>]) -> Option<Vec<Token<'a>>> {
        let mut kept = Vec::new();
        let mut i = 0;
        while i < all.len() {
            let inner = is(all, i + 1, "!");
            let open = i + 1 + usize::from(inner);
            if !is(all, i, "#") || !is(all, open, "[") {
                kept.push(all[i]);
                i += 1;
                continue;
            }
            let end = closing(all, open);
            let attribute = &all[open..end];
            let has = |word: &str| attribute.iter().any(|t| t.text == word);
            if !(is(attribute, 1, "cfg") && has("test") && !has("not")) {
                kept.extend(&all[i..end]);
                i = end;
                continue;
            }
            if inner {
                return None;
            }
            i = self.end_of_test(text, all, end);
        }
        Some(kept)
    }

    /// The end of the item at `i`, which is under `#[cfg(test)]`.
    fn end_of_test(&mut self, text: &str, all: &[Token<'_>], mut i: usize) -> usize {
        let mut path = None;
        while is(all, i, "#") {
            if is(all, i + 2, "path") {
                path = text[all[i + 2].at..].split('"').nth(1);
            }
            i = closing(all, i + 1);
        }
        if is(all, i, "pub") {
            i += 1;
            if is(all, i, "(") {
                i = closing(all, i);
            }
        }
        if is(all, i, "mod") && is(all, i + 2, ";") {
            match path {
                Some(path) => self.test_files.push(beside(&self.name, path)),
                None => self.test_modules.push(join(&self.module, &[all[i + 1].text.to_owned()])),
            }
        }
        let item = all.get(i).is_some_and(|t| {
            ITEMS.contains(&t.text)
                || ["mod", "use", "impl", "unsafe", "async", "extern", "let", "macro_rules"]
                    .contains(&t.text)
        });
        while i < all.len() {
            match all[i].text {
                ";" => return i + 1,
                "," if !item => return i + 1,
                "{" if item => return closing(all, i),
                "(" | "[" | "{" => i = closing(all, i),
                "}" => return i,
                _ => i += 1,
            }
        }
        i
    }

    fn walk(&mut self, tokens: &[Token<'_>]) {
        // The module at each depth of braces that a `mod x {` has opened.
        let mut inline: Vec<(usize, String)> = Vec::new();
        let mut depth = 0;
        let mut i = 0;
        while i < tokens.len() {
            let from = join(&self.module, &inline.iter().map(|m| m.1.clone()).collect::<Path>());
            let before = if i == 0 { "" } else { tokens[i - 1].text };
            match tokens[i].text {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    inline.retain(|m| m.0 <= depth);
                }
                "mod" if is(tokens, i + 2, "{") => {
                    inline.push((depth + 1, tokens[i + 1].text.to_owned()));
                    self.modules.push(join(&from, &[tokens[i + 1].text.to_owned()]));
                    (i, depth) = (i + 2, depth + 1);
                }
                "use" if !is(tokens, i + 1, "<") => {
                    let public = before == "pub" || (before == ")" && opened_by_pub(tokens, i - 1));
                    let end = (i..tokens.len()).find(|&j| is(tokens, j, ";")).unwrap_or(i);
                    for (path, name) in use_tree(&tokens[i + 1..end]) {
                        let mention = Mention { from: from.clone(), path };
                        self.imports.push(Import { mention, name, public });
                    }
                    i = end;
                }
                word if ITEMS.contains(&word) || word == "macro_rules" => {
                    let name = tokens.get(i + 1 + usize::from(is(tokens, i + 1, "!")));
                    self.defines.extend(name.map(|t| t.text.to_owned()));
                }
                word if is_name(word) && before != "." && before != "::" && before != "fn" => {
                    let end = end_of_path(tokens, i);
                    let path: Path =
                        tokens[i..end].iter().step_by(2).map(|t| t.text.to_owned()).collect();
                    let item = word.starts_with(|c: char| c.is_uppercase())
                        || ["(", "::", "!"].iter().any(|next| is(tokens, i + 1, next));
                    if item {
                        self.names.insert(word.to_owned());
                    }
                    if path.len() > 1 {
                        self.paths.push(Mention { from, path });
                    }
                    i = end - 1;
                }
                _ => {}
            }
            i += 1;
        }
    }
}

/// All files of a crate, to look up paths in.
struct Crate<'a> {
    files: &'a [File],
    /// The file in which the code of each module is.
    modules: BTreeMap<&'a [String], usize>,
}

impl Crate<'_> {
    fn new(files: &[File]) -> Crate<'_> {
        let of_file = |(i, f)| -> Vec<_> {
            let f: &File = f;
            f.modules.iter().map(|m| (&m[..], i)).collect()
        };
        Crate { files, modules: files.iter().enumerate().flat_map(of_file).collect() }
    }

    fn arrows_of(&self, i: usize) -> BTreeSet<usize> {
        let file = &self.files[i];
        // A re-export counts only if the file uses the name itself.
        let used = file.imports.iter().filter(|u| !u.public || file.names.contains(&u.name));
        let mentions = used.map(|u| &u.mention).chain(&file.paths);
        mentions.filter_map(|m| self.file_of(m, 0)).filter(|&j| j != i).collect()
    }

    /// The file in which the item is that a path names; `None` if it is in another crate.
    fn file_of(&self, mention: &Mention, depth: usize) -> Option<usize> {
        let mut module = mention.from.clone();
        let mut rest = &mention.path[..];
        match rest.first()?.as_str() {
            "crate" => (module, rest) = (Path::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|s| s == "super") {
                    module.pop();
                    rest = &rest[1..];
                }
            }
            child => {
                self.modules.get(&join(&module, &[child.to_owned()])[..])?;
            }
        }
        while let [name, more @ ..] = rest {
            let inner = join(&module, std::slice::from_ref(name));
            if !self.modules.contains_key(&inner[..]) {
                break;
            }
            (module, rest) = (inner, more);
        }
        let file = *self.modules.get(&module[..])?;
        let through = rest.first().filter(|_| depth < 8);
        Some(through.and_then(|name| self.behind(file, &module, name, depth)).unwrap_or(file))
    }

    /// The file of the item that `module` re-exports as `name`.
    fn behind(&self, file: usize, module: &Path, name: &str, depth: usize) -> Option<usize> {
        let public =
            self.files[file].imports.iter().filter(|u| u.public && u.mention.from == *module);
        let mut globs = Vec::new();
        for import in public {
            if import.name == name {
                return self.file_of(&import.mention, depth + 1);
            }
            if import.name == "*" {
                globs.extend(self.file_of(&import.mention, depth + 1));
            }
        }
        globs.into_iter().find(|&g| self.files[g].defines.contains(name))
    }
}

fn join(module: &[String], more: &[String]) -> Path {
    [module, more].concat()
}

/// The module that a file below `src` is: `a/b.rs` and `a/b/mod.rs` are `a::b`.
fn module_of(name: &str) -> Path {
    let name = name.strip_suffix(".rs").unwrap_or(name);
    let mut path: Path = name.split('/').map(str::to_owned).collect();
    let last = path.last().map(String::as_str);
    if last == Some("mod") || (path.len() == 1 && matches!(last, Some("lib" | "main"))) {
        path.pop();
    }
    path
}

/// The file at `path`, seen from the folder of the file `name`.
fn beside(name: &str, path: &str) -> String {
    name.rsplit_once('/').map_or(path.to_owned(), |(dir, _)| format!("{dir}/{path}"))
}

/// The paths of a `use` and the names that they get: `a::{b, c as d}` is `a::b` as `b`, `a::c` as
/// `d`.
fn use_tree(tokens: &[Token<'_>]) -> Vec<(Path, String)> {
    let mut path = Path::new();
    let mut i = 0;
    while i < tokens.len() {
        match tokens[i].text {
            "{" => {
                let end = closing(tokens, i) - 1;
                let mut found = Vec::new();
                for part in split_at_commas(&tokens[i + 1..end]) {
                    for (more, name) in use_tree(part) {
                        // `a::{self}` is `a`.
                        let own = more.len() == 1 && more[0] == "self" && !path.is_empty();
                        let more = if own { Path::new() } else { more };
                        let renamed =
                            if own && name == "self" { path[path.len() - 1].clone() } else { name };
                        found.push((join(&path, &more), renamed));
                    }
                }
                return found;
            }
            "*" => return vec![(path, "*".to_owned())],
            "as" => {
                let name = tokens.get(i + 1).map_or(String::new(), |t| t.text.to_owned());
                return vec![(path, name)];
            }
            "::" => {}
            name => path.push(name.to_owned()),
        }
        i += 1;
    }
    let name = path.last().cloned().unwrap_or_default();
    if path.is_empty() { Vec::new() } else { vec![(path, name)] }
}

fn split_at_commas<'a, 'b>(tokens: &'b [Token<'a>]) -> Vec<&'b [Token<'a>]> {
    let (mut parts, mut start, mut i) = (Vec::new(), 0, 0);
    while i < tokens.len() {
        match tokens[i].text {
            "," => {
                parts.push(&tokens[start..i]);
                (start, i) = (i + 1, i + 1);
            }
            "{" => i = closing(tokens, i),
            _ => i += 1,
        }
    }
    parts.push(&tokens[start..]);
    parts
}

/// True if the bracket that ends at `at` belongs to `pub(...)`.
fn opened_by_pub(tokens: &[Token<'_>], at: usize) -> bool {
    let open = (0..at).rev().find(|&j| is(tokens, j, "("));
    open.is_some_and(|j| j > 0 && is(tokens, j - 1, "pub"))
}

/// A name, `::`, or one other character, and its offset.
#[derive(Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    at: usize,
}

fn is(tokens: &[Token<'_>], i: usize, text: &str) -> bool {
    tokens.get(i).is_some_and(|t| t.text == text)
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c == '_' || c.is_alphabetic())
}

/// The index behind the bracket that closes the one at `open`.
fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (i, t) in tokens.iter().enumerate().skip(open) {
        match t.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

/// The index behind the path that begins with the name at `i`.
fn end_of_path(tokens: &[Token<'_>], i: usize) -> usize {
    let mut end = i + 1;
    while is(tokens, end, "::") && tokens.get(end + 1).is_some_and(|t| is_name(t.text)) {
        end += 2;
    }
    end
}

fn tokens_of(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = code[at..].chars().next() {
        let rest = &code[at..];
        let len = if is_name(rest) {
            rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            c.len_utf8()
        };
        if !c.is_whitespace() {
            tokens.push(Token { text: &rest[..len], at });
        }
        at += len;
    }
    tokens
}

/// The text with spaces in place of comments, strings and characters; offsets stay the same.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (len, code) = span(rest, c);
        for c in rest[..len].chars() {
            if code || c == '\n' {
                out.push(c);
            } else {
                out.extend(std::iter::repeat_n(' ', c.len_utf8()));
            }
        }
        rest = &rest[len..];
    }
    out
}

/// The bytes of what begins `rest` with the character `c`, and whether it is code.
fn span(rest: &str, c: char) -> (usize, bool) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), false);
    }
    if rest.starts_with("/*") {
        let (mut depth, mut at) = (0, 0);
        loop {
            let step = &rest[at..];
            depth += i32::from(step.starts_with("/*")) - i32::from(step.starts_with("*/"));
            let both = step.starts_with("/*") || step.starts_with("*/");
            at += if both { 2 } else { step.chars().next().map_or(0, char::len_utf8) };
            if depth == 0 || step.is_empty() {
                return (at, false);
            }
        }
    }
    if is_name(rest) {
        let len = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
        let after = &rest[len..];
        let marks = after.len() - after.trim_start_matches('#').len();
        if matches!(&rest[..len], "r" | "br" | "cr") && after[marks..].starts_with('"') {
            let end = format!("\"{}", &after[..marks]);
            let body = len + marks + 1;
            return (rest[body..].find(&end).map_or(rest.len(), |n| body + n + end.len()), false);
        }
        return (len, true);
    }
    if c == '"' {
        let mut escaped = false;
        for (at, c) in rest.char_indices().skip(1) {
            match c {
                '"' if !escaped => return (at + 1, false),
                _ => escaped = c == '\\' && !escaped,
            }
        }
        return (rest.len(), false);
    }
    if c == '\'' {
        let mut chars = rest.char_indices().skip(1);
        let first = chars.next().map(|(_, c)| c);
        let second = chars.next();
        if first == Some('\\') {
            // The character behind the backslash may be a quote.
            return (rest[3.min(rest.len())..].find('\'').map_or(rest.len(), |n| n + 4), false);
        }
        if let Some((at, '\'')) = second {
            return (at + 1, false);
        }
    }
    (c.len_utf8(), true)
}

#[path = "uses_tests.rs"]
mod tests;
