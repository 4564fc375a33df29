//! Operation under construction, in the terms of the table of routes.

use super::answers::{ENDS, OF_BODIES, OF_GENERATION, Why, json};
use crate::http::App;
use schemars::JsonSchema;
use serde_json::Value;
use utoipa::openapi::example::Example;
use utoipa::openapi::path::{OperationBuilder, Parameter};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::{ContentBuilder, Required, ResponseBuilder};
use worker_orcd_api::fields::Fields;
use worker_orcd_api::request::Reader;

/// Operation, and the reasons for which it is refused beside those of every route. The route's API gives the format of
/// its refusals.
#[derive(Debug)]
pub struct Described {
    pub(super) operation: OperationBuilder,
    pub(super) whys: Vec<Why>,
}

impl Described {
    pub(super) fn new(id: &str, tag: &str, summary: &str) -> Self {
        let operation = OperationBuilder::new()
            .operation_id(Some(id))
            .tag(tag)
            .summary(Some(summary));
        Self {
            operation,
            whys: Vec::new(),
        }
    }

    fn with(self, add: impl FnOnce(OperationBuilder) -> OperationBuilder) -> Self {
        Self {
            operation: add(self.operation),
            ..self
        }
    }

    pub(super) fn about(self, words: &str) -> Self {
        self.with(|it| it.description(Some(words)))
    }

    pub(super) fn parameter(self, parameter: Parameter) -> Self {
        self.with(|it| it.parameter(parameter))
    }

    pub(super) fn responds(self, status: &str, response: ResponseBuilder) -> Self {
        self.with(|it| it.response(status, response))
    }

    /// Success with this object.
    pub(super) fn answers<T: JsonSchema>(self, words: &str) -> Self {
        self.responds("200", json::<T>(words))
    }

    pub(super) fn refused(mut self, whys: &[&[Why]]) -> Self {
        self.whys.extend(whys.concat());
        self
    }

    /// Request with a body, as its reader describes it, with working examples. It has the refusals of any such request.
    pub(super) fn takes<T>(
        self,
        app: &App,
        reader: &Reader<T>,
        examples: &[(&str, Value)],
    ) -> Self {
        let model = app.engine.model();
        let read = |fields: Fields<'_>| drop(app.read_named(fields, model.as_deref(), reader.read));
        let examples = examples.iter().map(|(name, value)| {
            let example = Example::builder().value(Some(value.clone()));
            (*name, example)
        });
        let content = ContentBuilder::new()
            .schema(Some(Fields::described(reader.names, read).into_shape()))
            .examples_from_iter(examples)
            .build();
        let body = RequestBodyBuilder::new()
            .content("application/json", content)
            .required(Some(Required::True))
            .build();
        self.with(|it| it.request_body(Some(body)))
            .refused(&[OF_BODIES])
    }

    /// Refusals of a request that the model has to be loaded for, and that may name another one.
    pub(super) fn needs_model(self) -> Self {
        self.refused(&[&[Why::NotFound, Why::Unhealthy]])
    }

    /// Refusals and failures of a request that the engine computes. It may name another model, or one that cannot
    /// compute it.
    pub(super) fn computed(self) -> Self {
        self.refused(&[OF_GENERATION, ENDS, &[Why::NotFound]])
    }
}
