//! `/v1/models`: the loaded model and its accepted names.

use crate::http::App;
use crate::http::error::{Answered, ApiError};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Arc;
use worker_orcd_api::answer::absent_not_null;
use worker_orcd_api::embeddings::written::ListObject;
use worker_orcd_api::fields::Fields;
use worker_orcd_api::mistakes::Constraint;
use worker_orcd_api::schema;
use worker_orcd_api::string_enums;
use worker_orcd_engine::LoadedModel;

/// Tag of a name without one, in Ollama's API.
pub(in crate::http) const LATEST: &str = ":latest";

string_enums! {
    ModelObject: Model = "model";
}

#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::http) struct Models {
    object: ListObject,
    data: Vec<Model>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = absent_not_null)]
pub(in crate::http) struct Model {
    id: String,
    object: ModelObject,
    created: u64,
    owned_by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<u32>,
}

pub(in crate::http) async fn list(State(app): State<Arc<App>>) -> Json<Models> {
    let names = std::iter::once(&app.model_id).chain(&app.model_aliases);
    Json(Models {
        object: ListObject::List,
        data: names.map(|name| describe(&app, name)).collect(),
    })
}

pub(in crate::http) async fn one(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Answered<Json<Model>> {
    let Path(name) = name.map_err(|_| ApiError::bad_request("the path is not UTF-8"))?;
    match app.is_model_name(&name, app.engine.model().as_deref()) {
        true => Ok(Json(describe(&app, &name))),
        false => Err(no_such_model(&app).into()),
    }
}

fn describe(app: &App, name: &str) -> Model {
    Model {
        id: name.to_owned(),
        object: ModelObject::Model,
        created: app.created,
        owned_by: "worker-orcd",
        max_model_len: app.engine.model().map(|it| it.max_sequence_tokens),
    }
}

fn no_such_model(app: &App) -> ApiError {
    ApiError::no_such_model(format!(
        "there is no such model here; this worker serves {}",
        app.model_id
    ))
}

impl App {
    /// Accepted names: the model's id, its aliases, the value of `--model`, and the name in the model file. Each may have
    /// Ollama's default tag.
    fn model_names<'a>(&'a self, loaded: Option<&'a LoadedModel>) -> impl Iterator<Item = &'a str> {
        let given = std::iter::once(&self.model_id).chain(&self.model_aliases);
        let given = given.chain([&self.model_ref]);
        let in_file = loaded.map(|loaded| &loaded.facts.name);
        given.chain(in_file).map(String::as_str)
    }

    fn is_model_name(&self, name: &str, loaded: Option<&LoadedModel>) -> bool {
        let untagged = name.strip_suffix(LATEST).unwrap_or(name);
        self.model_names(loaded)
            .any(|known| known == name || known == untagged)
    }

    /// Checks `model`. It is optional, because there is one model, and any name is accepted: the answer contains the
    /// model's own. With `--strict-model-name`, only accepted names are.
    pub(in crate::http) fn check_model_name(
        &self,
        fields: &mut Fields<'_>,
        loaded: Option<&LoadedModel>,
    ) -> Result<(), ApiError> {
        fields.describe("model", || match self.strict_model_name {
            true => {
                let both = |name: &str| [name.to_owned(), format!("{name}{LATEST}")];
                schema::values(self.model_names(loaded).flat_map(both))
            }
            false => schema::text(),
        });
        let Some(given) = fields.take("model") else {
            return Ok(());
        };
        match given.text() {
            Some(name) if self.strict_model_name && !self.is_model_name(&name, loaded) => {
                Err(no_such_model(self))
            }
            Some(_) => Ok(()),
            None => {
                fields.error("model", Constraint::Type, "must be a string");
                Ok(())
            }
        }
    }
}
