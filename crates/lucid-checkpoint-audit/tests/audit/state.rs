//! A pass that goes on where it was.

use std::cell::Cell;
use std::path::Path;

use lucid_checkpoint_audit::{Options, gather};

use crate::patient::{Audit, Patient, SHARDS};

#[test]
fn a_second_run_gives_the_same_and_reads_only_what_changed() {
    let place = tempfile::tempdir().unwrap();
    let state = place.path().join("state");
    let options =
        Options { statistics: true, all_digests: true, state: Some(state.clone()), ..Options::default() };
    let patient = Patient::canary();
    let first = patient.gather(&options);
    let kept = std::fs::read(&state).unwrap();
    let second = patient.gather(&options);
    // Nothing new was kept, so nothing was read.
    assert_eq!(std::fs::read(&state).unwrap(), kept);
    let statistics = |evidence: &lucid_checkpoint_audit::CheckpointEvidence| {
        let mut statistics = evidence.statistics.clone().unwrap();
        statistics.seconds = 0.0;
        // JSON keeps all but the last bit.
        let layers =
            statistics.layers.kept.iter_mut().flat_map(|l| [&mut l.rms, &mut l.least, &mut l.greatest]);
        let scalars =
            statistics.scalars.iter_mut().flat_map(|s| [&mut s.least, &mut s.median, &mut s.greatest]);
        layers.chain(scalars).for_each(|value| *value = f64::from(*value as f32));
        statistics
    };
    assert_eq!(statistics(&first), statistics(&second));
    assert_eq!(first.digests.as_ref().unwrap().files, second.digests.unwrap().files);

    // A line that an interruption cut off is no line; damage after the first run is seen.
    std::fs::write(&state, &kept[..kept.len() / 2]).unwrap();
    patient.edit_tensor("lm_head.weight", |bytes| bytes[1000..9000].fill(0));
    let third = patient.gather(&options);
    assert_ne!(statistics(&first), statistics(&third));
    Audit::of(&third, &Default::default()).convicts("checkpoint.scales/zero-run", "checkpoint-corrupt");
}

#[test]
fn progress_ends_at_its_end() {
    let patient = Patient::canary();
    let last = Cell::new((0, 0));
    let mut steps = 0;
    let options = Options { statistics: true, ..Options::default() };
    gather(Path::new("/"), patient.folder.path(), &options, &mut |step| {
        assert!(step.done <= step.of, "{step:?}");
        last.set((step.done, step.of));
        steps += 1;
    })
    .unwrap();
    let bytes: u64 = SHARDS.iter().map(|name| patient.read(name).len() as u64).sum();
    assert_eq!(last.get(), (bytes, bytes));
    assert!(steps >= 2);
}
