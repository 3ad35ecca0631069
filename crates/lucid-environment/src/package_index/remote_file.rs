//! A file behind HTTP that is read where it is needed: of a wheel of gigabytes, the table at its end and one source.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;

use ureq::Body;
use ureq::http::{Response, StatusCode, header};

use super::FetchError;
use super::address::Address;
use super::http::{Http, read_body};

/// Bytes that one request brings.
const BLOCK: u64 = 256 << 10;
/// Blocks that are kept.
const BLOCKS_KEPT: usize = 8;
/// Bytes that all requests to one file may bring: the table of the largest wheel known, `flashinfer-cubin`, has 4 MB.
const MOST_READ: u64 = 256 << 20;
/// The largest file that is brought whole where the server gives no parts.
const MOST_WHOLE: u64 = 2 << 30;

/// What a zip reader needs.
pub(super) trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

/// Opens a file: in parts where the server gives them, else whole in a temporary file.
pub(super) fn open(http: &Rc<Http>, address: &Address) -> Result<Box<dyn ReadSeek>, FetchError> {
    let answer = http.get_well(address, &[("range", "bytes=0-0")])?;
    if answer.status() != StatusCode::PARTIAL_CONTENT {
        return whole(answer, address);
    }
    let length = length(&answer).ok_or_else(|| FetchError::Unreachable {
        address: address.to_string(),
        reason: "a part of a file, and no word of how long it is".to_owned(),
    })?;
    Ok(Box::new(RemoteFile {
        http: Rc::clone(http),
        address: address.clone(),
        length,
        position: 0,
        blocks: Vec::new(),
        read: 0,
    }))
}

/// `Content-Range: bytes 0-0/123`.
fn length(answer: &Response<Body>) -> Option<u64> {
    let range = answer.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.rsplit_once('/')?.1.trim().parse().ok()
}

fn whole(answer: Response<Body>, address: &Address) -> Result<Box<dyn ReadSeek>, FetchError> {
    let failed = |error: io::Error| FetchError::Unreachable {
        address: address.to_string(),
        reason: error.to_string(),
    };
    let mut file: File = tempfile::tempfile().map_err(failed)?;
    let mut body = answer.into_body().into_reader().take(MOST_WHOLE + 1);
    if io::copy(&mut body, &mut file).map_err(failed)? > MOST_WHOLE {
        return Err(FetchError::TooLarge { address: address.to_string(), limit: MOST_WHOLE });
    }
    Ok(Box::new(file))
}

struct RemoteFile {
    http: Rc<Http>,
    address: Address,
    length: u64,
    position: u64,
    /// Number and bytes of the blocks read last.
    blocks: Vec<(u64, Vec<u8>)>,
    /// Bytes brought so far.
    read: u64,
}

impl RemoteFile {
    fn block(&mut self, number: u64) -> io::Result<&[u8]> {
        if let Some(at) = self.blocks.iter().position(|(known, _)| *known == number) {
            return Ok(&self.blocks[at].1);
        }
        let begin = number * BLOCK;
        let end = (begin + BLOCK).min(self.length);
        self.read += end - begin;
        if self.read > MOST_READ {
            return Err(io::Error::other(format!(
                "{}: more than {MOST_READ} bytes of it were needed",
                self.address
            )));
        }
        let range = format!("bytes={begin}-{}", end - 1);
        let answer = self.http.get_well(&self.address, &[("range", &range)]).map_err(io::Error::other)?;
        if answer.status() != StatusCode::PARTIAL_CONTENT {
            return Err(io::Error::other(format!("{}: a part was asked for, and all came", self.address)));
        }
        let bytes = read_body(answer, &self.address, BLOCK).map_err(io::Error::other)?;
        if bytes.len() as u64 != end - begin {
            let text =
                format!("{}: {} bytes were asked for, {} came", self.address, end - begin, bytes.len());
            return Err(io::Error::other(text));
        }
        if self.blocks.len() >= BLOCKS_KEPT {
            self.blocks.remove(0);
        }
        self.blocks.push((number, bytes));
        Ok(self.blocks.last().map_or(&[], |(_, bytes)| bytes))
    }
}

impl Read for RemoteFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.length || buffer.is_empty() {
            return Ok(0);
        }
        let (number, within) = (self.position / BLOCK, (self.position % BLOCK) as usize);
        let rest = &self.block(number)?[within..];
        let taken = rest.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&rest[..taken]);
        self.position += taken as u64;
        Ok(taken)
    }
}

impl Seek for RemoteFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = position.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}
