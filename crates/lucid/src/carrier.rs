//! Gathers evidence where Lucid is not installed: this very binary is sent over the operator's own `ssh`, `docker`, `podman` or
//! `kubectl`, runs `collect` there, answers with the archive, and is removed.

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use lucid_doctor::{MachineEvidence, archive};

/// A command that runs a shell command somewhere else: what follows it is given to a shell there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carrier {
    prefix: Vec<String>,
    /// Whether what follows is joined and split again by a shell there (`ssh`), or passed as it is (`docker exec`).
    joins: bool,
}

impl Carrier {
    /// `ssh user@name`, with the operator's own configuration; never asks for a password.
    pub fn ssh(host: &str) -> Result<Carrier> {
        if host.starts_with('-') || host.chars().any(|c| c.is_whitespace() || c.is_control()) {
            bail!("--host {host:?}: give user@name, as ssh takes it, or `local` for this machine");
        }
        let prefix = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", host];
        Ok(Carrier { prefix: prefix.map(str::to_owned).to_vec(), joins: true })
    }

    /// `docker exec -i NAME`, or `podman`.
    pub fn container(program: &str, name: &str) -> Result<Carrier> {
        no_option("--container", name)?;
        Ok(Carrier { prefix: [program, "exec", "-i", name].map(str::to_owned).to_vec(), joins: false })
    }

    /// `kubectl exec -i POD`; see [`Carrier::pod_name`].
    pub fn pod(name: &str) -> Result<Carrier> {
        let (namespace, pod, container) = Carrier::pod_name(name)?;
        let mut prefix = vec!["kubectl".to_owned(), "exec".to_owned(), "-i".to_owned()];
        prefix.extend(namespace.into_iter().flat_map(|namespace| ["-n".to_owned(), namespace]));
        prefix.push(pod);
        prefix.extend(container.into_iter().flat_map(|container| ["-c".to_owned(), container]));
        prefix.push("--".to_owned());
        Ok(Carrier { prefix, joins: false })
    }

    /// Namespace, pod and container of `POD`, `NAMESPACE/POD` or `NAMESPACE/POD/CONTAINER`.
    pub fn pod_name(name: &str) -> Result<(Option<String>, String, Option<String>)> {
        let parts: Vec<String> = name.split('/').map(str::to_owned).collect();
        for part in &parts {
            no_option("--pod", part)?;
        }
        match &parts[..] {
            [pod] => Ok((None, pod.clone(), None)),
            [namespace, pod] => Ok((Some(namespace.clone()), pod.clone(), None)),
            [namespace, pod, container] => {
                Ok((Some(namespace.clone()), pod.clone(), Some(container.clone())))
            }
            _ => bail!("--pod {name:?}: give POD, NAMESPACE/POD or NAMESPACE/POD/CONTAINER"),
        }
    }

    /// Sends this binary, runs `collect` with `arguments` there, and reads the evidence.
    pub fn collect(&self, arguments: &[String]) -> Result<MachineEvidence> {
        let binary = std::env::current_exe().context("cannot find the file of this program")?;
        let binary = std::fs::read(&binary)
            .with_context(|| format!("cannot read this program from {}", binary.display()))?;
        // The file gets a name of its own in a folder that allows programs, readable by this user alone.
        let place = self
            .run(
                "umask 077; for d in \"${TMPDIR:-/tmp}\" \"$HOME\" /var/tmp; do f=$(mktemp \"$d/lucid.XXXXXX\" 2>/dev/null) || continue; \
                 cat > \"$f\" && chmod 700 \"$f\" && \"$f\" --version >/dev/null 2>&1 && { echo \"$f\"; exit 0; }; \"$f\" --version; rm -f \"$f\"; exec </dev/null; done; exit 1",
                &binary,
            )
            .with_context(|| format!("cannot run a copy of this program through {self}"))?;
        let place = String::from_utf8(place).context("the name of the copy is no text")?.trim().to_owned();
        if place.is_empty() || place.contains(['\n', '\'']) {
            bail!("{self} answered with an odd file name: {place:?}");
        }
        let words: Vec<String> = arguments.iter().map(|word| quoted(word)).collect();
        let gathered = self.run(&format!("'{place}' collect --output - {}", words.join(" ")), &[]);
        let removed = self.run(&format!("rm -f '{place}'"), &[]);
        let gathered = gathered.with_context(|| format!("`collect` failed through {self}"))?;
        removed
            .with_context(|| format!("the copy of this program is still there: {place} (through {self})"))?;
        Ok(archive::unpack(&gathered, &PathBuf::from(self.to_string()))?)
    }

    /// Runs a shell command there with `input`, and gives what it printed.
    fn run(&self, script: &str, input: &[u8]) -> Result<Vec<u8>> {
        let mut command = Command::new(&self.prefix[0]);
        command.args(&self.prefix[1..]).args(["sh", "-c"]);
        command.arg(if self.joins { quoted(script) } else { script.to_owned() });
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {}", self.prefix[0]))?;
        let mut stdin = child.stdin.take();
        let output = std::thread::scope(|scope| {
            let writer = scope.spawn(move || stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input)));
            let output = child.wait_with_output();
            // A far end that ends early closes the pipe; its own message says more.
            let _ = writer.join();
            output
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
            let said = said.iter().rev().take(4).rev().copied().collect::<Vec<_>>().join("; ");
            bail!("{} ended with {}: {said}", self.prefix[0], output.status);
        }
        Ok(output.stdout)
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.prefix.join(" "))
    }
}

fn no_option(flag: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.starts_with('-') {
        bail!("{flag} {name:?} is no name");
    }
    Ok(())
}

/// A word for a POSIX shell.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        for word in ["plain", "two words", "it's", "$HOME `id` \"x\"", ""] {
            let said =
                Command::new("sh").args(["-c", &format!("printf %s {}", quoted(word))]).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), word);
        }
    }

    #[test]
    fn a_shell_there_is_reached_both_ways() {
        // What `ssh` does: joins its words with spaces and gives them to a shell. What `docker exec` does: runs them.
        let joining = Carrier {
            prefix: ["sh", "-c", "exec sh -c \"$*\"", "far"].map(str::to_owned).to_vec(),
            joins: true,
        };
        let passing = Carrier { prefix: vec!["env".to_owned()], joins: false };
        for carrier in [joining, passing] {
            assert_eq!(
                carrier.run("cat; echo \" it's $((1+1))\"", b"in").unwrap(),
                b"in it's 2\n",
                "{carrier}"
            );
            let error = carrier.run("echo broken >&2; exit 3", &[]).unwrap_err().to_string();
            assert!(error.contains("broken") && error.contains('3'), "{error}");
        }
    }

    #[test]
    fn names_are_no_options() {
        assert!(Carrier::ssh("-oProxyCommand=x").is_err() && Carrier::ssh("a b").is_err());
        assert!(Carrier::container("docker", "-v").is_err() && Carrier::pod("").is_err());
        assert_eq!(Carrier::pod("ns/pod/vllm").unwrap().to_string(), "kubectl exec -i -n ns pod -c vllm --");
    }
}
