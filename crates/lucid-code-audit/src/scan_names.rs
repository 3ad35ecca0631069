//! Imports, assignments and definitions: what names come to mean.

use std::borrow::Cow;
use std::rc::Rc;

use ruff_python_ast::visitor::Visitor;
use ruff_python_ast::{self as ast, Expr, Stmt};
use ruff_text_size::Ranged;

use crate::names::{Measure, Measured, Origin, ScopeKind, Value};
use crate::scan::{Deferred, Scanner};

impl<'a> Scanner<'a> {
    pub(crate) fn import(&mut self, statement: &'a ast::StmtImport) {
        let local = self.scopes.kind(self.scope) == ScopeKind::Function;
        for alias in &statement.names {
            let offset = alias.range.start().to_u32();
            let full = alias.name.as_str();
            let (name, module) = match &alias.asname {
                Some(name) => (name.as_str(), full),
                None => {
                    let top = full.split('.').next().unwrap_or(full);
                    (top, top)
                }
            };
            let renamed = name != full.rsplit('.').next().unwrap_or(full) && alias.asname.is_some();
            self.scopes.bind(
                self.scope,
                name,
                Value::Dotted(module.into()),
                Origin::Import { offset, renamed, local },
            );
        }
    }

    pub(crate) fn import_from(&mut self, statement: &'a ast::StmtImportFrom) {
        let local = self.scopes.kind(self.scope) == ScopeKind::Function;
        let module = crate::imports::imported_module(self.subject.relative, self.subject.module, statement);
        for alias in &statement.names {
            let name = alias.name.as_str();
            if name == "*" {
                self.scopes.wildcards.push(module.as_str().into());
                continue;
            }
            let offset = alias.range.start().to_u32();
            let bound = alias.asname.as_ref().map_or(name, |bound| bound.as_str());
            let full = if module.is_empty() { name.to_owned() } else { format!("{module}.{name}") };
            self.scopes.bind(
                self.scope,
                bound,
                Value::Dotted(full.into()),
                Origin::Import { offset, renamed: bound != name, local },
            );
        }
    }

    /// `target = value`.
    pub(crate) fn assign(&mut self, target: &'a Expr, value: Value<'a>, written: Option<&'a Expr>) {
        match target {
            Expr::Name(name) => {
                let id = name.id.as_str();
                if self.scopes.is_global(self.scope, id) {
                    self.set(id, target);
                }
                if let Value::Dotted(full) = &value {
                    self.kept.entry(full.clone()).or_insert_with(|| target.range().start().to_u32());
                }
                self.scopes.bind(self.scope, id, value, Origin::Other);
            }
            Expr::Tuple(ast::ExprTuple { elts, .. }) | Expr::List(ast::ExprList { elts, .. }) => {
                let parts = match written {
                    Some(
                        Expr::Tuple(ast::ExprTuple { elts: parts, .. })
                        | Expr::List(ast::ExprList { elts: parts, .. }),
                    ) if parts.len() == elts.len() => Some(parts),
                    _ => None,
                };
                for (position, element) in elts.iter().enumerate() {
                    match (&parts, &value) {
                        (Some(parts), _) => {
                            let value = self.value(&parts[position]);
                            self.assign(element, value, Some(&parts[position]));
                        }
                        (None, Value::Shape(of)) => {
                            let measure =
                                Measure { of: of.to_string(), what: Measured::Dimension(position as i64) };
                            self.assign(element, Value::Measure(Rc::new(measure)), None);
                        }
                        _ => self.assign(element, Value::Unknown, None),
                    }
                }
            }
            Expr::Starred(starred) => self.assign(&starred.value, Value::Unknown, None),
            Expr::Attribute(attribute) => {
                self.set(attribute.attr.as_str(), target);
                self.patched_attribute(attribute, &value, written);
                let base = self.value(&attribute.value);
                if let Value::Instance(class) | Value::Class(class) = base {
                    self.scopes.set_attribute(&class, attribute.attr.as_str(), value);
                }
            }
            Expr::Subscript(subscript) => {
                let key = match self.value(&subscript.slice) {
                    Value::Text(key) => key.constant().map(|key| Cow::Owned(key.to_owned())),
                    _ => None,
                };
                let name = key.or_else(|| last_name(&subscript.value).map(Cow::Borrowed));
                if let Some(name) = name {
                    self.set(name, target);
                }
                self.patched_subscript(subscript, written);
            }
            _ => {}
        }
    }

    pub(crate) fn set(&mut self, name: impl Into<Cow<'a, str>>, at: &Expr) {
        // Flags are asked for deeds only.
        if self.subject.area.is_some() {
            let offset = at.range().start().to_u32();
            self.functions[self.function].sets.push((name.into(), offset));
        }
    }

    pub(crate) fn class(&mut self, definition: &'a ast::StmtClassDef) {
        for decorator in &definition.decorator_list {
            self.visit_expr(&decorator.expression);
        }
        if let Some(arguments) = &definition.arguments {
            self.visit_arguments(arguments);
        }
        let outer = self.classes.last().cloned();
        let name: Rc<str> = match outer {
            Some(outer) => format!("{outer}.{}", definition.name).into(),
            None => definition.name.as_str().into(),
        };
        self.scopes.bind(self.scope, definition.name.as_str(), Value::Class(name.clone()), Origin::Other);
        let around = self.scope;
        self.scope = self.scopes.open(ScopeKind::Class, around);
        self.classes.push(name.clone());
        self.block(&definition.body);
        // Class attributes are seen through `self` and the class.
        for statement in &definition.body {
            let (target, value) = match statement {
                Stmt::Assign(assign) => (assign.targets.first(), Some(&*assign.value)),
                Stmt::AnnAssign(assign) => (Some(&*assign.target), assign.value.as_deref()),
                _ => continue,
            };
            if let (Some(Expr::Name(target)), Some(value)) = (target, value) {
                let value = self.value(value);
                self.scopes.set_attribute(&name, target.id.as_str(), value);
            }
        }
        self.classes.pop();
        self.scope = around;
    }

    pub(crate) fn define(&mut self, definition: &'a ast::StmtFunctionDef) {
        for decorator in &definition.decorator_list {
            self.visit_expr(&decorator.expression);
        }
        for parameter in definition.parameters.iter_non_variadic_params() {
            if let Some(default) = &parameter.default {
                self.visit_expr(default);
            }
        }
        let class = if self.scopes.kind(self.scope) == ScopeKind::Class {
            self.classes.last().cloned()
        } else {
            None
        };
        if class.is_none() {
            self.scopes.bind(
                self.scope,
                definition.name.as_str(),
                Value::Function(definition.name.as_str().into()),
                Origin::Other,
            );
        }
        let guards = self.guards.clone();
        self.deferred.push_back(Deferred {
            definition,
            scope: self.scope,
            class,
            parent: self.function,
            guards,
        });
    }
}

/// The last name of a chain: `_seen` in `cls._seen`.
pub(crate) fn last_name(expression: &Expr) -> Option<&str> {
    match expression {
        Expr::Name(name) => Some(name.id.as_str()),
        Expr::Attribute(attribute) => Some(attribute.attr.as_str()),
        _ => None,
    }
}
