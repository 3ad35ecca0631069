//! Programs that print logs: `journalctl`, `docker logs`, `kubectl logs`.

use std::io::{self, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use super::{Source, SourceError};

/// Most bytes kept of what a program says on standard error.
const MOST_ERROR: u64 = 64 << 10;

/// The command that reads a source, and whether a part of the log comes on its standard error.
pub(crate) fn command(source: &Source) -> Option<(Vec<String>, bool)> {
    let mut words: Vec<&str> = Vec::new();
    let both = match source {
        Source::Journal { unit, since } => {
            words.extend(["journalctl", "-o", "json", "--no-pager", "--all"]);
            match unit {
                Some(unit) => words.extend(["-u", unit]),
                None => words.push("-k"),
            }
            if let Some(since) = since {
                words.extend(["--since", since]);
            }
            false
        }
        // A container's two streams come on the program's two streams.
        Source::Container { tool, name } => {
            words.extend([tool.program(), "logs", "--timestamps", "--", name]);
            true
        }
        Source::Kubernetes { pod, namespace, container, previous } => {
            words.extend(["kubectl", "logs", "--timestamps"]);
            if *previous {
                words.push("--previous");
            }
            for (flag, value) in [("-n", namespace), ("-c", container)] {
                if let Some(value) = value {
                    words.extend([flag, value]);
                }
            }
            words.extend(["--", pod]);
            false
        }
        Source::File(_) | Source::StandardInput | Source::Text { .. } => return None,
    };
    Some((words.into_iter().map(str::to_owned).collect(), both))
}

/// A program that is printing a log.
pub(crate) struct Program {
    child: Child,
    command: String,
    said: Option<JoinHandle<Vec<u8>>>,
}

impl Program {
    /// Starts it. With `both`, standard output and error go into one pipe: two pipes could block each other, and the order
    /// of their lines would be lost.
    pub fn start(words: &[String], both: bool) -> Result<(Program, Box<dyn Read>), SourceError> {
        let command = words.join(" ");
        let (program, arguments) = words.split_first().map_or(("", &[][..]), |(p, a)| (p.as_str(), a));
        let failed =
            |error| SourceError::NoProgram { program: program.to_owned(), command: command.clone(), error };
        let mut start = Command::new(program);
        start.args(arguments).stdin(Stdio::null());
        let (child, output, said): (Child, Box<dyn Read>, _) = if both {
            let (reader, writer) = io::pipe().map_err(failed)?;
            let second = writer.try_clone().map_err(failed)?;
            (start.stdout(writer).stderr(second).spawn().map_err(failed)?, Box::new(reader), None)
        } else {
            let mut child = start.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
            let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
                return Err(failed(io::ErrorKind::BrokenPipe.into()));
            };
            (child, Box::new(output), Some(std::thread::spawn(move || beginning(errors))))
        };
        // `start` still holds the writing ends: the reader would never see an end.
        drop(start);
        Ok((Program { child, command, said }, output))
    }

    /// Waits for its end and says whether it went well; `last` is the last line that it printed.
    pub fn finish(mut self, last: &str) -> Result<(), SourceError> {
        let said = self.said.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        let status = self.child.wait().map_err(|error| SourceError::NoProgram {
            program: self.command.clone(),
            command: self.command.clone(),
            error,
        })?;
        if status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        let message = [said.as_str(), last].into_iter().find(|text| !text.is_empty());
        Err(SourceError::Program {
            command: self.command.clone(),
            status: status.to_string(),
            message: message.unwrap_or("it said nothing").to_owned(),
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Only when reading was given up: after `finish` the process is gone and this does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads all, keeps the beginning.
fn beginning(stream: impl Read) -> Vec<u8> {
    let mut stream = BufReader::new(stream);
    let mut kept = Vec::new();
    let _ = stream.by_ref().take(MOST_ERROR).read_to_end(&mut kept);
    let _ = io::copy(&mut stream, &mut io::sink());
    kept
}
