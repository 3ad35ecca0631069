//! Which definitions of a file mention which others.

use std::collections::{BTreeMap, BTreeSet};

use ruff_python_ast::visitor::{self, Visitor};
use ruff_python_ast::{Expr, Stmt};

use crate::model_map::MODULE;

/// For every class and function at the top of a module, the others that its text names, in its body, bases, decorators, types or
/// as a string; and those that the module's other statements name. Lists of what a file exports run nothing.
pub(crate) fn read(body: &[Stmt]) -> BTreeMap<String, Vec<String>> {
    let mut definitions = BTreeMap::new();
    let mut module = Names::default();
    top_level(body, &mut definitions, &mut module);
    definitions.insert(MODULE, module);
    let known: BTreeSet<&str> = definitions.keys().copied().collect();
    let mentioned = |name: &str, names: &Names<'_>| {
        names
            .0
            .iter()
            .filter(|other| **other != name && known.contains(**other))
            .map(|other| (*other).to_owned())
            .collect()
    };
    definitions.iter().map(|(name, names)| ((*name).to_owned(), mentioned(name, names))).collect()
}

/// `if` and `try` at the top only choose among definitions.
fn top_level<'a>(body: &'a [Stmt], definitions: &mut BTreeMap<&'a str, Names<'a>>, module: &mut Names<'a>) {
    for statement in body {
        match statement {
            Stmt::FunctionDef(function) => {
                definitions.entry(function.name.as_str()).or_default().visit_stmt(statement);
            }
            Stmt::ClassDef(class) => {
                definitions.entry(class.name.as_str()).or_default().visit_stmt(statement)
            }
            Stmt::If(branch) => {
                module.visit_expr(&branch.test);
                top_level(&branch.body, definitions, module);
                for clause in &branch.elif_else_clauses {
                    top_level(&clause.body, definitions, module);
                }
            }
            Stmt::Try(attempt) => {
                top_level(&attempt.body, definitions, module);
                for handler in &attempt.handlers {
                    let ruff_python_ast::ExceptHandler::ExceptHandler(handler) = handler;
                    top_level(&handler.body, definitions, module);
                }
                top_level(&attempt.orelse, definitions, module);
                top_level(&attempt.finalbody, definitions, module);
            }
            Stmt::Assign(assign) if assign.targets.iter().any(exports) => {}
            _ => module.visit_stmt(statement),
        }
    }
}

fn exports(target: &Expr) -> bool {
    matches!(target, Expr::Name(name) if matches!(name.id.as_str(), "EntryClass" | "__all__"))
}

/// Names and strings of a piece of code.
#[derive(Default)]
struct Names<'a>(BTreeSet<&'a str>);

impl<'a> Visitor<'a> for Names<'a> {
    fn visit_expr(&mut self, expression: &'a Expr) {
        match expression {
            Expr::Name(name) => {
                self.0.insert(name.id.as_str());
            }
            Expr::StringLiteral(text) => {
                self.0.insert(text.value.to_str());
            }
            _ => visitor::walk_expr(self, expression),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_module_says_of_its_own() {
        let text = "import torch\n\n\nclass A(Base):\n    def f(self):\n        return B(self)\n\n\nclass B:\n    part: 'C'\n\n\nclass C:\n    pass\n\n\nif fast:\n    @decorated(C)\n    def d():\n        return d()\nelse:\n    def d():\n        return A()\n\n\nclass Lonely:\n    pass\n\n\ntable = {'d': d}\nEntryClass = [A, Lonely]\n";
        let parsed = ruff_python_parser::parse_module(text).unwrap();
        let found = read(&parsed.syntax().body);
        let mentions = |name: &str| found[name].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(mentions("A"), ["B"]);
        assert_eq!(mentions("B"), ["C"]);
        assert_eq!(mentions("d"), ["A", "C"]);
        assert_eq!(mentions(MODULE), ["d"]);
        assert!(mentions("C").is_empty() && mentions("Lonely").is_empty());
    }
}
