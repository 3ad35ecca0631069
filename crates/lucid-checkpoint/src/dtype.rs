//! Element types of safetensors and GGUF.

use serde::{Serialize, Serializer};

use crate::gguf::BlockType;

/// A tensor's element type, as the safetensors header spells it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // The names say it all.
pub enum Dtype {
    Bool,
    U8,
    I8,
    F8E4m3,
    F8E5m2,
    F8E8m0,
    U16,
    I16,
    F16,
    Bf16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
    /// A block type of GGUF.
    Gguf(BlockType),
    /// A spelling that Lucid does not know. The tensor can be listed, but its values can't be asked for.
    Other(String),
}

impl Dtype {
    pub(crate) fn parse(spelling: String) -> Dtype {
        match spelling.as_str() {
            "BOOL" => Dtype::Bool,
            "U8" => Dtype::U8,
            "I8" => Dtype::I8,
            "F8_E4M3" => Dtype::F8E4m3,
            "F8_E5M2" => Dtype::F8E5m2,
            "F8_E8M0" => Dtype::F8E8m0,
            "U16" => Dtype::U16,
            "I16" => Dtype::I16,
            "F16" => Dtype::F16,
            "BF16" => Dtype::Bf16,
            "U32" => Dtype::U32,
            "I32" => Dtype::I32,
            "F32" => Dtype::F32,
            "U64" => Dtype::U64,
            "I64" => Dtype::I64,
            "F64" => Dtype::F64,
            _ => Dtype::Other(spelling),
        }
    }

    /// Bytes per element; `None` for blocks, and for a type that Lucid does not know.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        match self {
            Dtype::Bool | Dtype::U8 | Dtype::I8 | Dtype::F8E4m3 | Dtype::F8E5m2 | Dtype::F8E8m0 => Some(1),
            Dtype::U16 | Dtype::I16 | Dtype::F16 | Dtype::Bf16 => Some(2),
            Dtype::U32 | Dtype::I32 | Dtype::F32 => Some(4),
            Dtype::U64 | Dtype::I64 | Dtype::F64 => Some(8),
            Dtype::Gguf(_) | Dtype::Other(_) => None,
        }
    }

    /// The spelling in a safetensors header, or llama.cpp's name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Dtype::Bool => "BOOL",
            Dtype::U8 => "U8",
            Dtype::I8 => "I8",
            Dtype::F8E4m3 => "F8_E4M3",
            Dtype::F8E5m2 => "F8_E5M2",
            Dtype::F8E8m0 => "F8_E8M0",
            Dtype::U16 => "U16",
            Dtype::I16 => "I16",
            Dtype::F16 => "F16",
            Dtype::Bf16 => "BF16",
            Dtype::U32 => "U32",
            Dtype::I32 => "I32",
            Dtype::F32 => "F32",
            Dtype::U64 => "U64",
            Dtype::I64 => "I64",
            Dtype::F64 => "F64",
            Dtype::Gguf(block) => block.as_str(),
            Dtype::Other(spelling) => spelling,
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Dtype {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
