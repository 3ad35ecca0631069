//! Which tensors a model needs: what the loader asks for, written down in place of being found.

use std::cell::RefCell;

use lucid_checkpoint::{Bytes, Config, Matrix, Packed};

use super::{KeysAndValues, Loader, Tensors, Weights};
use crate::Error;

/// A tensor's name and dimensions, slowest first. Matrices may be stored in any layout; these are the decoded ones.
pub type Needed = (String, Vec<usize>);

#[derive(Default)]
struct Listing(RefCell<Vec<Needed>>);

impl Tensors for Listing {
    fn matrix(&self, module: &str, rows: usize, cols: usize) -> Result<Matrix, Error> {
        self.0.borrow_mut().push((format!("{module}.weight"), vec![rows, cols]));
        Ok(Matrix { name: module.to_owned(), rows, cols, packed: Packed::Bf16(Bytes::from(Vec::new())) })
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, Error> {
        self.0.borrow_mut().push((name.to_owned(), vec![len]));
        Ok(Vec::new())
    }

    fn of_experts(&self) -> &dyn Tensors {
        self
    }

    fn keys_and_values(&self, _at: &str) -> Result<Option<[Matrix; 2]>, Error> {
        Ok(None)
    }

    fn joined(&self, kv_b: Matrix, _heads: usize, _nope: usize, _value: usize) -> KeysAndValues {
        KeysAndValues::Joined { keys: kv_b.clone(), kv_b }
    }
}

impl Weights {
    /// Every tensor that loading a model with this config looks for, in that order.
    #[must_use]
    pub fn needed(config: &Config) -> Vec<Needed> {
        let listing = Listing::default();
        // The listing finds everything, so this can't fail.
        let _ = Loader { tensors: &listing, config }.weights();
        listing.0.into_inner()
    }
}
