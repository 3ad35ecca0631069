//! A folder of this process that is audited again and again, one file of it other every time.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lucid_checkpoint_audit::{Options, architecture, digest, extents, gather, index, scales, tokenizer};
use lucid_findings::Deployment;

use crate::bounded;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// What a checkpoint's audit makes of damaged files.
pub struct Audited;

impl Audited {
    /// Makes the folder, with these files in it, and audits it once: threads and buffers that stay are no input's fault.
    ///
    /// # Panics
    /// When there is no place for it.
    pub fn start(files: &[(&str, &[u8])]) {
        let folder = std::env::temp_dir().join(format!("lucid-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder in the temporary one");
        for (name, bytes) in files {
            std::fs::write(folder.join(name), bytes).expect("a file in it");
        }
        audit(&folder);
        FOLDER.set(folder).expect("started once");
    }

    /// Audits the folder with these bytes as file `name`.
    ///
    /// # Panics
    /// When it was not started, or the file can't be written.
    pub fn look(name: &str, bytes: &[u8]) {
        let folder = FOLDER.get().expect("started");
        std::fs::write(folder.join(name), bytes).expect("a file in the folder");
        bounded(bytes.len(), || audit(folder));
    }
}

/// All of it: the headers, every weight once, every check.
fn audit(folder: &Path) {
    let options = Options { statistics: true, ..Options::default() };
    let evidence = gather(Path::new("/"), folder, &options, &mut |_| {}).expect("the folder can be listed");
    let deployment = Deployment::default();
    for check in [architecture, digest, extents, index, scales, tokenizer] {
        // A check may have nothing to look at.
        let _ = check(&evidence, &deployment);
    }
}
