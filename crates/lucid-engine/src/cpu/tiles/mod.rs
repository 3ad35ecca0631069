//! Matrix products on Intel's tile unit (AMX), as exact as f32.
//!
//! The unit multiplies bf16 only, sixteen times as fast as the vector unit multiplies f32. Weights of bf16, FP8 and NVFP4 and the
//! serving cache *are* bf16 numbers. An f32 vector is cut into three bf16 parts that add up to it exactly ([`parts`]), so each
//! product of a weight and a part is exact, and only the order of the sum differs from a chain of f32 multiply-adds.
//!
//! The order is fixed by the columns alone ([`plain`] writes it down), whatever else is in the tile. So one token has the same
//! bits in any batch, and prompts and answers go through the same arithmetic.

mod attention;
mod detect;
mod kernel;
mod parts;
#[cfg(test)]
mod plain;
mod product;
mod transpose;
mod vectors;
mod weights;

pub use attention::{attend, takes};
pub use detect::available;
pub use product::multiply;
