//! Evidence, checks, findings, causes, report: what is wrong with a deployment.
