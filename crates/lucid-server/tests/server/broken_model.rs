//! A model whose logits are not numbers: its requests end with errors, and the server says that it is not healthy.

use std::fs;
use std::path::Path;

use lucid_engine::EngineOptions;
use lucid_server::{Limits, spawn};
use serde_json::{Value, json};

use crate::fixture::{self, CHAT, ask};

/// Copies the canary and overwrites its last norm with NaN.
fn copy_with_nan(to: &Path) {
    let mut broken = 0;
    for entry in fs::read_dir(fixture::canary()).unwrap() {
        let from = entry.unwrap().path();
        let mut bytes = fs::read(&from).unwrap();
        if from.extension().is_some_and(|extension| extension == "safetensors") {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
            if let Some(offsets) = header["model.norm.weight"]["data_offsets"].as_array() {
                let at = |i: usize| 8 + length + offsets[i].as_u64().unwrap() as usize;
                // 0xFFFF is NaN in every floating-point format of 16 and 32 bits.
                bytes[at(0)..at(1)].fill(0xFF);
                broken += 1;
            }
        }
        fs::write(to.join(from.file_name().unwrap()), bytes).unwrap();
    }
    assert_eq!(broken, 1);
}

#[test]
fn logits_that_are_no_numbers_end_the_request_and_the_health() {
    let folder = tempfile::tempdir().unwrap();
    copy_with_nan(folder.path());
    let (app, _engine) = fixture::app_of(folder.path(), None, Limits::default(), &EngineOptions::default());
    let server = spawn("127.0.0.1:0", app).unwrap();
    assert_eq!(fixture::get(&server, "/health").0, 200);

    let (status, error) = fixture::post_error(&server, CHAT, &ask("Hi"));
    assert_eq!((status, &error["type"]), (500, &json!("InternalServerError")));
    assert!(error["message"].as_str().unwrap().contains("finite"), "{error}");

    let events = fixture::stream(&server, CHAT, &ask("Hi"));
    assert_eq!(events.last().unwrap()["error"]["code"], 500);

    let (status, text) = fixture::get(&server, "/health");
    assert_eq!(status, 503);
    assert!(text.contains("finite"), "{text}");
}
