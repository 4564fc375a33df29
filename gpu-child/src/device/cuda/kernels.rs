//! The embedded kernels: found by name once, launched with arguments of their own type.
//!
//! The argument structs mirror those in `kernels/cuda`, field by field; a kernel takes exactly
//! one, by value.

use super::driver::{Driver, check};
use super::memory::DevicePtr;
use cudarc::driver::sys::{self, CUfunction_attribute as Attribute};
use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use worker_orcd_ipc::Fault;

#[repr(align(16))]
struct Aligned<B: ?Sized>(B);

/// One for each translation unit of `kernels/cuda`.
static FATBINS: [(&str, &Aligned<[u8]>); 2] = [
    (
        "kernels.fatbin",
        &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"))),
    ),
    (
        "decode_step.fatbin",
        &Aligned(*include_bytes!(concat!(
            env!("OUT_DIR"),
            "/decode_step.fatbin"
        ))),
    ),
];

/// Names a folder whose fatbins are loaded instead of the embedded ones: for work on kernels, on
/// a machine with a card and no Rust.
const FOLDER_VARIABLE: &str = "WORKER_ORCD_KERNELS";

fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from)
}

/// This build carries kernels at all, or was told where some are.
#[must_use]
pub fn are_at_hand() -> bool {
    folder().is_some() || FATBINS.iter().all(|(_, fatbin)| !fatbin.0.is_empty())
}

/// All the kernels of this build, on the device.
#[derive(Debug)]
pub struct Module([sys::CUmodule; FATBINS.len()]);

// SAFETY: modules belong to a context, not to a thread.
unsafe impl Send for Module {}

impl Module {
    /// # Errors
    /// When the fatbin has nothing for this device.
    pub fn load(driver: &Driver) -> Result<Self, Fault> {
        driver.enter()?;
        let mut modules = [std::ptr::null_mut(); FATBINS.len()];
        for (module, (name, embedded)) in modules.iter_mut().zip(FATBINS) {
            let found = folder()
                .map(|folder| read(&folder.join(name)))
                .transpose()?;
            let image = found
                .as_deref()
                .map_or(embedded.0.as_ptr(), |words| words.as_ptr().cast::<u8>());
            // SAFETY: a fatbin carries its own length, and is aligned; the driver copies it.
            let result = unsafe { sys::cuModuleLoadData(module, image.cast::<c_void>()) };
            check(result, "loading the kernels")?;
        }
        Ok(Self(modules))
    }

    /// # Errors
    /// When there is no kernel of that name.
    ///
    /// # Safety
    /// The kernel of that name takes one `A`, laid out as here.
    pub unsafe fn kernel<A>(&self, name: &str) -> Result<Kernel<A>, Fault> {
        let mut function = std::ptr::null_mut();
        let text = CString::new(name).expect("a name without zeros");
        let mut result = sys::CUresult::CUDA_ERROR_NOT_FOUND;
        for module in self.0 {
            // SAFETY: the module is loaded and never unloaded.
            result = unsafe { sys::cuModuleGetFunction(&raw mut function, module, text.as_ptr()) };
            if result != sys::CUresult::CUDA_ERROR_NOT_FOUND {
                break;
            }
        }
        check(result, &format!("finding the kernel {name}"))?;
        Ok(Kernel {
            function,
            name: name.to_owned(),
            of: PhantomData,
        })
    }
}

/// A file in aligned memory.
fn read(path: &Path) -> Result<Vec<u128>, Fault> {
    let bytes = std::fs::read(path).map_err(|error| Fault::Io {
        message: format!("{}: {error}", path.display()),
    })?;
    let words = bytes.chunks(size_of::<u128>()).map(|chunk| {
        let mut word = [0; size_of::<u128>()];
        word[..chunk.len()].copy_from_slice(chunk);
        u128::from_ne_bytes(word)
    });
    Ok(words.collect())
}

/// A kernel whose only argument is an `A`.
#[derive(Debug)]
pub struct Kernel<A> {
    function: sys::CUfunction,
    name: String,
    of: PhantomData<fn(A)>,
}

// SAFETY: functions belong to a module, not to a thread.
unsafe impl<A> Send for Kernel<A> {}

/// Blocks, threads of a block, and bytes of dynamic shared memory.
#[derive(Debug, Clone, Copy)]
pub struct Geometry {
    pub grid: [u32; 2],
    pub block: [u32; 3],
    pub shared_bytes: u32,
}

impl Geometry {
    #[must_use]
    pub fn line(blocks: usize, threads: u32) -> Self {
        Self {
            grid: [blocks as u32, 1],
            block: [threads, 1, 1],
            shared_bytes: 0,
        }
    }
}

impl<A> Kernel<A> {
    /// More than 48 KiB of shared memory are given only on request.
    ///
    /// # Errors
    /// When the device does not have that much.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), Fault> {
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is loaded.
        let result = unsafe { sys::cuFuncSetAttribute(self.function, attribute, bytes as i32) };
        check(
            result,
            &format!("{bytes} bytes of shared memory for {}", self.name),
        )
    }

    /// # Errors
    /// When the launch is refused, or something before it has failed.
    ///
    /// # Safety
    /// Everything that the kernel reads and writes through `arguments` is there and large enough
    /// for this geometry, as the kernel's header says.
    pub unsafe fn launch(
        &self,
        driver: &Driver,
        geometry: Geometry,
        arguments: &A,
    ) -> Result<(), Fault> {
        let [x, y] = geometry.grid;
        let [bx, by, bz] = geometry.block;
        if x == 0 || y == 0 {
            return Ok(());
        }
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        // SAFETY: one argument of the kernel's own type; the rest is the caller's promise.
        let result = unsafe {
            sys::cuLaunchKernel(
                self.function,
                x,
                y,
                1,
                bx,
                by,
                bz,
                geometry.shared_bytes,
                driver.stream(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check(result, &format!("launching {}", self.name))
    }

    /// As [`launch`](Self::launch), with every `cluster` blocks of a line of the grid on neighbouring
    /// multiprocessors, where they see each other's shared memory. Devices before compute capability
    /// 9 know clusters of one block only.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch).
    ///
    /// # Safety
    /// As for [`launch`](Self::launch).
    pub unsafe fn launch_clusters(
        &self,
        driver: &Driver,
        geometry: Geometry,
        cluster: u32,
        arguments: &A,
    ) -> Result<(), Fault> {
        let [x, y] = geometry.grid;
        let [bx, by, bz] = geometry.block;
        if cluster == 1 {
            // SAFETY: as promised by the caller.
            return unsafe { self.launch(driver, geometry, arguments) };
        }
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { pad: [0; 64] },
        };
        attribute.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
            x: cluster,
            y: 1,
            z: 1,
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: 1,
            blockDimX: bx,
            blockDimY: by,
            blockDimZ: bz,
            sharedMemBytes: geometry.shared_bytes,
            hStream: driver.stream(),
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        // SAFETY: as in `launch`; the attribute outlives the call.
        let result = unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                self.function,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check(result, &format!("launching {}", self.name))
    }

    /// As [`launch`](Self::launch), with all blocks on the device at the same time, so that they
    /// can wait for each other.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch), and when they do not fit together.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch).
    pub unsafe fn launch_together(
        &self,
        driver: &Driver,
        geometry: Geometry,
        arguments: &A,
    ) -> Result<(), Fault> {
        let [x, y] = geometry.grid;
        let [bx, by, bz] = geometry.block;
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        // SAFETY: as in `launch`.
        let result = unsafe {
            sys::cuLaunchCooperativeKernel(
                self.function,
                x,
                y,
                1,
                bx,
                by,
                bz,
                geometry.shared_bytes,
                driver.stream(),
                parameters.as_mut_ptr(),
            )
        };
        check(result, &format!("launching {}", self.name))
    }
}

/// `arrive.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ArriveArgs {
    pub from: DevicePtr<i32>,
    pub to: [DevicePtr<i32>; 4],
    pub words: [i32; 4],
    pub before: Answers,
}

/// `answer.cu`: where the answers of a step's rows lie.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Answers {
    chosen: DevicePtr<u32>,
    best: DevicePtr<u64>,
    broken: DevicePtr<u32>,
}

impl Answers {
    pub const NONE: Self = Self::ids(DevicePtr::NULL);

    /// As `argmax.cu` gives them: an id, or that a logit is not finite.
    #[must_use]
    pub const fn ids(chosen: DevicePtr<u32>) -> Self {
        Self {
            chosen,
            best: DevicePtr::NULL,
            broken: DevicePtr::NULL,
        }
    }

    /// As `decode_step.cu` does: an id's complement below the rank of its logit, and which rows
    /// hold a logit that is not finite.
    #[must_use]
    pub const fn ranks(best: DevicePtr<u64>, broken: DevicePtr<u32>) -> Self {
        Self {
            chosen: DevicePtr::NULL,
            best,
            broken,
        }
    }
}

/// `answer.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct AnswerArgs {
    pub answers: Answers,
    pub out: DevicePtr<u32>,
    pub rows: i32,
}

/// `SampleRow` in `sample.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct SampleRow {
    pub top_p: u64,
    pub number: u64,
    pub rate: f32,
    pub min_p: f32,
    pub repetition: f32,
    pub frequency: f32,
    pub presence: f32,
    pub row: i32,
    pub top_k: i32,
    pub history: i32,
    pub prompt: i32,
    pub length: i32,
    pub newest: i32,
    pub unused: i32,
}

/// `sample.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct SampleArgs {
    pub logits: DevicePtr<f32>,
    pub rows: DevicePtr<SampleRow>,
    pub history: DevicePtr<i32>,
    pub batch: DevicePtr<Row>,
    pub answers: Answers,
    pub vocab: i32,
}

/// `repack.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RepackArgs {
    pub file: DevicePtr<u8>,
    pub packed: DevicePtr<u8>,
    pub flags: DevicePtr<u32>,
    pub row_bytes: u64,
    pub ty: i32,
    pub rows: i32,
    pub cols: i32,
    pub units: i32,
}

/// A token of the batch: `Row` in `embed.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Row {
    pub token: i32,
    pub position: i32,
    pub table: i32,
    pub unused: i32,
}

/// `embed.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct EmbedArgs {
    pub table: DevicePtr<u8>,
    pub rows: DevicePtr<Row>,
    pub x: DevicePtr<f32>,
    pub ty: i32,
    pub units: i32,
    pub cols: i32,
}

/// `norm.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RowArgs {
    pub input: DevicePtr<f32>,
    pub gather: DevicePtr<i32>,
    pub weight: DevicePtr<f32>,
    pub plain: DevicePtr<f32>,
    pub out: DevicePtr<u16>,
    pub scale: DevicePtr<f32>,
    pub cols: i32,
    pub units: i32,
    pub in_stride: i32,
    pub eps: f32,
}

/// `Part` in `common.cuh`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Part {
    pub weight: DevicePtr<u8>,
    pub bias: DevicePtr<f32>,
    pub rows: i32,
    pub tiles: i32,
    pub column: i32,
    pub ty: i32,
}

impl Part {
    pub const NONE: Self = Self {
        weight: DevicePtr::NULL,
        bias: DevicePtr::NULL,
        rows: 0,
        tiles: 0,
        column: 0,
        ty: 0,
    };
}

/// `matmul.cuh`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct MatmulArgs {
    pub parts: [Part; 3],
    pub n_parts: i32,
    pub rows: i32,
    pub units: i32,
    pub out_stride: i32,
    pub add: i32,
    pub x: DevicePtr<u16>,
    pub scale: DevicePtr<f32>,
    pub out: DevicePtr<f32>,
}

/// `KvArgs` in `rope_kv.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KvArgs {
    pub pages: DevicePtr<u16>,
    pub page_stride: u64,
    pub layer_offset: u64,
    pub tables: DevicePtr<i32>,
}

/// `rope_kv.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RopeArgs {
    pub qkv: DevicePtr<f32>,
    pub rows: DevicePtr<Row>,
    pub turns: DevicePtr<[f32; 2]>,
    pub q_norm: DevicePtr<f32>,
    pub k_norm: DevicePtr<f32>,
    pub q: DevicePtr<u16>,
    pub kv: KvArgs,
    pub heads: i32,
    pub kv_heads: i32,
    pub head_dim: i32,
    pub dims: i32,
    pub half_offset: i32,
    pub eps: f32,
}

/// `Tile` in `attention.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Tile {
    pub row0: i32,
    pub first: i32,
    pub count: i32,
    pub position0: i32,
    pub table: i32,
}

/// `attention.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct AttentionArgs {
    pub q: DevicePtr<u16>,
    pub out: DevicePtr<f32>,
    pub partial: DevicePtr<f32>,
    pub tiles: DevicePtr<Tile>,
    pub kv: KvArgs,
    pub n_tiles: i32,
    pub heads: i32,
    pub kv_heads: i32,
    pub splits: i32,
    pub scale: f32,
}

/// `MergeArgs` in `attention.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct MergeArgs {
    pub attention: AttentionArgs,
    pub rows: DevicePtr<Row>,
    pub n_rows: i32,
    pub head_dim: i32,
}

/// `argmax.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ArgmaxArgs {
    pub logits: DevicePtr<f32>,
    pub chosen: DevicePtr<u32>,
    pub vocab: i32,
}
