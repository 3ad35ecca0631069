//! The end of a file that is still being written, through rotation and truncation.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes read at a time.
const BLOCK: usize = 64 << 10;
/// A line longer than this is cut; its rest is skipped.
const LONGEST: usize = 1 << 20;

/// A file that grows.
pub struct Tail {
    path: PathBuf,
    file: File,
    /// Device and inode: another file of the same name is a new log.
    identity: (u64, u64),
    read: u64,
    /// The beginning of a line whose end is not there yet.
    partial: Vec<u8>,
    skipping: bool,
}

impl Tail {
    /// Opens a file, from its beginning on.
    ///
    /// # Errors
    /// It can't be opened, or is no regular file.
    pub fn open(path: &Path) -> io::Result<Tail> {
        if !path.metadata()?.is_file() {
            let text = format!("{}: no regular file; pipe it into `--log -`", path.display());
            return Err(io::Error::other(text));
        }
        let file = File::open(path)?;
        let about = file.metadata()?;
        let identity = (about.dev(), about.ino());
        Ok(Tail { path: path.to_owned(), file, identity, read: 0, partial: Vec::new(), skipping: false })
    }

    /// Gives every line that was finished since the last call to `each`, without its end; says whether there was any. When the file
    /// was replaced, what is left of the old one comes first; when it was cut, it is read from its beginning again.
    ///
    /// # Errors
    /// The file can't be read. A file that is gone for a moment, as between the two steps of a rotation, is none.
    pub fn lines(&mut self, each: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        let mut any = self.rest(each)?;
        match self.path.metadata() {
            Ok(about) if (about.dev(), about.ino()) != self.identity && about.is_file() => {
                // What was written between the last reading and the rename.
                any |= self.rest(each)?;
                any |= self.finish(each);
                *self = Tail::open(&self.path)?;
                any |= self.rest(each)?;
            }
            Ok(about) if about.len() < self.read => {
                self.finish(each);
                self.file.seek(SeekFrom::Start(0))?;
                self.read = 0;
                any |= self.rest(each)?;
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(any)
    }

    /// Gives a last line that has no end.
    pub fn finish(&mut self, each: &mut dyn FnMut(&[u8])) -> bool {
        let any = !self.partial.is_empty() && !self.skipping;
        if any {
            each(&self.partial);
        }
        self.partial.clear();
        self.skipping = false;
        any
    }

    fn rest(&mut self, each: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        let mut block = vec![0; BLOCK];
        let mut any = false;
        loop {
            let count = match self.file.read(&mut block) {
                Ok(0) => return Ok(any),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.read += count as u64;
            let mut block = &block[..count];
            while let Some(end) = memchr::memchr(b'\n', block) {
                any |= self.end_of_line(&block[..end], each);
                block = &block[end + 1..];
            }
            let room = LONGEST.saturating_sub(self.partial.len());
            self.partial.extend_from_slice(&block[..block.len().min(room)]);
            if self.partial.len() >= LONGEST && !self.skipping {
                each(&self.partial);
                any = true;
                self.skipping = true;
            }
        }
    }

    fn end_of_line(&mut self, end: &[u8], each: &mut dyn FnMut(&[u8])) -> bool {
        let told = std::mem::take(&mut self.skipping);
        if !told {
            self.partial.extend_from_slice(&end[..end.len().min(LONGEST)]);
            each(self.partial.strip_suffix(b"\r").unwrap_or(&self.partial));
        }
        self.partial.clear();
        !told
    }
}
