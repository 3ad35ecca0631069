//! Ranks in processes of their own: who is who, from what Slurm, MPI, torchrun or Kubernetes set; and what they tell each other.
//!
//! Rank 0 serves. The others follow: it sends them every step's tokens and pages over TCP, and partial sums go over NCCL.

mod follow;
mod leader;
mod link;
pub mod orders;
#[cfg(test)]
mod tests;

pub use follow::follow;
pub use leader::Leader;
pub use link::Watch;

use crate::Error;

/// Where ranks meet when nobody says: torchrun's port.
const PORT: u16 = 29_500;

/// A process's place among those that share a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// Which one, from 0.
    pub rank: usize,
    /// Of how many.
    pub size: usize,
    /// Which one on its own machine.
    pub local_rank: usize,
    /// Host of rank 0.
    pub host: String,
    /// Port there.
    pub port: u16,
}

/// The names under which a launcher says who is who.
struct Launcher {
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    /// How many processes are on this machine; if all are, nobody needs to say where rank 0 is.
    local_size: &'static str,
}

/// torchrun and Kubernetes' PyTorchJob, Open MPI, MPICH and Intel MPI, Slurm. The first that is there counts: `mpirun` and `torchrun` run
/// within Slurm's jobs, not the other way round.
const LAUNCHERS: [Launcher; 4] = [
    Launcher { rank: "RANK", size: "WORLD_SIZE", local_rank: "LOCAL_RANK", local_size: "LOCAL_WORLD_SIZE" },
    Launcher {
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    Launcher {
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
    },
    Launcher {
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_size: "SLURM_TASKS_PER_NODE",
    },
];

impl World {
    /// This process's place, or `None` where no launcher says that there are several. `variable` reads the environment.
    ///
    /// # Errors
    /// When what is there contradicts itself or doesn't say where rank 0 is.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<World>, Error> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let Some(launcher) = LAUNCHERS.iter().find(|launcher| variable(launcher.rank).is_some()) else {
            return Ok(None);
        };
        let number = |name: &'static str| match variable(name) {
            None => Ok(None),
            Some(value) => value.parse::<usize>().map(Some).map_err(|_| Error::World {
                problem: format!("{name} is {value:?}, which is no number"),
                hint: "launchers set it; unset it if there is none",
            }),
        };
        let missing = |name| Error::World {
            problem: format!("{} is set and {name} is not", launcher.rank),
            hint: "launchers set both; unset the one if there is none",
        };
        let rank = number(launcher.rank)?.ok_or_else(|| missing(launcher.rank))?;
        let size = number(launcher.size)?.ok_or_else(|| missing(launcher.size))?;
        if rank >= size {
            return Err(Error::World {
                problem: format!("{} is {rank} of {} {size}", launcher.rank, launcher.size),
                hint: "ranks count from 0",
            });
        }
        if size == 1 {
            return Ok(None);
        }
        let local_rank = number(launcher.local_rank)?.unwrap_or(0);
        let all_here = variable(launcher.local_size).is_some_and(|here| here == size.to_string());
        let listed = || {
            let names = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"];
            names.iter().find_map(|name| variable(name)).and_then(|list| first_host(&list))
        };
        let host = variable("MASTER_ADDR")
            .or_else(|| all_here.then(|| "127.0.0.1".to_owned()))
            .or_else(|| listed().filter(|_| launcher.rank == "SLURM_PROCID"))
            .ok_or(Error::World {
                problem: format!(
                    "{} says that there are {size} ranks, and nothing says where rank 0 is",
                    launcher.size
                ),
                hint: "set MASTER_ADDR to the name or address of its host, for all ranks",
            })?;
        let port = match variable("MASTER_PORT") {
            None => PORT,
            Some(value) => value.parse().map_err(|_| Error::World {
                problem: format!("MASTER_PORT is {value:?}"),
                hint: "it must be a port, 1 to 65535",
            })?,
        };
        Ok(Some(World { rank, size, local_rank, host, port }))
    }
}

/// The first of Slurm's list of hosts: `gpu[03-05,9],head` begins with `gpu03`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let host = match rest.strip_prefix('[') {
        Some(numbers) => {
            let number: String = numbers.chars().take_while(char::is_ascii_digit).collect();
            let after = numbers.split_once(']').map_or("", |(_, after)| after);
            format!("{name}{number}{}", after.split(',').next().unwrap_or_default())
        }
        None => name.to_owned(),
    };
    (!host.is_empty()).then_some(host)
}
