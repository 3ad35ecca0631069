//! Kernels from source to machine code: compiled for this GPU at first use, then kept in the user's cache.

use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use cudarc::driver::{result, sys};
use cudarc::nvrtc::sys as nvrtc;

use super::driver::{Gpu, failed};
use super::kernels::{
    ATTENTION_SHARED, DOWN_SHARED, EXPERTS_WIDE_SHARED, GATE_UP_SHARED, HOPPER_SHARED, MATMUL_FORMAT_SHARED,
    MATMUL_SHARED, PREFILL_SHARED,
};
use crate::Error;

/// The program's files, in the order in which they need each other.
const SOURCES: [(&str, &str); 20] = [
    ("numerics.cuh", include_str!("kernels/numerics.cuh")),
    ("ring.cuh", include_str!("kernels/ring.cuh")),
    ("formats.cuh", include_str!("kernels/formats.cuh")),
    ("mma.cuh", include_str!("kernels/mma.cuh")),
    ("bandwidth.cu", include_str!("kernels/bandwidth.cu")),
    ("embedding.cu", include_str!("kernels/embedding.cu")),
    ("tile.cu", include_str!("kernels/tile.cu")),
    ("norm.cu", include_str!("kernels/norm.cu")),
    ("matmul.cu", include_str!("kernels/matmul.cu")),
    ("attention.cu", include_str!("kernels/attention.cu")),
    ("attention_tensor.cu", include_str!("kernels/attention_tensor.cu")),
    ("router.cu", include_str!("kernels/router.cu")),
    ("experts.cu", include_str!("kernels/experts.cu")),
    ("prefill.cu", include_str!("kernels/prefill.cu")),
    ("pack.cu", include_str!("kernels/pack.cu")),
    ("wgmma.cuh", include_str!("kernels/wgmma.cuh")),
    ("hopper.cuh", include_str!("kernels/hopper.cuh")),
    ("hopper.cu", include_str!("kernels/hopper.cu")),
    ("expanded.cu", include_str!("kernels/expanded.cu")),
    ("ranks.cu", include_str!("kernels/ranks.cu")),
];

/// What to do when the compiler is missing.
const INSTALL: &str = "install CUDA 12.4 or later (the package cuda-nvrtc is enough), or `pip install nvidia-cuda-nvrtc` and add \
                       its lib folder to LD_LIBRARY_PATH";

/// What the program is compiled for.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Latent part of a cache entry.
    pub latent: usize,
    /// Rotated part of a cache entry.
    pub rope: usize,
    /// bf16 terms of an activation: three hold an f32 exactly, one rounds it (see `numerics.cuh`).
    pub terms: usize,
}

/// A loaded program.
pub struct Module {
    module: sys::CUmodule,
    gpu: Gpu,
}

// SAFETY: a handle of the driver, usable from any thread.
unsafe impl Send for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded in `Module::load`; its kernels are held beside it and go with it.
        unsafe {
            let _ = self.gpu.make_current();
            let _ = result::module::unload(self.module);
        }
    }
}

impl Module {
    /// Loads all kernels, from the cache or from source.
    ///
    /// # Errors
    /// When there is no cached program and no compiler, or the program can't be compiled or loaded.
    pub fn load(gpu: &Gpu, sizes: Sizes) -> Result<Module, Error> {
        gpu.make_current()?;
        let source = source();
        let options = options(gpu.capability(), sizes);
        let path = cache_folder().map(|folder| folder.join(file_name(gpu, &source, &options)));
        if let Some(kept) = path.as_deref().and_then(|path| std::fs::read(path).ok()) {
            // A damaged file is compiled anew.
            if let Ok(module) = Module::from_machine_code(gpu, &kept) {
                return Ok(module);
            }
        }
        let code = compile(&source, &options)?;
        if let Some(path) = &path {
            // Without a writable cache every start compiles: slower, nothing else.
            let _ = keep(path, &code);
        }
        Module::from_machine_code(gpu, &code)
    }

    fn from_machine_code(gpu: &Gpu, code: &[u8]) -> Result<Module, Error> {
        // The driver reads the image as long as its header says, so at least the header has to be one.
        if !code.starts_with(b"\x7fELF") {
            return Err(Error::Gpu {
                doing: "loading kernels",
                problem: "the compiled program is no ELF file".into(),
            });
        }
        // SAFETY: an ELF image from NVRTC, written to the cache whole (see `keep`).
        let module =
            unsafe { result::module::load_data(code.as_ptr().cast()) }.map_err(failed("loading kernels"))?;
        Ok(Module { module, gpu: gpu.clone() })
    }

    /// One kernel.
    ///
    /// # Errors
    /// When the program has none of that name.
    pub fn kernel(&self, name: &str) -> Result<sys::CUfunction, Error> {
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded.
        unsafe { result::module::get_function(self.module, c_name) }
            .map_err(|error| Error::Gpu { doing: "loading kernels", problem: format!("{name}: {error}") })
    }
}

/// All files as one program; the compiler's messages name the right file and line.
fn source() -> String {
    #[cfg(test)]
    if let Some(folder) = std::env::var_os("LUCID_KERNEL_SOURCES") {
        let read = |name: &str| std::fs::read_to_string(Path::new(&folder).join(name)).unwrap();
        return SOURCES.iter().map(|(name, _)| format!("#line 1 \"{name}\"\n{}\n", read(name))).collect();
    }
    SOURCES.iter().map(|(name, text)| format!("#line 1 \"{name}\"\n{text}\n")).collect()
}

fn options(capability: u32, sizes: Sizes) -> Vec<String> {
    // From 9.0 on the "a" targets have instructions that only this very generation has.
    let suffix = if capability >= 90 { "a" } else { "" };
    vec![
        format!("--gpu-architecture=sm_{capability}{suffix}"),
        "--std=c++17".into(),
        "--fmad=false".into(),
        format!("-DLATENT={}", sizes.latent),
        format!("-DROPE={}", sizes.rope),
        format!("-DTERMS={}", sizes.terms),
        format!("-DMATMUL_SHARED={MATMUL_SHARED}"),
        format!("-DMATMUL_FORMAT_SHARED={MATMUL_FORMAT_SHARED}"),
        format!("-DGATE_UP_SHARED={GATE_UP_SHARED}"),
        format!("-DDOWN_SHARED={DOWN_SHARED}"),
        format!("-DEXPERTS_WIDE_SHARED={EXPERTS_WIDE_SHARED}"),
        format!("-DPREFILL_SHARED={PREFILL_SHARED}"),
        format!("-DHOPPER_SHARED={HOPPER_SHARED}"),
        format!("-DATTENTION_SHARED={ATTENTION_SHARED}"),
    ]
}

/// `$XDG_CACHE_HOME/lucid/kernels`, by default `~/.cache/lucid/kernels`.
fn cache_folder() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("lucid").join("kernels"))
}

/// Changes with anything that the machine code depends on.
fn file_name(gpu: &Gpu, source: &str, options: &[String]) -> String {
    let mut hash = DefaultHasher::new();
    (source, options).hash(&mut hash);
    format!("sm_{}-driver-{}-{:016x}.cubin", gpu.capability(), gpu.driver_version(), hash.finish())
}

/// Writes beside the place and renames: another process sees all of it or nothing.
fn keep(path: &Path, code: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&temporary, code)?;
    std::fs::rename(&temporary, path)
}

fn compile(source: &str, options: &[String]) -> Result<Vec<u8>, Error> {
    // SAFETY: only tries to load the library. Without it every other call would panic.
    if !unsafe { nvrtc::is_culib_present() } {
        return Err(Error::NoGpu {
            problem: "the kernels must be compiled once, and NVRTC (libnvrtc.so) is not there".into(),
            hint: INSTALL,
        });
    }
    let problem = |error: &dyn std::fmt::Debug, log: &str| {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two integers.
        let _ = unsafe { nvrtc::nvrtcVersion(&raw mut major, &raw mut minor) };
        Error::NoGpu {
            problem: format!(
                "NVRTC {major}.{minor} can't compile the kernels ({error:?}) with {options:?}: {}",
                log.trim()
            ),
            hint: INSTALL,
        }
    };
    let texts: Vec<CString> =
        options.iter().map(|option| CString::new(option.as_str()).unwrap_or_default()).collect();
    let pointers: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
    let source = CString::new(source).unwrap_or_default();
    let program =
        cudarc::nvrtc::result::create_program(&source, None).map_err(|error| problem(&error, ""))?;
    // SAFETY: `program`, the option texts and the buffers live until the end of the block; sizes are asked for before.
    unsafe {
        let compiled = nvrtc::nvrtcCompileProgram(program, pointers.len() as i32, pointers.as_ptr()).result();
        let code = compiled.map_err(|error| {
            let log = cudarc::nvrtc::result::get_program_log(program).unwrap_or_default();
            let bytes: Vec<u8> = log.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
            problem(&error, &String::from_utf8_lossy(&bytes))
        });
        let code = code.and_then(|()| {
            let mut size = 0;
            nvrtc::nvrtcGetCUBINSize(program, &raw mut size).result().map_err(|error| problem(&error, ""))?;
            let mut code = vec![0u8; size];
            nvrtc::nvrtcGetCUBIN(program, code.as_mut_ptr().cast())
                .result()
                .map_err(|error| problem(&error, ""))?;
            Ok(code)
        });
        let _ = cudarc::nvrtc::result::destroy_program(program);
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_kept_whole_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("lucid-kernels-{}", std::process::id()));
        let path = folder.join("deeper").join("program.cubin");
        keep(&path, b"first").unwrap();
        keep(&path, b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(
            std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "a temporary file was left"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn every_kernel_file_is_in_the_program() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda/kernels");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(SOURCES.iter().any(|(known, _)| *known == name), "{name} is compiled by nobody");
        }
    }

    /// Needs the compiler, but no GPU.
    #[test]
    fn the_kernels_compile_for_every_architecture() {
        // SAFETY: only tries to load the library.
        if !unsafe { nvrtc::is_culib_present() } {
            use std::io::Write;
            // Not through `println!`, which the test harness swallows.
            let _ = writeln!(std::io::stderr(), "skipped: no NVRTC");
            return;
        }
        for capability in [80, 90, 100, 120] {
            for terms in [1, 3] {
                let sizes = Sizes { latent: 512, rope: 64, terms };
                let code = compile(&source(), &options(capability, sizes)).unwrap();
                assert!(code.starts_with(b"\x7fELF"), "sm_{capability}, {terms}");
            }
        }
    }

    #[test]
    fn without_a_compiler_the_error_says_what_to_install() {
        // SAFETY: only tries to load the library.
        if unsafe { nvrtc::is_culib_present() } {
            return;
        }
        let error = compile("", &[]).unwrap_err().to_string();
        assert!(error.contains("libnvrtc") && error.contains("install"), "{error}");
    }
}
