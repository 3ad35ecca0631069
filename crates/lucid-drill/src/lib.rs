//! Planted faults, and how well the doctor finds them.
