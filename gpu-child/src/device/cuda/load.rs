//! Loading of a model on an open device, in steps: the memory budget, the weights (packed by the device,
//! or taken over in place), and the KV cache.

use super::checksum::Checksum;
use super::context::Context;
use super::decode_step::DecodeStep;
use super::driver_thread::DriverThread;
use super::graph::Graphs;
use super::kernels::Module;
use super::kv::{KvCache, KvRoom, page_groups};
use super::kv_transfer::KvSharing;
use super::memory::{ALIGNMENT, Arena, Purpose, upload};
use super::mixers::{self, Tables};
use super::pack::{pack, staging_bytes};
use super::rank::Rank;
use super::residency::Residency;
use super::sample::Draws;
use super::scratch::{Largest, Scratch};
use super::shown_rows::ShownRows;
use super::step_queue::StepQueue;
use super::warm_up::warm_up;
use super::weights::{Matrix, Vector, Weights};
use super::{CudaExecutor, CudaOptions};
use crate::device::common::budget::Budget;
use crate::device::common::kv::KvLayout;
use crate::device::common::manifest::{WeightsLayout, verify};
use crate::device::common::placement::{check_size, values};
use crate::device::{RetainedWeights, Source};
use crate::model::{GgufFile, Mapping, ModelConfig, TensorView};
use worker_orcd_ipc::{Fault, KvReaders, Role, WeightsManifest};

/// Reserve in any case: for graphs, and for the driver's own memory besides our
/// allocations.
const RESERVE_BYTES: u64 = 256 << 20;

/// A card ready for a model: a context, and the loaded kernels.
#[derive(Debug)]
pub struct Device {
    pub(super) context: Context,
    pub(super) module: Module,
}

impl Device {
    /// # Errors
    /// [`Fault::DeviceUnavailable`] if there is no such device or this build has no kernels for it.
    pub fn open(ordinal: u32) -> Result<Self, Fault> {
        let context = Context::open(ordinal)?;
        let module = Module::load(&context)?;
        Ok(Self { context, module })
    }

    /// Free and total bytes of the card.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn memory(&self) -> Result<(u64, u64), Fault> {
        self.context.memory()
    }
}

pub fn load(
    device: Device,
    source: Source<'_>,
    options: &CudaOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CudaExecutor, Fault> {
    // Another thread may have opened it.
    device.context.enter()?;
    let config = source.config;
    refuse_unsupported(config, device.context.shared_bytes())?;
    let sequence_tokens = options.load.max_sequence_tokens.max(1) as usize;
    let layout = KvLayout::of(config, &options.load);
    layout.check_states()?;
    let largest = Largest {
        tokens: options.load.batch_tokens(),
        sequences: options.max_sequences.max(1) as usize,
        sequence_tokens,
        groups: page_groups(&layout),
    };
    let mut placement = Placement::default();
    let tensors = source.weights.try_map(&mut placement)?;
    let tables = Tables::place(config, sequence_tokens, &mut placement.layout);
    let needs = Needs {
        once: placement.layout.bytes() + staging_bytes(&placement.matrices) as u64,
        each: Scratch::bytes_for(config, largest) + DecodeStep::words_bytes(config) as u64,
        page: layout.shape.page_bytes(),
        sequence: layout.sequence_pages(&options.load),
        in_place: source
            .retained
            .as_ref()
            .map_or(0, |kept| kept.manifest.bytes),
    };
    let room = kv_room(&device.context, options, needs)?;

    let (arena, manifest) = match source.retained {
        Some(kept) => placement.attach(&device, kept)?,
        None => placement.fill(&device, source.file, &tables, progress)?,
    };
    let weights = Weights {
        tables: tables.on_device(&arena),
        arena,
        tensors,
        manifest,
    };
    let role = options.load.role;
    let kv = KvCache::new(&device.context, layout, room, role)?;
    let scratch = Scratch::new(&device.context, config, largest, kv.taken())?;
    let Device { context, module } = device;
    let rank = Rank::new(context, &module, config, weights, (kv, scratch))?;
    let mut executor = assemble(rank, &module)?;
    if role == Role::Standby && executor.rank.kv.is_shared() {
        warm_up(&mut executor, sequence_tokens)?;
    }
    Ok(executor)
}

/// Prepares steps of a loaded model.
fn assemble(rank: Rank, module: &Module) -> Result<CudaExecutor, Fault> {
    let (context, weights, config) = (&rank.context, &rank.weights, &rank.config);
    let vocab = config.vocab_size;
    let Largest {
        tokens,
        sequence_tokens,
        ..
    } = rank.scratch.largest;
    let draws = Draws::load(context, module, tokens, vocab, sequence_tokens)?;
    let decode_step = DecodeStep::load(context, module, config, weights, &rank.powers)?;
    let residency = Residency::new(context, Checksum::load(module)?, &weights.arena)?;
    let kv_sharing = match rank.kv.is_shared() {
        true => Some(KvSharing::load(context, module)?),
        false => None,
    };
    context.synchronize("loading the model")?;
    Ok(CudaExecutor {
        kv_sharing,
        decode_step,
        graphs: Graphs::default(),
        #[cfg(feature = "fault-injection")]
        fault_kernels: None,
        residency,
        draws,
        shown: ShownRows::new(vocab),
        steps: StepQueue::new()?,
        open: None,
        driver_thread: DriverThread::start(context)?,
        rank,
    })
}

/// `shared_bytes` is the maximum shared memory per block.
fn refuse_unsupported(config: &ModelConfig, shared_bytes: u32) -> Result<(), Fault> {
    let refuse = |message: String| Err(Fault::ModelLoad { message });
    mixers::check(config, shared_bytes).or_else(refuse)?;
    let mut widths = vec![("embedding", config.n_embd)];
    widths.extend(config.dense_width().map(|width| ("feed-forward", width)));
    if let Some(experts) = &config.experts {
        widths.push(("expert", experts.n_ff));
        widths.extend(experts.shared_n_ff.map(|width| ("shared expert", width)));
    }
    let of_layers = config.ff_widths.iter().flatten();
    widths.extend(of_layers.map(|width| ("feed-forward", *width)));
    for (what, width) in widths {
        if !width.is_multiple_of(8) {
            return refuse(format!(
                "a width of {what} of {width} is not supported on CUDA: it must be a multiple of 8"
            ));
        }
    }
    Ok(())
}

/// Bytes for the computation of a model's memory budget.
#[derive(Debug, Clone, Copy)]
struct Needs {
    /// Memory of all children together; `in_place` of it is already allocated.
    once: u64,
    /// Memory of each child besides its KV cache.
    each: u64,
    page: u64,
    /// Pages of the longest sequence.
    sequence: u64,
    in_place: u64,
}

/// Size of the KV cache: the configured size, or its share of the device. A child that shares it with the next one gets
/// half of it. It shares if two caches fit, of the configured size, or of at least one sequence of full length.
fn kv_room(context: &Context, options: &CudaOptions, needs: Needs) -> Result<KvRoom, Fault> {
    room_in(context.memory()?, &context.id(), options, needs)
}

/// Size of the KV cache on a device with so many free and total bytes.
fn room_in(
    (free, total): (u64, u64),
    device: &str,
    options: &CudaOptions,
    needs: Needs,
) -> Result<KvRoom, Fault> {
    let load = &options.load;
    let useful = needs.sequence * u64::from(options.max_sequences);
    let share = |budget: &Budget| budget.by_share(options.memory_permille, useful);
    let budget = |kv_caches, beside: u64| Budget {
        total,
        free: match load.role {
            Role::Active => free + needs.in_place + load.lent + load.beside.taken,
            // The promised memory still belongs to the other child.
            Role::Standby => total,
        },
        reserve: RESERVE_BYTES,
        fixed: needs.once + kv_caches * (needs.each + beside),
        page_bytes: needs.page,
        kv_caches,
    };
    let pages = |kv_caches, beside| budget(kv_caches, beside).pages(load, device, share);
    let is_enough =
        |pages: &u32| load.kv_cache_bytes.is_some() || u64::from(*pages) >= needs.sequence;
    let two = |beside| pages(2, beside).ok().filter(is_enough);
    let beside = load.beside.taken + load.beside.promised;
    let halved = match load.kv_readers {
        KvReaders::Successors => two(beside),
        KvReaders::Siblings | KvReaders::None => None,
    };
    if load.kv_readers == KvReaders::Successors && halved.is_none() {
        if load.beside.gives_way && two(0).is_some() {
            let Budget { fixed, free, .. } = budget(2, beside);
            return Err(Fault::InsufficientMemory {
                required_bytes: fixed
                    + 2 * load.kv_cache_bytes.unwrap_or(needs.page * needs.sequence),
                available_bytes: free,
                device: format!("{device}, in two KV caches,"),
                model: load.model.clone(),
            });
        }
        eprintln!("worker-orcd-gpu: no room for two KV caches; a standby will adopt no pages");
    }
    Ok(KvRoom {
        shares: halved.is_some() || load.kv_readers == KvReaders::Siblings,
        pages: halved.map_or_else(|| pages(1, beside), Ok)?,
    })
}

/// The weights before the allocation of their arena: source and destination of each.
#[derive(Default)]
struct Placement<'a> {
    layout: WeightsLayout<ALIGNMENT>,
    matrices: Vec<(TensorView<'a>, Matrix)>,
    vectors: Vec<(TensorView<'a>, Vector)>,
}

impl<'a> Mapping<TensorView<'a>, TensorView<'a>> for Placement<'a> {
    type Matrix = Matrix;
    type Vector = Vector;
    type Error = Fault;

    fn matrix(&mut self, tensor: &TensorView<'a>) -> Result<Matrix, Fault> {
        check_size(tensor)?;
        let mut matrix = Matrix {
            ty: tensor.ty,
            rows: tensor.rows,
            cols: tensor.cols,
            offset: 0,
        };
        matrix.offset = self.layout.place(tensor, matrix.bytes());
        self.matrices.push((*tensor, matrix));
        Ok(matrix)
    }

    fn vector(&mut self, tensor: &TensorView<'a>) -> Result<Vector, Fault> {
        check_size(tensor)?;
        let len = tensor.rows * tensor.cols;
        let offset = self.layout.place(tensor, 4 * len as u64);
        let vector = Vector { len, offset };
        self.vectors.push((*tensor, vector));
        Ok(vector)
    }
}

impl Placement<'_> {
    /// Allocates the arena, loads the weights, and makes it read-only.
    fn fill(
        self,
        device: &Device,
        file: Option<&GgufFile>,
        tables: &Tables,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Arena, WeightsManifest), Fault> {
        let context = &device.context;
        let arena = Arena::shareable(context, Purpose::Weights, self.layout.bytes())?;
        // Checksums include the gaps between weights, which must be equal in the next child.
        arena.clear(context)?;
        for (tensor, vector) in &self.vectors {
            let values = values(tensor)?;
            // SAFETY: the vector's own place; pageable memory has been read when this returns.
            unsafe { upload(context, arena.at(vector.offset, vector.len), &values) }?;
        }
        tables.upload(context, &arena)?;
        let total: u64 = self.matrices.iter().map(|(t, _)| t.bytes() as u64).sum();
        let mut done = 0;
        pack(device, &arena, &self.matrices, file, &mut |bytes| {
            done += bytes;
            progress(done, total);
        })?;
        let checksum = Checksum::load(&device.module)?;
        let checksums = checksum.of_tensors(context, &arena, self.layout.tensors())?;
        #[cfg(feature = "fault-injection")]
        if crate::device::injected_fault::flip_ordered() {
            flip_a_bit(context, &arena, &self.layout.tensors()[0])?;
        }
        arena.seal(context)?;
        Ok((arena, self.layout.sign(&checksums)))
    }

    /// Maps the retained arena, and verifies it against its manifest.
    fn attach(
        self,
        Device { context, module }: &Device,
        RetainedWeights { memory, manifest }: RetainedWeights,
    ) -> Result<(Arena, WeightsManifest), Fault> {
        self.layout.compare(&manifest)?;
        let arena = Arena::import(context, Purpose::Weights, manifest.bytes, &memory)?;
        let found = Checksum::load(module)?.of_tensors(context, &arena, &manifest.tensors)?;
        verify(&manifest, &found)?;
        Ok((arena, manifest))
    }
}

/// Flips a bit in the last byte of the last row, which has little influence.
#[cfg(feature = "fault-injection")]
fn flip_a_bit(
    context: &Context,
    arena: &Arena,
    tensor: &worker_orcd_ipc::PlacedTensor,
) -> Result<(), Fault> {
    use super::memory::download;

    let place = arena.at(tensor.offset + tensor.bytes - 1, 1);
    let mut byte = [0_u8];
    // SAFETY: one byte inside the arena.
    unsafe {
        download(context, &mut byte, place)?;
        upload(context, place, &[byte[0] ^ 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Beside, LoadOptions};
    use crate::model::catalogue::SERVED;
    use crate::model::tiny_model::{
        tiny_gemma4_e2b, tiny_gemma4_with_experts, tiny_mixtral, tiny_model,
    };
    use crate::model::{Architecture, GgufBuilder, gguf};

    /// Shared memory per block of an H200.
    const SHARED_BYTES: u32 = 227 << 10;

    fn refusal(file: &GgufBuilder) -> Option<String> {
        let bytes = file.build();
        let header = gguf::parse(&bytes).expect("a model");
        let config = ModelConfig::from_gguf(&header, None).expect("a configuration");
        let refused = refuse_unsupported(&config, SHARED_BYTES).err();
        refused.map(|fault| fault.to_string())
    }

    #[test]
    fn heads_and_widths_of_gemma_4_are_checked_for_both_kinds() {
        let bytes = tiny_gemma4_with_experts().build();
        let header = gguf::parse(&bytes).expect("a model");
        let config = ModelConfig::from_gguf(&header, None).expect("a configuration");
        assert_eq!(refuse_unsupported(&config, SHARED_BYTES), Ok(()));
        let refused = |change: &dyn Fn(&mut ModelConfig)| {
            let mut config = config.clone();
            change(&mut config);
            let refused = refuse_unsupported(&config, SHARED_BYTES).expect_err("refused");
            refused.to_string()
        };
        let sliding = refused(&|config| config.sliding_heads.as_mut().expect("heads").dim = 48);
        assert!(sliding.contains("heads of 48 values"), "{sliding}");
        let dense = refused(&|config| config.n_ff = 36);
        assert!(dense.contains("a width of feed-forward of 36"), "{dense}");
        let one = refused(&|config| config.ff_widths = Some(vec![96, 96, 44, 96, 96, 96]));
        assert!(one.contains("a width of feed-forward of 44"), "{one}");
    }

    #[test]
    fn experts_whose_rows_would_share_a_tile_are_refused_by_name() {
        let files = [
            Architecture::Qwen2Moe,
            Architecture::Qwen3Moe,
            Architecture::GptOss,
        ];
        let files = files.map(tiny_model);
        for file in files.into_iter().chain([tiny_mixtral()]) {
            assert_eq!(refusal(&file), None);
        }
        for (architecture, key, what) in [
            (
                Architecture::Qwen2Moe,
                "expert_feed_forward_length",
                "expert",
            ),
            (
                Architecture::Qwen2Moe,
                "expert_shared_feed_forward_length",
                "shared expert",
            ),
            (
                Architecture::Qwen3Moe,
                "expert_feed_forward_length",
                "expert",
            ),
            (Architecture::GptOss, "expert_feed_forward_length", "expert"),
        ] {
            let key = format!("{}.{key}", architecture.name());
            let message = refusal(&tiny_model(architecture).meta(&key, 36_u32)).expect("refused");
            let expected = format!("a width of {what} of 36 is not supported on CUDA");
            assert!(message.contains(&expected), "{message}");
        }
    }

    /// A card of 80 GiB with a model of 30 GiB and a draft model.
    fn room(beside: Beside, kv_cache_bytes: Option<u64>, role: Role) -> Result<KvRoom, Fault> {
        const GIB: u64 = 1 << 30;
        let options = CudaOptions {
            memory_permille: 1000,
            max_sequences: 100,
            load: LoadOptions {
                kv_cache_bytes,
                max_batch_tokens: 1,
                max_sequence_tokens: 1,
                role,
                kv_readers: KvReaders::Successors,
                lent: 0,
                beside,
                model: "a model".to_owned(),
            },
        };
        let needs = Needs {
            once: 30 * GIB,
            each: GIB,
            page: GIB / 8,
            sequence: 64,
            in_place: 30 * GIB,
        };
        let free = 49 * GIB - beside.taken;
        room_in((free, 80 * GIB), "cuda:0", &options, needs)
    }

    #[test]
    fn a_draft_model_gives_way_to_the_second_kv_cache_where_one_is_adopted_from() {
        const GIB: u64 = 1 << 30;
        let draft = |bytes: u64, gives_way| Beside {
            taken: bytes / 4,
            promised: bytes - bytes / 4,
            gives_way,
        };
        for (ordered, role) in [
            (None, Role::Active),
            (Some(20 * GIB), Role::Active),
            (Some(20 * GIB), Role::Standby),
        ] {
            let shares = |beside| room(beside, ordered, role).map(|room| room.shares);
            assert_eq!(shares(Beside::default()), Ok(true));
            assert_eq!(shares(draft(GIB, true)), Ok(true));
            assert_eq!(shares(draft(16 * GIB, false)), Ok(false));
            let refused = shares(draft(16 * GIB, true)).expect_err("it gives way");
            let message = refused.to_string();
            assert!(message.contains("in two KV caches"), "{message}");
            let Fault::InsufficientMemory {
                required_bytes,
                available_bytes,
                ..
            } = refused
            else {
                panic!("{message}")
            };
            assert!(required_bytes > available_bytes, "{message}");
        }
        // Without it there are not two KV caches either.
        let one = room(draft(16 * GIB, true), Some(30 * GIB), Role::Active);
        assert_eq!(one.map(|room| room.shares), Ok(false));
    }

    #[test]
    fn the_catalogue_names_what_is_refused() {
        for row in SERVED {
            let has_experts = row.with_key == Some("expert_count");
            let file = match (row.architecture, has_experts) {
                (Architecture::Llama, true) => tiny_mixtral(),
                (Architecture::Gemma4, true) => tiny_gemma4_with_experts(),
                (architecture, _) => tiny_model(architecture),
            };
            assert_eq!(refusal(&file).is_none(), row.on_cuda, "{row:?}");
        }
        assert_eq!(refusal(&tiny_gemma4_e2b()), None);
    }
}
