//! Received requests: reads the body for the served model.

use super::App;
use super::body::Room;
use super::error::ApiError;
use axum::body::Body;
use axum::http::Request;
use std::sync::Arc;
use worker_orcd_api::fields::Fields;
use worker_orcd_api::request::{Read, Reader};
use worker_orcd_api::sampling::ModelTerms;
use worker_orcd_engine::LoadedModel;

impl App {
    /// The model, the request, and the room of its body.
    ///
    /// # Errors
    /// All mistakes in the request; 503 without a loaded model.
    pub(super) async fn receive<T: Send + 'static>(
        self: &Arc<Self>,
        request: Request<Body>,
        reader: Reader<T>,
    ) -> Result<(Arc<LoadedModel>, T, Room), ApiError> {
        let loaded = self.model();
        let app = Arc::clone(self);
        let known = loaded.as_ref().ok().map(Arc::clone);
        let Reader { names, read } = reader;
        let read = move |fields: Fields<'_>| app.read_named(fields, known.as_deref(), read);
        let (asked, room) = self.bodies.read(request, names, read).await?;
        Ok((loaded?, asked, room))
    }

    /// # Errors
    /// All mistakes in the request.
    pub fn read_named<T>(
        &self,
        mut fields: Fields<'_>,
        loaded: Option<&LoadedModel>,
        read: Read<T>,
    ) -> Result<T, ApiError> {
        // `/execute` does not take the field.
        if fields.knows("model") {
            self.check_model_name(&mut fields, loaded)?;
        }
        read(fields, &self.limits, &terms_of(loaded))
    }
}

#[must_use]
pub fn terms_of(model: Option<&LoadedModel>) -> ModelTerms {
    model.map_or(ModelTerms::UNKNOWN, |model| ModelTerms {
        vocabulary: model.facts.vocab_size,
        context: model.max_sequence_tokens,
        n_embd: model.facts.n_embd,
        defaults: model.sampling.values,
        chat: model.chat_terms.clone(),
    })
}
