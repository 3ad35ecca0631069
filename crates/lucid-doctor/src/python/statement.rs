//! Statements.

use std::rc::Rc;

use ruff_python_ast::{ExceptHandler, Expr, Stmt};

use super::value::{Body, Function, Scope, Value};
use super::{Interpreter, Run, Stop, raise, unsupported};

/// How a statement ended.
pub(crate) enum Flow<'a> {
    Next,
    Break,
    Continue,
    Return(Value<'a>),
}

impl Interpreter {
    /// Runs a module's top level. `if __name__ == "__main__":` and calls of `print` do nothing.
    pub(crate) fn run_module<'a>(&self, body: &'a [Stmt], globals: &Rc<Scope<'a>>) -> Run<()> {
        globals.set("__name__", Value::str("judged"));
        self.block(body, globals).map(|_| ())
    }

    pub(crate) fn block<'a>(&self, body: &'a [Stmt], scope: &Rc<Scope<'a>>) -> Run<Flow<'a>> {
        for statement in body {
            match self.statement(statement, scope)? {
                Flow::Next => {}
                other => return Ok(other),
            }
        }
        Ok(Flow::Next)
    }

    fn statement<'a>(&self, statement: &'a Stmt, scope: &Rc<Scope<'a>>) -> Run<Flow<'a>> {
        self.step()?;
        match statement {
            Stmt::FunctionDef(def) => {
                if def.is_async || !def.decorator_list.is_empty() {
                    return unsupported("async functions and decorators");
                }
                let function = self.closure(
                    def.name.as_str(),
                    Some(&def.parameters),
                    Body::Statements(&def.body),
                    scope,
                )?;
                scope.set(def.name.as_str(), function);
            }
            Stmt::Return(ret) => {
                return Ok(Flow::Return(
                    ret.value.as_deref().map_or(Ok(Value::None), |value| self.expression(value, scope))?,
                ));
            }
            Stmt::Assign(assign) => {
                let value = self.expression(&assign.value, scope)?;
                for target in &assign.targets {
                    self.assign(target, value.clone(), scope)?;
                }
            }
            Stmt::AnnAssign(assign) => {
                if let Some(value) = &assign.value {
                    let value = self.expression(value, scope)?;
                    self.assign(&assign.target, value, scope)?;
                }
            }
            Stmt::AugAssign(assign) => {
                let left = self.expression(&assign.target, scope)?;
                let right = self.expression(&assign.value, scope)?;
                if let (Value::List(items), ruff_python_ast::Operator::Add) = (&left, assign.op) {
                    // `+=` on a list changes the list itself.
                    let more = self.iterate(&right)?;
                    self.allocate(more.len())?;
                    items.borrow_mut().extend(more);
                } else {
                    let value = self.binary(&left, assign.op, &right)?;
                    self.assign(&assign.target, value, scope)?;
                }
            }
            Stmt::For(each) if !each.is_async => return self.for_loop(each, scope),
            Stmt::While(each) => {
                while self.expression(&each.test, scope)?.truth() {
                    self.step()?;
                    match self.deeper(|| self.block(&each.body, scope))? {
                        Flow::Next | Flow::Continue => {}
                        Flow::Break => return Ok(Flow::Next),
                        Flow::Return(value) => return Ok(Flow::Return(value)),
                    }
                }
                return self.block(&each.orelse, scope);
            }
            Stmt::If(choice) => {
                if self.expression(&choice.test, scope)?.truth() {
                    return self.deeper(|| self.block(&choice.body, scope));
                }
                for clause in &choice.elif_else_clauses {
                    let taken = clause
                        .test
                        .as_ref()
                        .map_or(Ok(true), |test| self.expression(test, scope).map(|value| value.truth()))?;
                    if taken {
                        return self.deeper(|| self.block(&clause.body, scope));
                    }
                }
            }
            Stmt::Expr(expression) => {
                self.expression(&expression.value, scope)?;
            }
            Stmt::Raise(raised) => return self.raise_statement(raised.exc.as_deref(), scope),
            Stmt::Try(attempt) => return self.attempt(attempt, scope),
            Stmt::Assert(assertion) => {
                if !self.expression(&assertion.test, scope)?.truth() {
                    return raise("AssertionError", "");
                }
            }
            Stmt::Import(import) => {
                for alias in &import.names {
                    if alias.name.as_str() != "math" {
                        return unsupported(format!("`import {}`", alias.name));
                    }
                    scope.set(
                        alias.asname.as_ref().map_or("math", |name| name.as_str()),
                        Value::Module("math"),
                    );
                }
            }
            Stmt::ImportFrom(import) => self.import_from(import, scope)?,
            Stmt::Global(global) => global.names.iter().for_each(|name| scope.assign_outside(name.as_str())),
            Stmt::Nonlocal(nonlocal) => {
                nonlocal.names.iter().for_each(|name| scope.assign_outside(name.as_str()))
            }
            Stmt::Pass(_) => {}
            Stmt::Break(_) => return Ok(Flow::Break),
            Stmt::Continue(_) => return Ok(Flow::Continue),
            _ => return unsupported("a kind of statement (class, with, match, del, async)"),
        }
        Ok(Flow::Next)
    }

    fn for_loop<'a>(&self, each: &'a ruff_python_ast::StmtFor, scope: &Rc<Scope<'a>>) -> Run<Flow<'a>> {
        let over = self.expression(&each.iter, scope)?;
        let items = self.items(&over)?;
        for item in items {
            self.step()?;
            self.assign(&each.target, item, scope)?;
            match self.deeper(|| self.block(&each.body, scope))? {
                Flow::Next | Flow::Continue => {}
                Flow::Break => return Ok(Flow::Next),
                Flow::Return(value) => return Ok(Flow::Return(value)),
            }
        }
        self.block(&each.orelse, scope)
    }

    fn import_from<'a>(&self, import: &'a ruff_python_ast::StmtImportFrom, scope: &Rc<Scope<'a>>) -> Run<()> {
        match import.module.as_ref().map(|module| module.as_str()) {
            // Names that only stand in annotations, which are never evaluated.
            Some("typing" | "__future__") => Ok(()),
            Some("math") => {
                for alias in &import.names {
                    let value = self.attribute(&Value::Module("math"), alias.name.as_str())?;
                    scope.set(alias.asname.as_ref().unwrap_or(&alias.name).as_str(), value);
                }
                Ok(())
            }
            module => unsupported(format!("`from {} import`", module.unwrap_or("."))),
        }
    }

    fn raise_statement<'a>(&self, raised: Option<&'a Expr>, scope: &Rc<Scope<'a>>) -> Run<Flow<'a>> {
        let (class, message) = match raised {
            Some(Expr::Call(call)) => match &*call.func {
                Expr::Name(name) => {
                    let message = call
                        .arguments
                        .args
                        .first()
                        .map_or(Ok(String::new()), |arg| self.expression(arg, scope).map(|v| v.text()))?;
                    (name.id.as_str(), message)
                }
                _ => return unsupported("raising what isn't a plain class"),
            },
            Some(Expr::Name(name)) => (name.id.as_str(), String::new()),
            _ => return unsupported("re-raising"),
        };
        raise(class, message)
    }

    fn attempt<'a>(&self, attempt: &'a ruff_python_ast::StmtTry, scope: &Rc<Scope<'a>>) -> Run<Flow<'a>> {
        let mut result = match self.deeper(|| self.block(&attempt.body, scope)) {
            Ok(Flow::Next) => self.block(&attempt.orelse, scope),
            Err(Stop::Raised(class, message)) => {
                let handler = attempt
                    .handlers
                    .iter()
                    .find(|ExceptHandler::ExceptHandler(handler)| catches(handler.type_.as_deref(), &class));
                match handler {
                    Some(ExceptHandler::ExceptHandler(handler)) => {
                        if let Some(name) = &handler.name {
                            scope.set(name.as_str(), Value::str(&message));
                        }
                        self.deeper(|| self.block(&handler.body, scope))
                    }
                    None => Err(Stop::Raised(class, message)),
                }
            }
            other => other,
        };
        if !attempt.finalbody.is_empty() && !matches!(result, Err(Stop::Limit(_) | Stop::Unsupported(_))) {
            match self.block(&attempt.finalbody, scope)? {
                Flow::Next => {}
                other => result = Ok(other),
            }
        }
        result
    }

    pub(crate) fn assign<'a>(&self, target: &'a Expr, value: Value<'a>, scope: &Rc<Scope<'a>>) -> Run<()> {
        match target {
            Expr::Name(name) => scope.set(name.id.as_str(), value),
            Expr::Tuple(tuple) => self.unpack(&tuple.elts, &value, scope)?,
            Expr::List(list) => self.unpack(&list.elts, &value, scope)?,
            Expr::Subscript(subscript) => {
                let container = self.expression(&subscript.value, scope)?;
                let index = self.expression(&subscript.slice, scope)?;
                self.set_item(&container, &index, value)?;
            }
            _ => return unsupported("assigning to an attribute or a starred target"),
        }
        Ok(())
    }

    fn unpack<'a>(&self, targets: &'a [Expr], value: &Value<'a>, scope: &Rc<Scope<'a>>) -> Run<()> {
        let items = self.iterate(value)?;
        if items.len() != targets.len() {
            return raise(
                "ValueError",
                format!("cannot unpack {} values into {}", items.len(), targets.len()),
            );
        }
        for (target, item) in targets.iter().zip(items) {
            self.deeper(|| self.assign(target, item, scope))?;
        }
        Ok(())
    }

    fn set_item<'a>(&self, container: &Value<'a>, index: &Value<'a>, value: Value<'a>) -> Run<()> {
        match container {
            Value::List(items) => {
                let length = items.borrow().len();
                let position = self.position(index, length)?;
                match items.borrow_mut().get_mut(position) {
                    Some(item) => *item = value,
                    None => return raise("IndexError", "list assignment index out of range"),
                }
            }
            Value::Dict(entries) => self.insert(&mut entries.borrow_mut(), index.clone(), value)?,
            _ => {
                return raise(
                    "TypeError",
                    format!("'{}' object does not support item assignment", container.type_name()),
                );
            }
        }
        Ok(())
    }

    /// Sets a key of a dictionary.
    pub(crate) fn insert<'a>(
        &self,
        entries: &mut Vec<(Value<'a>, Value<'a>)>,
        key: Value<'a>,
        value: Value<'a>,
    ) -> Run<()> {
        if matches!(key, Value::List(_) | Value::Dict(_) | Value::Set(_)) {
            return raise("TypeError", format!("unhashable type: '{}'", key.type_name()));
        }
        for (known, slot) in entries.iter_mut() {
            self.step()?;
            if known.equals(&key) {
                *slot = value;
                return Ok(());
            }
        }
        self.allocate(2)?;
        entries.push((key, value));
        Ok(())
    }

    /// A function value with its defaults evaluated now, as Python does.
    pub(crate) fn closure<'a>(
        &self,
        name: &'a str,
        parameters: Option<&'a ruff_python_ast::Parameters>,
        body: Body<'a>,
        scope: &Rc<Scope<'a>>,
    ) -> Run<Value<'a>> {
        let mut defaults = Vec::new();
        if let Some(parameters) = parameters {
            if parameters.kwarg.is_some() {
                return unsupported("`**kwargs`");
            }
            for parameter in
                parameters.posonlyargs.iter().chain(&parameters.args).chain(&parameters.kwonlyargs)
            {
                if let Some(default) = &parameter.default {
                    defaults.push((parameter.parameter.name.as_str(), self.expression(default, scope)?));
                }
            }
        }
        Ok(Value::Function(Rc::new(Function { name, parameters, defaults, body, scope: Rc::clone(scope) })))
    }
}

/// Whether `except TYPE` takes an exception of that class.
fn catches(handler: Option<&Expr>, class: &str) -> bool {
    match handler {
        None => true,
        Some(Expr::Name(name)) => match name.id.as_str() {
            "Exception" | "BaseException" => true,
            "ArithmeticError" => matches!(class, "ZeroDivisionError" | "OverflowError"),
            "LookupError" => matches!(class, "IndexError" | "KeyError"),
            name => name == class,
        },
        Some(Expr::Tuple(tuple)) => {
            tuple.elts.iter().any(|one| matches!(one, Expr::Name(_)) && catches(Some(one), class))
        }
        Some(_) => false,
    }
}
