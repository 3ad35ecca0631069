//! What is installed: distributions, their RECORDs, versions that must match, overlays and caches.
