//! Kernels from source to machine code: compiled for this GPU at first use, then kept in the user's cache.

use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use cudarc::driver::{result, sys};
use cudarc::nvrtc::sys as nvrtc;

use super::driver::{Gpu, failed};
use super::kernels::{
    ATTENTION_SHARED, DOWN_SHARED, GATE_UP_SHARED, HOPPER_SHARED, MATMUL_FORMAT_SHARED, MATMUL_SHARED,
    PREFILL_SHARED, VALUES_SHARED,
};
use crate::Error;

/// A file of the program: its name and its text.
type Source = (&'static str, &'static str);

macro_rules! sources {
    ($($name:literal),+ $(,)?) => { [$(($name, include_str!(concat!("kernels/", $name)))),+] };
}

/// What the parts share, in the order in which the files need each other.
const SHARED: [Source; 19] = sources![
    "numerics.cuh",
    "blocks.cuh",
    "layouts.cuh",
    "scan.cuh",
    "ring.cuh",
    "formats.cuh",
    "gguf.cuh",
    "mma.cuh",
    "product.cuh",
    "visits.cuh",
    "pages.cuh",
    "pack.cuh",
    "wgmma.cuh",
    "hopper.cuh",
    "hopper_kernels.cuh",
    "matmul_format.cuh",
    "experts.cuh",
    "experts_whole.cuh",
    "prefill.cuh",
];

/// A file of the program that is compiled by itself, with what others it comes with.
pub type Part = &'static [Source];

/// The parts that every model takes. They are compiled side by side: one after the other takes ten times as long as the slowest.
pub const PARTS: [Part; 11] = [
    &sources!["prefill.cu"],
    &sources!["experts.cu"],
    &sources!["experts_whole.cu"],
    &sources!["hopper_nvfp4.cu"],
    &sources!["hopper_int4.cu"],
    &sources!["hopper_f8.cu"],
    &sources!["hopper_bf16.cu"],
    &sources![
        "attention.cu",
        "attention_tensor.cu",
        "attention_values.cu",
        "attention_hopper.cu",
        "indexer.cu"
    ],
    &sources!["matmul.cu"],
    &sources!["expanded.cu"],
    &sources![
        "bandwidth.cu",
        "embedding.cu",
        "tile.cu",
        "norm.cu",
        "combine.cu",
        "router.cu",
        "sample.cu",
        "score.cu",
        "pack.cu",
        "ranks.cu"
    ],
];

/// The part for weights in a block type of GGUF, by its name in the kernels.
#[must_use]
pub fn part_of_blocks(name: &str) -> Option<Part> {
    BLOCK_PARTS
        .into_iter()
        .find(|part| part.iter().any(|(file, _)| file.strip_prefix("gguf_") == Some(&format!("{name}.cu"))))
}

const BLOCK_PARTS: [Part; 7] = [
    &sources!["gguf_q8_0.cu"],
    &sources!["gguf_q5_0.cu"],
    &sources!["gguf_q4_k.cu"],
    &sources!["gguf_q5_k.cu"],
    &sources!["gguf_q6_k.cu"],
    &sources!["gguf_q5_1.cu"],
    &sources!["gguf_iq4_xs.cu"],
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

/// A loaded program: a module of the driver for each part.
pub struct Module {
    parts: Vec<sys::CUmodule>,
    gpu: Gpu,
}

// SAFETY: handles of the driver, usable from any thread.
unsafe impl Send for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded in `Module::load`; their kernels are held beside them and go with them.
        unsafe {
            let _ = self.gpu.make_current();
            for &part in &self.parts {
                let _ = result::module::unload(part);
            }
        }
    }
}

impl Module {
    /// Loads the kernels of these parts, from the cache or from source.
    ///
    /// # Errors
    /// When there is no cached program and no compiler, or the program can't be compiled or loaded.
    pub fn load(gpu: &Gpu, sizes: Sizes, parts: &[Part]) -> Result<Module, Error> {
        gpu.make_current()?;
        let options = options(gpu.capability(), sizes);
        let folder = cache_folder();
        let mut module = Module { parts: Vec::new(), gpu: gpu.clone() };
        let mut missing = Vec::new();
        for &part in parts {
            let source = source(part);
            let path = folder.as_ref().map(|folder| folder.join(file_name(gpu, part, &source, &options)));
            let kept = path.as_deref().and_then(|path| std::fs::read(path).ok());
            // A damaged file is compiled anew.
            match kept.map(|code| load_machine_code(&code)) {
                Some(Ok(loaded)) => module.parts.push(loaded),
                _ => missing.push((source, path)),
            }
        }
        let compiled: Vec<Result<Vec<u8>, Error>> = std::thread::scope(|scope| {
            let options = &options;
            let threads: Vec<_> =
                missing.iter().map(|(source, _)| scope.spawn(move || compile(source, options))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        for (code, (_, path)) in compiled.into_iter().zip(&missing) {
            let code = code?;
            if let Some(path) = path {
                // Without a writable cache every start compiles: slower, nothing else.
                let _ = keep(path, &code);
            }
            module.parts.push(load_machine_code(&code)?);
        }
        Ok(module)
    }

    /// Where every part's variable of that name stands, and its size in bytes.
    #[cfg(test)]
    pub fn variables(&self, name: &str) -> Vec<(super::driver::Address, usize)> {
        let name = CString::new(name).unwrap();
        let of = |&part: &sys::CUmodule| {
            let (mut at, mut bytes) = (0, 0);
            // SAFETY: the module is loaded; writes an address and a size.
            let found =
                unsafe { sys::cuModuleGetGlobal_v2(&raw mut at, &raw mut bytes, part, name.as_ptr()) };
            found.result().ok().map(|()| (super::driver::Address(at), bytes))
        };
        self.parts.iter().filter_map(of).collect()
    }

    /// One kernel.
    ///
    /// # Errors
    /// When no part of the program has one of that name.
    pub fn kernel(&self, name: &str) -> Result<sys::CUfunction, Error> {
        let c_name = CString::new(name).unwrap_or_default();
        let mut problem = "the program has no parts".to_owned();
        for &part in &self.parts {
            // SAFETY: the module is loaded.
            match unsafe { result::module::get_function(part, c_name.clone()) } {
                Ok(kernel) => return Ok(kernel),
                Err(error) => problem = error.to_string(),
            }
        }
        Err(Error::Gpu { doing: "loading kernels", problem: format!("{name}: {problem}") })
    }
}

fn load_machine_code(code: &[u8]) -> Result<sys::CUmodule, Error> {
    // The driver reads the image as long as its header says, so at least the header has to be one.
    if !code.starts_with(b"\x7fELF") {
        return Err(Error::Gpu {
            doing: "loading kernels",
            problem: "the compiled program is no ELF file".into(),
        });
    }
    // SAFETY: an ELF image from NVRTC, written to the cache whole (see `keep`); the GPU's context is current.
    unsafe { result::module::load_data(code.as_ptr().cast()) }.map_err(failed("loading kernels"))
}

/// A part's files and those that all share as one text; the compiler's messages name the right file and line.
fn source(part: &[Source]) -> String {
    let files = SHARED.iter().chain(part);
    #[cfg(test)]
    if let Some(folder) = std::env::var_os("LUCID_KERNEL_SOURCES") {
        let read = |name: &str| std::fs::read_to_string(Path::new(&folder).join(name)).unwrap();
        return files.map(|(name, _)| format!("#line 1 \"{name}\"\n{}\n", read(name))).collect();
    }
    files.map(|(name, text)| format!("#line 1 \"{name}\"\n{text}\n")).collect()
}

fn options(capability: u32, sizes: Sizes) -> Vec<String> {
    // From 9.0 on the "a" targets have instructions that only this very generation has.
    let suffix = if capability >= 90 { "a" } else { "" };
    #[cfg(test)]
    let timeline = std::env::var_os("LUCID_TIMELINE").map(|_| "-DTIMELINE".to_owned());
    #[cfg(not(test))]
    let timeline = None;
    let options = vec![
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
        format!("-DPREFILL_SHARED={PREFILL_SHARED}"),
        format!("-DHOPPER_SHARED={HOPPER_SHARED}"),
        format!("-DATTENTION_SHARED={ATTENTION_SHARED}"),
        format!("-DVALUES_SHARED={VALUES_SHARED}"),
    ];
    options.into_iter().chain(timeline).collect()
}

/// `$XDG_CACHE_HOME/lucid/kernels`, by default `~/.cache/lucid/kernels`.
fn cache_folder() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("lucid").join("kernels"))
}

/// Changes with anything that the machine code depends on.
fn file_name(gpu: &Gpu, part: &[Source], source: &str, options: &[String]) -> String {
    let mut hash = DefaultHasher::new();
    (source, options).hash(&mut hash);
    let name = part.first().map_or("", |(name, _)| name.trim_end_matches(".cu"));
    let (gpu, driver) = (gpu.capability(), gpu.driver_version());
    format!("{name}-sm_{gpu}-driver-{driver}-{:016x}.cubin", hash.finish())
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
            let mut known = SHARED.iter().chain(PARTS.into_iter().chain(BLOCK_PARTS).flatten());
            assert!(known.any(|(known, _)| *known == name), "{name} is compiled by nobody");
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
                all_compile(capability, Sizes { latent: 512, rope: 64, terms }, |_| true);
            }
        }
        // Only attention depends on the latent width. A small model's, on the GPU that has the most kernels of it.
        all_compile(90, Sizes { latent: 64, rope: 64, terms: 1 }, |file| file.starts_with("attention"));
    }

    /// Compiles the parts that have a file that is wanted.
    fn all_compile(capability: u32, sizes: Sizes, wanted: impl Fn(&str) -> bool) {
        let options = &options(capability, sizes);
        std::thread::scope(|scope| {
            for part in PARTS.into_iter().chain(BLOCK_PARTS) {
                if part.iter().any(|(file, _)| wanted(file)) {
                    scope.spawn(move || {
                        let code = compile(&source(part), options).unwrap();
                        assert!(code.starts_with(b"\x7fELF"), "{}, sm_{capability}, {sizes:?}", part[0].0);
                    });
                }
            }
        });
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
