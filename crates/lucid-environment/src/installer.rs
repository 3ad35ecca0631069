//! Who installs here, and how to say a command to it.

use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;
use crate::python::PythonEnvironment;

/// The tool that installed a distribution, or most of an environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Installer {
    /// `pip`, or unknown: its commands work nearly everywhere.
    #[default]
    Pip,
    /// `uv`.
    Uv,
    /// `conda`, `mamba`, `micromamba`.
    Conda,
}

impl Installer {
    /// What an `INSTALLER` file says.
    #[must_use]
    pub fn named(name: &str) -> Option<Installer> {
        match name.trim().to_ascii_lowercase().as_str() {
            "pip" => Some(Installer::Pip),
            "uv" => Some(Installer::Uv),
            "conda" | "mamba" | "micromamba" => Some(Installer::Conda),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Installer::Pip => "pip",
            Installer::Uv => "uv",
            Installer::Conda => "conda",
        }
    }
}

/// Commands for one environment, in the dialect of its installer.
#[derive(Clone, Copy, Debug)]
pub struct Commands<'a> {
    python: &'a PythonEnvironment,
}

impl<'a> Commands<'a> {
    /// Commands for this environment.
    #[must_use]
    pub fn new(python: &'a PythonEnvironment) -> Commands<'a> {
        Commands { python }
    }

    fn interpreter(&self) -> String {
        quoted(self.python.interpreter.as_deref().unwrap_or("python3"))
    }

    /// A distribution is moved by the tool that brought it, or the environment's records disagree afterwards.
    fn of(&self, distribution: Option<&Distribution>) -> Installer {
        let own = distribution.and_then(|d| d.installer.as_deref()).and_then(Installer::named);
        match (own, self.python.installer) {
            (Some(Installer::Conda), _) => Installer::Conda,
            // uv replaces what pip installed, and a uv environment has no pip in it.
            (_, Installer::Uv) | (Some(Installer::Uv), _) => Installer::Uv,
            // Conda cannot replace what pip put over it.
            (Some(Installer::Pip), _) | (None, Installer::Pip) => Installer::Pip,
            (None, Installer::Conda) => Installer::Conda,
        }
    }

    /// Installs exactly these requirements and nothing beside them.
    #[must_use]
    pub fn install(
        &self,
        current: Option<&Distribution>,
        requirements: &[String],
        index: Option<&str>,
    ) -> String {
        let list = requirements.iter().map(|r| quoted(r)).collect::<Vec<_>>().join(" ");
        match self.of(current) {
            Installer::Pip => {
                let index = index.map(|url| format!(" --extra-index-url {url}")).unwrap_or_default();
                format!("{} -m pip install --no-deps{index} {list}", self.interpreter())
            }
            Installer::Uv => {
                let index = index.map(|url| format!(" --index {url}")).unwrap_or_default();
                format!("uv pip install --python {} --no-deps{index} {list}", self.interpreter())
            }
            Installer::Conda => {
                let list =
                    requirements.iter().map(|r| quoted(&r.replace("==", "="))).collect::<Vec<_>>().join(" ");
                format!("conda install -p {} --no-deps {list}", quoted(&self.python.prefix))
            }
        }
    }

    /// Brings a distribution's files back to what was published.
    #[must_use]
    pub fn reinstall(&self, distribution: &Distribution) -> Vec<String> {
        let what = distribution.requirement();
        match self.of(Some(distribution)) {
            Installer::Pip => vec![format!(
                "{} -m pip install --force-reinstall --no-deps {}",
                self.interpreter(),
                quoted(&what)
            )],
            Installer::Uv => vec![
                // uv links files out of its cache, so an edit in place has changed the cached copy as well.
                format!("uv cache clean {}", distribution.name),
                format!(
                    "uv pip install --python {} --reinstall --no-deps {}",
                    self.interpreter(),
                    quoted(&what)
                ),
            ],
            Installer::Conda => vec![format!(
                "conda install -p {} --force-reinstall --no-deps {}={}",
                quoted(&self.python.prefix),
                distribution.name,
                distribution.version
            )],
        }
    }

    /// Removes distributions.
    #[must_use]
    pub fn uninstall(&self, current: Option<&Distribution>, names: &[&str]) -> String {
        let names = names.join(" ");
        match self.of(current) {
            Installer::Pip => format!("{} -m pip uninstall -y {names}", self.interpreter()),
            Installer::Uv => format!("uv pip uninstall --python {} {names}", self.interpreter()),
            Installer::Conda => format!("conda remove -p {} --force {names}", quoted(&self.python.prefix)),
        }
    }

    /// Fetches the published wheel, so that the original can be compared.
    #[must_use]
    pub fn download(&self, distribution: &Distribution, folder: &str) -> String {
        let what = quoted(&distribution.requirement());
        let arguments = format!("download --no-deps --only-binary :all: -d {folder} {what}");
        match self.python.installer {
            Installer::Uv => format!("uvx pip {arguments}"),
            Installer::Pip | Installer::Conda => format!("{} -m pip {arguments}", self.interpreter()),
        }
    }
}

/// An argument as a shell takes it.
pub(crate) fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(installer: Installer) -> PythonEnvironment {
        PythonEnvironment {
            prefix: "/opt/venv".into(),
            interpreter: Some("/opt/venv/bin/python".into()),
            installer,
            ..PythonEnvironment::default()
        }
    }

    #[test]
    fn every_installer_has_its_dialect() {
        let cubin = Distribution {
            name: "flashinfer-cubin".into(),
            version: "0.6.3".into(),
            ..Distribution::default()
        };
        let wanted = ["flashinfer-cubin==0.6.4".to_owned()];
        for (installer, expected) in [
            (Installer::Pip, "/opt/venv/bin/python -m pip install --no-deps flashinfer-cubin==0.6.4"),
            (Installer::Uv, "uv pip install --python /opt/venv/bin/python --no-deps flashinfer-cubin==0.6.4"),
            (Installer::Conda, "conda install -p /opt/venv --no-deps flashinfer-cubin=0.6.4"),
        ] {
            let python = environment(installer);
            assert_eq!(Commands::new(&python).install(Some(&cubin), &wanted, None), expected);
        }
    }

    #[test]
    fn what_pip_put_into_conda_is_moved_by_pip() {
        let python = environment(Installer::Conda);
        let vllm = Distribution {
            name: "vllm".into(),
            version: "0.32.0".into(),
            installer: Some("pip".into()),
            ..Distribution::default()
        };
        assert_eq!(
            Commands::new(&python).reinstall(&vllm),
            ["/opt/venv/bin/python -m pip install --force-reinstall --no-deps vllm==0.32.0"]
        );
    }

    #[test]
    fn arguments_are_quoted() {
        assert_eq!(quoted("torch==2.13.0+cpu"), "torch==2.13.0+cpu");
        assert_eq!(quoted("torch<2"), "'torch<2'");
        assert_eq!(quoted("/my env/python"), "'/my env/python'");
    }
}
