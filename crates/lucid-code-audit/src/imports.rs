//! Which module an import names.

use ruff_python_ast as ast;

/// Dotted name of the module that a file is: `vllm/config/__init__.py` → `vllm.config`.
pub(crate) fn module_name(relative: &str) -> String {
    let stem = relative.strip_suffix(".py").unwrap_or(relative);
    let stem = stem.strip_suffix("/__init__").unwrap_or(stem);
    stem.replace('/', ".")
}

/// The full name of the module that `from … import` names, dots resolved from the file that it stands in.
pub(crate) fn imported_module(relative: &str, module: &str, statement: &ast::StmtImportFrom) -> String {
    let named = statement.module.as_ref().map_or("", |name| name.as_str());
    if statement.level == 0 {
        return named.to_owned();
    }
    let is_package = relative.ends_with("__init__.py");
    let mut package = module;
    // One dot is the package itself; a package's own module is already that.
    for _ in 0..statement.level - u32::from(is_package) {
        package = package.rsplit_once('.').map_or("", |(parent, _)| parent);
    }
    match (package.is_empty(), named.is_empty()) {
        (true, _) => named.to_owned(),
        (false, true) => package.to_owned(),
        (false, false) => format!("{package}.{named}"),
    }
}
