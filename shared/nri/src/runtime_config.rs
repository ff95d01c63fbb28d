//! What a container runtime's configuration says of NRI: read from the text of containerd's and CRI-O's files, without a reader
//! of the whole language. Pure.

/// What one file, or several that were read one after another, say. What no file says is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NriConfig {
    /// NRI is on (containerd: `disable = false`, CRI-O: `enable_nri = true`), or off.
    pub enabled: Option<bool>,
    /// containerd's list of plugins that it does not load (`disabled_plugins`) names NRI's, and no section turns it on again.
    pub is_unloaded: bool,
    /// Plugins that are not the runtime's own may connect.
    pub connections: Option<bool>,
    /// The socket.
    pub socket: Option<String>,
    /// How long a plugin may take to register, as written ("5s").
    pub registration_timeout: Option<String>,
    /// How long a plugin may take to answer, as written ("2s").
    pub request_timeout: Option<String>,
    /// Settings of NRI that stand in a section where the runtime does not look: "section: key".
    pub misplaced: Vec<String>,
    /// Lines that are no TOML, or give one of these keys what it cannot be: the runtime does not start with them, or means
    /// something else than was understood here.
    pub faults: Vec<String>,
    /// Files that are to be read too (containerd's `imports`), globs.
    pub imports: Vec<String>,
}

/// The section of containerd's files.
const CONTAINERD: &str = "io.containerd.nri.v1.nri";

/// Keys that mean NRI wherever they stand, in containerd's words.
const KEYS_OF_CONTAINERD: [&str; 4] =
    ["disable_connections", "plugin_registration_timeout", "plugin_request_timeout", "plugin_config_path"];

/// The same in CRI-O's.
const KEYS_OF_CRIO: [&str; 5] = [
    "enable_nri",
    "nri_listen",
    "nri_disable_connections",
    "nri_plugin_registration_timeout",
    "nri_plugin_request_timeout",
];

/// Parts of a key below which inline tables are not followed.
const DEEPEST: usize = 16;

/// Characters of a faulty line that are kept.
const SHOWN: usize = 80;

// === impl NriConfig ===

impl NriConfig {
    /// Takes up another file, which wins where both say something.
    pub fn read(&mut self, text: &str) {
        let mut section: Vec<String> = Vec::new();
        for line in logical_lines(text) {
            if let Some(header) = line.strip_prefix('[').filter(|_| is_header(&line)) {
                section = path(header.trim_start_matches('[').trim_end_matches(']'));
                continue;
            }
            let Some((key, value)) = line.split_once('=').filter(|(key, value)| is_pair(key, value.trim()))
            else {
                self.faults.push(line.chars().take(SHOWN).collect());
                continue;
            };
            let at: Vec<String> = section.iter().cloned().chain(path(key)).collect();
            self.take(&at, value.trim());
        }
    }

    fn take(&mut self, at: &[String], value: &str) {
        let Some((key, section)) = at.split_last() else { return };
        if let Some(pairs) = value.strip_prefix('{').and_then(|value| value.strip_suffix('}')) {
            return self.take_table(at, pairs);
        }
        let of_containerd = section.last().is_some_and(|last| last == CONTAINERD);
        let of_crio = section == ["crio", "nri"];
        let is_flag = match key.as_str() {
            "disable" | "disable_connections" => of_containerd,
            "enable_nri" | "nri_disable_connections" => of_crio,
            _ => false,
        };
        let flag = || match value {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        };
        if is_flag && flag().is_none() {
            self.faults.push(format!("{key} = {}", value.chars().take(SHOWN).collect::<String>()));
        }
        match key.as_str() {
            "disable" if of_containerd => self.enabled = flag().map(|off| !off && !self.is_unloaded),
            "enable_nri" if of_crio => self.enabled = flag(),
            "disable_connections" if of_containerd => self.connections = flag().map(|off| !off),
            "nri_disable_connections" if of_crio => self.connections = flag().map(|off| !off),
            "socket_path" if of_containerd => self.socket = text(value),
            "nri_listen" if of_crio => self.socket = text(value),
            "plugin_registration_timeout" if of_containerd => self.registration_timeout = text(value),
            "nri_plugin_registration_timeout" if of_crio => self.registration_timeout = text(value),
            "plugin_request_timeout" if of_containerd => self.request_timeout = text(value),
            "nri_plugin_request_timeout" if of_crio => self.request_timeout = text(value),
            "disabled_plugins" if section.is_empty() && texts(value).iter().any(|id| id == CONTAINERD) => {
                self.is_unloaded = true;
                self.enabled = Some(false);
            }
            "imports" if section.is_empty() => self.imports.extend(texts(value)),
            key if (KEYS_OF_CONTAINERD.contains(&key) && !of_containerd)
                || (KEYS_OF_CRIO.contains(&key) && !of_crio) =>
            {
                self.misplaced.push(format!("[{}] {key}", section.join(".")));
            }
            _ => {}
        }
    }

    /// An inline table: the same as a section with these lines.
    fn take_table(&mut self, at: &[String], pairs: &str) {
        if at.len() >= DEEPEST {
            return;
        }
        for pair in parts(pairs) {
            match pair.split_once('=').filter(|(key, value)| is_pair(key, value.trim())) {
                Some((key, value)) => {
                    let at: Vec<String> = at.iter().cloned().chain(path(key)).collect();
                    self.take(&at, value.trim());
                }
                None => self.faults.push(pair.chars().take(SHOWN).collect()),
            }
        }
    }
}

/// Milliseconds of a duration as Go writes it ("2s", "1m30s", "1.5s", "100us"), the begun one counted whole; `None` for anything
/// else.
pub fn millis(duration: &str) -> Option<u64> {
    let mut total: u128 = 0;
    let mut rest = duration.trim();
    rest = rest.strip_prefix('+').unwrap_or(rest);
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, after) = rest.split_at_checked(digits)?;
        let letters = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at_checked(letters)?;
        let scale = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        total = total.checked_add(nanos(number, scale)?)?;
        rest = next;
    }
    u64::try_from(total.div_ceil(1_000_000)).ok()
}

/// A decimal number of units, each of `scale` nanoseconds.
fn nanos(number: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { u128::from(whole.parse::<u64>().ok()?) };
    let mut total = whole.checked_mul(scale)?;
    let mut place = scale;
    for digit in fraction.bytes() {
        place /= 10;
        total = total.checked_add(place.checked_mul(u128::from(digit.wrapping_sub(b'0')))?)?;
    }
    Some(total)
}

/// Whether a line that begins with a bracket is the name of a section.
fn is_header(line: &str) -> bool {
    let (opens, closes) = if line.starts_with("[[") { (2, "]]") } else { (1, "]") };
    line.ends_with(closes) && line.len() > 2 * opens && !line.contains('=')
}

/// Whether this is a key and a value, as far as that shows without reading the value: quotes and brackets that close.
fn is_pair(key: &str, value: &str) -> bool {
    let key = key.trim();
    let bare = |c: char| c.is_ascii_alphanumeric() || "-_. \"'".contains(c);
    let of_keys = !key.is_empty() && (key.contains(['"', '\'']) || key.chars().all(bare));
    let mut quote = None;
    let mut escaped = false;
    let mut depth = 0_i32;
    for c in value.chars() {
        match (c, quote) {
            _ if escaped => escaped = false,
            ('\\', Some('"')) => escaped = true,
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('[' | '{', None) => depth = depth.saturating_add(1),
            (']' | '}', None) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    of_keys && !value.is_empty() && quote.is_none() && depth == 0
}

/// Lines without comments and blanks; a list over several lines is one, and so is a string over several lines, without its text.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open = String::new();
    let mut within: Option<&str> = None;
    for line in text.lines() {
        if let Some(end) = within {
            if line.contains(end) {
                within = None;
            }
            continue;
        }
        let mut line = without_comment(line).trim();
        for end in ["\"\"\"", "'''"] {
            if let Some((before, after)) = line.split_once(end) {
                within = (!after.contains(end)).then_some(end);
                // An empty text stands for the long one.
                open.push_str(before);
                line = "''";
            }
        }
        if line.is_empty() {
            continue;
        }
        open.push_str(line);
        let is_header = open.starts_with('[') && !open.contains('=');
        let depth = open.matches('[').count().cmp(&open.matches(']').count());
        if is_header || depth.is_le() {
            lines.push(std::mem::take(&mut open));
        }
    }
    // A list that never ends.
    lines.extend((!open.is_empty()).then_some(open));
    lines
}

fn without_comment(line: &str) -> &str {
    let mut quote = None;
    for (at, c) in line.char_indices() {
        match (c, quote) {
            ('#', None) => return line.get(..at).unwrap_or(line),
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            _ => {}
        }
    }
    line
}

/// The parts of a dotted key; quoted parts may hold dots.
fn path(key: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quote = None;
    for c in key.trim().chars() {
        match (c, quote) {
            ('.', None) => parts.push(String::new()),
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (c, None) if c.is_whitespace() => {}
            (c, _) => {
                if let Some(last) = parts.last_mut() {
                    last.push(c);
                }
            }
        }
    }
    parts
}

fn text(value: &str) -> Option<String> {
    let bare = value.trim_matches(['"', '\'']);
    (!bare.is_empty()).then(|| bare.to_owned())
}

fn texts(value: &str) -> Vec<String> {
    let list = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')).unwrap_or(value);
    parts(list).into_iter().filter_map(text).collect()
}

/// What stands between commas that are not within quotes or brackets.
fn parts(list: &str) -> Vec<&str> {
    let mut quote = None;
    let mut depth = 0_i32;
    let is_comma = |c: char| {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('[' | '{', None) => depth = depth.saturating_add(1),
            (']' | '}', None) => depth = depth.saturating_sub(1),
            (',', None) => return depth == 0,
            _ => {}
        }
        false
    };
    list.split(is_comma).map(str::trim).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> NriConfig {
        let mut config = NriConfig::default();
        config.read(text);
        config
    }

    #[test]
    fn n12_containerd_says_whether_nri_is_on_and_plugins_may_connect() {
        let config = read(
            "version = 3\nimports = ['/etc/containerd/conf.d/*.toml'] # more\n[plugins]\n  [plugins.'io.containerd.nri.v1.nri']\n    disable = true\n\
             disable_connections = true\n    socket_path = \"/run/x.sock\" # here\n    plugin_request_timeout = '2s'\n",
        );
        assert_eq!((config.enabled, config.connections), (Some(false), Some(false)));
        assert_eq!(config.socket.as_deref(), Some("/run/x.sock"));
        assert_eq!(config.request_timeout.as_deref().and_then(millis), Some(2_000));
        assert_eq!(config.imports, ["/etc/containerd/conf.d/*.toml"]);
    }

    #[test]
    fn dotted_keys_and_lists_of_disabled_plugins_count_too() {
        let config = read("plugins.\"io.containerd.nri.v1.nri\".disable = false\n");
        assert_eq!(config.enabled, Some(true));
        let config =
            read("disabled_plugins = [\n  \"cri2\", # no\n  \"io.containerd.nri.v1.nri\",\n]\nversion = 2\n");
        assert_eq!(config.enabled, Some(false));
    }

    #[test]
    fn a_plugin_that_is_not_loaded_is_off_whatever_its_section_says() {
        let list = "disabled_plugins = [\"io.containerd.nri.v1.nri\"]\n";
        let section = "[plugins.\"io.containerd.nri.v1.nri\"]\ndisable = false\n";
        for files in [[list, section], [section, list]] {
            let mut config = NriConfig::default();
            files.iter().for_each(|file| config.read(file));
            assert_eq!((config.enabled, config.is_unloaded), (Some(false), true), "{files:?}");
        }
        let others = read("disabled_plugins = ['io.containerd.nri.v1.nri2', 'cri']\n");
        assert_eq!((others.enabled, others.is_unloaded), (None, false));
    }

    #[test]
    fn inline_tables_are_sections_too() {
        for text in [
            "[plugins]\n\"io.containerd.nri.v1.nri\" = { disable = true, socket_path = \"/a,b.sock\" }\n",
            "plugins = { 'io.containerd.nri.v1.nri' = { disable = true, socket_path = '/a,b.sock' }, x = [1, 2] }\n",
        ] {
            let config = read(text);
            assert_eq!(
                (config.enabled, config.socket.as_deref()),
                (Some(false), Some("/a,b.sock")),
                "{text}"
            );
            assert_eq!(config.faults, [""; 0], "{text}");
        }
        let config = read("[crio]\nnri = { enable_nri = true }\nruntime = {}\n");
        assert_eq!((config.enabled, config.faults.len()), (Some(true), 0));
        assert_eq!(read("[plugins]\nx = { disable }\n").faults, ["disable"]);
        let deep = format!("a = {}1{}\n", "{ b = ".repeat(50_000), "}".repeat(50_000));
        assert_eq!(read(&deep).enabled, None);
    }

    #[test]
    fn crio_says_it_with_its_own_words_and_a_later_file_wins() {
        let mut config = read("[crio.nri]\nenable_nri = false\nnri_listen = \"/a.sock\"\n");
        config.read("[crio]\n[crio.nri]\nenable_nri = true\nnri_plugin_registration_timeout = \"1m5s\"\n");
        assert_eq!((config.enabled, config.socket.as_deref()), (Some(true), Some("/a.sock")));
        assert_eq!(config.registration_timeout.as_deref().and_then(millis), Some(65_000));
    }

    #[test]
    fn n22_a_timeout_where_containerd_ignores_it_is_told() {
        let config = read(
            "[plugins.\"io.containerd.grpc.v1.cri\"]\nplugin_request_timeout = \"10s\"\ndisable = true\n",
        );
        assert_eq!(config.misplaced, ["[plugins.io.containerd.grpc.v1.cri] plugin_request_timeout"]);
        assert_eq!((config.enabled, config.request_timeout), (None, None));
        assert_eq!(read(""), NriConfig::default());
        let config = read("[plugins.'io.containerd.nri.v1.nri']\nnri_plugin_request_timeout = '9s'\n");
        assert_eq!(config.misplaced, ["[plugins.io.containerd.nri.v1.nri] nri_plugin_request_timeout"]);
        let config = read("[crio.nri]\nplugin_request_timeout = '9s'\nnri_plugin_request_timeout = '9s'\n");
        assert_eq!(config.misplaced, ["[crio.nri] plugin_request_timeout"]);
    }

    #[test]
    fn what_is_no_toml_is_told() {
        for bad in [
            "nonsense\n",
            "[plugins.'io.containerd.nri.v1.nri'\ndisable = false\n",
            "imports = [\n 'a',\n",
            "[plugins.'io.containerd.nri.v1.nri']\ndisable = yes\n",
            "root = '/var\n",
            "key =\n",
            "= 1\n",
        ] {
            assert_ne!(read(bad).faults, [""; 0], "{bad}");
        }
        let good = "version = 3 # x\nimports = [\n 'a', # b\n 'c=d',\n]\nroot = \"/a\\\"b\"\n[a.\"b c\"]\n x = { y = [1], z = '' }\n[[list]]\n\
            text = \"\"\"\nfree = [ words\n\"\"\"\n'k.k' = 1.5\n";
        assert_eq!(read(good).faults, [""; 0]);
    }

    #[test]
    fn durations_are_gos() {
        for (written, ms) in [
            ("500ms", 500),
            ("1.5s", 1_500),
            ("100us", 1),
            ("2500\u{b5}s", 3),
            ("1ns", 1),
            ("1h2m", 3_720_000),
            ("1m0.25s", 60_250),
            (".5s", 500),
            ("+2.s", 2_000),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(millis(written), Some(ms), "{written}");
        }
        for bad in ["", "5", "s", "5x", "-1s", ".s", "1.2.3s", "1..5s", "1s 2s", "99999999999999999999s"] {
            assert_eq!(millis(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_reader(text in "[\\[\\]a-z.\"'=#, \n]{0,120}", other in any::<String>()) {
            let _ = (read(&text), read(&other), millis(&other));
        }
    }
}
