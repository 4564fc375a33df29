//! Sampling defaults for parameters that a request omits: the model file's values, else this worker's own.

use worker_orcd_ipc::{Sampling, SamplingAdvice};

#[derive(Debug, Clone, PartialEq)]
pub struct SamplingDefaults {
    /// Default parameters. The seed is meaningless: a request without one gets its own.
    pub values: Sampling,
    /// Parameters set by the model file, by their names in requests.
    pub from_file: Vec<&'static str>,
}

impl SamplingDefaults {
    /// Defaults from a model file. Ignored values are logged once, by name.
    #[must_use]
    pub fn of_file(advice: &SamplingAdvice) -> Self {
        let defaults = Self::over_own(advice);
        let values = defaults.values;
        if !defaults.from_file.is_empty() {
            tracing::info!(
                from_file = defaults.from_file.join(", "),
                temperature = decimal(values.temperature),
                top_k = values.top_k,
                top_p = decimal(values.top_p),
                min_p = decimal(values.min_p),
                repetition_penalty = decimal(values.repetition_penalty),
                "model_sampling"
            );
        }
        if !advice.out_of_range.is_empty() {
            tracing::warn!(
                keys = advice.out_of_range.join(", "),
                "model_sampling_out_of_range"
            );
        }
        if !advice.unsupported.is_empty() {
            tracing::warn!(
                keys = advice.unsupported.join(", "),
                "model_sampling_unsupported"
            );
        }
        defaults
    }

    fn over_own(advice: &SamplingAdvice) -> Self {
        let mut defaults = Self::default();
        let Self { values, from_file } = &mut defaults;
        let SamplingAdvice {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            out_of_range: _,
            unsupported: _,
        } = *advice;
        from_file.extend(follow("temperature", &mut values.temperature, temperature));
        from_file.extend(follow("top_k", &mut values.top_k, top_k));
        from_file.extend(follow("top_p", &mut values.top_p, top_p));
        from_file.extend(follow("min_p", &mut values.min_p, min_p));
        let place = &mut values.repetition_penalty;
        from_file.extend(follow("repetition_penalty", place, repetition_penalty));
        defaults
    }
}

/// Stores an advised value. Returns the name if there was one.
fn follow<T>(name: &'static str, place: &mut T, advised: Option<T>) -> Option<&'static str> {
    *place = advised?;
    Some(name)
}

/// The shortest decimal of the number: 0.6, not 0.6000000238418579.
#[must_use]
pub fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| value.into())
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self {
            values: Sampling::DEFAULT,
            from_file: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_file_does_not_name_keeps_its_default() {
        let none = SamplingDefaults::of_file(&SamplingAdvice::default());
        assert_eq!(none, SamplingDefaults::default());
        assert_eq!(none.values.temperature, 1.0);

        let some = SamplingDefaults::of_file(&SamplingAdvice {
            temperature: Some(0.5),
            top_k: Some(20),
            ..SamplingAdvice::default()
        });
        let expected = Sampling {
            temperature: 0.5,
            top_k: 20,
            ..Sampling::DEFAULT
        };
        assert_eq!(some.values, expected);
        assert_eq!(some.from_file, ["temperature", "top_k"]);
    }

    #[test]
    fn every_advice_has_its_place() {
        let all = SamplingDefaults::of_file(&SamplingAdvice {
            temperature: Some(0.5),
            top_k: Some(20),
            top_p: Some(0.75),
            min_p: Some(0.25),
            repetition_penalty: Some(1.25),
            ..SamplingAdvice::default()
        });
        let expected = Sampling {
            temperature: 0.5,
            top_k: 20,
            top_p: 0.75,
            min_p: 0.25,
            repetition_penalty: 1.25,
            ..Sampling::DEFAULT
        };
        assert_eq!(all.values, expected);
        assert_eq!(all.from_file.len(), 5);
    }
}
