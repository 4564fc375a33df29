//! `worker-orcd-gpu`: see the library's first page.

fn main() {
    worker_orcd_gpu::entry::run(worker_orcd_gpu::loader::load)
}
