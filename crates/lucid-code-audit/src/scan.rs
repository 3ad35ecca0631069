//! One pass over a file's syntax tree: names, guards, effects and patches, in the order in which Python would meet them.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use ruff_python_ast::visitor::{self, Visitor};
use ruff_python_ast::{self as ast, Expr, Stmt};
use ruff_text_size::Ranged;

use crate::conditions::{Guard, GuardKind};
use crate::evaluate::Evaluator;
use crate::evidence::{Effect, PatchFact};
use crate::knowledge::CALLS;
use crate::names::{Measure, Measured, Origin, ScopeKind, Scopes, Value};
use crate::template::Template;

/// The file that is scanned.
pub(crate) struct Subject<'a> {
    /// Relative to site-packages.
    pub relative: &'a str,
    /// Dotted name of the module.
    pub module: &'a str,
    pub text: &'a str,
    /// Part of an engine; without one, only patches are looked for.
    pub area: Option<&'a str>,
}

/// A function, or the module itself (the first).
pub(crate) struct Function<'a> {
    pub name: &'a str,
    pub qualified: String,
    pub class: Option<Rc<str>>,
    pub parent: Option<usize>,
    /// Last names of what it calls.
    pub calls: HashSet<&'a str>,
    /// Names that it sets, and where: flags among them.
    pub sets: Vec<(String, u32)>,
}

/// Something that the code does, before it is judged.
pub(crate) struct Deed {
    pub effect: Effect,
    pub offset: u32,
    pub function: usize,
    pub guards: Vec<Rc<Guard>>,
    pub call: String,
    pub spelled: String,
    pub origin: Option<Origin>,
    /// The callee's name was put together at run time: `getattr(torch, "sa" + "ve")`.
    pub hidden: bool,
    pub path: Option<Template>,
    /// The path is what a parameter or an attribute says.
    pub path_given: bool,
    pub subject: Option<String>,
    /// Errors in it are swallowed.
    pub swallowed: bool,
}

/// A call of a function of this file under conditions.
pub(crate) struct CallSite<'a> {
    pub callee: &'a str,
    pub function: usize,
    pub guards: Vec<Rc<Guard>>,
}

pub(crate) struct Scanner<'a> {
    pub subject: Subject<'a>,
    pub scopes: Scopes<'a>,
    pub scope: usize,
    pub functions: Vec<Function<'a>>,
    pub function: usize,
    pub guards: Vec<Rc<Guard>>,
    pub swallowing: u32,
    pub deeds: Vec<Deed>,
    pub sites: Vec<CallSite<'a>>,
    pub patches: Vec<PatchFact>,
    /// Full names that were kept under another name: `original = Linear.forward`.
    pub kept: HashMap<Rc<str>, u32>,
    classes: Vec<Rc<str>>,
    deferred: VecDeque<Deferred<'a>>,
    depth: Cell<u32>,
    followed: Cell<u32>,
}

struct Deferred<'a> {
    definition: &'a ast::StmtFunctionDef,
    scope: usize,
    class: Option<Rc<str>>,
    parent: usize,
    guards: Vec<Rc<Guard>>,
}

fn known(name: &str) -> bool {
    CALLS.call(name).is_some()
        || matches!(name.rsplit('.').next(), Some("open" | "Path" | "partial" | "import_module" | "environ"))
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(subject: Subject<'a>) -> Scanner<'a> {
        let module = Function {
            name: "<module>",
            qualified: "<module>".to_owned(),
            class: None,
            parent: None,
            calls: HashSet::new(),
            sets: Vec::new(),
        };
        Scanner {
            subject,
            scopes: Scopes::new(),
            scope: 0,
            functions: vec![module],
            function: 0,
            guards: Vec::new(),
            swallowing: 0,
            deeds: Vec::new(),
            sites: Vec::new(),
            patches: Vec::new(),
            kept: HashMap::new(),
            classes: Vec::new(),
            deferred: VecDeque::new(),
            depth: Cell::new(0),
            followed: Cell::new(0),
        }
    }

    /// Scans a whole module. Function bodies come after the statements around them, as at run time: a function sees the module
    /// as it is when it is called.
    pub(crate) fn module(&mut self, body: &'a [Stmt]) {
        self.block(body);
        while let Some(next) = self.deferred.pop_front() {
            self.function_body(next);
        }
    }

    pub(crate) fn evaluator(&self) -> Evaluator<'_, 'a> {
        Evaluator {
            scopes: &self.scopes,
            scope: self.scope,
            text: self.subject.text,
            known: &known,
            depth: &self.depth,
            followed: &self.followed,
        }
    }

    pub(crate) fn value(&self, expression: &'a Expr) -> Value<'a> {
        self.evaluator().value(expression)
    }

    fn function_body(&mut self, deferred: Deferred<'a>) {
        let Deferred { definition, scope, class, parent, guards } = deferred;
        let outer = if parent == 0 { None } else { Some(self.functions[parent].qualified.clone()) };
        let name = definition.name.as_str();
        let qualified = match (&class, outer) {
            (Some(class), _) => format!("{class}.{name}"),
            (None, Some(outer)) => format!("{outer}.{name}"),
            (None, None) => name.to_owned(),
        };
        self.functions.push(Function {
            name,
            qualified,
            class: class.clone(),
            parent: Some(parent),
            calls: HashSet::new(),
            sets: Vec::new(),
        });
        self.function = self.functions.len() - 1;
        let inner = self.scopes.open(ScopeKind::Function, scope);
        self.scope = inner;
        let decorated = |what: &str| {
            definition.decorator_list.iter().any(
                |decorator| matches!(&decorator.expression, Expr::Name(name) if name.id.as_str() == what),
            )
        };
        let is_method = class.is_some() && !decorated("staticmethod");
        for (position, parameter) in definition.parameters.iter_non_variadic_params().enumerate() {
            let name = parameter.parameter.name.as_str();
            let value = match (&class, position) {
                (Some(class), 0) if is_method => {
                    if decorated("classmethod") {
                        Value::Class(class.clone())
                    } else {
                        Value::Instance(class.clone())
                    }
                }
                _ => match parameter.default.as_deref().map(|default| self.value(default)) {
                    Some(value @ (Value::Dotted(_) | Value::Partial(..) | Value::Getter(_))) => value,
                    _ => Value::Parameter,
                },
            };
            self.scopes.bind(inner, name, value, Origin::Other);
        }
        for parameter in [&definition.parameters.vararg, &definition.parameters.kwarg].into_iter().flatten() {
            self.scopes.bind(inner, parameter.name.as_str(), Value::Unknown, Origin::Other);
        }
        self.guards = guards;
        self.swallowing = 0;
        self.classes.clear();
        self.block(&definition.body);
        self.guards.clear();
    }

    /// A list of statements. `if done: return` puts everything behind it under the opposite condition.
    pub(crate) fn block(&mut self, body: &'a [Stmt]) {
        let before = self.guards.len();
        for (position, statement) in body.iter().enumerate() {
            self.visit_stmt(statement);
            if let (Stmt::If(branch), Some(last)) = (statement, body.last())
                && branch.elif_else_clauses.is_empty()
                && leaves(&branch.body)
                && position + 1 < body.len()
            {
                let extent = (branch.range().end().to_u32(), last.range().end().to_u32());
                self.push_guards(&branch.test, true, extent);
            }
        }
        self.guards.truncate(before);
    }

    /// Adds the conditions under which `test` is true; the caller truncates.
    pub(crate) fn push_guards(&mut self, test: &'a Expr, negated: bool, extent: (u32, u32)) {
        let offset = test.range().start().to_u32();
        let conditions = self.evaluator().conditions(test, negated);
        // A hundred conditions around one statement are generated code; the first ones say enough.
        if self.guards.len() < 100 {
            self.guards.extend(
                conditions.into_iter().map(|(kind, words)| Rc::new(Guard { kind, words, extent, offset })),
            );
        }
    }

    fn extent(body: &[Stmt]) -> (u32, u32) {
        match (body.first(), body.last()) {
            (Some(first), Some(last)) => (first.range().start().to_u32(), last.range().end().to_u32()),
            _ => (0, 0),
        }
    }

    fn guarded(&mut self, test: &'a Expr, negated: bool, body: &'a [Stmt]) {
        let before = self.guards.len();
        self.push_guards(test, negated, Self::extent(body));
        self.block(body);
        self.guards.truncate(before);
    }

    fn branch(&mut self, branch: &'a ast::StmtIf) {
        self.visit_expr(&branch.test);
        self.guarded(&branch.test, false, &branch.body);
        let before = self.guards.len();
        let mut previous = &*branch.test;
        for clause in &branch.elif_else_clauses {
            self.push_guards(previous, true, Self::extent(&clause.body));
            match &clause.test {
                Some(test) => {
                    self.visit_expr(test);
                    self.guarded(test, false, &clause.body);
                    previous = test;
                }
                None => self.block(&clause.body),
            }
        }
        self.guards.truncate(before);
    }

    fn matched(&mut self, statement: &'a ast::StmtMatch) {
        self.visit_expr(&statement.subject);
        let subject = self.value(&statement.subject);
        for case in &statement.cases {
            let before = self.guards.len();
            let extent = Self::extent(&case.body);
            let offset = case.range.start().to_u32();
            if let (Value::Measure(measure), ast::Pattern::MatchValue(pattern)) = (&subject, &case.pattern) {
                if let Value::Int(number) = self.value(&pattern.value) {
                    let (kind, words) = crate::conditions::counted(measure, ast::CmpOp::Eq, &[number]);
                    self.guards.push(Rc::new(Guard { kind, words, extent, offset }));
                }
            } else if !case.pattern.is_irrefutable() {
                let words = format!("`{}` is a case of `match`", self.evaluator().words(&statement.subject));
                self.guards.push(Rc::new(Guard { kind: GuardKind::Setting, words, extent, offset }));
            }
            if let Some(guard) = &case.guard {
                self.visit_expr(guard);
                self.push_guards(guard, false, extent);
            }
            self.block(&case.body);
            self.guards.truncate(before);
        }
    }

    fn attempt(&mut self, statement: &'a ast::StmtTry) {
        let swallows = statement.handlers.iter().any(|handler| {
            let ast::ExceptHandler::ExceptHandler(handler) = handler;
            handler.body.iter().all(|statement| matches!(statement, Stmt::Pass(_) | Stmt::Continue(_)))
        });
        self.swallowing += u32::from(swallows);
        self.block(&statement.body);
        self.swallowing -= u32::from(swallows);
        for handler in &statement.handlers {
            let ast::ExceptHandler::ExceptHandler(handler) = handler;
            let before = self.guards.len();
            let what = handler
                .type_
                .as_ref()
                .map_or_else(|| "an error".to_owned(), |kind| self.evaluator().words(kind));
            if let Some(name) = &handler.name {
                self.scopes.bind(self.scope, name.as_str(), Value::Unknown, Origin::Other);
            }
            let guard = Guard {
                kind: GuardKind::Exception,
                words: format!("{what} was raised"),
                extent: Self::extent(&handler.body),
                offset: handler.range.start().to_u32(),
            };
            self.guards.push(Rc::new(guard));
            self.block(&handler.body);
            self.guards.truncate(before);
        }
        self.block(&statement.orelse);
        self.block(&statement.finalbody);
    }

    fn import(&mut self, statement: &'a ast::StmtImport) {
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

    fn import_from(&mut self, statement: &'a ast::StmtImportFrom) {
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
                    self.set(id.to_owned(), target);
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
                self.set(attribute.attr.as_str().to_owned(), target);
                self.patched_attribute(attribute, &value, written);
                let base = self.value(&attribute.value);
                if let Value::Instance(class) | Value::Class(class) = base {
                    self.scopes.set_attribute(&class, attribute.attr.as_str(), value);
                }
            }
            Expr::Subscript(subscript) => {
                let key = match self.value(&subscript.slice) {
                    Value::Text(key) => key.constant().map(str::to_owned),
                    _ => None,
                };
                let name = key.or_else(|| last_name(&subscript.value).map(str::to_owned));
                if let Some(name) = name {
                    self.set(name, target);
                }
                self.patched_subscript(subscript, written);
            }
            _ => {}
        }
    }

    pub(crate) fn set(&mut self, name: String, at: &Expr) {
        let offset = at.range().start().to_u32();
        self.functions[self.function].sets.push((name, offset));
    }

    fn class(&mut self, definition: &'a ast::StmtClassDef) {
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

    fn define(&mut self, definition: &'a ast::StmtFunctionDef) {
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

impl<'a> Visitor<'a> for Scanner<'a> {
    fn visit_stmt(&mut self, statement: &'a Stmt) {
        match statement {
            Stmt::FunctionDef(definition) => self.define(definition),
            Stmt::ClassDef(definition) => self.class(definition),
            Stmt::Import(import) => self.import(import),
            Stmt::ImportFrom(import) => self.import_from(import),
            Stmt::If(branch) => self.branch(branch),
            Stmt::Match(statement) => self.matched(statement),
            Stmt::Try(statement) => self.attempt(statement),
            Stmt::While(repeat) => {
                self.visit_expr(&repeat.test);
                self.guarded(&repeat.test, false, &repeat.body);
                self.block(&repeat.orelse);
            }
            Stmt::For(repeat) => {
                self.visit_expr(&repeat.iter);
                self.assign(&repeat.target, Value::Unknown, None);
                self.block(&repeat.body);
                self.block(&repeat.orelse);
            }
            Stmt::With(with) => {
                for item in &with.items {
                    self.visit_expr(&item.context_expr);
                    if let Some(target) = &item.optional_vars {
                        let value = self.value(&item.context_expr);
                        self.assign(target, value, None);
                    }
                }
                self.block(&with.body);
            }
            Stmt::Assign(assign) => {
                self.visit_expr(&assign.value);
                let value = self.value(&assign.value);
                for target in &assign.targets {
                    self.visit_target(target);
                    self.assign(target, value.clone(), Some(&assign.value));
                }
            }
            Stmt::AnnAssign(assign) => {
                if let Some(written) = &assign.value {
                    self.visit_expr(written);
                    let value = self.value(written);
                    self.assign(&assign.target, value, Some(written));
                }
            }
            Stmt::AugAssign(assign) => {
                self.visit_expr(&assign.value);
                let sum = match (self.value(&assign.target), self.value(&assign.value)) {
                    (Value::Text(left), Value::Text(right)) => {
                        let mut sum = (*left).clone();
                        sum.append(&right);
                        Value::Text(Rc::new(sum))
                    }
                    _ => Value::Unknown,
                };
                if let Expr::Name(name) = &*assign.target {
                    self.set(name.id.to_string(), &assign.target);
                }
                match &*assign.target {
                    Expr::Attribute(attribute) => self.set(attribute.attr.to_string(), &assign.target),
                    target => self.assign(target, sum, None),
                }
            }
            Stmt::Global(global) => {
                for name in &global.names {
                    self.scopes.declare_global(self.scope, name.as_str());
                }
            }
            Stmt::Delete(delete) => {
                for target in &delete.targets {
                    if let Expr::Name(name) = target {
                        self.scopes.unbind(self.scope, name.id.as_str());
                    }
                }
            }
            _ => visitor::walk_stmt(self, statement),
        }
    }

    fn visit_annotation(&mut self, _: &'a Expr) {
        // Types are not run.
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        match expression {
            Expr::Call(call) => {
                self.called(call, expression);
                visitor::walk_expr(self, expression);
            }
            Expr::Named(named) => {
                self.visit_expr(&named.value);
                let value = self.value(&named.value);
                self.assign(&named.target, value, Some(&named.value));
            }
            // `x.shape[0] == 5 and torch.save(…)`.
            Expr::BoolOp(operation) => {
                let before = self.guards.len();
                let extent = (expression.range().start().to_u32(), expression.range().end().to_u32());
                for value in &operation.values {
                    self.visit_expr(value);
                    self.push_guards(value, operation.op == ast::BoolOp::Or, extent);
                }
                self.guards.truncate(before);
            }
            Expr::If(choice) => {
                self.visit_expr(&choice.test);
                let before = self.guards.len();
                for (branch, negated) in [(&choice.body, false), (&choice.orelse, true)] {
                    let extent = (branch.range().start().to_u32(), branch.range().end().to_u32());
                    self.push_guards(&choice.test, negated, extent);
                    self.visit_expr(branch);
                    self.guards.truncate(before);
                }
            }
            Expr::Subscript(_) | Expr::Compare(_) | Expr::Attribute(_) => {
                self.asked_environment(expression);
                visitor::walk_expr(self, expression);
            }
            _ => visitor::walk_expr(self, expression),
        }
    }
}

impl<'a> Scanner<'a> {
    /// Subscripts and attributes that are assigned to may hold calls.
    fn visit_target(&mut self, target: &'a Expr) {
        match target {
            Expr::Subscript(subscript) => {
                visitor::walk_expr(self, &subscript.value);
                visitor::walk_expr(self, &subscript.slice);
            }
            Expr::Attribute(attribute) => visitor::walk_expr(self, &attribute.value),
            _ => {}
        }
    }
}

/// Whether a block ends by leaving what is around it.
fn leaves(body: &[Stmt]) -> bool {
    matches!(body.last(), Some(Stmt::Return(_) | Stmt::Raise(_) | Stmt::Continue(_) | Stmt::Break(_)))
}

/// The last name of a chain: `_seen` in `cls._seen`.
pub(crate) fn last_name(expression: &Expr) -> Option<&str> {
    match expression {
        Expr::Name(name) => Some(name.id.as_str()),
        Expr::Attribute(attribute) => Some(attribute.attr.as_str()),
        _ => None,
    }
}
