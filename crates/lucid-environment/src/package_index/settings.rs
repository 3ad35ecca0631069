//! Where this user's pip and uv get packages from: variables and settings files, in the words of their manuals
//! (pip's "Configuration", uv's "Package indexes").

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lucid_root::read_regular;
use serde::Deserialize;

use super::address::Address;

/// What pip and uv ask if nobody says otherwise.
const PUBLIC: &str = "https://pypi.org/simple/";
/// No settings file is longer.
const SETTINGS_READ: u64 = 1 << 20;

/// Package indexes and the certificates that they are trusted by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexSettings {
    /// Bases of the simple API.
    pub(super) indexes: Vec<Address>,
    /// Pages that list wheels of any name (`--find-links`).
    pub(super) pages: Vec<Address>,
    /// Folders of wheels (`--find-links`).
    pub(crate) folders: Vec<PathBuf>,
    /// PEM file of the certificates to trust.
    pub(super) certificates: Option<PathBuf>,
}

impl IndexSettings {
    /// The settings of the user who runs this program; `prefix` is the environment whose own `pip.conf` counts too.
    #[must_use]
    pub fn of_this_user(prefix: Option<&Path>) -> IndexSettings {
        IndexSettings::read(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()), prefix)
    }

    /// Settings from variables, `HOME` above all, and from the files that they lead to.
    #[must_use]
    pub fn read(variable: &dyn Fn(&str) -> Option<String>, prefix: Option<&Path>) -> IndexSettings {
        let home = variable("HOME").map(PathBuf::from);
        let config =
            variable("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(".config")));
        let pip = pip_settings(variable, home.as_deref(), config.as_deref(), prefix);
        let uv = uv_settings(variable, config.as_deref());
        // A variable stands above the files.
        let pip_value = |name: &str| {
            let of_variable = variable(&format!("PIP_{}", name.to_ascii_uppercase().replace('-', "_")));
            of_variable.or_else(|| pip.get(name).cloned())
        };
        let words = |text: Option<String>| {
            let words = text.unwrap_or_default();
            words.split_whitespace().map(str::to_owned).collect::<Vec<String>>()
        };
        let mut bases: Vec<String> = Vec::new();
        bases.extend(pip_value("index-url"));
        bases.extend(variable("UV_DEFAULT_INDEX").or_else(|| variable("UV_INDEX_URL")).or(uv.default));
        if bases.is_empty() {
            bases.push(PUBLIC.to_owned());
        }
        bases.extend(words(pip_value("extra-index-url")));
        bases.extend(words(variable("UV_INDEX").or_else(|| variable("UV_EXTRA_INDEX_URL"))));
        bases.extend(uv.more);
        let no_index =
            pip_value("no-index").is_some_and(|value| !matches!(value.trim(), "0" | "false" | "no"));
        let mut settings = IndexSettings {
            certificates: pip_value("cert")
                .or_else(|| variable("SSL_CERT_FILE"))
                .or_else(|| variable("REQUESTS_CA_BUNDLE"))
                .map(PathBuf::from),
            ..IndexSettings::default()
        };
        for base in bases.iter().filter(|_| !no_index) {
            // uv allows a name before the address: `internal=https://…`.
            let named = base.split_once('=').filter(|(name, _)| !name.contains([':', '/', '?']));
            let address = Address::parse(named.map_or(base.as_str(), |(_, address)| address));
            settings.indexes.extend(address.filter(|address| !settings.indexes.contains(address)));
        }
        let links = words(pip_value("find-links")).into_iter();
        for link in links.chain(variable("UV_FIND_LINKS").unwrap_or_default().split(',').map(str::to_owned)) {
            let link = link.trim();
            if let Some(page) = Address::parse(link) {
                settings.pages.push(page);
            } else if let Some(folder) =
                Some(link.strip_prefix("file://").unwrap_or(link)).filter(|f| !f.is_empty())
            {
                settings.folders.push(PathBuf::from(folder));
            }
        }
        settings
    }
}

/// pip's settings files, the later above the earlier, `[download]` above `[install]` above `[global]`.
fn pip_settings(
    variable: &dyn Fn(&str) -> Option<String>,
    home: Option<&Path>,
    config: Option<&Path>,
    prefix: Option<&Path>,
) -> BTreeMap<String, String> {
    let own = variable("PIP_CONFIG_FILE").map(PathBuf::from);
    // pip's manual: /dev/null there switches all files off.
    if own.as_deref() == Some(Path::new("/dev/null")) {
        return BTreeMap::new();
    }
    let mut files = vec![PathBuf::from("/etc/xdg/pip/pip.conf"), PathBuf::from("/etc/pip.conf")];
    files.extend(home.map(|home| home.join(".pip/pip.conf")));
    files.extend(config.map(|config| config.join("pip/pip.conf")));
    files.extend(prefix.map(|prefix| prefix.join("pip.conf")));
    files.extend(own);
    let mut settings = BTreeMap::new();
    for file in files {
        let Ok(bytes) = read_regular(&file, SETTINGS_READ) else { continue };
        let sections = sections(&String::from_utf8_lossy(&bytes));
        for name in ["global", "install", "download"] {
            settings.extend(sections.get(name).cloned().unwrap_or_default());
        }
    }
    settings
}

/// Sections of an INI file; a line that begins with a space goes on the value above it.
fn sections(text: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut sections: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let (mut section, mut key) = (String::new(), String::new());
    for line in text.lines() {
        let word = line.trim();
        if word.is_empty() || word.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = word.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim().to_ascii_lowercase();
            key.clear();
        } else if line.starts_with([' ', '\t']) && !key.is_empty() {
            let value = sections.entry(section.clone()).or_default().entry(key.clone()).or_default();
            value.push(' ');
            value.push_str(word);
        } else if let Some((name, value)) = word.split_once(['=', ':']) {
            key = name.trim().to_ascii_lowercase().replace('_', "-");
            sections.entry(section.clone()).or_default().insert(key.clone(), value.trim().to_owned());
        }
    }
    sections
}

/// What `uv.toml` says of indexes.
#[derive(Debug, Default)]
struct Uv {
    default: Option<String>,
    more: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct UvFile {
    index_url: Option<String>,
    extra_index_url: Vec<String>,
    index: Vec<UvIndex>,
    pip: UvPip,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct UvPip {
    index_url: Option<String>,
    extra_index_url: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct UvIndex {
    url: String,
    #[serde(default)]
    default: bool,
}

fn uv_settings(variable: &dyn Fn(&str) -> Option<String>, config: Option<&Path>) -> Uv {
    let mut files = vec![PathBuf::from("/etc/uv/uv.toml")];
    files.extend(config.map(|config| config.join("uv/uv.toml")));
    files.extend(variable("UV_CONFIG_FILE").map(PathBuf::from));
    let mut settings = Uv::default();
    for file in files {
        let Ok(bytes) = read_regular(&file, SETTINGS_READ) else { continue };
        let Ok(found) = toml::from_str::<UvFile>(&String::from_utf8_lossy(&bytes)) else { continue };
        let (defaults, others): (Vec<UvIndex>, Vec<UvIndex>) =
            found.index.into_iter().partition(|index| index.default);
        let default = defaults.into_iter().next().map(|index| index.url);
        settings.default = default.or(found.pip.index_url).or(found.index_url).or(settings.default);
        settings.more.extend(others.into_iter().map(|index| index.url));
        settings.more.extend(found.pip.extra_index_url);
        settings.more.extend(found.extra_index_url);
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)], prefix: Option<&Path>) -> IndexSettings {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
        IndexSettings::read(&find, prefix)
    }

    fn shown(addresses: &[Address]) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    /// Files of this machine must not matter to a test.
    const ALONE: (&str, &str) = ("PIP_CONFIG_FILE", "/dev/null");

    #[test]
    fn the_public_index_is_asked_if_nobody_says_otherwise() {
        assert_eq!(shown(&read(&[ALONE], None).indexes), [PUBLIC]);
        assert!(read(&[ALONE, ("PIP_NO_INDEX", "1")], None).indexes.is_empty());
        let links = read(&[ALONE, ("PIP_FIND_LINKS", "/srv/wheels https://example.org/wheels.html")], None);
        assert_eq!(links.folders, [Path::new("/srv/wheels")]);
        assert_eq!(shown(&links.pages), ["https://example.org/wheels.html"]);
    }

    #[test]
    fn variables_of_pip_and_of_uv_count() {
        for (variables, expected) in [
            (vec![("PIP_INDEX_URL", "https://a.example/simple")], vec!["https://a.example/simple"]),
            (vec![("UV_INDEX_URL", "https://b.example/simple/")], vec!["https://b.example/simple/"]),
            (vec![("UV_DEFAULT_INDEX", "inner=https://u:p@c.example/s/")], vec!["https://c.example/s/"]),
            (
                vec![("PIP_EXTRA_INDEX_URL", "https://d.example/s https://e.example/s")],
                vec![PUBLIC, "https://d.example/s", "https://e.example/s"],
            ),
            (vec![("UV_INDEX", "x=https://f.example/s?a=b")], vec![PUBLIC, "https://f.example/s"]),
        ] {
            let all: Vec<_> = variables.into_iter().chain([ALONE]).collect();
            assert_eq!(shown(&read(&all, None).indexes), expected);
        }
    }

    #[test]
    fn settings_files_count_and_the_nearer_above_the_farther() {
        let home = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = home.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            ".config/pip/pip.conf",
            "# ours\n[global]\nindex-url = https://user.example/s\ncert: /etc/ca.pem\nextra_index_url =\n    https://one.example/s\n    https://two.example/s\n[freeze]\ntimeout = 10\n",
        );
        write("venv/pip.conf", "[install]\nindex-url = https://venv.example/s\n");
        write(
            ".config/uv/uv.toml",
            "[[index]]\nname = \"w\"\nurl = \"https://uv.example/s\"\n[pip]\nextra-index-url = [\"https://one.example/s\"]\n",
        );
        let at = home.path().to_str().unwrap();
        let settings = read(&[("HOME", at)], Some(&home.path().join("venv")));
        let expected = [
            "https://venv.example/s",
            "https://one.example/s",
            "https://two.example/s",
            "https://uv.example/s",
        ];
        assert_eq!(shown(&settings.indexes), expected);
        assert_eq!(settings.certificates.as_deref(), Some(Path::new("/etc/ca.pem")));
        write(".config/uv/uv.toml", "this is [ no TOML");
        assert_eq!(read(&[("HOME", at)], None).indexes.len(), 3);
    }
}
