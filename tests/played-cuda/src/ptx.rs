//! PTX of nvcc: from text to instructions of the machine.
//!
//! Supported are the instructions of this project's kernels. Others are an error with their name, so a kernel runs
//! exactly as written or not at all. Source: NVIDIA's "Parallel Thread Execution ISA" 9.0.

mod assign;
mod kernel;
mod lower;
mod names;
pub mod op;
mod reader;
mod slots;

pub use kernel::Kernel;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Translation unit. Kernels are parsed on demand: most are never run.
#[derive(Debug)]
pub struct Module {
    text: String,
    /// Range of each kernel's text.
    entries: HashMap<String, std::ops::Range<usize>>,
    /// Variables in global memory.
    globals: Vec<(String, Box<[u64]>)>,
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
}

const ENTRY: &str = ".visible .entry ";

impl Module {
    /// # Errors
    /// The text is not PTX.
    pub fn new(text: String) -> Result<Self, String> {
        if !text.contains(".version") {
            return Err("this is no PTX".to_owned());
        }
        let starts: Vec<usize> = text.match_indices(ENTRY).map(|(at, _)| at).collect();
        let ends = starts.iter().skip(1).copied().chain([text.len()]);
        let entries = starts.iter().zip(ends).filter_map(|(start, end)| {
            let name = &text[start + ENTRY.len()..end];
            let name = name[..name.find('(')?].trim();
            Some((name.to_owned(), *start..end))
        });
        let entries = entries.collect();
        let lines = text
            .lines()
            .map(|line| line.trim_start_matches(".visible "));
        let globals = lines.filter_map(|line| global(line.strip_prefix(".global ")?));
        let globals = globals.collect();
        let kernels = Mutex::default();
        Ok(Self {
            text,
            entries,
            globals,
            kernels,
        })
    }

    /// Kernel of this name; `None` if there is none.
    ///
    /// # Errors
    /// The unsupported construct.
    pub fn kernel(&self, name: &str) -> Result<Option<Arc<Kernel>>, String> {
        let Some(at) = self.entries.get(name) else {
            return Ok(None);
        };
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(name) {
            return Ok(Some(Arc::clone(kernel)));
        }
        let before = self.entries.values().map(|it| it.start).min().unwrap_or(0);
        let kernel = Kernel::read(&self.text[..before], &self.globals, &self.text[at.clone()])
            .map_err(|what| format!("{name}: {what}"))?;
        let kernel = Arc::new(kernel);
        kernels.insert(name.to_owned(), Arc::clone(&kernel));
        Ok(Some(kernel))
    }

    /// Names of all kernels.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }
}

/// `.align 4 .u32 name;`, of at most eight bytes, initialized to zero.
fn global(text: &str) -> Option<(String, Box<[u64]>)> {
    let name = text.trim_end_matches(';').split_whitespace().last()?;
    (!name.contains('[')).then(|| (name.to_owned(), vec![0].into_boxed_slice()))
}
