//! `RECORD`: which files a distribution installed, with their hashes. CSV rows of path, `sha256=…` and size.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use lucid_root::{Root, lexical};
use serde::{Deserialize, Serialize};

/// The longest RECORD that is read. The longest real one, of `flashinfer-cubin`, has 4 MB.
const RECORD_READ: u64 = 128 << 20;

/// The specification says no padding; some build tools write it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A hash function that RECORD may name; the specification rules out MD5 and SHA-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// What every installer writes.
    Sha256,
    /// Allowed.
    Sha384,
    /// Allowed.
    Sha512,
}

/// A recorded hash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecordedHash {
    /// Its function.
    pub algorithm: Algorithm,
    /// Its bytes.
    pub digest: Vec<u8>,
}

impl RecordedHash {
    /// Reads `sha256=` and URL-safe base64.
    #[must_use]
    pub fn parse(text: &str) -> Option<RecordedHash> {
        let (name, value) = text.split_once('=')?;
        let (algorithm, length) = match name.to_ascii_lowercase().as_str() {
            "sha256" => (Algorithm::Sha256, 32),
            "sha384" => (Algorithm::Sha384, 48),
            "sha512" => (Algorithm::Sha512, 64),
            _ => return None,
        };
        let digest = BASE64.decode(value).ok()?;
        (digest.len() == length).then_some(RecordedHash { algorithm, digest })
    }
}

/// A row that can be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Absolute, as the patient says it.
    pub path: PathBuf,
    pub hash: Option<RecordedHash>,
    pub size: Option<u64>,
}

/// A RECORD's rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub rows: Vec<Row>,
    /// Rows that lead out of the environment, with the reason; they are never followed.
    pub refused: Vec<(String, &'static str)>,
    /// Rows that are no CSV, or whose hash cannot be read.
    pub malformed: u64,
    /// Whether the file was longer than what is read.
    pub cut: bool,
}

/// Reads a RECORD. `site` is the folder that its paths start from, `zone` the folder that they must stay in.
pub(crate) fn read(root: &Root, file: &Path, site: &Path, zone: &Path) -> std::io::Result<Record> {
    let bytes = root.read(file, RECORD_READ)?;
    let mut record = parse(&bytes, site, zone);
    record.cut = bytes.len() as u64 >= RECORD_READ;
    Ok(record)
}

fn parse(bytes: &[u8], site: &Path, zone: &Path) -> Record {
    let mut record = Record::default();
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bytes);
    let mut fields = csv::ByteRecord::new();
    loop {
        match reader.read_byte_record(&mut fields) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => {
                record.malformed += 1;
                // Bytes in memory cannot fail to be read, and every bad row moves the reader on; this guards against neither.
                if record.malformed > 100_000 {
                    break;
                }
                continue;
            }
        }
        let Some(name) = fields.get(0).and_then(|name| std::str::from_utf8(name).ok()) else {
            record.malformed += 1;
            continue;
        };
        if name.is_empty() || name.contains('\0') {
            record.malformed += u64::from(!name.is_empty());
            continue;
        }
        let relative = name.replace('\\', "/");
        let relative = Path::new(&relative);
        if relative.is_absolute() {
            record.refused.push((name.to_owned(), "absolute path"));
            continue;
        }
        // Most rows need no look at each of their parts.
        if !name.split(['/', '\\']).any(|part| matches!(part, "" | "." | "..")) {
            add_row(&mut record, &fields, site.join(relative));
            continue;
        }
        let path = lexical(&site.join(relative));
        if escapes(site, relative) || !path.starts_with(zone) {
            record.refused.push((name.to_owned(), "leads out of the environment"));
            continue;
        }
        add_row(&mut record, &fields, path);
    }
    record
}

fn add_row(record: &mut Record, fields: &csv::ByteRecord, path: PathBuf) {
    let text = fields.get(1).map(String::from_utf8_lossy).unwrap_or_default();
    let hash = RecordedHash::parse(&text);
    record.malformed += u64::from(hash.is_none() && !text.is_empty());
    let size =
        fields.get(2).and_then(|size| std::str::from_utf8(size).ok()).and_then(|size| size.parse().ok());
    record.rows.push(Row { path, hash, size });
}

/// Whether `..` climbs above the file system's root, which joining would hide.
fn escapes(site: &Path, relative: &Path) -> bool {
    let mut depth = site.components().count();
    for component in relative.components() {
        match component {
            std::path::Component::ParentDir if depth <= 1 => return true,
            std::path::Component::ParentDir => depth -= 1,
            std::path::Component::Normal(_) => depth += 1,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";

    fn of(text: &str) -> Record {
        parse(text.as_bytes(), Path::new("/opt/venv/lib/python3.11/site-packages"), Path::new("/opt/venv"))
    }

    #[test]
    fn rows_are_read() {
        let record = of(&format!(
            "vllm/a.py,sha256={EMPTY},0\n\"vllm/b, c.py\",sha256={EMPTY}=,0\n../../../bin/vllm,,\nvllm/RECORD,,\n"
        ));
        assert_eq!(record.malformed, 0);
        let paths: Vec<String> = record.rows.iter().map(|row| row.path.display().to_string()).collect();
        assert_eq!(paths[0], "/opt/venv/lib/python3.11/site-packages/vllm/a.py");
        assert!(paths[1].ends_with("vllm/b, c.py"));
        assert_eq!(paths[2], "/opt/venv/bin/vllm");
        assert!(record.rows[0].hash.is_some() && record.rows[1].hash == record.rows[0].hash);
    }

    #[test]
    fn nothing_leads_out() {
        for path in [
            "/etc/shadow",
            "../../../../../etc/shadow",
            "vllm/../../../../../../etc/shadow",
            "../../../../../../../../../../../../opt/venv/x",
            "..\\..\\..\\..\\..\\etc\\shadow",
        ] {
            let record = of(&format!("{path},sha256={EMPTY},0\n"));
            assert!(record.rows.is_empty(), "{path}");
            assert_eq!(record.refused.len(), 1, "{path}");
        }
    }

    #[test]
    fn broken_rows_are_counted_not_fatal() {
        let record = of("a.py,sha256=short,1\nb.py,md5=abc,1\n\u{0}x.py,,\n\"unclosed,sha256=,\n");
        assert_eq!(record.malformed, 3);
        let mut bytes = b"ok.py,,\n".to_vec();
        bytes.extend(b"\xff\xfe.py,,\n");
        let record = parse(&bytes, Path::new("/s"), Path::new("/s"));
        assert_eq!((record.rows.len(), record.malformed), (1, 1));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_path_outside(text in "(\\.\\.|[a-c/\\\\.,\"\n]){0,60}") {
            for row in of(&text).rows {
                proptest::prop_assert!(row.path.starts_with("/opt/venv"), "{:?}", row.path);
            }
        }
    }
}
