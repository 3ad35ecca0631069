//! Finds debugging code and monkey patches in installed Python packages, from their syntax trees.
