//! Feed-forward part of a layer with a mixture of experts.
//!
//! ```text
//! norm ─┬─ router ─ choices ─ shares ─┬─ gate, up ─ ff ─ down ─ results ─┐
//!       └─────────────────────────────┘                                  ├─ added to x
//!       └─ the expert that is shared, with or without a gate ────────────┘
//! ```
//!
//! In Gemma 4, router, experts and a dense unit beside them each have an input of their own, and the outputs norms.
//!
//! The choices of a row stay on the device. `kernels/cuda/experts.cuh` defines the order of additions, and
//! [`experts`](super::experts) the ways to multiply.

use super::board::Stage;
use super::expert_arguments::{
    CombineArgs, DownArgs, ExpertsArgs, ExpertsPackArgs, RouteArgs, RouteFewArgs,
};
use super::expert_room::{ExpertBuffers, is_bounded};
use super::expert_way::Way;
use super::experts::Experts as Kernels;
use super::experts_wide::PLACE_GROUP;
use super::headers::constant;
use super::kernels::{Part, RowArgs};
use super::matmul::Output;
use super::memory::DevicePtr;
use super::rank::Rank;
use super::weights::{Experts, FeedForwardBlock, Linear, Matrix, Vector, units};
use crate::model::DenseBeside;
use worker_orcd_ipc::Fault;

/// Factor of the outputs of a clamped unit.
const CLAMPED_UP: f32 = (1 << constant!("glu.cuh", SWIGLU_LOG_UP)) as f32;

/// A batch in one layer's experts.
#[derive(Clone, Copy)]
struct Mixture<'a> {
    rank: &'a Rank,
    kernels: &'a Kernels,
    experts: &'a Experts,
    room: ExpertBuffers,
    index: usize,
    rows: usize,
    way: Way,
}

impl Rank {
    /// Adds the outputs of a layer's experts to the residual stream.
    ///
    /// # Panics
    /// If the model was loaded without experts.
    pub fn mixture(
        &self,
        rows: usize,
        index: usize,
        (block, experts): (&FeedForwardBlock, &Experts),
        factor: f32,
    ) -> Result<(), Fault> {
        let kernels = self.experts.as_ref().expect("a model with experts");
        let room = self.scratch.buffers.experts.expect("a model with experts");
        let mixture = Mixture {
            rank: self,
            kernels,
            experts,
            room,
            index,
            rows,
            way: kernels.way(&experts.unit, rows),
        };
        if let Some(beside) = &experts.beside {
            return mixture.run_beside(block, beside, factor);
        }
        mixture.choose(mixture.norm_arguments(&block.norm))?;
        mixture.multiply()
    }
}

impl Mixture<'_> {
    /// Arguments for a norm of the stream's rows, which experts multiply.
    fn norm_arguments(&self, weight: &Vector) -> RowArgs {
        let stage = Stage::GateUp.of(self.index);
        RowArgs {
            copy: self.room.norm,
            copy_scale: self.room.norm_scale,
            ..self.rank.norm_arguments(self.rows, weight, stage)
        }
    }

    /// Adds the outputs of experts and of the dense unit beside them ([`DenseBeside`]).
    /// `factor`: of the residual stream behind the part.
    fn run_beside(
        &self,
        block: &FeedForwardBlock,
        beside: &DenseBeside<Matrix, Vector>,
        factor: f32,
    ) -> Result<(), Fault> {
        let (rank, rows, room) = (self.rank, self.rows, &self.room);
        let (n_embd, buffers) = (rank.config.n_embd, &rank.scratch.buffers);
        let stage = Stage::GateUp.of(self.index);
        let norm = |weight| rank.norm_arguments(rows, weight, stage);
        rank.make_input(&rank.ops.rmsnorm, &norm(&block.norm))?;
        let dense = Output::stored(room.shared, n_embd);
        rank.gated_unit(rows, (self.index, &beside.unit), stage, dense)?;
        rank.make_input(&rank.ops.rmsnorm, &norm(&beside.router_scale))?;
        let logits = Output::stored(room.logits, self.experts.config.logits());
        rank.project(rows, &[self.experts.router], n_embd, logits)?;
        // SAFETY: logits of every row were launched before; the room holds every row of a batch.
        unsafe { self.kernels.route(&rank.context, &self.route_arguments()) }?;
        rank.make_input(
            &rank.ops.rmsnorm,
            &self.norm_arguments(&beside.experts_norm),
        )?;
        self.multiply()?;

        // The two norms are added in `ff`, which is free here.
        let next = Stage::Qkv.of(self.index + 1);
        let to_sum = |input, weight| RowArgs {
            weight: rank.weights.vector(weight),
            plain: buffers.ff,
            ..rank.row_arguments(rows, input, n_embd, next)
        };
        let of_dense = to_sum(room.shared, &beside.post_norm);
        rank.make_input(&rank.ops.rmsnorm, &of_dense)?;
        let of_experts = to_sum(room.sums, &beside.experts_post_norm);
        rank.make_input(&rank.ops.add_norm, &of_experts)?;
        rank.add_norm(rows, block.post_norm.as_ref(), factor, next)
    }

    /// Computes the norm, the router's choices and the output of the shared expert.
    fn choose(&self, norm: RowArgs) -> Result<(), Fault> {
        let (rank, room, config) = (self.rank, &self.room, &self.experts.config);
        let n_embd = rank.config.n_embd;
        let route = self.route_arguments();
        let router = &self.experts.router;
        if self.kernels.routes_few(router, self.way, self.rows) {
            let router = rank.weights.part(router, 0);
            let arguments = RouteFewArgs {
                norm,
                router,
                route,
            };
            // SAFETY: the room holds every row of a batch.
            return unsafe { self.kernels.route_few(&rank.context, &arguments) };
        }
        rank.make_input(&rank.ops.rmsnorm, &norm)?;
        let shared = self.experts.shared.as_ref();
        let weigher = shared.and_then(|shared| shared.weigher);
        let weighers: Vec<Linear> = [*router].into_iter().chain(weigher).collect();
        let logits = Output::stored(room.logits, config.logits());
        rank.project(self.rows, &weighers, n_embd, logits)?;
        if let Some(shared) = shared {
            let stage = Stage::GateUp.of(self.index);
            let out = Output::stored(room.shared, n_embd);
            rank.gated_unit(self.rows, (self.index, &shared.unit), stage, out)?;
        }
        // SAFETY: logits of every row were launched before; the room holds every row of a batch.
        unsafe { self.kernels.route(&rank.context, &route) }
    }

    fn route_arguments(&self) -> RouteArgs {
        let (room, config) = (&self.room, &self.experts.config);
        let vector = |vector: &Option<Vector>| self.rank.weights.optional_vector(vector.as_ref());
        RouteArgs {
            logits: room.logits,
            to: room.routing,
            stride: config.logits() as i32,
            rows: self.rows as i32,
            experts: config.count as i32,
            used: config.used as i32,
            weighing: config.weighing as i32,
            share_rows: self.way.share_rows() as i32,
            place_group: self.way.place_group() as i32,
            factor: match self.experts.beside {
                // That of the router's input.
                Some(_) => 1.0 / (self.rank.config.n_embd as f32).sqrt(),
                None => 1.0,
            },
            scales: vector(&self.experts.output_scales),
            choice_bias: vector(&self.experts.choice_bias),
            scale: config.scale,
            unused: 0,
        }
    }

    fn multiply(&self) -> Result<(), Fault> {
        let (context, room) = (&self.rank.context, &self.room);
        self.bring_to_places()?;
        self.gate_up()?;
        let down = &self.experts.unit.down;
        if self.way == Way::Row {
            let arguments = DownArgs {
                down: self.arguments([down, down], 0, room.act, room.act_scale),
                inputs: room.ff,
                cols: self.experts.config.n_ff as i32,
                unused: 0,
                combine: self.combine_arguments(),
            };
            // SAFETY: gate and up were launched just before.
            return unsafe {
                self.kernels
                    .down(context, self.rows, &self.experts.unit, &arguments)
            };
        }
        let (inputs, scale) = match self.writes_inputs() {
            true => (self.bounded_inputs(), DevicePtr::NULL),
            false => {
                self.make_inputs_of_down()?;
                (room.act, room.act_scale)
            }
        };
        let arguments = ExpertsArgs {
            by_place: 1,
            ..self.arguments([down, down], 0, inputs, scale)
        };
        // SAFETY: inputs of every pair were launched before; a result takes the place of what they were made of.
        unsafe {
            self.kernels
                .multiply(context, (self.way, self.rows), down, &arguments)?;
            self.kernels
                .combine(context, self.rows, &self.combine_arguments())
        }
    }

    /// Copies normalized rows to their places, if the way multiplies by place.
    fn bring_to_places(&self) -> Result<(), Fault> {
        let (room, places) = (&self.room, self.kernels.places(self.way, self.rows));
        let (Way::Wide(_), Some(pack)) = (self.way, &self.kernels.pack) else {
            return Ok(());
        };
        let arguments = ExpertsPackArgs {
            x: room.norm,
            scale: room.norm_scale,
            rows: room.routing.rows,
            out: room.act,
            out_scale: room.act_scale,
            units: units(self.rank.config.n_embd) as i32,
            groups: places.div_ceil(PLACE_GROUP) as i32,
        };
        // SAFETY: the room has rows for every place of a batch; the routing was launched before.
        unsafe { pack.run(&self.rank.context, &arguments) }
    }

    /// Multiplies gate and up of every pair into `ff`, as a gated linear unit if the two run as one product.
    fn gate_up(&self) -> Result<(), Fault> {
        let (room, n_ff) = (&self.room, self.experts.config.n_ff);
        let [gate, up] = &self.experts.unit.gate_up;
        let paired = self.is_paired();
        let launch = |linears: [&Linear; 2], column: usize| {
            let (x, scale) = match self.way {
                Way::Wide(_) => (room.act, room.act_scale),
                Way::Row | Way::Walk | Way::Many => (room.norm, room.norm_scale),
            };
            let out = match self.writes_inputs() {
                true => self.bounded_inputs().cast(),
                false => room.ff,
            };
            let arguments = ExpertsArgs {
                out,
                paired: i32::from(paired),
                out_stride: self.ff_stride() as i32,
                ..self.arguments(linears, column, x, scale)
            };
            let of = (self.way, self.rows);
            // SAFETY: the room has rows for every pair of a batch; the routing was launched before.
            unsafe {
                self.kernels
                    .multiply(&self.rank.context, of, linears[0], &arguments)
            }
        };
        if paired {
            return launch([gate, up], 0);
        }
        if !self.experts.unit.has_gate {
            return launch([up, up], 0);
        }
        launch([gate, gate], 0)?;
        launch([up, up], n_ff)
    }

    /// Without a gate, up is a pair with itself where there is no kernel for one matrix: it is read once from memory.
    fn is_paired(&self) -> bool {
        let unit = &self.experts.unit;
        self.kernels.pairs(unit) && (unit.has_gate || self.way == Way::Row)
    }

    fn is_bounded(&self) -> bool {
        is_bounded(&self.rank.config)
    }

    /// The product of gate and up writes inputs of down.
    fn writes_inputs(&self) -> bool {
        let mut linears = self.experts.unit.linears();
        self.is_bounded() && linears.all(|it| self.way.is_bounded(it.weight.ty))
    }

    /// Address after the results of all places.
    fn bounded_inputs(&self) -> DevicePtr<u16> {
        let places = self.kernels.places(self.way, self.rows);
        self.room.ff.add(places * self.rank.config.n_embd).cast()
    }

    fn ff_stride(&self) -> usize {
        let n_ff = self.experts.config.n_ff;
        match self.is_paired() {
            true => n_ff,
            false => self.experts.unit.projections().len() * n_ff,
        }
    }

    /// Converts the outputs of gate and up to F16.
    fn make_inputs_of_down(&self) -> Result<(), Fault> {
        let (rank, room, config) = (self.rank, &self.room, &self.experts.config);
        let rows = self.kernels.places(self.way, self.rows);
        let arguments = RowArgs {
            out: room.act,
            scale: room.act_scale,
            groups: match self.way {
                Way::Wide(_) => rows.div_ceil(PLACE_GROUP) as i32,
                Way::Row | Way::Walk | Way::Many => 0,
            },
            in_stride: self.ff_stride() as i32,
            up: CLAMPED_UP,
            ..rank.row_arguments(rows, room.ff, config.n_ff, Stage::Down.of(self.index))
        };
        let has_gate = self.experts.unit.has_gate;
        let kernel = match (self.is_paired(), self.is_bounded()) {
            (true, false) => &rank.ops.scale_rows,
            (true, true) => &rank.ops.scale_bounded_rows,
            (false, false) if has_gate => &rank.ops.glu_rows,
            (false, false) => &rank.ops.glu_own_rows,
            (false, true) => &rank.ops.glu_bounded_rows,
        };
        rank.make_input(kernel, &arguments)
    }

    /// Arguments of a product of an expert's matrices, with results by place, one after the other.
    fn arguments(
        &self,
        linears: [&Linear; 2],
        column: usize,
        x: DevicePtr<u16>,
        scale: DevicePtr<f32>,
    ) -> ExpertsArgs {
        let weights = &self.rank.weights;
        let parts: [Part; 2] = linears.map(|it| self.kernels.part(weights, it, column));
        ExpertsArgs {
            parts,
            routing: self.room.routing,
            x,
            scale,
            out: self.room.ff,
            by_place: 0,
            paired: 0,
            units: units(linears[0].weight.cols) as i32,
            out_stride: parts[0].rows,
            activation: self.rank.config.activation as i32,
            unused: 0,
        }
    }

    fn combine_arguments(&self) -> CombineArgs {
        let (rank, room, config) = (self.rank, &self.room, &self.experts.config);
        CombineArgs {
            routing: room.routing,
            results: room.ff,
            shared: match self.experts.shared {
                Some(_) => room.shared,
                None => DevicePtr::NULL,
            },
            logits: room.logits,
            x: match self.experts.beside {
                Some(_) => room.sums,
                None => rank.scratch.buffers.x,
            },
            stride: config.logits() as i32,
            experts: config.count as i32,
            used: config.used as i32,
            n_embd: rank.config.n_embd as i32,
            stores: i32::from(self.experts.beside.is_some()),
            gates_shared: i32::from(config.gates_shared),
        }
    }
}
