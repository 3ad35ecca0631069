//! What is in a checkpoint, for people and for programs.

mod group;
mod render;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{Checkpoint, Config, Dtype, Error, Generation, Tensor, layout};
pub use group::ModuleGroup;

/// What is in a checkpoint. `Display` prints it for the terminal, `Serialize` for programs.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// Where the checkpoint is.
    pub location: String,
    /// `config.json`, checked.
    pub config: Config,
    /// `generation_config.json`.
    pub generation: Generation,
    /// Modules that differ only in layer or expert number, together.
    pub modules: Vec<ModuleGroup>,
    /// One entry a layout, largest first.
    pub totals: Vec<LayoutTotal>,
    /// All modules together.
    pub parameters: u64,
    /// All tensors together, in bytes.
    pub bytes: u64,
    /// Every tensor, sorted by name.
    pub tensors: Vec<TensorRow>,
    /// What is odd about the files, and what can't be decoded: one sentence each.
    pub notices: Vec<String>,
}

/// What is stored in one layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayoutTotal {
    /// As in [`ModuleGroup::layout`].
    pub layout: String,
    /// Modules with this layout.
    pub count: u64,
    /// Their weights; scales are not counted.
    pub parameters: u64,
    /// Their bytes, with scales.
    pub bytes: u64,
}

/// A row of the tensor table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorRow {
    /// The name in the file.
    pub name: String,
    /// Element type as the file spells it.
    pub dtype: Dtype,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Size in the file.
    pub bytes: u64,
    /// The file.
    pub shard: String,
}

/// One module's weight with the scales that belong to it, or one tensor that is no weight.
pub(crate) struct Module {
    /// Path without `.weight`, or the whole name of another tensor.
    pub(crate) name: String,
    pub(crate) layout: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) parameters: u64,
    pub(crate) bytes: u64,
}

/// Describes a checkpoint from its headers. Weights are not read, except single global scales.
#[must_use]
pub fn inspect(checkpoint: &Checkpoint) -> Inspection {
    let mut notices = checkpoint.notices().to_vec();
    let modules = modules(checkpoint, &mut notices);
    let mut totals: BTreeMap<&str, LayoutTotal> = BTreeMap::new();
    for module in &modules {
        let total = totals.entry(&module.layout).or_insert_with(|| LayoutTotal {
            layout: module.layout.clone(),
            count: 0,
            parameters: 0,
            bytes: 0,
        });
        total.count += 1;
        total.parameters = total.parameters.saturating_add(module.parameters);
        total.bytes += module.bytes;
    }
    let mut totals: Vec<LayoutTotal> = totals.into_values().collect();
    totals.sort_by_key(|total| std::cmp::Reverse(total.bytes));
    let row = |tensor: &Tensor| TensorRow {
        name: tensor.name.clone(),
        dtype: tensor.dtype.clone(),
        shape: tensor.shape.clone(),
        bytes: tensor.bytes.len() as u64,
        shard: tensor.shard.clone(),
    };
    Inspection {
        location: checkpoint.files().root(),
        config: checkpoint.config().clone(),
        generation: checkpoint.generation().clone(),
        parameters: totals.iter().fold(0, |sum, total| sum.saturating_add(total.parameters)),
        bytes: totals.iter().map(|total| total.bytes).sum(),
        totals,
        modules: group::group(&modules),
        tensors: checkpoint.tensors().map(row).collect(),
        notices,
    }
}

/// All tensors, each in exactly one module.
fn modules(checkpoint: &Checkpoint, notices: &mut Vec<String>) -> Vec<Module> {
    let mut by_path: BTreeMap<&str, Vec<&Tensor>> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let path = tensor.name.rsplit_once('.').map_or("", |(path, _)| path);
        by_path.entry(path).or_default().push(tensor);
    }
    let mut modules = Vec::new();
    let mut trouble: BTreeMap<String, (u64, String)> = BTreeMap::new();
    for (path, mut tensors) in by_path {
        if let Some(weight) = layout::weight(checkpoint, path)
            && weight.shape.len() == 2
        {
            let belongs = |tensor: &Tensor| tensor.name == weight.name || layout::is_part(&tensor.name);
            let bytes = tensors.iter().filter(|t| belongs(t)).map(|t| t.bytes.len() as u64).sum();
            tensors.retain(|tensor| !belongs(tensor));
            modules.push(matrix(checkpoint, path, weight, bytes, &mut trouble));
        }
        modules.extend(tensors.into_iter().map(|tensor| Module {
            name: tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name).to_owned(),
            layout: tensor.dtype.to_string(),
            shape: tensor.shape.clone(),
            parameters: elements(&tensor.shape),
            bytes: tensor.bytes.len() as u64,
        }));
    }
    notices.extend(trouble.into_values().map(|(count, first)| match count {
        1 => first,
        _ => format!("{first} (and {} more like it)", count - 1),
    }));
    modules
}

/// A matrix, through the same door as the engine, so that what is printed is what would happen.
fn matrix(
    checkpoint: &Checkpoint,
    path: &str,
    weight: &Tensor,
    bytes: u64,
    trouble: &mut BTreeMap<String, (u64, String)>,
) -> Module {
    let (rows, cols) = layout::stored_size(weight);
    let layout = match layout::matrix_at(checkpoint, path, weight, rows, cols) {
        Ok(matrix) => matrix.layout().to_string(),
        Err(error) => {
            let (kind, name) = match &error {
                Error::UnsupportedLayout { layout, .. } => {
                    // Without the tensor's name and shape, which differ from module to module.
                    let kind = layout.split(" (").next().unwrap_or(layout).to_owned();
                    (kind.clone(), format!("unsupported: {kind}"))
                }
                _ => ("damaged".to_owned(), "damaged".to_owned()),
            };
            trouble.entry(kind).or_insert_with(|| (0, error.to_string())).0 += 1;
            name
        }
    };
    let shape = vec![rows, cols];
    Module { name: path.to_owned(), layout, parameters: elements(&shape), shape, bytes }
}

/// Saturating: the shape of a type of unknown size was not checked against the file.
fn elements(shape: &[usize]) -> u64 {
    shape.iter().fold(1u64, |product, &dim| product.saturating_mul(dim as u64))
}
