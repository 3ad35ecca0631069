//! What an expression means, as far as names, constants and imports say: nothing is run.

use std::cell::Cell;
use std::rc::Rc;

use ruff_python_ast::{self as ast, Expr, Number, Operator, UnaryOp};
use ruff_text_size::Ranged;

use crate::evaluate_call::rank_of;
use crate::names::{Measure, Measured, Origin, Scopes, Value};
use crate::template::Template;

/// Expressions are followed this deep; what lies deeper is unknown. Also ends `y = [y[0]]`.
const DEPTH: u32 = 150;

/// Reads expressions in one scope.
pub(crate) struct Evaluator<'s, 'a> {
    pub scopes: &'s Scopes<'a>,
    pub scope: usize,
    pub text: &'a str,
    /// Whether a full name is one that the tables know: settles what a wildcard import gave.
    pub known: &'s dyn Fn(&str) -> bool,
    pub depth: &'s Cell<u32>,
    /// Kept tests that are being followed: `z = z and z` would double with each.
    pub followed: &'s Cell<u32>,
}

/// Functions of Python itself that matter here.
const BUILTINS: &[&str] = &[
    "open",
    "print",
    "getattr",
    "setattr",
    "delattr",
    "hasattr",
    "__import__",
    "globals",
    "locals",
    "vars",
    "exec",
    "eval",
    "breakpoint",
    "input",
    "type",
    "len",
    "str",
    "staticmethod",
    "classmethod",
    "super",
    "__builtins__",
    "isinstance",
    "any",
    "bool",
    "int",
];

impl<'a> Evaluator<'_, 'a> {
    /// The source's words, on one line.
    pub(crate) fn words(&self, expression: &Expr) -> String {
        one_line(self.text.get(expression.range().to_std_range()).unwrap_or(""), 80)
    }

    /// What `expression` means.
    pub(crate) fn value(&self, expression: &'a Expr) -> Value<'a> {
        if self.depth.get() >= DEPTH {
            return Value::Unknown;
        }
        self.depth.set(self.depth.get() + 1);
        let value = self.value_unbounded(expression);
        self.depth.set(self.depth.get() - 1);
        value
    }

    fn value_unbounded(&self, expression: &'a Expr) -> Value<'a> {
        match expression {
            Expr::Name(name) => self.name(name.id.as_str()),
            Expr::Attribute(attribute) => {
                let base = self.value(&attribute.value);
                self.attribute(&base, attribute.attr.as_str(), &attribute.value)
            }
            Expr::Subscript(subscript) => self.subscript(subscript),
            Expr::Call(call) => self.call(call),
            Expr::StringLiteral(literal) => Value::Text(Rc::new(Template::text(literal.value.to_str()))),
            Expr::FString(literal) => Value::Text(Rc::new(self.f_string(literal))),
            Expr::NumberLiteral(number) => match &number.value {
                Number::Int(int) => int.as_i64().map_or(Value::Unknown, Value::Int),
                _ => Value::Unknown,
            },
            Expr::UnaryOp(unary) => match (unary.op, self.value(&unary.operand)) {
                (UnaryOp::USub, Value::Int(number)) => Value::Int(number.saturating_neg()),
                (UnaryOp::Not, _) => Value::Test(expression),
                _ => Value::Unknown,
            },
            Expr::BinOp(operation) => self.operation(operation),
            Expr::Compare(_) => Value::Test(expression),
            Expr::BoolOp(operation) => {
                // `save = save or torch.save` means the one that is known; a logical expression of tests stays a test.
                let known = operation.values.iter().map(|value| self.value(value)).find(|value| {
                    matches!(
                        value,
                        Value::Dotted(_)
                            | Value::Text(_)
                            | Value::Path(_)
                            | Value::Partial(..)
                            | Value::File { .. }
                    )
                });
                known.unwrap_or(Value::Test(expression))
            }
            Expr::If(choice) => match self.value(&choice.body) {
                Value::Unknown => self.value(&choice.orelse),
                value => value,
            },
            Expr::Named(named) => self.value(&named.value),
            Expr::Await(awaited) => self.value(&awaited.value),
            Expr::List(_) | Expr::Tuple(_) | Expr::Dict(_) => Value::Display(expression),
            Expr::Lambda(lambda) => match &*lambda.body {
                // `lambda t, p: torch.save(t, p)` is torch.save to its callers, if it hands on two arguments or more.
                Expr::Call(call) if call.arguments.args.len() > 1 => match self.value(&call.func) {
                    function @ Value::Dotted(_) => function,
                    _ => Value::Unknown,
                },
                _ => Value::Unknown,
            },
            _ => Value::Unknown,
        }
    }

    fn name(&self, name: &'a str) -> Value<'a> {
        if let Some(binding) = self.scopes.lookup(self.scope, name) {
            return match &binding.value {
                Value::Unknown | Value::Parameter => match by_name(name, || name.to_owned()) {
                    Value::Unknown => binding.value.clone(),
                    value => value,
                },
                value => value.clone(),
            };
        }
        for module in self.scopes.wildcards.iter().rev() {
            let full = format!("{module}.{name}");
            if (self.known)(&full) {
                return Value::Dotted(full.into());
            }
        }
        if BUILTINS.contains(&name) {
            return Value::Dotted(format!("builtins.{name}").into());
        }
        Value::Unknown
    }

    /// `base.name`.
    pub(crate) fn attribute(&self, base: &Value<'a>, name: &'a str, written: &Expr) -> Value<'a> {
        match (base, name) {
            (Value::Dotted(module), "__dict__") => Value::Namespace(module.clone()),
            (Value::Dotted(module), "__file__" | "__path__") => Value::ModuleFile(module.clone()),
            (Value::Dotted(module), _) if &**module == "builtins.__builtins__" => {
                Value::Dotted(format!("builtins.{name}").into())
            }
            (Value::Dotted(module), _) => Value::Dotted(dotted(module, name)),
            (Value::Instance(class), "__class__") => Value::Class(class.clone()),
            (Value::Instance(class) | Value::Class(class), _) => match self.scopes.attribute(class, name) {
                Some(value) => value.clone(),
                None if name == "shape" => Value::Shape(self.words(written).into()),
                None => by_name(name, || format!("{}.{name}", self.words(written))),
            },
            (Value::Path(path), "name" | "stem") => {
                Value::Text(Rc::new(Template::text(path.known().rsplit('/').next().unwrap_or(""))))
            }
            (Value::Path(path), "parent") => {
                let mut parent =
                    Template::text(path.prefix().rsplit_once('/').map_or("", |(parent, _)| parent));
                parent.push_hole("parent");
                Value::Path(Rc::new(parent))
            }
            (Value::ModuleFile(_), _) => base.clone(),
            (_, "shape") => Value::Shape(self.words(written).into()),
            _ => by_name(name, || format!("{}.{name}", self.words(written))),
        }
    }

    fn subscript(&self, subscript: &'a ast::ExprSubscript) -> Value<'a> {
        let base = self.value(&subscript.value);
        let index = self.value(&subscript.slice);
        match (&base, &index) {
            (Value::Namespace(space), Value::Text(key)) => match key.constant() {
                Some(name) if space.is_empty() => self.global(name),
                Some(name) => Value::Dotted(format!("{space}.{name}").into()),
                None => Value::Unknown,
            },
            (Value::Dotted(name), Value::Text(key)) => match (&**name, key.constant()) {
                ("sys.modules", Some("__main__")) => Value::Unknown,
                ("sys.modules", Some(module)) => Value::Dotted(module.into()),
                ("os.environ", Some(variable)) => Value::Environment(variable.into()),
                ("builtins.__builtins__", Some(function)) => {
                    Value::Dotted(format!("builtins.{function}").into())
                }
                _ => Value::Unknown,
            },
            (Value::Shape(of), Value::Int(dimension)) => {
                Value::Measure(Rc::new(Measure { of: of.to_string(), what: Measured::Dimension(*dimension) }))
            }
            (Value::Display(display), index) => self.element(display, index),
            (Value::ModuleFile(_), _) => base.clone(),
            _ => Value::Unknown,
        }
    }

    /// `[torch.save][0]`, `{"s": torch.save}["s"]`.
    fn element(&self, display: &'a Expr, index: &Value<'a>) -> Value<'a> {
        match (display, index) {
            (
                Expr::List(ast::ExprList { elts, .. }) | Expr::Tuple(ast::ExprTuple { elts, .. }),
                Value::Int(index),
            ) => {
                let index = if *index < 0 { index + elts.len() as i64 } else { *index };
                usize::try_from(index)
                    .ok()
                    .and_then(|index| elts.get(index))
                    .map_or(Value::Unknown, |element| self.value(element))
            }
            (Expr::Dict(dict), Value::Text(key)) => dict
                .items
                .iter()
                .find(|item| match item.key.as_ref().map(|key| self.value(key)) {
                    Some(Value::Text(name)) => name.constant().is_some() && name.constant() == key.constant(),
                    _ => false,
                })
                .map_or(Value::Unknown, |item| self.value(&item.value)),
            _ => Value::Unknown,
        }
    }

    /// A name of the module's scope.
    fn global(&self, name: &str) -> Value<'a> {
        match self.scopes.lookup(0, name) {
            Some(binding) => binding.value.clone(),
            None if name == "__builtins__" || BUILTINS.contains(&name) => {
                Value::Dotted(format!("builtins.{name}").into())
            }
            None => Value::Unknown,
        }
    }

    fn operation(&self, operation: &'a ast::ExprBinOp) -> Value<'a> {
        let left = self.value(&operation.left);
        match (operation.op, left) {
            (Operator::Add, Value::Int(a)) => match self.value(&operation.right) {
                Value::Int(b) => Value::Int(a.saturating_add(b)),
                _ => Value::Unknown,
            },
            (Operator::Mod, Value::Text(text)) => {
                let turns: Vec<&Expr> = match &*operation.right {
                    Expr::Tuple(tuple) => tuple.elts.iter().collect(),
                    other => vec![other],
                };
                Value::Text(Rc::new(text.fill(true, |turn, _| {
                    turns.get(turn).map_or_else(|| Template::hole("?"), |turn| self.words_of(turn))
                })))
            }
            (Operator::Div, Value::Path(path)) => {
                let mut joined = (*path).clone();
                joined.push_text("/");
                joined.append(&self.template(&operation.right));
                Value::Path(Rc::new(joined))
            }
            (Operator::Add, left) => {
                let right = self.value(&operation.right);
                if !matches!(left, Value::Text(_)) && !matches!(right, Value::Text(_)) {
                    return Value::Unknown;
                }
                let mut sum = self.as_template(&left, &operation.left);
                sum.append(&self.as_template(&right, &operation.right));
                Value::Text(Rc::new(sum))
            }
            (Operator::Div, _) => match self.value(&operation.right) {
                // `folder / "q.pt"` with an unknown folder.
                Value::Text(text) => {
                    let mut joined = Template::hole(&self.words(&operation.left));
                    joined.push_text("/");
                    joined.append(&text);
                    Value::Path(Rc::new(joined))
                }
                _ => Value::Unknown,
            },
            _ => Value::Unknown,
        }
    }

    /// An expression as a string: known text, or a hole that is called as the source calls it.
    pub(crate) fn template(&self, expression: &'a Expr) -> Template {
        self.as_template(&self.value(expression), expression)
    }

    /// The same, with the value at hand: whoever asks twice along a chain of sums or calls asks 2ⁿ times.
    fn as_template(&self, value: &Value<'a>, expression: &Expr) -> Template {
        match value {
            Value::Text(text) | Value::Path(text) | Value::File { path: text, .. } => (**text).clone(),
            Value::Int(number) => Template::text(&number.to_string()),
            Value::Rank(_) => Template::hole("rank"),
            Value::Environment(name) => Template::hole(&format!("${name}")),
            Value::ModuleFile(module) => Template::hole(&format!("{module}.__file__")),
            _ => self.words_of(expression),
        }
    }

    fn words_of(&self, expression: &Expr) -> Template {
        // Short enough to be read inside of a path: `self.layer_idx` stays, a long call loses its arguments.
        let words = self.words(expression);
        let words = words.split_once('(').map_or(words.as_str(), |(head, _)| head);
        Template::hole(if words.is_empty() { "…" } else { words })
    }

    fn f_string(&self, literal: &'a ast::ExprFString) -> Template {
        let mut template = Template::default();
        for part in literal.value.as_slice() {
            match part {
                ast::FStringPart::Literal(text) => template.push_text(&text.value),
                ast::FStringPart::FString(string) => {
                    for element in string.elements.iter() {
                        match element {
                            ast::InterpolatedStringElement::Literal(text) => template.push_text(&text.value),
                            ast::InterpolatedStringElement::Interpolation(hole) => {
                                template.append(&self.template(&hole.expression))
                            }
                        }
                    }
                }
            }
        }
        template
    }

    /// How the first name of an attribute chain came to be: `_t2` in `_t2.save`.
    pub(crate) fn root_origin(&self, expression: &'a Expr) -> Option<Origin> {
        let mut at = expression;
        loop {
            at = match at {
                Expr::Attribute(attribute) => &attribute.value,
                Expr::Subscript(subscript) => &subscript.value,
                Expr::Call(call) => call
                    .arguments
                    .args
                    .first()
                    .filter(|_| !matches!(&*call.func, Expr::Attribute(_)))
                    .unwrap_or(&call.func),
                Expr::Name(name) => {
                    return self.scopes.lookup(self.scope, name.id.as_str()).map(|binding| binding.origin);
                }
                _ => return None,
            };
        }
    }
}

/// `module.name`; made for every attribute of every module, so without the machinery of formatting.
fn dotted(module: &str, name: &str) -> Rc<str> {
    let mut full = String::with_capacity(module.len() + 1 + name.len());
    full.push_str(module);
    full.push('.');
    full.push_str(name);
    full.into()
}

/// What a variable's or attribute's name alone says: a rank, a number of tokens.
fn by_name<'a>(name: &str, of: impl FnOnce() -> String) -> Value<'a> {
    match rank_of(name) {
        Some(rank) => Value::Rank(rank),
        None => named_measure(name, of),
    }
}

/// A variable that is called a number of tokens or rows.
fn named_measure<'a>(name: &str, of: impl FnOnce() -> String) -> Value<'a> {
    let counts = [
        "num_tokens",
        "n_tokens",
        "ntokens",
        "num_actual_tokens",
        "num_input_tokens",
        "num_query_tokens",
        "num_scheduled_tokens",
        "num_prefill_tokens",
        "num_decode_tokens",
        "total_num_scheduled_tokens",
        "num_reqs",
        "batch_size",
        "bsz",
        "seq_len",
        "seqlen",
        "q_len",
        "query_len",
    ];
    if counts.contains(&name) {
        return Value::Measure(Rc::new(Measure { of: of(), what: Measured::Named }));
    }
    Value::Unknown
}

/// Source text on one line, not longer than `most` characters.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        // Fewer bytes are fewer characters.
        if line.len() > most && line.chars().count() > most {
            let mut cut: String = line.chars().take(most.saturating_sub(1)).collect();
            cut.push('…');
            return cut;
        }
    }
    line
}
