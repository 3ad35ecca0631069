//! Conditions in words: what must hold for a piece of code to run.

use ruff_python_ast::{self as ast, BoolOp, CmpOp, Expr, Operator, UnaryOp};

use crate::evaluate::Evaluator;
use crate::measures::{counted, measured, turned};
use crate::names::Value;

/// What a condition asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GuardKind {
    /// An exact number of tokens above one.
    TokenCount,
    /// A number of tokens in another way.
    TokenRange,
    /// A flag that may make the code run once.
    Flag(Flag),
    /// A variable of the environment.
    Environment(String),
    Rank,
    Layer,
    /// NaN or infinity.
    NotFinite,
    /// A parameter, an attribute, a configuration.
    Setting,
    FileAbsent,
    Exception,
    /// `if __name__ == "__main__"`.
    Main,
    /// `if TYPE_CHECKING`, `if False`.
    Never,
    Other,
}

/// A variable that code sets so as to run only once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flag {
    /// Its last name.
    pub name: String,
    /// Where it lives.
    pub place: FlagPlace,
    /// In words: ``the class attribute `Attention._dumped` ``.
    pub words: String,
    /// `< 3`: at most three times.
    pub limit: Option<i64>,
    /// `% 100 == 0`.
    pub every: Option<i64>,
    /// `key not in seen`: once for each key.
    pub key: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagPlace {
    /// One for the process: class, module, function, foreign module.
    Process,
    /// One for each object.
    Object,
}

/// A condition under which code runs.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    pub kind: GuardKind,
    /// Reads after "when".
    pub words: String,
    /// Bytes of the file that it governs.
    pub extent: (u32, u32),
    /// Where the condition stands.
    pub offset: u32,
}

impl<'a> Evaluator<'_, 'a> {
    /// The conditions that must all hold for `test` to be true (or false, when `negated`).
    pub(crate) fn conditions(&self, test: &'a Expr, negated: bool) -> Vec<(GuardKind, String)> {
        if self.depth.get() > 60 {
            return vec![(GuardKind::Other, quoted(&self.words(test), negated))];
        }
        self.depth.set(self.depth.get() + 1);
        let found = self.conditions_unbounded(test, negated);
        self.depth.set(self.depth.get() - 1);
        found
    }

    fn conditions_unbounded(&self, test: &'a Expr, negated: bool) -> Vec<(GuardKind, String)> {
        match test {
            Expr::BoolOp(operation) if (operation.op == BoolOp::And) != negated => {
                operation.values.iter().flat_map(|value| self.conditions(value, negated)).collect()
            }
            Expr::BoolOp(operation) => {
                let parts: Vec<_> =
                    operation.values.iter().flat_map(|value| self.conditions(value, negated)).collect();
                let words = parts.iter().map(|(_, words)| words.as_str()).collect::<Vec<_>>().join(" or ");
                // An alternative to a switch of the environment is no switch of the environment: only what all parts share counts.
                let kind = match parts.first() {
                    Some((first, _))
                        if parts.iter().all(|(kind, _)| {
                            std::mem::discriminant(kind) == std::mem::discriminant(first)
                        }) =>
                    {
                        first.clone()
                    }
                    _ => GuardKind::Other,
                };
                vec![(kind, words)]
            }
            Expr::UnaryOp(unary) if unary.op == UnaryOp::Not => self.conditions(&unary.operand, !negated),
            Expr::Named(named) => self.conditions(&named.value, negated),
            Expr::Compare(compare) => self.comparison(compare, negated, test),
            Expr::BooleanLiteral(literal) if literal.value == negated => {
                vec![(GuardKind::Never, "never".to_owned())]
            }
            Expr::NumberLiteral(_) if matches!(self.value(test), Value::Int(0)) && !negated => {
                vec![(GuardKind::Never, "never".to_owned())]
            }
            _ => match self.value(test) {
                Value::Test(inner) if !std::ptr::eq(inner, test) && self.followed.get() < 2 => {
                    self.followed.set(self.followed.get() + 1);
                    let found = self.conditions(inner, negated);
                    self.followed.set(self.followed.get() - 1);
                    found
                }
                value => vec![self.truth(test, &value, negated)],
            },
        }
    }

    /// `if x`.
    fn truth(&self, test: &'a Expr, value: &Value<'a>, negated: bool) -> (GuardKind, String) {
        let words = self.words(test);
        match value {
            Value::Environment(name) => {
                let not = if negated { "not set" } else { "set" };
                return (
                    GuardKind::Environment(name.to_string()),
                    format!("the environment variable {name} is {not}"),
                );
            }
            Value::Dotted(name) if name.ends_with("TYPE_CHECKING") => {
                return (GuardKind::Never, "type checkers read it".to_owned());
            }
            Value::Dotted(name) if name.contains(".envs.") || name.starts_with("envs.") => {
                let variable = name.rsplit('.').next().unwrap_or(name);
                let not = if negated { "not set" } else { "set" };
                return (
                    GuardKind::Environment(variable.to_owned()),
                    format!("the environment variable {variable} is {not}"),
                );
            }
            Value::Measure(measure) => {
                // `if len(x)`, `if num_tokens`.
                let op = if negated { CmpOp::Eq } else { CmpOp::Gt };
                return (GuardKind::TokenRange, measured(measure, op, &[0]));
            }
            Value::Rank(rank) => {
                return (
                    GuardKind::Rank,
                    if negated { format!("on {rank} 0 only") } else { format!("on every {rank} but 0") },
                );
            }
            _ => {}
        }
        if let Expr::Call(call) = test
            && let Some(found) = self.asked_by_call(call, negated)
        {
            return found;
        }
        if words == "TYPE_CHECKING" {
            return (GuardKind::Never, "type checkers read it".to_owned());
        }
        match self.flag(test) {
            Some(flag) => (GuardKind::Flag(flag), quoted(&words, negated)),
            None => (GuardKind::Setting, quoted(&words, negated)),
        }
    }

    /// `os.path.exists(p)`, `torch.isnan(x).any()`, `envs.X.get()`.
    fn asked_by_call(&self, call: &'a ast::ExprCall, negated: bool) -> Option<(GuardKind, String)> {
        let words = self.words(&call.func);
        let last = words.rsplit('.').next().unwrap_or(&words).to_owned();
        let spelled =
            crate::evaluate::one_line(&self.text[ruff_text_size::Ranged::range(call).to_std_range()], 120);
        if matches!(last.as_str(), "exists" | "isfile" | "is_file") {
            let path = match &*call.func {
                Expr::Attribute(function) if call.arguments.args.is_empty() => self.template(&function.value),
                _ => self.template(call.arguments.args.first()?),
            };
            return Some(if negated {
                (GuardKind::FileAbsent, format!("{} is absent", path.render()))
            } else {
                (GuardKind::Setting, format!("{} exists", path.render()))
            });
        }
        if spelled.contains("isnan") || spelled.contains("isinf") || spelled.contains("isfinite") {
            return Some((GuardKind::NotFinite, quoted(&spelled, negated)));
        }
        if let (true, Some(name)) = (matches!(last.as_str(), "get" | "is_set"), words.split('.').rev().nth(1))
            && (words.starts_with("envs.") || words.contains(".envs."))
        {
            return Some((
                GuardKind::Environment(name.to_owned()),
                format!("the environment variable {name} is {}set", if negated { "not " } else { "" }),
            ));
        }
        if matches!(last.as_str(), "bool" | "int" | "any" | "all")
            && let Some(inner) = call.arguments.args.first()
            && let Value::Environment(name) = self.value(inner)
        {
            return Some((
                GuardKind::Environment(name.to_string()),
                format!("the environment variable {name} is {}set", if negated { "not " } else { "" }),
            ));
        }
        None
    }

    fn comparison(
        &self,
        compare: &'a ast::ExprCompare,
        negated: bool,
        test: &'a Expr,
    ) -> Vec<(GuardKind, String)> {
        let mut left = &*compare.left;
        let mut found = Vec::new();
        for (op, right) in compare.ops.iter().zip(&*compare.comparators) {
            let op = if negated { op.negate() } else { *op };
            found.push(
                self.compared(left, op, right)
                    .unwrap_or_else(|| (GuardKind::Other, quoted(&self.words(test), negated))),
            );
            left = right;
        }
        // Not (a < b < c) is an alternative, not two conditions.
        if negated && found.len() > 1 {
            return vec![(GuardKind::Other, quoted(&self.words(test), true))];
        }
        found
    }

    fn compared(&self, left: &'a Expr, op: CmpOp, right: &'a Expr) -> Option<(GuardKind, String)> {
        let (left_value, right_value) = (self.value(left), self.value(right));
        match (&left_value, &right_value) {
            (Value::Measure(measure), Value::Int(number)) => Some(counted(measure, op, &[*number])),
            (Value::Int(number), Value::Measure(measure)) => Some(counted(measure, turned(op), &[*number])),
            (
                Value::Measure(measure),
                Value::Display(
                    Expr::Tuple(ast::ExprTuple { elts, .. }) | Expr::List(ast::ExprList { elts, .. }),
                ),
            ) if op == CmpOp::In => {
                let numbers: Vec<i64> = elts
                    .iter()
                    .filter_map(|element| match self.value(element) {
                        Value::Int(number) => Some(number),
                        _ => None,
                    })
                    .collect();
                (numbers.len() == elts.len() && !numbers.is_empty())
                    .then(|| counted(measure, CmpOp::Eq, &numbers))
            }
            (Value::Shape(of), Value::Display(Expr::Tuple(shape))) => {
                let shape = self.words(&Expr::Tuple(shape.clone()));
                let exact = matches!(op, CmpOp::Eq | CmpOp::Is);
                Some((
                    if exact { GuardKind::TokenCount } else { GuardKind::TokenRange },
                    format!("`{of}` has {}the shape {shape}", if exact { "" } else { "not " }),
                ))
            }
            (Value::Rank(rank), Value::Int(number)) | (Value::Int(number), Value::Rank(rank)) => {
                let words = match op {
                    CmpOp::Eq | CmpOp::Is => format!("on {rank} {number} only"),
                    CmpOp::NotEq | CmpOp::IsNot => format!("on every {rank} but {number}"),
                    _ => format!("on a {rank} {} {number}", op.as_str()),
                };
                Some((GuardKind::Rank, words))
            }
            (Value::Environment(name), other) | (other, Value::Environment(name)) => {
                let value = match other {
                    Value::Text(text) => format!("\"{}\"", text.render()),
                    _ => self.words(right),
                };
                let is =
                    if matches!(op, CmpOp::NotEq | CmpOp::IsNot | CmpOp::NotIn) { "is not" } else { "is" };
                Some((
                    GuardKind::Environment(name.to_string()),
                    format!("the environment variable {name} {is} {value}"),
                ))
            }
            (Value::Text(name), Value::Dotted(space)) if &**space == "os.environ" => {
                let not = if op == CmpOp::In { "set" } else { "not set" };
                Some((
                    GuardKind::Environment(name.render()),
                    format!("the environment variable {} is {not}", name.render()),
                ))
            }
            _ => self.compared_by_words(left, op, right, &right_value),
        }
    }

    fn compared_by_words(
        &self,
        left: &'a Expr,
        op: CmpOp,
        right: &'a Expr,
        right_value: &Value<'a>,
    ) -> Option<(GuardKind, String)> {
        let words = self.words(left);
        let last = words.rsplit('.').next().unwrap_or(&words);
        if words == "__name__" {
            return Some((GuardKind::Main, "the file is run as a program".to_owned()));
        }
        let spelled = format!("`{words} {} {}`", op.as_str(), self.words(right));
        if !matches!(op, CmpOp::In | CmpOp::NotIn)
            && [
                "layer_idx",
                "layer_id",
                "layer_index",
                "layer_number",
                "layer_num",
                "layer",
                "prefix",
                "layer_name",
            ]
            .contains(&last)
        {
            return Some(match (op, right_value) {
                (CmpOp::Eq, Value::Int(number)) => (GuardKind::Layer, format!("in layer {number} only")),
                (_, Value::Int(_)) => (GuardKind::Layer, format!("in layers with {spelled}")),
                _ => (GuardKind::Setting, spelled),
            });
        }
        if matches!(op, CmpOp::NotIn | CmpOp::In) {
            if let (Value::Namespace(_), Value::Text(name)) = (right_value, self.value(left)) {
                let flag = Flag {
                    place: FlagPlace::Process,
                    words: format!("the variable `{}`", name.render()),
                    name: name.render(),
                    limit: None,
                    every: None,
                    key: None,
                };
                return Some((GuardKind::Flag(flag), spelled));
            }
            if let (Expr::Attribute(space), Value::Text(name)) = (right, self.value(left))
                && space.attr.as_str() == "__dict__"
            {
                return self
                    .flag_named(&space.value, &name.render())
                    .map(|flag| (GuardKind::Flag(flag), spelled));
            }
            if op == CmpOp::NotIn
                && let Some(mut flag) = self.flag(right)
            {
                flag.key = Some(words);
                return Some((GuardKind::Flag(flag), spelled));
            }
            return Some((GuardKind::Setting, spelled));
        }
        // `self.count % 100 == 0`, `count < 3`, `_dumped is None`, `flag == False`.
        if let Expr::BinOp(operation) = left
            && operation.op == Operator::Mod
            && let (Some(mut flag), Value::Int(every)) =
                (self.flag(&operation.left), self.value(&operation.right))
        {
            flag.every = Some(every);
            return Some((GuardKind::Flag(flag), spelled));
        }
        let mut flag = self.flag(left)?;
        match (op, right_value) {
            (CmpOp::Lt, Value::Int(limit)) => flag.limit = Some(*limit),
            (CmpOp::LtE, Value::Int(limit)) => flag.limit = Some(limit.saturating_add(1)),
            (CmpOp::Eq | CmpOp::Is | CmpOp::NotEq | CmpOp::IsNot, _) => {}
            _ => return Some((GuardKind::Setting, spelled)),
        }
        Some((GuardKind::Flag(flag), spelled))
    }
}

fn quoted(words: &str, negated: bool) -> String {
    if negated { format!("`{words}` does not hold") } else { format!("`{words}` holds") }
}
