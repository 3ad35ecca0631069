//! What the patient would see is what is read, and nothing outside of its root.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use lucid_root::{Root, lexical};
use tempfile::TempDir;

/// A patient in `root/`, and a file outside of it.
fn patient() -> (TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("models/real")).unwrap();
    fs::create_dir_all(root.join("usr/lib")).unwrap();
    fs::write(root.join("models/real/config.json"), "inside").unwrap();
    fs::write(root.join("usr/lib/real.py"), "x = 1").unwrap();
    fs::write(folder.path().join("config.json"), "outside").unwrap();
    (folder, Root::new(root))
}

fn text(root: &Root, path: &str) -> std::io::Result<String> {
    root.read_text(Path::new(path), 100)
}

#[test]
fn absolute_links_begin_at_the_root() {
    let (_folder, root) = patient();
    symlink("/models/real", root.path().join("absolute")).unwrap();
    symlink("/absolute/config.json", root.path().join("twice")).unwrap();
    for path in ["/absolute/config.json", "absolute/config.json", "/twice", "/usr/../twice"] {
        assert_eq!(text(&root, path).unwrap(), "inside", "{path}");
    }
    assert_eq!(root.resolve(Path::new("/twice")).unwrap(), root.path().join("models/real/config.json"));
}

#[test]
fn relative_links_begin_where_they_lie() {
    let (_folder, root) = patient();
    symlink("../usr/lib/real.py", root.path().join("models/relative")).unwrap();
    symlink("models/./real/../real", root.path().join("odd")).unwrap();
    assert_eq!(text(&root, "/models/relative").unwrap(), "x = 1");
    assert_eq!(text(&root, "/odd/config.json").unwrap(), "inside");
}

/// `..` behind a link is the parent of what the link leads to, as for the kernel.
#[test]
fn a_parent_is_that_of_the_target() {
    let (_folder, root) = patient();
    symlink("/usr/lib", root.path().join("models/lib")).unwrap();
    assert_eq!(
        root.resolve(Path::new("/models/lib/../lib/real.py")).unwrap(),
        root.path().join("usr/lib/real.py")
    );
}

#[test]
fn nothing_leads_out_of_the_root() {
    let (folder, root) = patient();
    symlink("../../../../../../config.json", root.path().join("models/escape")).unwrap();
    symlink("../../../../../../models/real/config.json", root.path().join("models/back")).unwrap();
    symlink(folder.path().join("config.json"), root.path().join("models/outside")).unwrap();
    for path in ["/models/escape", "/../config.json", "/models/outside"] {
        assert_eq!(text(&root, path).unwrap_err().kind(), ErrorKind::NotFound, "{path}");
    }
    assert_eq!(text(&root, "/models/back").unwrap(), "inside");
    assert_eq!(root.resolve(Path::new("/models/escape")).unwrap(), root.path().join("config.json"));
}

#[test]
fn a_loop_is_an_error_and_long_chains_are_none() {
    let (_folder, root) = patient();
    symlink("b", root.path().join("a")).unwrap();
    symlink("a", root.path().join("b")).unwrap();
    symlink("itself/x", root.path().join("itself")).unwrap();
    for path in ["/a", "/itself"] {
        let error = root.resolve(Path::new(path)).unwrap_err();
        assert!(error.to_string().contains("too many symbolic links"), "{error}");
    }
    // Linux follows forty.
    symlink("models/real/config.json", root.path().join("link0")).unwrap();
    for at in 1..=40 {
        symlink(format!("link{}", at - 1), root.path().join(format!("link{at}"))).unwrap();
    }
    assert_eq!(text(&root, "/link39").unwrap(), "inside");
    assert_eq!(fs::read_to_string(root.path().join("link39")).unwrap(), "inside");
    assert!(root.resolve(Path::new("/link40")).is_err());
    assert!(fs::read_to_string(root.path().join("link40")).is_err());
}

#[test]
fn what_is_absent_resolves_and_does_not_exist() {
    let (_folder, root) = patient();
    for path in ["/models/none/config.json", "/models/real/config.json/below"] {
        assert_eq!(root.resolve(Path::new(path)).unwrap(), root.path().join(&path[1..]));
        assert!(root.existing(Path::new(path)).is_err());
    }
    assert_eq!(root.existing(Path::new("/models")).unwrap(), root.path().join("models"));
    assert!(root.names(Path::new("/models/none")).is_empty());
    assert!(root.list(Path::new("/models/none"), 10).is_err());
}

#[test]
fn reads_are_bounded_and_of_regular_files() {
    let (_folder, root) = patient();
    let config = Path::new("/models/real/config.json");
    assert_eq!(root.read(config, 3).unwrap(), b"ins");
    assert_eq!(root.read_start(config, 3).unwrap(), ("ins".to_owned(), true));
    assert_eq!(root.read_start(config, 6).unwrap(), ("inside".to_owned(), false));
    fs::write(root.path().join("bytes"), b"a\xffb").unwrap();
    assert_eq!(text(&root, "/bytes").unwrap(), "a\u{fffd}b");
    let error = text(&root, "/models").unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
    // A device of this machine, reached by a root that is `/`.
    assert!(text(&Root::new("/"), "/dev/zero").is_err());
}

#[test]
fn folders_are_listed_in_order() {
    let (_folder, root) = patient();
    assert_eq!(root.names(Path::new("/")), ["models", "usr"]);
    assert_eq!(root.list(Path::new("/"), 1).unwrap().len(), 1);
    assert!(root.is_dir(Path::new("/models")) && !root.is_file(Path::new("/models")));
    assert!(root.is_file(Path::new("/usr/lib/real.py")));
}

#[test]
fn both_ways_to_say_a_path_are_taken() {
    let root = Root::new("/images/one");
    for (given, inside) in [
        ("/images/one/opt/venv", "/opt/venv"),
        ("/opt/venv/../x", "/opt/x"),
        ("opt/venv", "/opt/venv"),
        ("/images/one", "/"),
        ("/images/onetwo", "/images/onetwo"),
    ] {
        assert_eq!(root.inside(Path::new(given)), Path::new(inside), "{given}");
    }
    assert_eq!(Root::new("/").inside(Path::new("/opt/./venv")), Path::new("/opt/venv"));
    assert!(Root::new("/").is_host() && !root.is_host());
    assert!(Root::new("here").path().is_absolute());
    assert_eq!(lexical(Path::new("/a/../../b/.")), PathBuf::from("/b"));

    let (_folder, root) = patient();
    let here = root.path().join("models/real/config.json");
    assert_eq!(root.read(&here, 100).unwrap(), b"inside");
}
