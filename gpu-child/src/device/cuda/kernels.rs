//! The embedded kernels: looked up by name once, launched with typed arguments.
//!
//! A kernel takes exactly one argument struct ([`arguments`](super::arguments)), by value.

use super::architectures::{self, ComputeCapability};
pub use super::arguments::{
    AdoptPagesArgs, ArgmaxArgs, BoundArgs, ChecksumArgs, DrawnTokens, EmbedArgs, GatedRowsArgs,
    INPUTS, KEYS_OF_FULL, KEYS_OF_SLIDING, MatmulArgs, PAGES_AT_ONCE, PageShape, Part, RepackArgs,
    Row, RowArgs, SEAL_EVERY, STATES, SampleArgs, SampleRow, ScatterInputsArgs, SealPagesArgs,
    SoftcapArgs, TokensToHostArgs, WideArgs,
};
use super::context::{Context, check};
use cudarc::driver::sys::{
    self, CUfunction_attribute as Attribute, CUlaunchAttributeID as AttributeId,
};
use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use worker_orcd_ipc::Fault;

#[repr(align(16))]
pub struct Aligned<B: ?Sized>(pub B);

/// File name of a unit, and its contents.
macro_rules! fatbin {
    ($unit:literal) => {
        (
            concat!($unit, ".fatbin"),
            &Aligned(*include_bytes!(concat!(
                env!("OUT_DIR"),
                "/",
                $unit,
                ".fatbin"
            ))),
        )
    };
}

/// Compiled kernels: a file for each translation unit in `kernels/cuda/units.txt`, without the injected faults.
static FATBINS: &[(&str, &Aligned<[u8]>)] = include!(concat!(env!("OUT_DIR"), "/fatbins.rs"));

/// Environment variable with a folder of fatbins that replace the embedded ones: for work on kernels, on
/// a machine with a card and no Rust.
pub(crate) const KERNELS_VARIABLE: &str = "WORKER_ORCD_KERNELS";

fn folder() -> Option<PathBuf> {
    std::env::var_os(KERNELS_VARIABLE).map(PathBuf::from)
}

/// Checks that this build embeds kernels, or that the variable names a folder.
///
/// # Errors
/// A message with the remedy.
pub fn are_at_hand() -> Result<(), &'static str> {
    if folder().is_some() || FATBINS.iter().all(|(_, fatbin)| !fatbin.0.is_empty()) {
        Ok(())
    } else {
        Err("this build carries no kernels: run `cargo xtask kernels` and build again")
    }
}

/// Checks that some kernels run on a device of this compute capability.
///
/// # Errors
/// A message with the targets of the build.
pub fn are_made_for(capability: ComputeCapability) -> Result<(), String> {
    match folder() {
        // The folder's kernels are an explicit choice.
        Some(_) => Ok(()),
        None => architectures::check(capability),
    }
}

/// All kernels of this build, on the device.
#[derive(Debug)]
pub struct Module(Vec<sys::CUmodule>);

// SAFETY: modules belong to a context, not to a thread.
unsafe impl Send for Module {}

impl Module {
    /// # Errors
    /// If the fatbin has no code for this device.
    pub fn load(context: &Context) -> Result<Self, Fault> {
        context.enter()?;
        let mut modules = vec![std::ptr::null_mut(); FATBINS.len()];
        for (module, (name, embedded)) in modules.iter_mut().zip(FATBINS) {
            let found = folder()
                .map(|folder| read(&folder.join(name)))
                .transpose()?;
            let image = found
                .as_deref()
                .map_or(embedded.0.as_ptr(), |words| words.as_ptr().cast::<u8>());
            // SAFETY: a fatbin carries its own length, and is aligned; NVIDIA's driver copies it.
            let result = unsafe { sys::cuModuleLoadData(module, image.cast::<c_void>()) };
            check(result, "loading the kernels")?;
        }
        Ok(Self(modules))
    }

    /// Loads kernels that belong to no model.
    ///
    /// # Errors
    /// If the fatbin is empty, or has no code for this device.
    #[cfg(feature = "fault-injection")]
    pub fn of(context: &Context, fatbin: &Aligned<[u8]>) -> Result<Self, Fault> {
        if fatbin.0.is_empty() {
            let message = "this build carries no kernels that fail: run `cargo xtask kernels` and \
                           build again";
            return Err(Fault::DeviceUnavailable {
                message: message.to_owned(),
            });
        }
        context.enter()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: as in `load`.
        let result = unsafe { sys::cuModuleLoadData(&raw mut module, fatbin.0.as_ptr().cast()) };
        check(result, "loading the kernels that fail")?;
        Ok(Self(vec![module]))
    }

    /// # Errors
    /// If there is no kernel of that name.
    ///
    /// # Safety
    /// The kernel of that name takes one `A` with the same layout.
    pub unsafe fn kernel<A>(&self, name: &str) -> Result<Kernel<A>, Fault> {
        let mut function = std::ptr::null_mut();
        let text = CString::new(name).expect("a name without zeros");
        let mut result = sys::CUresult::CUDA_ERROR_NOT_FOUND;
        for &module in &self.0 {
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
            overlaps: false,
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

/// A kernel with a single argument of type `A`.
#[derive(Debug)]
pub struct Kernel<A> {
    function: sys::CUfunction,
    name: String,
    overlaps: bool,
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
    /// Lets launches of the kernel begin before the end of the preceding launch.
    ///
    /// # Safety
    /// The kernel itself waits for that end before it accesses other launches' memory: its first lines
    /// are those of `hopper.cuh`.
    #[must_use]
    pub unsafe fn overlapping(self) -> Self {
        Self {
            overlaps: true,
            ..self
        }
    }

    /// Opts in to more than 48 KiB of shared memory.
    ///
    /// # Errors
    /// If the device has less.
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
    /// If the launch is refused, or an earlier launch has failed.
    ///
    /// # Safety
    /// All memory that the kernel accesses through `arguments` exists and is large enough
    /// for this geometry, according to the kernel's header.
    pub unsafe fn launch(
        &self,
        context: &Context,
        geometry: Geometry,
        arguments: &A,
    ) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_clusters(context, geometry, 1, arguments) }
    }

    /// Launches as [`launch`](Self::launch) does, in clusters of this number of adjacent blocks of a
    /// line of the grid, which access each other's shared memory. Devices before compute capability 9
    /// support clusters of one block only.
    ///
    /// # Errors
    /// The errors of [`launch`](Self::launch).
    ///
    /// # Safety
    /// The contract of [`launch`](Self::launch).
    pub unsafe fn launch_clusters(
        &self,
        context: &Context,
        geometry: Geometry,
        cluster: u32,
        arguments: &A,
    ) -> Result<(), Fault> {
        let [x, y] = geometry.grid;
        let [bx, by, bz] = geometry.block;
        if x == 0 || y == 0 {
            return Ok(());
        }
        let mut attributes = Vec::with_capacity(2);
        if self.overlaps && context.overlaps_launches() {
            attributes.push(overlapping());
        }
        if cluster > 1 {
            attributes.push(clustered(cluster));
        }
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: 1,
            blockDimX: bx,
            blockDimY: by,
            blockDimZ: bz,
            sharedMemBytes: geometry.shared_bytes,
            hStream: context.stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        let mut parameters = [std::ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        // SAFETY: one argument of the kernel's own type, attributes that outlive the call; the
        // rest is the caller's promise.
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

    /// Launches as [`launch`](Self::launch) does, with all blocks resident at the same time,
    /// so that they can synchronize.
    ///
    /// # Errors
    /// The errors of [`launch`](Self::launch), and an error if the blocks do not fit together.
    ///
    /// # Safety
    /// The contract of [`launch`](Self::launch).
    pub unsafe fn launch_together(
        &self,
        context: &Context,
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
                context.stream(),
                parameters.as_mut_ptr(),
            )
        };
        check(result, &format!("launching {}", self.name))
    }
}

/// The launch may begin at a signal of the preceding one.
fn overlapping() -> sys::CUlaunchAttribute {
    attribute(
        AttributeId::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        |value| value.programmaticStreamSerializationAllowed = 1,
    )
}

/// Clusters of this number of blocks, which access each other's shared memory.
fn clustered(blocks: u32) -> sys::CUlaunchAttribute {
    attribute(
        AttributeId::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        |value| {
            value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
                x: blocks,
                y: 1,
                z: 1,
            }
        },
    )
}

fn attribute(
    id: AttributeId,
    set: impl FnOnce(&mut sys::CUlaunchAttributeValue),
) -> sys::CUlaunchAttribute {
    let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
    set(&mut value);
    sys::CUlaunchAttribute {
        id,
        pad: [0; 4],
        value,
    }
}
