//! From the residual stream to tokens: final norm, logits and the draw, only for rows at which a
//! token is drawn.
//!
//! Everything happens on the device, which also looks at every logit for NaN and infinity: what
//! comes back is one answer a row. Greedy rows have theirs with the logits; the others go through
//! [`sample`](super::sample).

use super::decode_step::DecodeStep;
use super::forward::{Model, ROW_THREADS};
use super::kernels::{ArgmaxArgs, Geometry, RowArgs};
use super::memory::download;
use super::plan::Plan;
use super::sample::{Answers, Drawing, Draws, Logits, NOT_FINITE};
use crate::device::{Checkpoint, Tap};
use worker_orcd_ipc::{Fault, TokenId};

/// Steps whose end is here: what is drawn, and with what.
#[derive(Debug)]
pub struct Head<'a> {
    pub model: &'a Model<'a>,
    pub draws: &'a mut Draws,
    pub step: u64,
    pub plan: &'a Plan<'a>,
}

impl Head<'_> {
    /// Logits, then tokens.
    pub fn run(&mut self, tap: &mut dyn Tap) -> Result<Vec<Option<TokenId>>, Fault> {
        let (model, plan) = (self.model, self.plan);
        let mut tokens = vec![None; plan.sequences.len()];
        let head_rows = model.scratch.sizes.head_rows;
        for (index, rows) in plan.drawing.chunks(head_rows).enumerate() {
            logits(model, index * head_rows, rows.len())?;
            self.draw(rows, self.ids(), tap, &mut tokens)?;
        }
        if plan.drawing.is_empty() {
            // The pinned inputs are written anew by the next step.
            model.driver.synchronize("a step")?;
        }
        Ok(tokens)
    }

    /// As [`run`](Self::run), when the logits and the greedy choice of all rows are on their way.
    pub fn draw_chosen(&mut self, tap: &mut dyn Tap) -> Result<Vec<Option<TokenId>>, Fault> {
        self.draw_all(self.ids(), tap)
    }

    /// As [`run`](Self::run), when [`DecodeStep`] computes the logits of all rows and ranks them.
    pub fn draw_ranked(
        &mut self,
        decode_step: &DecodeStep,
        tap: &mut dyn Tap,
    ) -> Result<Vec<Option<TokenId>>, Fault> {
        let answers = Answers::Ranks {
            best: decode_step.best(),
            broken: decode_step.broken(),
        };
        self.draw_all(answers, tap)
    }

    fn ids(&self) -> Answers {
        Answers::Ids(self.model.buffers.chosen)
    }

    fn draw_all(
        &mut self,
        answers: Answers,
        tap: &mut dyn Tap,
    ) -> Result<Vec<Option<TokenId>>, Fault> {
        let plan = self.plan;
        let mut tokens = vec![None; plan.sequences.len()];
        self.draw(&plan.drawing, answers, tap, &mut tokens)?;
        Ok(tokens)
    }

    /// The tokens of some drawing rows whose logits are on their way.
    fn draw(
        &mut self,
        rows: &[(usize, usize)],
        answers: Answers,
        tap: &mut dyn Tap,
        tokens: &mut [Option<TokenId>],
    ) -> Result<(), Fault> {
        let (model, plan) = (self.model, self.plan);
        // Penalties change logits where they lie.
        watch(model, plan, rows, tap)?;
        let logits = Logits {
            rows: model.buffers.logits,
            vocab: model.config.vocab_size,
            answers,
        };
        let drawings = rows.iter().enumerate().map(|(at, &(row, sequence))| {
            let work = &plan.sequences[sequence];
            Drawing {
                row: at,
                work: work.sample.as_ref().expect("a row that draws"),
                position: plan.rows[row].position.unsigned_abs() + 1,
            }
        });
        // SAFETY: a row of logits and an answer for each of `rows` were launched before.
        unsafe { self.draws.run(model.driver, logits, drawings) }?;
        let ids = self.draws.answers(model.driver, answers, rows.len())?;
        for (&(_, sequence), id) in rows.iter().zip(ids) {
            let request = plan.sequences[sequence].request;
            if id == NOT_FINITE {
                let step = self.step;
                return Err(Fault::NonFiniteLogits { step, request });
            }
            tokens[sequence] = Some(TokenId(id));
        }
        Ok(())
    }
}

/// Final norm, logits and the greedy choice of some drawing rows.
pub fn logits(model: &Model<'_>, first: usize, rows: usize) -> Result<(), Fault> {
    let (config, buffers) = (model.config, &model.buffers);
    let (n_embd, vocab) = (config.n_embd, config.vocab_size);
    let norm = RowArgs {
        gather: buffers.gather.add(first),
        weight: model.weights.vector(&model.weights.output_norm),
        plain: buffers.norm,
        ..model.row_arguments((buffers.x, n_embd), n_embd)
    };
    let argmax = ArgmaxArgs {
        logits: buffers.logits,
        chosen: buffers.chosen,
        vocab: vocab as i32,
    };
    let lines = |threads| Geometry::line(rows, threads);
    // SAFETY: `gather` names rows of the stream; `norm`, `logits` and `chosen` hold `head_rows`
    // rows, and there are no more.
    unsafe {
        model
            .ops
            .rmsnorm
            .launch(model.driver, lines(ROW_THREADS), &norm)?;
        model.project(
            rows,
            &[model.weights.output],
            n_embd,
            (buffers.logits, vocab, false),
        )?;
        model.ops.argmax.launch(model.driver, lines(1024), &argmax)
    }
}

fn row_of_logits(model: &Model<'_>, at: usize) -> Result<Vec<f32>, Fault> {
    let vocab = model.config.vocab_size;
    let mut row = vec![0.0; vocab];
    // SAFETY: row `at` of the logits.
    unsafe { download(model.driver, &mut row, model.buffers.logits.add(at * vocab)) }?;
    Ok(row)
}

fn watch(
    model: &Model<'_>,
    plan: &Plan<'_>,
    rows: &[(usize, usize)],
    tap: &mut dyn Tap,
) -> Result<(), Fault> {
    let n_embd = model.config.n_embd;
    for (at, &(row, sequence)) in rows.iter().enumerate() {
        let request = plan.sequences[sequence].request;
        let position = plan.rows[row].position.unsigned_abs();
        if tap.wants(request, &Checkpoint::FinalNorm) {
            let mut values = vec![0.0; n_embd];
            // SAFETY: row `at` of the final norm.
            unsafe {
                download(
                    model.driver,
                    &mut values,
                    model.buffers.norm.add(at * n_embd),
                )
            }?;
            tap.see(request, &Checkpoint::FinalNorm, position, &values);
        }
        if tap.wants(request, &Checkpoint::Logits) {
            let values = row_of_logits(model, at)?;
            tap.see(request, &Checkpoint::Logits, position, &values);
        }
    }
    Ok(())
}
