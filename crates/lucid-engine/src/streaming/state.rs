//! What is left of a run that was interrupted: results so far, and the hidden states between two layers.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, TokenLogprobs};

const MAGIC: &[u8; 8] = b"lucidref";
/// A header beyond this is no header: results take some hundred bytes a token.
const MAX_HEADER: u64 = 1 << 32;

/// Where a run is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Of checkpoint, passages and arithmetic: a state of another run is refused.
    pub identity: String,
    /// How many passages each batch has.
    pub batches: Vec<usize>,
    /// The batch that is being computed.
    pub batch: usize,
    /// Layers of it that are done.
    pub layers: usize,
    /// What was found out about the passages of former batches: of each, one entry a token but the first.
    pub results: Vec<Vec<TokenLogprobs>>,
    /// Bytes of weights that were read so far.
    pub bytes_read: u64,
    /// Seconds that were spent so far.
    pub seconds: f64,
    /// Of the hidden states.
    pub checksum: u64,
}

/// Writes a state, so that there is always a whole one: the former or this.
///
/// # Errors
/// When the disk refuses.
pub fn save(path: &Path, state: &mut State, hidden: &[f32]) -> Result<(), Error> {
    let temporary = with_suffix(path, ".new");
    let mut write = || -> std::io::Result<()> {
        state.checksum = checksum(hidden);
        let header = serde_json::to_vec(state)?;
        let mut file = BufWriter::new(File::create(&temporary)?);
        file.write_all(MAGIC)?;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for value in hidden {
            file.write_all(&value.to_le_bytes())?;
        }
        let file = file.into_inner()?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|cause| Error::State { path: path.to_owned(), problem: cause.to_string() })
}

/// Reads a state and its hidden states; `None` when there is no such file.
///
/// # Errors
/// When the file can't be read, is damaged, or belongs to another run.
pub fn load(path: &Path, identity: &str) -> Result<Option<(State, Vec<f32>)>, Error> {
    let broken = |problem: String| Error::State { path: path.to_owned(), problem };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(broken(error.to_string())),
    };
    let len = file.metadata().map_err(|error| broken(error.to_string()))?.len();
    let mut file = BufReader::new(file);
    let mut start = [0u8; 16];
    file.read_exact(&mut start).map_err(|_| broken("it is shorter than its beginning".to_owned()))?;
    if start[..8] != *MAGIC {
        return Err(broken("it was not written by lucid reference".to_owned()));
    }
    let header_len = start.last_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    if header_len > MAX_HEADER || header_len > len - 16 {
        return Err(broken(format!("its header should have {header_len} bytes, the file has {len}")));
    }
    let mut header = vec![0u8; header_len as usize];
    file.read_exact(&mut header).map_err(|error| broken(error.to_string()))?;
    let state: State = serde_json::from_slice(&header).map_err(|error| broken(error.to_string()))?;
    if state.identity != identity {
        return Err(broken(
            "it belongs to another checkpoint, other prompts or another arithmetic: give another file, or delete this one"
                .to_owned(),
        ));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| broken(error.to_string()))?;
    let hidden: Vec<f32> = bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    if checksum(&hidden) != state.checksum {
        return Err(broken("its hidden states are damaged: delete it and begin again".to_owned()));
    }
    Ok(Some((state, hidden)))
}

/// Removes a state that is used up.
///
/// # Errors
/// When the disk refuses.
pub fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::State { path: path.to_owned(), problem: error.to_string() })
        }
        _ => Ok(()),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// In the manner of FNV-1a, a value at a time: finds what a disk does to a file, not what a person does.
fn checksum(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |hash, value| {
        (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29)
    })
}
