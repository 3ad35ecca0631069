//! `GET /v1/models`, `/version`, and `/server_info`: what runs here, and with which arithmetic.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::App;
use crate::guise::Guise;
use crate::protocol::models::ModelList;

pub(crate) async fn models(State(app): State<App>) -> Response {
    let app = app.inner;
    let owner = app.guise.map_or("lucid", Guise::owned_by);
    Json(ModelList::new(&app.facts.name, owner, &app.root, app.created, app.facts.max_model_len))
        .into_response()
}

pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// Lucid's own: the declared semantics, without which no comparison with this server means anything.
pub(crate) async fn server_info(State(app): State<App>) -> Json<Value> {
    let app = app.inner;
    Json(json!({
        "server": "lucid",
        "version": env!("CARGO_PKG_VERSION"),
        "model": app.facts.name,
        "root": app.root,
        "tokenizer": app.tokenizer.source(),
        "chat_template": app.template.as_ref().map(|template| template.source()),
        "semantics": app.engine.semantics(),
        "max_model_len": app.facts.max_model_len,
        "generation_defaults": app.facts.defaults,
        "planted_fault": app.plant.map(|plant| plant.name()),
    }))
}
