//! Launchers' environments; ranks that meet, and that are lost, over loopback.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::follow::Follower;
use super::link::{self, HELLO, MAGIC, Patience};
use super::orders::Order;
use super::{Leader, PORT, World, first_host, orders};
use crate::Error;

fn world(variables: &[(&str, &str)]) -> Result<Option<World>, String> {
    let variable =
        |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned());
    World::from_environment(variable).map_err(|error| error.to_string())
}

#[test]
fn every_launcher_is_understood() {
    let place = |rank, size, local_rank, host: &str, port| {
        Ok(Some(World { rank, size, local_rank, host: host.to_owned(), port }))
    };
    let torchrun = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "worker-0.job"),
        ("MASTER_PORT", "23456"),
    ];
    assert_eq!(world(&torchrun), place(3, 4, 1, "worker-0.job", 23_456));
    // A pod a GPU.
    assert_eq!(world(&[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")]), place(1, 2, 0, "a", PORT));
    let mpi = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        // Within a job of one task.
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "1"),
    ];
    assert_eq!(world(&mpi), place(1, 2, 1, "127.0.0.1", PORT));
    let intel = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")];
    assert_eq!(world(&intel), place(0, 2, 0, "127.0.0.1", PORT));
    let slurm = [
        ("SLURM_PROCID", "9"),
        ("SLURM_NTASKS", "16"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_TASKS_PER_NODE", "8(x2)"),
        ("SLURM_STEP_NODELIST", "gpu[03-04]"),
    ];
    assert_eq!(world(&slurm), place(9, 16, 1, "gpu03", PORT));
}

#[test]
fn one_process_is_no_world() {
    assert_eq!(world(&[]), Ok(None));
    assert_eq!(world(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")]), Ok(None));
    assert_eq!(world(&[("RANK", ""), ("WORLD_SIZE", "")]), Ok(None));
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let said = |variables: &[(&str, &str)]| world(variables).unwrap_err();
    assert!(said(&[("RANK", "0")]).contains("WORLD_SIZE"));
    assert!(said(&[("RANK", "x"), ("WORLD_SIZE", "2")]).contains("\"x\""));
    assert!(said(&[("RANK", "2"), ("WORLD_SIZE", "2")]).contains("count from 0"));
    assert!(said(&[("RANK", "0"), ("WORLD_SIZE", "2")]).contains("MASTER_ADDR"));
    let port = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")];
    assert!(said(&port).contains("MASTER_PORT"));
}

#[test]
fn the_first_host_of_slurms_lists() {
    for (list, first) in [
        ("gpu[03-05,9],head", "gpu03"),
        ("head,gpu[1-2]", "head"),
        ("node7", "node7"),
        ("rack1-n[001,004]-ib", "rack1-n001-ib"),
    ] {
        assert_eq!(first_host(list).as_deref(), Some(first));
    }
    assert_eq!(first_host(""), None);
}

/// Short enough for a test, long enough for a crowded machine.
const SHORT: Patience = Patience {
    meeting: Duration::from_secs(20),
    silence: Duration::from_secs(3),
    step: Duration::from_secs(2),
};
const FINGERPRINT: u64 = 0x1234_5678_9abc_def0;

fn listener() -> (TcpListener, World) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, World { rank: 0, size: 3, local_rank: 0, host: "127.0.0.1".into(), port })
}

fn join(world: &World, rank: usize) -> Result<Follower, Error> {
    Follower::join_with(&World { rank, ..world.clone() }, FINGERPRINT, SHORT)
}

/// Runs `run` as each of the two others, and `lead` as rank 0.
fn meet<T: Send>(lead: impl FnOnce(Leader), run: impl Fn(usize, Follower) -> T + Sync) -> Vec<T> {
    let (listener, world) = listener();
    std::thread::scope(|scope| {
        let others = [1, 2].map(|rank| {
            let (run, world) = (&run, &world);
            scope.spawn(move || run(rank, join(world, rank).unwrap()))
        });
        lead(Leader::accept(&listener, 3, FINGERPRINT, SHORT).unwrap());
        others.map(|other| other.join().unwrap()).into()
    })
}

fn lost(error: Error) -> String {
    assert!(matches!(error, Error::World { .. }), "{error}");
    error.to_string()
}

#[test]
fn everybody_gets_the_orders_in_their_order() {
    let id = std::array::from_fn(|i| i as u8);
    let lead = |leader: Leader| {
        assert_eq!(leader.size(), 3);
        leader.send_meeting(&id).unwrap();
        leader.wait_until_ready().unwrap();
        for rows in 0..50 {
            leader.order(&orders::logits(&vec![7; rows])).unwrap();
        }
        // Going away is the last order.
    };
    let seen = meet(lead, |_, leader| {
        assert_eq!(leader.meeting().unwrap(), id);
        leader.say_ready().unwrap();
        let mut seen = 0;
        loop {
            match leader.next().unwrap() {
                Order::Logits(rows) => assert_eq!(rows.len(), seen),
                Order::Stop => return seen,
                other => panic!("{other:?}"),
            }
            seen += 1;
        }
    });
    assert_eq!(seen, [50, 50]);
}

#[test]
fn who_is_gone_is_named_and_nobody_waits() {
    let aborted = Arc::new(AtomicUsize::new(0));
    let lead = |leader: Leader| {
        let count = Arc::clone(&aborted);
        leader.watch().on_loss(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let error = leader.wait_until_ready().unwrap_err();
        assert!(lost(error).contains("rank 2"));
        assert!(lost(leader.order(&orders::stop()).unwrap_err()).contains("rank 2"));
        assert_eq!(aborted.load(Ordering::SeqCst), 1);
    };
    meet(lead, |rank, leader| {
        if rank == 1 {
            leader.say_ready().unwrap();
            // Stays until rank 0 goes.
            while !matches!(leader.next(), Ok(Order::Stop) | Err(_)) {}
        }
        // Rank 2 ends here, as a process does that was killed: its connections close.
        else {
            leader.hang_up();
        }
    });
}

#[test]
fn why_a_rank_gives_up_reaches_rank_0() {
    let lead = |leader: Leader| {
        let text = lost(leader.wait_until_ready().unwrap_err());
        assert!(text.contains("rank 1") && text.contains("no room for 5"), "{text}");
    };
    meet(lead, |rank, leader| match rank {
        1 => leader.give_up(&Error::GpuMemory { wanted: 5, free: 1, total: 9 }),
        _ => while !matches!(leader.next(), Ok(Order::Stop) | Err(_)) {},
    });
}

#[test]
fn a_step_that_does_not_end_is_given_up() {
    let lead = |leader: Leader| {
        let start = Instant::now();
        let _waiting = leader.wait();
        while leader.watch().check().is_ok() {
            assert!(start.elapsed() < Duration::from_secs(30), "nobody noticed");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(lost(leader.watch().check().unwrap_err()).contains("has not ended"));
    };
    meet(lead, |_, leader| while !matches!(leader.next(), Ok(Order::Stop) | Err(_)) {});
}

#[test]
fn other_options_and_strangers_are_refused() {
    let (listener, world) = listener();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Somebody who speaks HTTP, and somebody of another version.
            let mut stranger = TcpStream::connect(("127.0.0.1", world.port)).unwrap();
            std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let mut older = TcpStream::connect(("127.0.0.1", world.port)).unwrap();
            link::write(&mut older, &[HELLO, MAGIC - 1, 1, 3, 0, 0]).unwrap();
            assert!(link::failure(&link::read(&mut older).unwrap()).unwrap().contains("same version"));
            let other = World { rank: 1, ..world.clone() };
            let Err(error) = Follower::join_with(&other, FINGERPRINT + 1, SHORT) else { panic!("it joined") };
            assert!(lost(error).contains("other options"));
        });
        let Err(error) = Leader::accept(&listener, 3, FINGERPRINT, SHORT) else { panic!("they met") };
        assert!(lost(error).contains("rank 1"));
    });
}

#[test]
fn who_does_not_come_is_named() {
    let (listener, world) = listener();
    let hasty = Patience { meeting: Duration::from_secs(1), ..SHORT };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Rank 0 hangs up on who has come.
            assert!(join(&world, 2).is_err());
        });
        let Err(error) = Leader::accept(&listener, 3, FINGERPRINT, hasty) else { panic!("they met") };
        let text = lost(error);
        assert!(text.contains("of 3 ranks, 1 did not come") || text.contains("1, 2 did not come"), "{text}");
    });
}
