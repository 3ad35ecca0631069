//! The index against the shards.

use serde_json::{Value, json};

use crate::patient::{INDEX, Patient, Random, SHARDS, Shard};

fn some_tensors(count: usize) -> Vec<String> {
    let mut random = Random::new();
    let names: Vec<String> =
        Shard::parse(&Patient::canary().read(SHARDS[1])).header.keys().cloned().collect();
    let names: Vec<String> = names.into_iter().filter(|name| name != "__metadata__").collect();
    (0..count).map(|_| random.pick(&names).clone()).collect()
}

#[test]
fn a_listed_tensor_that_no_shard_holds_makes_the_index_stale() {
    for name in [
        "model.layers.3.mlp.experts.31.gate_proj.weight_scale_inv",
        "model.layers.9.input_layernorm.weight",
        "x",
    ] {
        let patient = Patient::canary();
        patient.edit_json(INDEX, |json| json["weight_map"][name] = json!(SHARDS[1]));
        let audit = patient.audit();
        audit.convicts("checkpoint.index/stale", "checkpoint-corrupt");
        assert_eq!(audit.grave().len(), 1, "{}", audit.titles());
    }
}

#[test]
fn tensors_that_the_index_leaves_out_are_no_fault() {
    // As NVIDIA's script for DeepSeek leaves it: without the new scales.
    for ending in ["weight_scale", "weight_scale_2", "input_scale"] {
        let patient = Patient::canary();
        patient.edit_json(INDEX, |json| {
            json["weight_map"].as_object_mut().unwrap().retain(|name, _| !name.ends_with(ending));
        });
        let audit = patient.audit();
        audit.is_clean();
        audit.find("checkpoint.index/unlisted-tensor");
    }
}

#[test]
fn a_tensor_in_another_shard_has_moved() {
    for name in some_tensors(3) {
        let patient = Patient::canary();
        patient.edit_json(INDEX, |json| json["weight_map"][&name] = json!(SHARDS[0]));
        patient.audit().convicts("checkpoint.index/moved", "checkpoint-corrupt");
    }
}

#[test]
fn a_shard_that_the_index_does_not_name_is_not_read_by_vllm() {
    for keep in 0..3 {
        let patient = Patient::canary();
        // All of the second shard's tensors are said to be in the first, or not listed, or only some.
        patient.edit_json(INDEX, |json| {
            let map = json["weight_map"].as_object_mut().unwrap();
            let mut kept = 0;
            map.retain(|_, shard| {
                if shard == SHARDS[1] {
                    *shard = json!(SHARDS[0]);
                    kept += 1;
                    return keep == 0 || (keep == 1 && kept < 5);
                }
                true
            });
        });
        let audit = patient.audit();
        audit.convicts("checkpoint.index/unlisted-shard", "checkpoint-corrupt");
    }
}

#[test]
fn a_tensor_in_two_listed_shards_is_there_twice() {
    for name in some_tensors(3) {
        let patient = Patient::canary();
        let mut other = Shard::parse(&patient.read(SHARDS[1]));
        let (entry, bytes) = (other.header[&name].clone(), other.tensor(&name).to_vec());
        patient.edit_shard(SHARDS[0], |shard| {
            let begin = shard.data.len();
            shard.data.extend_from_slice(&bytes);
            let mut entry = entry.clone();
            entry["data_offsets"] = json!([begin, begin + bytes.len()]);
            shard.header.insert(name.clone(), entry);
        });
        let audit = patient.audit();
        audit.convicts("checkpoint.index/duplicate-tensor", "checkpoint-corrupt");
    }
}

#[test]
fn a_copy_in_one_unlisted_file_is_no_fault() {
    for name in ["consolidated.safetensors", "original.safetensors", "model.safetensors"] {
        let patient = Patient::canary();
        let shard = patient.read(SHARDS[0]);
        patient.write(name, shard);
        let audit = patient.audit();
        audit.is_clean();
        audit.find("checkpoint.index/unlisted-copy");
    }
}

#[test]
fn an_index_that_can_t_be_read_stops_engines() {
    for text in [
        "",
        "{\"weight_map\": {",
        "[]",
        "{\"metadata\": {}}",
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
    ] {
        let patient = Patient::canary();
        patient.write(INDEX, text);
        patient.audit().convicts("checkpoint.index/malformed", "checkpoint-corrupt");
    }
}

#[test]
fn a_second_index_is_a_warning_only_if_it_speaks_of_what_is_not_there() {
    for (name, stale) in [
        ("old.safetensors.index.json", true),
        ("consolidated.safetensors.index.json", false),
        ("model.fp8.safetensors.index.json", true),
    ] {
        let patient = Patient::canary();
        let mut index: Value = serde_json::from_slice(&patient.read(INDEX)).unwrap();
        if stale {
            index["weight_map"]["model.layers.0.mlp.up_proj.weight_scale_inv"] = json!(SHARDS[0]);
        }
        patient.write(name, index.to_string());
        let audit = patient.audit();
        audit.find("checkpoint.index/second");
        assert_eq!(audit.grave().len(), usize::from(stale), "{}", audit.titles());
    }
}

#[test]
fn no_index_and_a_wrong_total_are_facts() {
    let patient = Patient::canary();
    patient.remove(INDEX);
    let audit = patient.audit();
    audit.is_clean();
    audit.find("checkpoint.index/none");
    let patient = Patient::canary();
    patient.edit_json(INDEX, |json| json["metadata"]["total_size"] = json!(1));
    let audit = patient.audit();
    audit.is_clean();
    audit.find("checkpoint.index/total-size");
}
