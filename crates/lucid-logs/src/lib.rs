//! Reads the logs of a serving engine: lines, tracebacks, phases, and what known lines mean.
