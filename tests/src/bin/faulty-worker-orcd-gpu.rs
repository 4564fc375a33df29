//! The real child, which fails where `WORKER_ORCD_FAULTS` asks for it.

fn main() {
    worker_orcd_gpu::entry::run_with_faults(worker_orcd_gpu::loader::load)
}
