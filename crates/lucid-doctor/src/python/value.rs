//! Python values and scopes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use ruff_python_ast::{Expr, Parameters, Stmt};
use serde_json::Value as Json;

use super::format::{float_repr, str_repr};

#[derive(Clone)]
pub(crate) enum Value<'a> {
    None,
    Bool(bool),
    /// Python's integers have no bounds; ours end at 128 bits, and going beyond is refused, never wrapped.
    Int(i128),
    Float(f64),
    Str(Rc<str>),
    List(Rc<RefCell<Vec<Value<'a>>>>),
    Tuple(Rc<[Value<'a>]>),
    /// In insertion order. Lookup is linear: the programs are small, and each comparison costs a step.
    Dict(Rc<RefCell<Vec<(Value<'a>, Value<'a>)>>>),
    Set(Rc<RefCell<Vec<Value<'a>>>>),
    Range(i128, i128, i128),
    Function(Rc<Function<'a>>),
    Builtin(&'static str),
    Method(Rc<(Value<'a>, &'a str)>),
    Module(&'static str),
}

/// A `def` or a `lambda` with the scope that it closes over.
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) parameters: Option<&'a Parameters>,
    pub(crate) defaults: Vec<(&'a str, Value<'a>)>,
    pub(crate) body: Body<'a>,
    pub(crate) scope: Rc<Scope<'a>>,
}

pub(crate) enum Body<'a> {
    Statements(&'a [Stmt]),
    Expression(&'a Expr),
}

/// Names and values; lookup goes on in the parent.
#[derive(Default)]
pub(crate) struct Scope<'a> {
    names: RefCell<HashMap<&'a str, Value<'a>>>,
    outer: RefCell<Vec<&'a str>>,
    parent: Option<Rc<Scope<'a>>>,
}

impl<'a> Scope<'a> {
    pub(crate) fn inside(parent: &Rc<Scope<'a>>) -> Rc<Scope<'a>> {
        Rc::new(Scope { parent: Some(Rc::clone(parent)), ..Scope::default() })
    }

    pub(crate) fn get(&self, name: &str) -> Option<Value<'a>> {
        let own = self.names.borrow().get(name).cloned();
        own.or_else(|| self.parent.as_ref().and_then(|parent| parent.get(name)))
    }

    pub(crate) fn set(&self, name: &'a str, value: Value<'a>) {
        if self.outer.borrow().contains(&name)
            && self.parent.as_ref().is_some_and(|parent| parent.replace(name, &value))
        {
            return;
        }
        self.names.borrow_mut().insert(name, value);
    }

    /// `global` and `nonlocal`: assignments go to an outer scope.
    pub(crate) fn assign_outside(&self, name: &'a str) {
        self.outer.borrow_mut().push(name);
    }

    fn replace(&self, name: &'a str, value: &Value<'a>) -> bool {
        if let Some(own) = self.names.borrow_mut().get_mut(name) {
            *own = value.clone();
            return true;
        }
        self.parent.as_ref().is_some_and(|parent| parent.replace(name, value))
    }
}

impl<'a> Value<'a> {
    pub(crate) fn str(text: &str) -> Value<'a> {
        Value::Str(text.into())
    }

    pub(crate) fn list(items: Vec<Value<'a>>) -> Value<'a> {
        Value::List(Rc::new(RefCell::new(items)))
    }

    pub(crate) fn from_json(json: &Json) -> Value<'a> {
        match json {
            Json::Null => Value::None,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => n
                .as_i64()
                .map_or_else(|| Value::Float(n.as_f64().unwrap_or(f64::NAN)), |n| Value::Int(n.into())),
            Json::String(text) => Value::str(text),
            Json::Array(items) => Value::list(items.iter().map(Value::from_json).collect()),
            Json::Object(entries) => {
                let entries =
                    entries.iter().map(|(key, value)| (Value::str(key), Value::from_json(value))).collect();
                Value::Dict(Rc::new(RefCell::new(entries)))
            }
        }
    }

    /// Whether this is the expected answer: as Python's `==`, and a tuple may stand for a list.
    pub(crate) fn equals_json(&self, expected: &Json) -> bool {
        match (self, expected) {
            (Value::Tuple(items), Json::Array(expected)) => {
                items.len() == expected.len()
                    && items.iter().zip(expected).all(|(item, expected)| item.equals_json(expected))
            }
            (Value::List(items), Json::Array(expected)) => {
                let items = items.borrow();
                items.len() == expected.len()
                    && items.iter().zip(expected).all(|(item, expected)| item.equals_json(expected))
            }
            // `is_even` that returns 1 is as good as True for Python, and for us.
            (Value::Float(a), Json::Number(b)) => {
                b.as_f64().is_some_and(|b| (a - b).abs() <= 1e-9 * b.abs().max(1.0))
            }
            _ => self.equals(&Value::from_json(expected)),
        }
    }

    /// Python's `==`.
    #[allow(clippy::cast_precision_loss, clippy::float_cmp)] // as Python compares
    pub(crate) fn equals(&self, other: &Value<'a>) -> bool {
        match (self.number(), other.number()) {
            (Some(Number::Int(a)), Some(Number::Int(b))) => return a == b,
            (Some(a), Some(b)) => return a.float() == b.float(),
            _ => {}
        }
        match (self, other) {
            (Value::None, Value::None) => true,
            (Value::Str(a), Value::Str(b)) => a == b,
            (Value::List(a), Value::List(b)) => Rc::ptr_eq(a, b) || all_equal(&a.borrow(), &b.borrow()),
            (Value::Tuple(a), Value::Tuple(b)) => all_equal(a, b),
            (Value::Set(a), Value::Set(b)) => {
                let (a, b) = (a.borrow(), b.borrow());
                a.len() == b.len() && a.iter().all(|item| b.iter().any(|other| item.equals(other)))
            }
            (Value::Dict(a), Value::Dict(b)) => {
                let (a, b) = (a.borrow(), b.borrow());
                a.len() == b.len()
                    && a.iter().all(|(key, value)| b.iter().any(|(k, v)| key.equals(k) && value.equals(v)))
            }
            (Value::Range(a, b, c), Value::Range(d, e, f)) => (a, b, c) == (d, e, f),
            (Value::Builtin(a), Value::Builtin(b)) => a == b,
            (Value::Function(a), Value::Function(b)) => Rc::ptr_eq(a, b),
            _ => false,
        }
    }

    pub(crate) fn number(&self) -> Option<Number> {
        match self {
            Value::Bool(b) => Some(Number::Int((*b).into())),
            Value::Int(n) => Some(Number::Int(*n)),
            Value::Float(x) => Some(Number::Float(*x)),
            _ => None,
        }
    }

    pub(crate) fn truth(&self) -> bool {
        match self {
            Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(x) => *x != 0.0,
            Value::Str(text) => !text.is_empty(),
            Value::List(items) | Value::Set(items) => !items.borrow().is_empty(),
            Value::Tuple(items) => !items.is_empty(),
            Value::Dict(entries) => !entries.borrow().is_empty(),
            Value::Range(start, stop, step) => {
                if *step > 0 {
                    start < stop
                } else {
                    start > stop
                }
            }
            Value::Function(_) | Value::Builtin(_) | Value::Method(_) | Value::Module(_) => true,
        }
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::Set(_) => "set",
            Value::Range(..) => "range",
            Value::Function(_) | Value::Method(_) | Value::Builtin(_) => "function",
            Value::Module(_) => "module",
        }
    }

    /// Python's `repr`, cut where it gets long or deep.
    pub(crate) fn repr(&self) -> String {
        self.repr_to(4)
    }

    fn repr_to(&self, depth: usize) -> String {
        if depth == 0 {
            return "...".to_owned();
        }
        let join = |items: &[Value<'a>]| {
            let shown: Vec<String> = items.iter().take(50).map(|item| item.repr_to(depth - 1)).collect();
            shown.join(", ") + if items.len() > 50 { ", ..." } else { "" }
        };
        match self {
            Value::None => "None".to_owned(),
            Value::Bool(true) => "True".to_owned(),
            Value::Bool(false) => "False".to_owned(),
            Value::Int(n) => n.to_string(),
            Value::Float(x) => float_repr(*x),
            Value::Str(text) => str_repr(text),
            Value::List(items) => format!("[{}]", join(&items.borrow())),
            Value::Tuple(items) if items.len() == 1 => format!("({},)", join(items)),
            Value::Tuple(items) => format!("({})", join(items)),
            Value::Set(items) if items.borrow().is_empty() => "set()".to_owned(),
            Value::Set(items) => format!("{{{}}}", join(&items.borrow())),
            Value::Dict(entries) => {
                let shown: Vec<String> = entries
                    .borrow()
                    .iter()
                    .take(50)
                    .map(|(k, v)| format!("{}: {}", k.repr_to(depth - 1), v.repr_to(depth - 1)))
                    .collect();
                format!("{{{}}}", shown.join(", "))
            }
            Value::Range(start, stop, 1) => format!("range({start}, {stop})"),
            Value::Range(start, stop, step) => format!("range({start}, {stop}, {step})"),
            Value::Function(function) => format!("<function {}>", function.name),
            Value::Builtin(name) => format!("<built-in function {name}>"),
            Value::Method(method) => format!("<method {}>", method.1),
            Value::Module(name) => format!("<module '{name}'>"),
        }
    }

    /// Python's `str`.
    pub(crate) fn text(&self) -> String {
        match self {
            Value::Str(text) => text.to_string(),
            other => other.repr(),
        }
    }
}

fn all_equal<'a>(a: &[Value<'a>], b: &[Value<'a>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b))
}

#[derive(Clone, Copy)]
pub(crate) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    #[allow(clippy::cast_precision_loss)] // Python's int → float conversion
    pub(crate) fn float(self) -> f64 {
        match self {
            Number::Int(n) => n as f64,
            Number::Float(x) => x,
        }
    }
}
