//! Expressions.

use std::rc::Rc;

use ruff_python_ast::{
    BoolOp, Comprehension, ConversionFlag, Expr, ExprCall, FStringPart, InterpolatedStringElement,
    Number as Literal,
};

use super::format::formatted;
use super::operators::too_large;
use super::statement::Flow;
use super::value::{Body, Function, Number, Scope, Value};
use super::{Interpreter, Run, builtins, raise, unsupported};

impl Interpreter {
    pub(crate) fn expression<'a>(&self, expression: &'a Expr, scope: &Rc<Scope<'a>>) -> Run<Value<'a>> {
        self.step()?;
        self.deeper(|| self.evaluate(expression, scope))
    }

    fn evaluate<'a>(&self, expression: &'a Expr, scope: &Rc<Scope<'a>>) -> Run<Value<'a>> {
        Ok(match expression {
            Expr::NoneLiteral(_) => Value::None,
            Expr::BooleanLiteral(literal) => Value::Bool(literal.value),
            Expr::NumberLiteral(literal) => match &literal.value {
                Literal::Int(n) => return n.to_string().parse().map(Value::Int).or_else(|_| too_large()),
                Literal::Float(x) => Value::Float(*x),
                Literal::Complex { .. } => return unsupported("complex numbers"),
            },
            Expr::StringLiteral(literal) => Value::str(literal.value.to_str()),
            Expr::FString(literal) => return self.f_string(literal, scope),
            Expr::Name(name) => {
                match scope.get(name.id.as_str()).or_else(|| builtins::find(name.id.as_str())) {
                    Some(value) => value,
                    None if builtins::EXISTS_IN_PYTHON.contains(&name.id.as_str()) => {
                        return unsupported(format!("`{}`", name.id));
                    }
                    None => return raise("NameError", format!("name '{}' is not defined", name.id)),
                }
            }
            Expr::List(list) => Value::list(self.elements(&list.elts, scope)?),
            Expr::Tuple(tuple) => Value::Tuple(self.elements(&tuple.elts, scope)?.into()),
            Expr::Set(set) => {
                let elements = self.elements(&set.elts, scope)?;
                self.set_of(elements)?
            }
            Expr::Dict(dict) => {
                let mut entries = Vec::new();
                for item in &dict.items {
                    let Some(key) = &item.key else { return unsupported("`**` in a dictionary") };
                    let (key, value) = (self.expression(key, scope)?, self.expression(&item.value, scope)?);
                    self.insert(&mut entries, key, value)?;
                }
                Value::Dict(Rc::new(entries.into()))
            }
            Expr::BoolOp(operation) => {
                let mut value = Value::None;
                for operand in &operation.values {
                    value = self.expression(operand, scope)?;
                    if value.truth() == (operation.op == BoolOp::Or) {
                        break;
                    }
                }
                value
            }
            Expr::Named(named) => {
                let value = self.expression(&named.value, scope)?;
                self.assign(&named.target, value.clone(), scope)?;
                value
            }
            Expr::BinOp(operation) => {
                let left = self.expression(&operation.left, scope)?;
                let right = self.expression(&operation.right, scope)?;
                return self.binary(&left, operation.op, &right);
            }
            Expr::UnaryOp(operation) => {
                return self.unary(operation.op, &self.expression(&operation.operand, scope)?);
            }
            Expr::Compare(comparison) => {
                let mut left = self.expression(&comparison.left, scope)?;
                for (op, right) in comparison.ops.iter().zip(&comparison.comparators) {
                    let right = self.expression(right, scope)?;
                    if !self.compare(&left, *op, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Value::Bool(true)
            }
            Expr::If(choice) => {
                let taken =
                    if self.expression(&choice.test, scope)?.truth() { &choice.body } else { &choice.orelse };
                return self.expression(taken, scope);
            }
            Expr::Lambda(lambda) => {
                return self.closure(
                    "<lambda>",
                    lambda.parameters.as_deref(),
                    Body::Expression(&lambda.body),
                    scope,
                );
            }
            Expr::ListComp(comprehension) => {
                Value::list(self.comprehension(&comprehension.generators, &comprehension.elt, scope)?)
            }
            // A generator is evaluated at once: its consumers here (`sum`, `any`, `join`) take all of it anyway.
            Expr::Generator(comprehension) => {
                Value::list(self.comprehension(&comprehension.generators, &comprehension.elt, scope)?)
            }
            Expr::SetComp(comprehension) => {
                let items = self.comprehension(&comprehension.generators, &comprehension.elt, scope)?;
                self.set_of(items)?
            }
            Expr::DictComp(comprehension) => {
                let Some(key) = &comprehension.key else { return unsupported("`**` in a dictionary") };
                let mut entries = Vec::new();
                self.each(&comprehension.generators, &Scope::inside(scope), &mut |scope| {
                    let (key, value) =
                        (self.expression(key, scope)?, self.expression(&comprehension.value, scope)?);
                    self.insert(&mut entries, key, value)
                })?;
                Value::Dict(Rc::new(entries.into()))
            }
            Expr::Call(call) => return self.call_expression(call, scope),
            Expr::Attribute(attribute) => {
                let value = self.expression(&attribute.value, scope)?;
                return self.attribute(&value, attribute.attr.as_str());
            }
            Expr::Subscript(subscript) => {
                let container = self.expression(&subscript.value, scope)?;
                if let Expr::Slice(slice) = &*subscript.slice {
                    let bound = |bound: &'a Option<Box<Expr>>| {
                        bound.as_deref().map(|bound| self.expression(bound, scope)).transpose()
                    };
                    return self.slice(
                        &container,
                        bound(&slice.lower)?,
                        bound(&slice.upper)?,
                        bound(&slice.step)?,
                    );
                }
                let index = self.expression(&subscript.slice, scope)?;
                return self.item(&container, &index);
            }
            _ => return unsupported("a kind of expression (await, yield, bytes, t-string, starred)"),
        })
    }

    fn elements<'a>(&self, elements: &'a [Expr], scope: &Rc<Scope<'a>>) -> Run<Vec<Value<'a>>> {
        let mut values = Vec::with_capacity(elements.len());
        for element in elements {
            if let Expr::Starred(starred) = element {
                values.extend(self.iterate(&self.expression(&starred.value, scope)?)?);
            } else {
                values.push(self.expression(element, scope)?);
            }
        }
        self.allocate(values.len())?;
        Ok(values)
    }

    pub(crate) fn set_of<'a>(&self, items: Vec<Value<'a>>) -> Run<Value<'a>> {
        let mut distinct: Vec<Value<'a>> = Vec::new();
        for item in items {
            self.add_to_set(&mut distinct, item)?;
        }
        Ok(Value::Set(Rc::new(distinct.into())))
    }

    pub(crate) fn add_to_set<'a>(&self, set: &mut Vec<Value<'a>>, item: Value<'a>) -> Run<()> {
        for known in set.iter() {
            self.step()?;
            if known.equals(&item) {
                return Ok(());
            }
        }
        self.allocate(1)?;
        set.push(item);
        Ok(())
    }

    fn comprehension<'a>(
        &self,
        generators: &'a [Comprehension],
        element: &'a Expr,
        scope: &Rc<Scope<'a>>,
    ) -> Run<Vec<Value<'a>>> {
        let mut items = Vec::new();
        self.each(generators, &Scope::inside(scope), &mut |scope| {
            self.allocate(1)?;
            items.push(self.expression(element, scope)?);
            Ok(())
        })?;
        Ok(items)
    }

    /// Runs `body` for each combination that the generators give.
    fn each<'a>(
        &self,
        generators: &'a [Comprehension],
        scope: &Rc<Scope<'a>>,
        body: &mut dyn FnMut(&Rc<Scope<'a>>) -> Run<()>,
    ) -> Run<()> {
        let Some((first, rest)) = generators.split_first() else { return body(scope) };
        let over = self.expression(&first.iter, scope)?;
        let items = self.items(&over)?;
        'items: for item in items {
            self.step()?;
            self.assign(&first.target, item, scope)?;
            for condition in &first.ifs {
                if !self.expression(condition, scope)?.truth() {
                    continue 'items;
                }
            }
            self.deeper(|| self.each(rest, scope, body))?;
        }
        Ok(())
    }

    fn f_string<'a>(
        &self,
        literal: &'a ruff_python_ast::ExprFString,
        scope: &Rc<Scope<'a>>,
    ) -> Run<Value<'a>> {
        let mut text = String::new();
        for part in &literal.value {
            match part {
                FStringPart::Literal(part) => text.push_str(&part.value),
                FStringPart::FString(part) => {
                    for element in &part.elements {
                        match element {
                            InterpolatedStringElement::Literal(part) => text.push_str(&part.value),
                            InterpolatedStringElement::Interpolation(part) => {
                                if part.debug_text.is_some() {
                                    return unsupported("`=` in an f-string");
                                }
                                let mut value = self.expression(&part.expression, scope)?;
                                if matches!(part.conversion, ConversionFlag::Repr) {
                                    value = Value::str(&value.repr());
                                }
                                let mut spec = String::new();
                                for element in part.format_spec.iter().flat_map(|spec| &spec.elements) {
                                    match element {
                                        InterpolatedStringElement::Literal(part) => {
                                            spec.push_str(&part.value)
                                        }
                                        InterpolatedStringElement::Interpolation(_) => {
                                            return unsupported("nested f-string formats");
                                        }
                                    }
                                }
                                text.push_str(&formatted(&value, &spec)?);
                            }
                        }
                    }
                }
            }
        }
        self.allocate(text.len())?;
        Ok(Value::Str(text.into()))
    }

    fn call_expression<'a>(&self, call: &'a ExprCall, scope: &Rc<Scope<'a>>) -> Run<Value<'a>> {
        let callee = self.expression(&call.func, scope)?;
        let arguments = self.elements(&call.arguments.args, scope)?;
        let mut named = Vec::new();
        for keyword in &call.arguments.keywords {
            let Some(name) = &keyword.arg else { return unsupported("`**` in a call") };
            named.push((name.as_str(), self.expression(&keyword.value, scope)?));
        }
        self.call(&callee, arguments, named)
    }

    /// Calls anything that can be called.
    pub(crate) fn call<'a>(
        &self,
        callee: &Value<'a>,
        arguments: Vec<Value<'a>>,
        named: Vec<(&'a str, Value<'a>)>,
    ) -> Run<Value<'a>> {
        match callee {
            Value::Function(function) => self.deeper(|| self.call_function(function, arguments, named)),
            Value::Builtin(name) => self.builtin(name, arguments, named),
            Value::Method(method) => self.method(&method.0, method.1, arguments, named),
            other => raise("TypeError", format!("'{}' object is not callable", other.type_name())),
        }
    }

    fn call_function<'a>(
        &self,
        function: &Function<'a>,
        arguments: Vec<Value<'a>>,
        named: Vec<(&'a str, Value<'a>)>,
    ) -> Run<Value<'a>> {
        self.step()?;
        let scope = Scope::inside(&function.scope);
        let mut missing: Vec<&'a str> = Vec::new();
        if let Some(parameters) = function.parameters {
            let mut given = arguments.into_iter();
            for parameter in parameters.posonlyargs.iter().chain(&parameters.args) {
                match given.next() {
                    Some(value) => scope.set(parameter.parameter.name.as_str(), value),
                    None => missing.push(parameter.parameter.name.as_str()),
                }
            }
            let rest: Vec<Value<'a>> = given.collect();
            match &parameters.vararg {
                Some(vararg) => scope.set(vararg.name.as_str(), Value::Tuple(rest.into())),
                None if !rest.is_empty() => {
                    return raise(
                        "TypeError",
                        format!("{}() takes fewer positional arguments", function.name),
                    );
                }
                None => {}
            }
            missing.extend(parameters.kwonlyargs.iter().map(|parameter| parameter.parameter.name.as_str()));
        }
        for (name, value) in named {
            match missing.iter().position(|missing| *missing == name) {
                Some(position) => {
                    missing.remove(position);
                    scope.set(name, value);
                }
                None => {
                    return raise(
                        "TypeError",
                        format!("{}() got an unexpected or repeated argument '{name}'", function.name),
                    );
                }
            }
        }
        for name in missing {
            match function.defaults.iter().find(|(known, _)| *known == name) {
                Some((_, value)) => scope.set(name, value.clone()),
                None => return raise("TypeError", format!("{}() missing argument '{name}'", function.name)),
            }
        }
        match &function.body {
            Body::Expression(expression) => self.expression(expression, &scope),
            Body::Statements(body) => match self.block(body, &scope)? {
                Flow::Return(value) => Ok(value),
                _ => Ok(Value::None),
            },
        }
    }

    /// An index into a sequence of that length, from the end if negative; out of range gives a position past the end.
    pub(crate) fn position(&self, index: &Value<'_>, length: usize) -> Run<usize> {
        let Some(Number::Int(index)) = index.number() else {
            return raise("TypeError", format!("indices must be integers, not '{}'", index.type_name()));
        };
        let index = if index < 0 { index.saturating_add(length as i128) } else { index };
        Ok(usize::try_from(index).unwrap_or(usize::MAX))
    }

    fn item<'a>(&self, container: &Value<'a>, index: &Value<'a>) -> Run<Value<'a>> {
        let found = match container {
            Value::List(items) => {
                let items = items.borrow();
                items.get(self.position(index, items.len())?).cloned()
            }
            Value::Tuple(items) => items.get(self.position(index, items.len())?).cloned(),
            Value::Str(text) => {
                let position = self.position(index, text.chars().count())?;
                text.chars().nth(position).map(|c| Value::str(c.encode_utf8(&mut [0; 4])))
            }
            Value::Dict(entries) => {
                for (key, value) in entries.borrow().iter() {
                    self.step()?;
                    if key.equals(index) {
                        return Ok(value.clone());
                    }
                }
                return raise("KeyError", index.repr());
            }
            _ => {
                return raise(
                    "TypeError",
                    format!("'{}' object is not subscriptable", container.type_name()),
                );
            }
        };
        found.map_or_else(|| raise("IndexError", format!("{} index out of range", container.type_name())), Ok)
    }

    /// `container[lower:upper:step]`, with Python's rules for bounds outside of the sequence.
    fn slice<'a>(
        &self,
        container: &Value<'a>,
        lower: Option<Value<'a>>,
        upper: Option<Value<'a>>,
        step: Option<Value<'a>>,
    ) -> Run<Value<'a>> {
        let whole = |bound: Option<Value<'a>>| match bound {
            None | Some(Value::None) => Ok(None),
            Some(bound) => match bound.number() {
                Some(Number::Int(n)) => Ok(Some(n)),
                _ => raise("TypeError", "slice indices must be integers"),
            },
        };
        let items = self.iterate(container)?;
        let length = items.len() as i128;
        let step = whole(step)?.unwrap_or(1);
        if step == 0 {
            return raise("ValueError", "slice step cannot be zero");
        }
        let (least, most) = if step > 0 { (0, length) } else { (-1, length - 1) };
        let clamp =
            |bound: i128| (if bound < 0 { bound.saturating_add(length) } else { bound }).clamp(least, most);
        let start = whole(lower)?.map_or(if step > 0 { least } else { most }, clamp);
        let end = whole(upper)?.map_or(if step > 0 { most } else { least }, clamp);
        let mut chosen = Vec::new();
        let mut at = start;
        while if step > 0 { at < end } else { at > end } {
            self.step()?;
            chosen.extend(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned());
            at = at.saturating_add(step);
        }
        self.allocate(chosen.len())?;
        Ok(match container {
            Value::Str(_) => Value::Str(chosen.iter().map(Value::text).collect::<String>().into()),
            Value::Tuple(_) => Value::Tuple(chosen.into()),
            Value::List(_) => Value::list(chosen),
            _ => return unsupported(format!("slices of '{}'", container.type_name())),
        })
    }
}
