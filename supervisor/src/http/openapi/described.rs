//! Operation under construction, in the terms of the table of routes.

use super::answers::{ENDS, OF_BODIES, OF_GENERATION, Why, json};
use schemars::JsonSchema;
use utoipa::openapi::ResponseBuilder;
use utoipa::openapi::path::{OperationBuilder, Parameter};
use utoipa::openapi::request_body::RequestBody;

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

    /// Refusals of any request with a body.
    pub(super) fn takes(self, body: RequestBody) -> Self {
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
