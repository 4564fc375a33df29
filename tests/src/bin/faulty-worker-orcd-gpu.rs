//! Real child with fault injection by `WORKER_ORCD_FAULTS`.

fn main() {
    worker_orcd_gpu::entry::run_with_faults(worker_orcd_gpu::loader::load)
}
