//! Originals from a package index: of the wheel that an environment says it was installed from, the one source that was changed.
//!
//! Nothing is asked unless the user wants it. Whom to ask, the settings of pip and uv say ([`IndexSettings`]); what comes is taken
//! only if its hash is the one that RECORD has, so it doesn't matter who answered.

mod address;
mod http;
mod page;
mod remote_file;
mod settings;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use lucid_root::read_regular;
use ureq::http::header;
use zip::ZipArchive;

use self::address::Address;
use self::http::Http;
use self::page::Listed;
use self::remote_file::ReadSeek;
pub use self::settings::IndexSettings;
use crate::distribution::Distribution;
use crate::integrity::{SOURCE_READ, digest_of};
use crate::record::RecordedHash;

/// For all requests of one examination.
const TIME: Duration = Duration::from_secs(300);
/// The longest page: those of the fullest projects have some megabytes.
const PAGE_READ: u64 = 64 << 20;
/// Wheels looked into for one distribution: builds of the same version and platform.
const WHEELS: usize = 4;
/// Versions that an error names.
const VERSIONS_NAMED: usize = 5;
/// The JSON form where the index has it, else the HTML that every index has.
const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, text/html;q=0.5";

/// Why an original could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("pip's and uv's settings name no package index (`no-index`)")]
    NoIndex,
    #[error("{address} cannot be asked: {reason}")]
    Unreachable { address: String, reason: String },
    #[error(
        "{address} answered with status {status}: its credentials belong into the index address of pip or uv"
    )]
    Refused { address: String, status: u16 },
    #[error("{address} answered with status {status}")]
    Status { address: String, status: u16 },
    #[error("{address} is longer than {limit} bytes")]
    TooLarge { address: String, limit: u64 },
    #[error("{address} is no page of a package index")]
    NoPage { address: String },
    #[error("the time for package indexes is up ({} s)", TIME.as_secs())]
    OutOfTime,
    #[error("{address} has no wheel of {wanted}{others}")]
    NoWheel { address: String, wanted: String, others: String },
    #[error("it was built from {source_address}, so no index has its wheel")]
    BuiltHere { source_address: String },
    #[error("{wheel}: {reason}")]
    Broken { wheel: String, reason: String },
    #[error("the {path} of {wheel} has another hash than RECORD: another build was installed")]
    OtherBuild { wheel: String, path: String },
}

/// Asks package indexes for single files of published wheels.
pub(crate) struct PackageIndex {
    settings: IndexSettings,
    http: Rc<Http>,
    /// Keeps what was fetched, by its hash.
    cache: Option<PathBuf>,
    /// By name and version: what was found, so that each page is asked for once.
    known: BTreeMap<(String, String), Result<Vec<Wheel>, FetchError>>,
}

struct Wheel {
    listed: Listed,
    archive: Option<ZipArchive<Box<dyn ReadSeek>>>,
}

impl PackageIndex {
    /// # Errors
    /// The file of certificates that the settings name cannot be read.
    pub(crate) fn new(settings: IndexSettings, cache: Option<PathBuf>) -> io::Result<PackageIndex> {
        let http = Rc::new(Http::new(settings.certificates.as_deref(), TIME)?);
        Ok(PackageIndex { settings, http, cache, known: BTreeMap::new() })
    }

    /// The published content of a distribution's file (`path` as RECORD has it), and where it came from.
    pub(crate) fn original(
        &mut self,
        distribution: &Distribution,
        path: &str,
        recorded: &RecordedHash,
    ) -> Result<(Vec<u8>, String), FetchError> {
        let is_original = |bytes: &[u8]| digest_of(bytes, recorded.algorithm) == recorded.digest;
        let kept = self.cache.as_ref().map(|folder| {
            let name: String = recorded.digest.iter().map(|byte| format!("{byte:02x}")).collect();
            folder.join(name)
        });
        if let Some(bytes) =
            kept.as_ref().and_then(|file| read_regular(file, SOURCE_READ).ok()).filter(|b| is_original(b))
        {
            return Ok((bytes, "the published wheel, fetched earlier".to_owned()));
        }
        let key = (distribution.name.clone(), distribution.version.clone());
        if !self.known.contains_key(&key) {
            let found = self.wheels(distribution);
            self.known.insert(key.clone(), found);
        }
        let wheels = match self.known.get_mut(&key) {
            Some(Ok(wheels)) => wheels,
            Some(Err(error)) => return Err(error.clone()),
            None => return Err(FetchError::NoIndex),
        };
        let mut last = FetchError::NoIndex;
        for wheel in wheels {
            match wheel.read(&self.http, path) {
                Ok(bytes) if is_original(&bytes) => {
                    // A full disk makes the next run slower, nothing else.
                    if let Some(file) = &kept {
                        let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
                        let _ = folder.and_then(|()| fs::write(file, &bytes));
                    }
                    return Ok((bytes, format!("{} from {}", wheel.listed.name, wheel.server())));
                }
                Ok(_) => {
                    last = FetchError::OtherBuild { wheel: wheel.listed.name.clone(), path: path.to_owned() }
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The wheels that a distribution may have come from: its direct address, or what the indexes list.
    fn wheels(&self, distribution: &Distribution) -> Result<Vec<Wheel>, FetchError> {
        if let Some(direct) = distribution.direct_url.as_ref().filter(|direct| !direct.url.is_empty()) {
            let address = Address::parse(&direct.url.replace("[redacted]@", ""));
            return match address.filter(|a| direct.commit.is_none() && a.file_name().ends_with(".whl")) {
                Some(address) => Ok(vec![Wheel::new(Listed { name: address.file_name(), address })]),
                None => Err(FetchError::BuiltHere { source_address: direct.url.clone() }),
            };
        }
        let mut last = FetchError::NoIndex;
        let mut found = Vec::new();
        let indexes = self.settings.indexes.iter().filter_map(|index| index.page(&distribution.name));
        for page in indexes.chain(self.settings.pages.iter().cloned()) {
            match self.listed(&page, distribution) {
                Ok(listed) => found.extend(listed.into_iter().map(Wheel::new)),
                // Of several indexes, the one that knows the name has the better reason.
                Err(FetchError::Status { status: 404, .. }) if last != FetchError::NoIndex => {}
                Err(error) => last = error,
            }
        }
        if found.is_empty() { Err(last) } else { Ok(found) }
    }

    fn listed(&self, page: &Address, distribution: &Distribution) -> Result<Vec<Listed>, FetchError> {
        let answer = self.http.get_well(page, &[("accept", ACCEPT)])?;
        let kind = answer.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let json = kind.is_some_and(|kind| kind.contains("json"));
        let text = self::http::read_body(answer, page, PAGE_READ)?;
        let files = page::files(page, json, &String::from_utf8_lossy(&text))
            .ok_or_else(|| FetchError::NoPage { address: page.to_string() })?;
        let mut found = page::candidates(&files, distribution);
        if found.is_empty() {
            let versions = page::versions(&files, &distribution.name);
            let last = versions.iter().rev().take(VERSIONS_NAMED).rev().cloned().collect::<Vec<_>>();
            let tags = distribution.tags.first().map_or_else(String::new, |tag| format!(" for {tag}"));
            return Err(FetchError::NoWheel {
                address: page.to_string(),
                wanted: format!("{}{tags}", distribution.label()),
                others: if last.is_empty() { String::new() } else { format!("; it has {}", last.join(", ")) },
            });
        }
        found.truncate(WHEELS);
        Ok(found)
    }
}

impl Wheel {
    fn new(listed: Listed) -> Wheel {
        Wheel { listed, archive: None }
    }

    fn server(&self) -> String {
        let address = self.listed.address.to_string();
        address.split('/').nth(2).unwrap_or_default().to_owned()
    }

    /// Reads one file of it, at most [`SOURCE_READ`] bytes.
    fn read(&mut self, http: &Rc<Http>, path: &str) -> Result<Vec<u8>, FetchError> {
        let broken = |reason: &dyn std::fmt::Display| FetchError::Broken {
            wheel: self.listed.name.clone(),
            reason: reason.to_string(),
        };
        let archive = match &mut self.archive {
            Some(archive) => archive,
            none => {
                let file = remote_file::open(http, &self.listed.address)?;
                none.insert(ZipArchive::new(file).map_err(|error| broken(&error))?)
            }
        };
        let name = member(archive, &self.listed.name, path)
            .ok_or_else(|| broken(&format!("{path} is not in it")))?;
        let entry = archive.by_name(&name).map_err(|error| broken(&error))?;
        let mut bytes = Vec::new();
        // The stated size may be a lie; what is read is bounded in any case.
        entry.take(SOURCE_READ).read_to_end(&mut bytes).map_err(|error| broken(&error))?;
        Ok(bytes)
    }
}

/// Under which name a wheel holds an installed file: its own, or below `NAME-VERSION.data/purelib`.
pub(crate) fn member<R: Read + io::Seek>(archive: &ZipArchive<R>, wheel: &str, path: &str) -> Option<String> {
    let stem: Vec<&str> = wheel.splitn(3, '-').take(2).collect();
    let data = format!("{}.data", stem.join("-"));
    let places = [path.to_owned(), format!("{data}/purelib/{path}"), format!("{data}/platlib/{path}")];
    places.into_iter().find(|place| archive.index_for_name(place).is_some())
}
