//! One pass over a file's syntax tree: names, guards, effects and patches, in the order in which Python would meet them.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use ruff_python_ast::visitor::{self, Visitor};
use ruff_python_ast::{self as ast, Expr, Stmt};
use ruff_text_size::Ranged;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::conditions::Guard;
use crate::evaluate::Evaluator;
use crate::evidence::{Effect, PatchFact};
use crate::knowledge::CALLS;
use crate::names::{Origin, ScopeKind, Scopes, Value};
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
    pub calls: FxHashSet<&'a str>,
    /// Names that it sets, and where: flags among them.
    pub sets: Vec<(Cow<'a, str>, u32)>,
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

/// Where a function is called, by its last name: the first place with its conditions, and how many there are.
pub(crate) struct CallSites {
    pub function: usize,
    pub guards: Vec<Rc<Guard>>,
    pub number: u32,
}

pub(crate) struct Scanner<'a> {
    pub subject: Subject<'a>,
    pub scopes: Scopes<'a>,
    pub scope: usize,
    pub functions: Vec<Function<'a>>,
    pub function: usize,
    pub guards: Vec<Rc<Guard>>,
    /// Whether conditions are put in words: a first look for patches goes without.
    pub guarding: bool,
    pub swallowing: u32,
    pub deeds: Vec<Deed>,
    pub sites: FxHashMap<&'a str, CallSites>,
    pub patches: Vec<PatchFact>,
    /// Full names that were kept under another name: `original = Linear.forward`.
    pub kept: FxHashMap<Rc<str>, u32>,
    pub classes: Vec<Rc<str>>,
    pub deferred: VecDeque<Deferred<'a>>,
    depth: Cell<u32>,
    followed: Cell<u32>,
}

pub(crate) struct Deferred<'a> {
    pub definition: &'a ast::StmtFunctionDef,
    pub scope: usize,
    pub class: Option<Rc<str>>,
    pub parent: usize,
    pub guards: Vec<Rc<Guard>>,
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
            calls: FxHashSet::default(),
            sets: Vec::new(),
        };
        Scanner {
            subject,
            scopes: Scopes::new(),
            scope: 0,
            functions: vec![module],
            function: 0,
            guards: Vec::new(),
            guarding: true,
            swallowing: 0,
            deeds: Vec::new(),
            sites: FxHashMap::default(),
            patches: Vec::new(),
            kept: FxHashMap::default(),
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
            calls: FxHashSet::default(),
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
                    self.set(name.id.as_str(), &assign.target);
                }
                match &*assign.target {
                    Expr::Attribute(attribute) => self.set(attribute.attr.as_str(), &assign.target),
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
