//! Arithmetic, comparison, membership.

use std::cmp::Ordering;
use std::rc::Rc;

use ruff_python_ast::{CmpOp, Operator, UnaryOp};

use super::value::{Number, Value};
use super::{Interpreter, Run, raise, unsupported};

impl Interpreter {
    pub(crate) fn binary<'a>(&self, left: &Value<'a>, op: Operator, right: &Value<'a>) -> Run<Value<'a>> {
        if let (Some(a), Some(b)) = (left.number(), right.number()) {
            return match (a, b, op) {
                (Number::Int(a), Number::Int(b), op) if op != Operator::Div => integers(a, op, b),
                (a, b, op) => floats(a.float(), op, b.float()),
            };
        }
        match (left, op, right) {
            (Value::Str(a), Operator::Add, Value::Str(b)) => {
                self.allocate(a.len() + b.len())?;
                Ok(Value::Str(format!("{a}{b}").into()))
            }
            (Value::List(a), Operator::Add, Value::List(b)) => {
                self.allocate(a.borrow().len() + b.borrow().len())?;
                Ok(Value::list(a.borrow().iter().chain(b.borrow().iter()).cloned().collect()))
            }
            (Value::Tuple(a), Operator::Add, Value::Tuple(b)) => {
                self.allocate(a.len() + b.len())?;
                Ok(Value::Tuple(a.iter().chain(b.iter()).cloned().collect()))
            }
            (sequence @ (Value::Str(_) | Value::List(_) | Value::Tuple(_)), Operator::Mult, times)
            | (times, Operator::Mult, sequence @ (Value::Str(_) | Value::List(_) | Value::Tuple(_))) => {
                self.repeated(sequence, times)
            }
            (Value::Set(a), _, Value::Set(b)) => {
                let (a, b) = (a.borrow(), b.borrow());
                let has = |set: &[Value<'a>], item: &Value<'a>| set.iter().any(|other| other.equals(item));
                let items: Vec<Value<'a>> = match op {
                    Operator::BitOr => {
                        a.iter().chain(b.iter().filter(|item| !has(&a, item))).cloned().collect()
                    }
                    Operator::BitAnd => a.iter().filter(|item| has(&b, item)).cloned().collect(),
                    Operator::Sub => a.iter().filter(|item| !has(&b, item)).cloned().collect(),
                    _ => return unsupported(format!("sets with `{}`", op.as_str())),
                };
                self.allocate(items.len())?;
                Ok(Value::Set(Rc::new(items.into())))
            }
            (Value::Str(_), Operator::Mod, _) => unsupported("`%` formatting"),
            _ => raise(
                "TypeError",
                format!(
                    "unsupported operand type(s) for {}: '{}' and '{}'",
                    op.as_str(),
                    left.type_name(),
                    right.type_name()
                ),
            ),
        }
    }

    fn repeated<'a>(&self, sequence: &Value<'a>, times: &Value<'a>) -> Run<Value<'a>> {
        let Some(Number::Int(times)) = times.number() else {
            return raise(
                "TypeError",
                format!("can't multiply sequence by non-int of type '{}'", times.type_name()),
            );
        };
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        let length = match sequence {
            Value::Str(text) => text.len(),
            Value::List(items) => items.borrow().len(),
            Value::Tuple(items) => items.len(),
            _ => 0,
        };
        self.allocate(length.saturating_mul(times))?;
        Ok(match sequence {
            Value::Str(text) => Value::Str(text.repeat(times).into()),
            Value::List(items) => {
                let items = items.borrow();
                Value::list(std::iter::repeat_n(items.iter(), times).flatten().cloned().collect())
            }
            Value::Tuple(items) => {
                Value::Tuple(std::iter::repeat_n(items.iter(), times).flatten().cloned().collect())
            }
            other => other.clone(),
        })
    }

    pub(crate) fn unary<'a>(&self, op: UnaryOp, value: &Value<'a>) -> Run<Value<'a>> {
        match (op, value.number()) {
            (UnaryOp::Not, _) => Ok(Value::Bool(!value.truth())),
            (UnaryOp::USub, Some(Number::Int(n))) => {
                n.checked_neg().map(Value::Int).map_or_else(too_large, Ok)
            }
            (UnaryOp::USub, Some(Number::Float(x))) => Ok(Value::Float(-x)),
            (UnaryOp::UAdd, Some(Number::Int(n))) => Ok(Value::Int(n)),
            (UnaryOp::UAdd, Some(Number::Float(x))) => Ok(Value::Float(x)),
            (UnaryOp::Invert, Some(Number::Int(n))) => Ok(Value::Int(!n)),
            _ => raise(
                "TypeError",
                format!("bad operand type for unary {}: '{}'", op.as_str(), value.type_name()),
            ),
        }
    }

    pub(crate) fn compare<'a>(&self, left: &Value<'a>, op: CmpOp, right: &Value<'a>) -> Run<bool> {
        Ok(match op {
            CmpOp::Eq => left.equals(right),
            CmpOp::NotEq => !left.equals(right),
            // `is` is only ever asked of None and of booleans in sane code.
            CmpOp::Is => left.type_name() == right.type_name() && left.equals(right),
            CmpOp::IsNot => !(left.type_name() == right.type_name() && left.equals(right)),
            CmpOp::In => self.contains(right, left)?,
            CmpOp::NotIn => !self.contains(right, left)?,
            CmpOp::Lt => self.order(left, right)? == Some(Ordering::Less),
            CmpOp::LtE => matches!(self.order(left, right)?, Some(Ordering::Less | Ordering::Equal)),
            CmpOp::Gt => self.order(left, right)? == Some(Ordering::Greater),
            CmpOp::GtE => matches!(self.order(left, right)?, Some(Ordering::Greater | Ordering::Equal)),
        })
    }

    /// `None` only for a comparison with NaN.
    pub(crate) fn order<'a>(&self, left: &Value<'a>, right: &Value<'a>) -> Run<Option<Ordering>> {
        self.step()?;
        let lists = |a: &[Value<'a>], b: &[Value<'a>]| {
            for (a, b) in a.iter().zip(b) {
                let order = self.order(a, b)?;
                if order != Some(Ordering::Equal) {
                    return Ok(order);
                }
            }
            Ok(Some(a.len().cmp(&b.len())))
        };
        match (left.number(), right.number()) {
            (Some(Number::Int(a)), Some(Number::Int(b))) => return Ok(Some(a.cmp(&b))),
            (Some(a), Some(b)) => return Ok(a.float().partial_cmp(&b.float())),
            _ => {}
        }
        match (left, right) {
            (Value::Str(a), Value::Str(b)) => Ok(Some(a.cmp(b))),
            (Value::List(a), Value::List(b)) => self.deeper(|| lists(&a.borrow(), &b.borrow())),
            (Value::Tuple(a), Value::Tuple(b)) => self.deeper(|| lists(a, b)),
            _ => raise(
                "TypeError",
                format!(
                    "'<' not supported between instances of '{}' and '{}'",
                    left.type_name(),
                    right.type_name()
                ),
            ),
        }
    }

    pub(crate) fn contains<'a>(&self, container: &Value<'a>, item: &Value<'a>) -> Run<bool> {
        if let (Value::Str(text), Value::Str(part)) = (container, item) {
            return Ok(text.contains(&**part));
        }
        if let (Value::Range(start, stop, step), Some(Number::Int(n))) = (container, item.number()) {
            let inside = if *step > 0 { (*start..*stop).contains(&n) } else { n <= *start && n > *stop };
            return Ok(
                inside && n.checked_sub(*start).and_then(|offset| offset.checked_rem(*step)) == Some(0)
            );
        }
        for candidate in self.iterate(container)? {
            self.step()?;
            if candidate.equals(item) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

pub(crate) fn too_large<'a>() -> Run<Value<'a>> {
    unsupported("integers beyond 128 bits")
}

fn integers<'a>(a: i128, op: Operator, b: i128) -> Run<Value<'a>> {
    let zero = || raise("ZeroDivisionError", "integer division or modulo by zero");
    let result = match op {
        Operator::Add => a.checked_add(b),
        Operator::Sub => a.checked_sub(b),
        Operator::Mult => a.checked_mul(b),
        // Python rounds towards minus infinity, Rust towards zero.
        Operator::FloorDiv if b == 0 => return zero(),
        Operator::FloorDiv => a
            .checked_div_euclid(b)
            .map(|q| if b < 0 && a.checked_rem_euclid(b) != Some(0) { q - 1 } else { q }),
        Operator::Mod if b == 0 => return zero(),
        Operator::Mod => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
        Operator::Pow if b < 0 => return floats(Number::Int(a).float(), op, Number::Int(b).float()),
        Operator::Pow => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
        Operator::BitAnd => Some(a & b),
        Operator::BitOr => Some(a | b),
        Operator::BitXor => Some(a ^ b),
        Operator::LShift | Operator::RShift if b < 0 => return raise("ValueError", "negative shift count"),
        Operator::LShift => {
            u32::try_from(b).ok().and_then(|b| 2_i128.checked_pow(b)).and_then(|power| a.checked_mul(power))
        }
        Operator::RShift => Some(a >> b.min(127)),
        Operator::Div | Operator::MatMult => return unsupported(format!("`{}` on integers", op.as_str())),
    };
    result.map(Value::Int).map_or_else(too_large, Ok)
}

fn floats<'a>(a: f64, op: Operator, b: f64) -> Run<Value<'a>> {
    Ok(Value::Float(match op {
        Operator::Add => a + b,
        Operator::Sub => a - b,
        Operator::Mult => a * b,
        Operator::Div | Operator::FloorDiv | Operator::Mod if b == 0.0 => {
            return raise("ZeroDivisionError", "division by zero");
        }
        Operator::Div => a / b,
        Operator::FloorDiv => (a / b).floor(),
        Operator::Mod => a - b * (a / b).floor(),
        Operator::Pow if a < 0.0 && b.fract() != 0.0 => return unsupported("complex numbers"),
        Operator::Pow => a.powf(b),
        _ => return raise("TypeError", format!("unsupported operand type(s) for {}: 'float'", op.as_str())),
    }))
}
