//! Flags that make code run once: on `self`, a class, a function, a module.

use ruff_python_ast::Expr;

use crate::conditions::{Flag, FlagPlace};
use crate::evaluate::Evaluator;
use crate::names::Value;

impl<'a> Evaluator<'_, 'a> {
    /// The variable that an expression reads, if it is one that code could set as a flag.
    pub(crate) fn flag(&self, expression: &'a Expr) -> Option<Flag> {
        match expression {
            Expr::Attribute(attribute) => self.flag_named(&attribute.value, attribute.attr.as_str()),
            Expr::Name(name) => match self.scopes.lookup(self.scope, name.id.as_str()) {
                Some(binding) => match binding.value {
                    // A local that holds what was read from a flag.
                    Value::Test(inner) if !std::ptr::eq(inner, expression) => self.flag(inner),
                    Value::Parameter => None,
                    _ => Some(self.module_flag(name.id.as_str())),
                },
                None => Some(self.module_flag(name.id.as_str())),
            },
            Expr::Subscript(subscript) => {
                let mut flag = self.flag(&subscript.value)?;
                match self.value(&subscript.slice) {
                    Value::Text(key) if key.constant().is_some() => {
                        flag.words = format!("`{}`", self.words(expression));
                        flag.name = key.render();
                    }
                    _ => flag.key = Some(self.words(&subscript.slice)),
                }
                Some(flag)
            }
            Expr::Call(call) => match (self.value(&call.func), &*call.func) {
                (Value::Dotted(name), _) if matches!(&*name, "builtins.getattr" | "builtins.hasattr") => {
                    let Value::Text(name) = self.value(call.arguments.args.get(1)?) else { return None };
                    self.flag_named(call.arguments.args.first()?, &name.render())
                }
                (Value::Dotted(name), _) if &*name == "builtins.globals" => {
                    Some(self.module_flag("globals()"))
                }
                (Value::Dotted(name), _) if &*name == "builtins.len" => {
                    self.flag(call.arguments.args.first()?)
                }
                (_, Expr::Attribute(function)) if function.attr.as_str() == "get" => {
                    let mut flag = self.flag(&function.value)?;
                    if let Some(Value::Text(key)) = call.arguments.args.first().map(|key| self.value(key)) {
                        flag.name = key.render();
                        flag.words = format!("`{}`", self.words(expression));
                    }
                    Some(flag)
                }
                _ => None,
            },
            _ => None,
        }
    }

    pub(crate) fn module_flag(&self, name: &str) -> Flag {
        let words = format!("the module variable `{name}`");
        Flag { name: name.to_owned(), place: FlagPlace::Process, words, limit: None, every: None, key: None }
    }

    pub(crate) fn flag_named(&self, of: &'a Expr, name: &str) -> Option<Flag> {
        let (place, words) = match self.value(of) {
            Value::Class(class) => (FlagPlace::Process, format!("the class attribute `{class}.{name}`")),
            Value::Instance(class) => {
                (FlagPlace::Object, format!("the attribute `{name}` of each `{class}` object"))
            }
            Value::Function(function) => {
                (FlagPlace::Process, format!("the function attribute `{function}.{name}`"))
            }
            Value::Dotted(module) => (FlagPlace::Process, format!("the mark `{name}` on `{module}`")),
            _ => (FlagPlace::Object, format!("`{}.{name}`", self.words(of))),
        };
        Some(Flag { name: name.to_owned(), place, words, limit: None, every: None, key: None })
    }
}
