//! The checks: one file each. They read evidence alone.

mod config_flags;
mod host_gpu;
mod host_memory;
mod host_service;

pub use config_flags::config_flags;
pub use host_gpu::host_gpu;
pub use host_memory::host_memory;
pub use host_service::host_service;
