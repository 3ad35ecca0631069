//! Built-in functions and `math`.

use std::cmp::Ordering;
use std::rc::Rc;

use super::value::{Number, Value};
use super::{Interpreter, Run, raise, unsupported};

/// What is built here.
const NAMES: [&str; 27] = [
    "abs",
    "all",
    "any",
    "bool",
    "chr",
    "dict",
    "divmod",
    "enumerate",
    "filter",
    "float",
    "int",
    "isinstance",
    "len",
    "list",
    "map",
    "max",
    "min",
    "ord",
    "pow",
    "print",
    "range",
    "reversed",
    "round",
    "set",
    "sorted",
    "str",
    "sum",
];

/// What Python has and we don't: using it is not an error of the model.
pub(super) const EXISTS_IN_PYTHON: [&str; 28] = [
    "ascii",
    "bin",
    "bytearray",
    "bytes",
    "callable",
    "classmethod",
    "complex",
    "eval",
    "exec",
    "format",
    "frozenset",
    "getattr",
    "hash",
    "hex",
    "id",
    "input",
    "iter",
    "next",
    "object",
    "oct",
    "open",
    "repr",
    "setattr",
    "slice",
    "super",
    "type",
    "vars",
    "memoryview",
];

pub(super) fn find<'a>(name: &str) -> Option<Value<'a>> {
    NAMES.iter().chain(&["tuple", "zip"]).find(|known| **known == name).map(|name| Value::Builtin(name))
}

impl Interpreter {
    /// All items of something that can be iterated.
    pub(crate) fn iterate<'a>(&self, value: &Value<'a>) -> Run<Vec<Value<'a>>> {
        let items: Vec<Value<'a>> = match value {
            Value::Range(..) => {
                let mut all = Vec::new();
                let items = self.items(value)?;
                for item in items {
                    self.step()?;
                    all.push(item);
                }
                all
            }
            Value::List(items) | Value::Set(items) => items.borrow().clone(),
            Value::Tuple(items) => items.to_vec(),
            Value::Dict(entries) => entries.borrow().iter().map(|(key, _)| key.clone()).collect(),
            Value::Str(text) => text.chars().map(|c| Value::str(c.encode_utf8(&mut [0; 4]))).collect(),
            _ => return raise("TypeError", format!("'{}' object is not iterable", value.type_name())),
        };
        self.allocate(items.len())?;
        Ok(items)
    }

    /// The items one by one; a range is not written out.
    pub(crate) fn items<'a>(&self, value: &Value<'a>) -> Run<Box<dyn Iterator<Item = Value<'a>> + 'a>> {
        if let Value::Range(start, stop, step) = *value {
            let inside = move |at: &i128| if step > 0 { *at < stop } else { *at > stop };
            let numbers = std::iter::successors(Some(start), move |at| at.checked_add(step));
            return Ok(Box::new(numbers.take_while(inside).map(Value::Int)));
        }
        Ok(Box::new(self.iterate(value)?.into_iter()))
    }

    pub(crate) fn builtin<'a>(
        &self,
        name: &str,
        mut arguments: Vec<Value<'a>>,
        named: Vec<(&'a str, Value<'a>)>,
    ) -> Run<Value<'a>> {
        self.step()?;
        match (name, arguments.as_slice()) {
            ("print", _) => return Ok(Value::None),
            ("min" | "max" | "sorted", _) => return self.ordering(name, arguments, &named),
            ("sum", [items, ..]) => {
                let mut total = arguments
                    .get(1)
                    .or(named.first().map(|(_, start)| start))
                    .cloned()
                    .unwrap_or(Value::Int(0));
                for item in self.iterate(items)? {
                    total = self.binary(&total, ruff_python_ast::Operator::Add, &item)?;
                }
                return Ok(total);
            }
            ("enumerate", [items, ..]) => {
                let start =
                    arguments.get(1).or(named.first().map(|(_, start)| start)).and_then(Value::number);
                let Number::Int(start) = start.unwrap_or(Number::Int(0)) else {
                    return raise("TypeError", "start must be an integer");
                };
                let numbered = (start..).zip(self.iterate(items)?);
                return Ok(Value::list(
                    numbered.map(|(number, item)| Value::Tuple([Value::Int(number), item].into())).collect(),
                ));
            }
            _ => {}
        }
        if !named.is_empty() {
            return unsupported(format!("named arguments of `{name}`"));
        }
        Ok(match (name, arguments.as_mut_slice()) {
            ("len", [value]) => Value::Int(match value {
                Value::Range(..)
                | Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Set(_) => self.iterate(value)?.len() as i128,
                _ => {
                    return raise(
                        "TypeError",
                        format!("object of type '{}' has no len()", value.type_name()),
                    );
                }
            }),
            ("range", [stop]) => Value::Range(0, whole(stop)?, 1),
            ("range", [start, stop]) => Value::Range(whole(start)?, whole(stop)?, 1),
            ("range", [start, stop, step]) => match whole(step)? {
                0 => return raise("ValueError", "range() arg 3 must not be zero"),
                step => Value::Range(whole(start)?, whole(stop)?, step),
            },
            ("abs", [value]) => match value.number() {
                Some(Number::Int(n)) => {
                    n.checked_abs().map(Value::Int).map_or_else(super::operators::too_large, Ok)?
                }
                Some(Number::Float(x)) => Value::Float(x.abs()),
                None => return raise("TypeError", "bad operand type for abs()"),
            },
            ("any", [items]) => Value::Bool(self.iterate(items)?.iter().any(Value::truth)),
            ("all", [items]) => Value::Bool(self.iterate(items)?.iter().all(Value::truth)),
            ("bool", []) => Value::Bool(false),
            ("bool", [value]) => Value::Bool(value.truth()),
            ("str", []) => Value::str(""),
            ("str", [value]) => {
                let text = value.text();
                self.allocate(text.len())?;
                Value::Str(text.into())
            }
            ("int", [value]) => return to_int(value),
            ("float", [value]) => match (value.number(), &value) {
                (Some(number), _) => Value::Float(number.float()),
                (None, Value::Str(text)) => {
                    return text
                        .trim()
                        .parse()
                        .map(Value::Float)
                        .or_else(|_| raise("ValueError", "could not convert string to float"));
                }
                _ => return raise("TypeError", "float() argument must be a string or a number"),
            },
            ("chr", [value]) => match u32::try_from(whole(value)?).ok().and_then(char::from_u32) {
                Some(c) => Value::str(c.encode_utf8(&mut [0; 4])),
                None => return raise("ValueError", "chr() arg not in range"),
            },
            ("ord", [Value::Str(text)]) if text.chars().count() == 1 => {
                Value::Int(text.chars().next().map_or(0, u32::from).into())
            }
            ("divmod", [a, b]) => {
                let quotient = self.binary(a, ruff_python_ast::Operator::FloorDiv, b)?;
                Value::Tuple([quotient, self.binary(a, ruff_python_ast::Operator::Mod, b)?].into())
            }
            ("pow", [a, b]) => return self.binary(a, ruff_python_ast::Operator::Pow, b),
            ("round", [value]) => match value.number() {
                Some(Number::Int(n)) => Value::Int(n),
                Some(Number::Float(x)) => return to_int(&Value::Float(x.round_ties_even())),
                None => return raise("TypeError", "type doesn't define __round__"),
            },
            ("round", [value, digits]) => match (value.number(), usize::try_from(whole(digits)?)) {
                (Some(Number::Float(x)), Ok(digits)) if digits <= 30 => {
                    Value::Float(format!("{x:.digits$}").parse().unwrap_or(x))
                }
                _ => return unsupported("this use of `round`"),
            },
            ("list", []) => Value::list(Vec::new()),
            ("list", [items]) => Value::list(self.iterate(items)?),
            ("tuple", []) => Value::Tuple([].into()),
            ("tuple", [items]) => Value::Tuple(self.iterate(items)?.into()),
            ("set", []) => self.set_of(Vec::new())?,
            ("set", [items]) => {
                let items = self.iterate(items)?;
                self.set_of(items)?
            }
            ("dict", []) => Value::Dict(Rc::default()),
            ("reversed", [items]) => {
                let mut items = self.iterate(items)?;
                items.reverse();
                Value::list(items)
            }
            ("zip", lists) => {
                let lists = lists.iter().map(|list| self.iterate(list)).collect::<Run<Vec<_>>>()?;
                let shortest = lists.iter().map(Vec::len).min().unwrap_or(0);
                self.allocate(shortest)?;
                Value::list(
                    (0..shortest)
                        .map(|i| Value::Tuple(lists.iter().filter_map(|list| list.get(i).cloned()).collect()))
                        .collect(),
                )
            }
            ("map", [function, items]) => {
                let items = self.iterate(items)?;
                Value::list(
                    items
                        .into_iter()
                        .map(|item| self.call(function, vec![item], Vec::new()))
                        .collect::<Run<_>>()?,
                )
            }
            ("filter", [function, items]) => {
                let mut kept = Vec::new();
                for item in self.iterate(items)? {
                    let keep = if matches!(function, Value::None) {
                        item.truth()
                    } else {
                        self.call(function, vec![item.clone()], Vec::new())?.truth()
                    };
                    if keep {
                        kept.push(item);
                    }
                }
                Value::list(kept)
            }
            ("isinstance", [value, Value::Builtin(class)]) => Value::Bool(
                value.type_name() == *class || (*class == "int" && matches!(value, Value::Bool(_))),
            ),
            ("isinstance", [value, Value::Tuple(classes)]) => Value::Bool(
                classes
                    .iter()
                    .any(|class| matches!(class, Value::Builtin(class) if value.type_name() == *class)),
            ),
            _ => return self.math(name, &arguments),
        })
    }

    fn ordering<'a>(
        &self,
        name: &str,
        mut arguments: Vec<Value<'a>>,
        named: &[(&'a str, Value<'a>)],
    ) -> Run<Value<'a>> {
        let argument =
            |wanted: &str| named.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.clone());
        if named.iter().any(|(name, _)| !["key", "reverse", "default"].contains(name)) {
            return unsupported(format!("an argument of `{name}`"));
        }
        let items = match arguments.as_mut_slice() {
            [one] => self.iterate(one)?,
            _ => arguments,
        };
        let key = argument("key").filter(|key| !matches!(key, Value::None));
        let mut keyed = Vec::with_capacity(items.len());
        for item in items {
            let key = key
                .as_ref()
                .map_or(Ok(item.clone()), |key| self.call(key, vec![item.clone()], Vec::new()))?;
            keyed.push((key, item));
        }
        let sorted = self.merge_sort(keyed, argument("reverse").is_some_and(|reverse| reverse.truth()))?;
        let found = match name {
            "sorted" => return Ok(Value::list(sorted.into_iter().map(|(_, item)| item).collect())),
            "min" => sorted.into_iter().next(),
            // The first of the largest ones, as Python has it.
            _ => {
                let mut best: Option<(Value<'a>, Value<'a>)> = None;
                for entry in sorted {
                    if best.as_ref().map_or(Ok(true), |best| {
                        self.order(&entry.0, &best.0).map(|order| order == Some(Ordering::Greater))
                    })? {
                        best = Some(entry);
                    }
                }
                best
            }
        };
        match found.map(|(_, item)| item).or_else(|| argument("default")) {
            Some(item) => Ok(item),
            None => raise("ValueError", format!("{name}() arg is an empty sequence")),
        }
    }

    /// A stable sort whose comparisons may fail. Reversed, equal items keep their order, as in Python.
    fn merge_sort<'a>(
        &self,
        mut items: Vec<(Value<'a>, Value<'a>)>,
        reverse: bool,
    ) -> Run<Vec<(Value<'a>, Value<'a>)>> {
        if items.len() < 2 {
            return Ok(items);
        }
        let right = items.split_off(items.len() / 2);
        let (left, right) = (self.merge_sort(items, reverse)?, self.merge_sort(right, reverse)?);
        let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
        let mut merged = Vec::with_capacity(left.len() + right.len());
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            let order = self.order(&b.0, &a.0)?;
            let take_right = order == Some(if reverse { Ordering::Greater } else { Ordering::Less });
            merged.extend(if take_right { right.next() } else { left.next() });
        }
        merged.extend(left);
        merged.extend(right);
        Ok(merged)
    }

    pub(crate) fn attribute<'a>(&self, value: &Value<'a>, name: &'a str) -> Run<Value<'a>> {
        if let Value::Module("math") = value {
            return Ok(match name {
                "pi" => Value::Float(std::f64::consts::PI),
                "e" => Value::Float(std::f64::consts::E),
                "inf" => Value::Float(f64::INFINITY),
                "sqrt" => Value::Builtin("math.sqrt"),
                "isqrt" => Value::Builtin("math.isqrt"),
                "floor" => Value::Builtin("math.floor"),
                "ceil" => Value::Builtin("math.ceil"),
                "gcd" => Value::Builtin("math.gcd"),
                "factorial" => Value::Builtin("math.factorial"),
                "prod" => Value::Builtin("math.prod"),
                _ => return unsupported(format!("`math.{name}`")),
            });
        }
        Ok(Value::Method(Rc::new((value.clone(), name))))
    }

    fn math<'a>(&self, name: &str, arguments: &[Value<'a>]) -> Run<Value<'a>> {
        match (name, arguments) {
            ("math.sqrt", [value]) => match value.number().map(Number::float) {
                Some(x) if x >= 0.0 => Ok(Value::Float(x.sqrt())),
                _ => raise("ValueError", "math domain error"),
            },
            ("math.isqrt", [value]) => match u128::try_from(whole(value)?) {
                Ok(n) => Ok(Value::Int(i128::try_from(n.isqrt()).unwrap_or_default())),
                Err(_) => raise("ValueError", "isqrt() argument must be nonnegative"),
            },
            ("math.floor", [value]) => {
                to_int(&value.number().map_or(Value::None, |number| Value::Float(number.float().floor())))
            }
            ("math.ceil", [value]) => {
                to_int(&value.number().map_or(Value::None, |number| Value::Float(number.float().ceil())))
            }
            ("math.gcd", [a, b]) => {
                let (mut a, mut b) = (whole(a)?.unsigned_abs(), whole(b)?.unsigned_abs());
                while b != 0 {
                    (a, b) = (b, a % b);
                }
                i128::try_from(a).map(Value::Int).or_else(|_| super::operators::too_large())
            }
            ("math.factorial", [value]) => {
                let n = whole(value)?;
                if n < 0 {
                    return raise("ValueError", "factorial() not defined for negative values");
                }
                // 33! is the largest below 2^127.
                if n > 33 {
                    return super::operators::too_large();
                }
                Ok(Value::Int((1..=n).product()))
            }
            ("math.prod", [items]) => {
                let mut total = Value::Int(1);
                for item in self.iterate(items)? {
                    total = self.binary(&total, ruff_python_ast::Operator::Mult, &item)?;
                }
                Ok(total)
            }
            _ => unsupported(format!("this use of `{name}`")),
        }
    }
}

fn whole(value: &Value<'_>) -> Run<i128> {
    match value.number() {
        Some(Number::Int(n)) => Ok(n),
        _ => {
            raise("TypeError", format!("'{}' object cannot be interpreted as an integer", value.type_name()))
        }
    }
}

/// `int(value)`.
#[allow(clippy::cast_possible_truncation)] // checked against the range before
fn to_int<'a>(value: &Value<'a>) -> Run<Value<'a>> {
    match (value.number(), value) {
        (Some(Number::Int(n)), _) => Ok(Value::Int(n)),
        (Some(Number::Float(x)), _) if x.abs() < 1e38 => Ok(Value::Int(x.trunc() as i128)),
        (Some(Number::Float(_)), _) => raise("OverflowError", "cannot convert float to integer"),
        (None, Value::Str(text)) => match text.trim().replace('_', "").parse() {
            Ok(n) => Ok(Value::Int(n)),
            Err(_) => {
                raise("ValueError", format!("invalid literal for int() with base 10: {}", value.repr()))
            }
        },
        _ => raise(
            "TypeError",
            format!("int() argument must be a string or a number, not '{}'", value.type_name()),
        ),
    }
}
