//! Originals of modified files from a package index: one on loopback, in the forms and with the faults that real ones have.
#![allow(clippy::unwrap_used)]

mod patient;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Cursor, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use lucid_environment::{IndexSettings, ModifiedFile};
use patient::{Patient, SITE};

const MODEL: &str = "vllm/model_executor/models/deepseek_v2.py";
const SOURCE: &str = "class DeepseekV2MLAAttention:\n    def forward(self, q):\n        return q\n";
const WHEEL: &str = "vllm-0.32.0+cpu-cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl";

/// How a server behaves.
#[derive(Clone, Default)]
struct Server {
    /// Path to content type and bytes.
    files: BTreeMap<String, (&'static str, Vec<u8>)>,
    ranges: bool,
    /// What `Authorization` must say.
    authorization: Option<&'static str>,
}

/// Requests that came: path and range.
type Asked = Mutex<Vec<(String, Option<String>)>>;

/// A running server: its address without a scheme, and what it was asked.
struct Index {
    address: String,
    asked: Arc<Asked>,
}

impl Server {
    /// Serves until the test's process ends.
    fn start(self) -> Index {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = self.answer(stream.unwrap(), &seen);
            }
        });
        Index { address, asked }
    }

    fn answer(&self, mut stream: TcpStream, asked: &Asked) -> std::io::Result<()> {
        let mut headers = BTreeMap::new();
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or(Ok(String::new()))?;
        for line in lines {
            let line = line?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let range = headers.get("range").cloned();
        asked.lock().unwrap().push((path.clone(), range.clone()));
        if self
            .authorization
            .is_some_and(|wanted| headers.get("authorization").is_none_or(|said| said != wanted))
        {
            return write!(
                stream,
                "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
        let Some((kind, bytes)) = self.files.get(&path) else {
            return write!(
                stream,
                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        };
        let head = format!("Content-Type: {kind}\r\nConnection: close\r\n");
        if let Some(target) = kind.strip_prefix("redirect:") {
            return write!(
                stream,
                "HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n{head}\r\n"
            );
        }
        let range = range.filter(|_| self.ranges);
        let (status, part, more) = match range.as_deref().and_then(|range| range.strip_prefix("bytes=")) {
            Some(range) => {
                let (begin, end) = range.split_once('-').unwrap();
                let (begin, end) = (begin.parse::<usize>().unwrap(), end.parse::<usize>().unwrap());
                let more = format!("Content-Range: bytes {begin}-{end}/{}\r\n", bytes.len());
                ("206 Partial Content", &bytes[begin..=end], more)
            }
            None => ("200 OK", bytes.as_slice(), String::new()),
        };
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{head}{more}\r\n", part.len())?;
        stream.write_all(part)
    }
}

/// A wheel with the model, and megabytes beside it that nobody needs.
fn wheel(source: &str) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    zip.start_file("vllm/_C.abi3.so", stored).unwrap();
    zip.write_all(&vec![7; 3 << 20]).unwrap();
    zip.start_file(MODEL, zip::write::SimpleFileOptions::default()).unwrap();
    zip.write_all(source.as_bytes()).unwrap();
    zip.start_file("vllm/weights.bin", stored).unwrap();
    zip.write_all(&vec![7; 3 << 20]).unwrap();
    zip.finish().unwrap().into_inner()
}

fn json(target: &str) -> (&'static str, Vec<u8>) {
    let other = "vllm-0.31.0-cp38-abi3-manylinux_2_17_x86_64.whl";
    let text = format!(
        "{{\"name\":\"vllm\",\"files\":[{{\"filename\":\"{other}\",\"url\":\"{other}\"}},{{\"filename\":\"{WHEEL}\",\"url\":\"{target}\"}}]}}"
    );
    ("application/vnd.pypi.simple.v1+json", text.into_bytes())
}

/// vLLM as a wheel installed it, and one file changed by hand.
fn patched(direct_url: Option<&str>) -> Patient {
    let info = "vllm-0.32.0+cpu.dist-info";
    let tags =
        "Wheel-Version: 1.0\nTag: cp38-abi3-manylinux_2_17_x86_64\nTag: cp38-abi3-manylinux2014_x86_64\n";
    let patient = Patient::new();
    patient.install("vllm", "0.32.0+cpu", &[], &[(MODEL, SOURCE), (&format!("{info}/WHEEL"), tags)]);
    if let Some(url) = direct_url {
        patient.write(
            &format!("{SITE}/{info}/direct_url.json"),
            format!("{{\"url\":\"{url}\",\"archive_info\":{{}}}}"),
        );
    }
    patient.write(&format!("{SITE}/{MODEL}"), SOURCE.replace("return q", "print(q)\n        return q"));
    patient
}

/// The changed file, as it is examined with an index at this address.
fn examined(patient: &mut Patient, index: &str) -> (ModifiedFile, Vec<String>) {
    let index = index.to_owned();
    let variable = |name: &str| match name {
        "PIP_INDEX_URL" => Some(index.clone()),
        "PIP_CONFIG_FILE" => Some("/dev/null".to_owned()),
        _ => None,
    };
    patient.options.integrity.as_mut().unwrap().index = Some(IndexSettings::read(&variable, None));
    let evidence = patient.gather();
    let mut modified = evidence.integrity.unwrap().modified;
    assert_eq!(modified.len(), 1);
    (modified.remove(0), evidence.notes)
}

#[test]
fn one_file_of_a_wheel_is_fetched_in_parts() {
    let html = format!(
        "<!DOCTYPE html><body><a href=\"/files/{}#sha256=00\">x</a></body>",
        WHEEL.replace('+', "%2B")
    );
    for (kind, page) in [json(&format!("/files/{WHEEL}")), ("text/html", html.into_bytes())] {
        let mut files = BTreeMap::from([("/simple/vllm/".to_owned(), (kind, page))]);
        files.insert(format!("/files/{WHEEL}"), ("application/zip", wheel(SOURCE)));
        files.insert(format!("/files/{}", WHEEL.replace('+', "%2B")), ("application/zip", wheel(SOURCE)));
        let index = Server { files, ranges: true, authorization: None }.start();
        let (file, notes) = examined(&mut patched(None), &format!("http://{}/simple", index.address));
        let changes = file.changes.unwrap_or_else(|| panic!("{:?} {notes:?}", file.no_original));
        assert_eq!((changes.added, changes.removed), (1, 0));
        assert_eq!(changes.functions[0].name, "DeepseekV2MLAAttention.forward");
        assert!(changes.original.contains(WHEEL), "{}", changes.original);
        let asked = index.asked.lock().unwrap().clone();
        let parts = asked.iter().filter(|(_, range)| range.is_some()).count();
        // Of 6 MB: what says how long it is, its end, and the block of the source.
        assert!((2..=6).contains(&parts), "{asked:?}");
    }
}

#[test]
fn a_server_without_parts_gives_the_whole_file() {
    let files = BTreeMap::from([
        ("/simple/vllm/".to_owned(), json(WHEEL)),
        (format!("/simple/vllm/{WHEEL}"), ("application/zip", wheel(SOURCE))),
    ]);
    let index = Server { files, ..Server::default() }.start();
    let (file, _) = examined(&mut patched(None), &format!("http://{}/simple/", index.address));
    assert_eq!(file.changes.unwrap().added, 1);
}

#[test]
fn credentials_are_sent_and_never_told() {
    let files = BTreeMap::from([
        ("/simple/vllm/".to_owned(), json("moved.whl")),
        ("/simple/vllm/moved.whl".to_owned(), ("redirect:/f/x.whl", Vec::new())),
        ("/f/x.whl".to_owned(), ("application/zip", wheel(SOURCE))),
    ]);
    let index = Server { files, ranges: true, authorization: Some("Basic Ym9iOmh1bnRlcjI=") }.start();
    let mut patient = patched(None);
    let (wrong, notes) = examined(&mut patient, &format!("http://bob:wrongpass@{}/simple/", index.address));
    let reason = wrong.no_original.unwrap();
    assert!(reason.contains("401") && reason.contains("credentials"), "{reason}");
    assert!(
        !reason.contains("wrongpass") && !format!("{notes:?}").contains("wrongpass"),
        "{reason} {notes:?}"
    );
    let findings = patient.findings(&lucid_findings::Deployment::default());
    assert!(!format!("{findings:?}").contains("wrongpass"));
    // The redirect drops them, as the library does on purpose: the file's server is another one then.
    let (file, _) = examined(&mut patient, &format!("http://bob:hunter2@{}/simple/", index.address));
    let reason = file.no_original.unwrap();
    assert!(reason.contains("401") && !reason.contains("hunter2"), "{reason}");
}

#[test]
fn what_was_fetched_is_kept_under_its_hash() {
    let files = BTreeMap::from([
        ("/simple/vllm/".to_owned(), json(WHEEL)),
        (format!("/simple/vllm/{WHEEL}"), ("application/zip", wheel(SOURCE))),
    ]);
    let index = Server { files, ranges: true, authorization: None }.start();
    let (cache, mut patient) = (tempfile::tempdir().unwrap(), patched(None));
    patient.options.integrity.as_mut().unwrap().original_cache = Some(cache.path().join("originals"));
    let base = format!("http://{}/simple/", index.address);
    let (first, _) = examined(&mut patient, &base);
    let before = index.asked.lock().unwrap().len();
    let (second, _) = examined(&mut patient, &base);
    assert_eq!(first.changes.unwrap().excerpt, second.changes.unwrap().excerpt);
    assert_eq!(index.asked.lock().unwrap().len(), before);
    // What was changed in the cache is not taken.
    for entry in fs::read_dir(cache.path().join("originals")).unwrap() {
        fs::write(entry.unwrap().path(), "import os\n").unwrap();
    }
    let (third, _) = examined(&mut patient, &base);
    assert!(third.changes.unwrap().original.contains(WHEEL));
    assert!(index.asked.lock().unwrap().len() > before);
}

#[test]
fn a_wheel_that_was_installed_by_its_address_is_asked_for_there() {
    let files = BTreeMap::from([("/nightly/v.whl".to_owned(), ("application/zip", wheel(SOURCE)))]);
    let index = Server { files, ranges: true, authorization: None }.start();
    let mut patient = patched(Some(&format!("http://{}/nightly/v.whl", index.address)));
    let (file, _) = examined(&mut patient, "http://127.0.0.1:9/nobody");
    assert!(file.changes.is_some(), "{:?}", file.no_original);
    assert!(index.asked.lock().unwrap().iter().all(|(path, _)| path == "/nightly/v.whl"));
}

#[test]
fn whatever_goes_wrong_is_said_and_not_fatal() {
    let page = || ("/simple/vllm/".to_owned(), json(WHEEL));
    let at = format!("/simple/vllm/{WHEEL}");
    let other = (
        "application/vnd.pypi.simple.v1+json",
        br#"{"files":[{"filename":"vllm-0.31.0-py3-none-any.whl","url":"x.whl"}]}"#.to_vec(),
    );
    for (files, expected) in [
        (vec![], "status 404"),
        (
            vec![("/simple/vllm/".to_owned(), ("text/html", b"log in first".to_vec()))],
            "no page of a package index",
        ),
        (
            vec![("/simple/vllm/".to_owned(), ("application/json", b"{\"files\":7}".to_vec()))],
            "no page of a package index",
        ),
        (
            vec![("/simple/vllm/".to_owned(), other)],
            "no wheel of vllm 0.32.0+cpu for cp38-abi3-manylinux_2_17_x86_64; it has 0.31.0",
        ),
        (vec![page()], "status 404"),
        (vec![page(), (at.clone(), ("application/zip", b"PK\x03\x04 no zip".to_vec()))], WHEEL),
        (
            vec![page(), (at.clone(), ("application/zip", wheel("another build\n")))],
            "another hash than RECORD",
        ),
        (vec![page(), (at.clone(), ("application/zip", wheel(SOURCE)[..4 << 20].to_vec()))], WHEEL),
    ] {
        for ranges in [true, false] {
            let files = files.iter().cloned().collect();
            let index = Server { files, ranges, authorization: None }.start();
            let mut patient = patched(None);
            let (file, _) = examined(&mut patient, &format!("http://{}/simple/", index.address));
            assert!(file.changes.is_none());
            let reason = file.no_original.unwrap();
            assert!(reason.contains(expected), "{reason}, not {expected}");
            let findings = patient.findings(&lucid_findings::Deployment::default());
            let finding = patient::find(&findings, "env.record-integrity/modified-code").unwrap();
            assert!(finding.detail.contains(expected), "{}", finding.detail);
        }
    }
    let (nobody, _) = examined(&mut patched(None), "http://127.0.0.1:9/simple/");
    assert!(nobody.no_original.unwrap().contains("cannot be asked"));
    let mut built = patched(Some("git+https://example.org/vllm.git"));
    let (built, _) = examined(&mut built, "http://127.0.0.1:9/simple/");
    assert!(built.no_original.unwrap().contains("built from git+https://example.org/vllm.git"));
}

#[test]
fn nobody_is_asked_unless_the_user_wants_it() {
    let evidence = patched(None).gather();
    let modified = &evidence.integrity.unwrap().modified[0];
    assert_eq!((&modified.changes, &modified.no_original), (&None, &None));
}
