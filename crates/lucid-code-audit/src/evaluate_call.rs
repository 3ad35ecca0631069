//! What a call gives, where imports, constants and the tables say it.

use std::rc::Rc;

use ruff_python_ast::{self as ast, Expr};

use crate::evaluate::Evaluator;
use crate::names::{Measure, Measured, Value};
use crate::template::Template;

impl<'a> Evaluator<'_, 'a> {
    /// The value of a call.
    pub(crate) fn call(&self, call: &'a ast::ExprCall) -> Value<'a> {
        let arguments = &call.arguments;
        // What a method belongs to is read once, for the callee and for the method: twice would be 2ⁿ times along a chain.
        let base = match &*call.func {
            Expr::Attribute(function) => self.value(&function.value),
            _ => Value::Unknown,
        };
        let callee = match &*call.func {
            Expr::Attribute(function) => self.attribute(&base, function.attr.as_str(), &function.value),
            function => self.value(function),
        };
        match callee {
            Value::Dotted(name) => self.call_of(&name, call),
            Value::Getter(attribute) => match arguments.args.first() {
                Some(of) => match self.value(of) {
                    Value::Dotted(module) => Value::Dotted(format!("{module}.{attribute}").into()),
                    _ => Value::Unknown,
                },
                None => Value::Unknown,
            },
            _ => self.method(call, base),
        }
    }

    fn argument(&self, call: &'a ast::ExprCall, position: usize) -> Option<&'a Expr> {
        call.arguments.args.get(position)
    }

    fn constant_argument(&self, call: &'a ast::ExprCall, position: usize) -> Option<String> {
        match self.value(self.argument(call, position)?) {
            Value::Text(text) => text.constant().map(str::to_owned),
            _ => None,
        }
    }

    /// A call of something with a full name.
    fn call_of(&self, name: &str, call: &'a ast::ExprCall) -> Value<'a> {
        match name {
            "builtins.getattr" => {
                let (Some(of), Some(attribute)) = (self.argument(call, 0), self.constant_argument(call, 1))
                else {
                    return Value::Unknown;
                };
                match self.value(of) {
                    Value::Dotted(module) => Value::Dotted(format!("{module}.{attribute}").into()),
                    Value::Namespace(module) if module.is_empty() => Value::Unknown,
                    _ => Value::Unknown,
                }
            }
            "builtins.__import__" => match self.constant_argument(call, 0) {
                // Without names to take from it, `__import__("a.b")` gives `a`.
                Some(module) if call.arguments.args.len() < 4 && call.arguments.keywords.is_empty() => {
                    Value::Dotted(module.split('.').next().unwrap_or("").into())
                }
                Some(module) => Value::Dotted(module.into()),
                None => Value::Unknown,
            },
            "importlib.import_module" | "importlib.__import__" | "importlib.reload" => {
                match self.argument(call, 0).map(|of| self.value(of)) {
                    Some(Value::Text(text)) => {
                        text.constant().map_or(Value::Unknown, |module| Value::Dotted(module.into()))
                    }
                    Some(module @ Value::Dotted(_)) => module,
                    _ => Value::Unknown,
                }
            }
            "builtins.globals" | "builtins.locals" => Value::Namespace("".into()),
            "builtins.vars" => match self.argument(call, 0).map(|of| self.value(of)) {
                Some(Value::Dotted(module)) => Value::Namespace(module),
                None => Value::Namespace("".into()),
                _ => Value::Unknown,
            },
            "builtins.type" => match self.argument(call, 0).map(|of| self.value(of)) {
                Some(Value::Instance(class)) => Value::Class(class),
                _ => Value::Unknown,
            },
            "builtins.staticmethod"
            | "builtins.classmethod"
            | "torch.no_grad"
            | "torch.compiler.disable"
            | "torch._dynamo.disable" => self.argument(call, 0).map_or(Value::Unknown, |of| self.value(of)),
            "operator.attrgetter" => {
                self.constant_argument(call, 0).map_or(Value::Unknown, |name| Value::Getter(name.into()))
            }
            "functools.partial" => match self.argument(call, 0).map(|of| self.value(of)) {
                Some(Value::Dotted(function)) => Value::Partial(function, call),
                _ => Value::Unknown,
            },
            "io.BytesIO" | "io.StringIO" => Value::Memory,
            "os.environ.get" | "os.getenv" | "os.environ.setdefault" | "os.environ.__getitem__" => self
                .constant_argument(call, 0)
                .map_or(Value::Environment("?".into()), |name| Value::Environment(name.into())),
            "os.path.join" => {
                let mut joined = Template::default();
                for (position, part) in call.arguments.args.iter().enumerate() {
                    let part = self.template(part);
                    // An absolute part throws away what stands before it.
                    if part.prefix().starts_with('/') {
                        joined = Template::default();
                    } else if position > 0 && !joined.render().ends_with('/') {
                        joined.push_text("/");
                    }
                    joined.append(&part);
                }
                Value::Text(Rc::new(joined))
            }
            "os.path.expanduser" | "os.path.abspath" | "os.path.realpath" | "os.path.normpath"
            | "os.fspath" | "builtins.str" | "os.path.expandvars" | "os.path.dirname" => {
                match self.argument(call, 0).map(|of| self.value(of)) {
                    Some(Value::Path(path)) => Value::Text(path),
                    Some(value @ (Value::Text(_) | Value::ModuleFile(_))) => value,
                    Some(Value::Int(number)) => Value::Text(Rc::new(Template::text(&number.to_string()))),
                    Some(Value::Rank(_)) => Value::Text(Rc::new(Template::hole("rank"))),
                    _ => Value::Unknown,
                }
            }
            "tempfile.gettempdir" => Value::Text(Rc::new(Template::text("/tmp"))),
            "pathlib.Path"
            | "pathlib.PosixPath"
            | "pathlib.PurePath"
            | "pathlib.PurePosixPath"
            | "torch.utils._path" => {
                let mut parts = call.arguments.args.iter();
                let Some(first) = parts.next() else { return Value::Path(Rc::new(Template::text("."))) };
                if let module @ Value::ModuleFile(_) = self.value(first) {
                    return module;
                }
                let mut path = self.template(first);
                for part in parts {
                    path.push_text("/");
                    path.append(&self.template(part));
                }
                Value::Path(Rc::new(path))
            }
            "inspect.getsourcefile" | "inspect.getfile" => {
                match self.argument(call, 0).map(|of| self.value(of)) {
                    Some(Value::Dotted(module)) => Value::ModuleFile(module),
                    _ => Value::Unknown,
                }
            }
            "importlib.util.find_spec" => self
                .constant_argument(call, 0)
                .map_or(Value::Unknown, |module| Value::ModuleFile(module.into())),
            "builtins.open" | "io.open" | "codecs.open" | "gzip.open" | "bz2.open" | "lzma.open" => {
                self.opened(call, 0, 1)
            }
            "builtins.len" => match self.argument(call, 0) {
                Some(of) => Value::Measure(Rc::new(Measure { of: self.words(of), what: Measured::Length })),
                None => Value::Unknown,
            },
            "torch.numel" => match self.argument(call, 0) {
                Some(of) => Value::Measure(Rc::new(Measure { of: self.words(of), what: Measured::Elements })),
                None => Value::Unknown,
            },
            "builtins.int" | "builtins.bool" => {
                self.argument(call, 0).map_or(Value::Unknown, |of| self.value(of))
            }
            _ => rank_of(name).map_or(Value::Unknown, Value::Rank),
        }
    }

    /// A method of something that no import explains.
    fn method(&self, call: &'a ast::ExprCall, base: Value<'a>) -> Value<'a> {
        let Expr::Attribute(function) = &*call.func else {
            return match &*call.func {
                Expr::Name(name) => rank_of(name.id.as_str()).map_or(Value::Unknown, Value::Rank),
                _ => Value::Unknown,
            };
        };
        let name = function.attr.as_str();
        match (&base, name) {
            (Value::Dotted(module), "__getattribute__") => match self.constant_argument(call, 0) {
                Some(attribute) => Value::Dotted(format!("{module}.{attribute}").into()),
                None => Value::Unknown,
            },
            (Value::Namespace(module), "get" | "__getitem__") => match self.constant_argument(call, 0) {
                Some(attribute) if !module.is_empty() => {
                    Value::Dotted(format!("{module}.{attribute}").into())
                }
                Some(name) => {
                    self.scopes.lookup(0, &name).map_or(Value::Unknown, |binding| binding.value.clone())
                }
                None => Value::Unknown,
            },
            (Value::Text(text), "format") => {
                let filled = text.fill(false, |turn, key| {
                    let keyword = call
                        .arguments
                        .keywords
                        .iter()
                        .find(|keyword| keyword.arg.as_ref().is_some_and(|arg| arg.as_str() == key));
                    let position = key.parse().unwrap_or(turn);
                    match keyword.map(|keyword| &keyword.value).or_else(|| call.arguments.args.get(position))
                    {
                        Some(value) => self.template(value),
                        None => Template::hole(if key.is_empty() { "?" } else { key }),
                    }
                });
                Value::Text(Rc::new(filled))
            }
            (Value::Text(separator), "join") => match self.argument(call, 0) {
                Some(Expr::List(ast::ExprList { elts, .. }) | Expr::Tuple(ast::ExprTuple { elts, .. })) => {
                    let mut joined = Template::default();
                    for (position, part) in elts.iter().enumerate() {
                        if position > 0 {
                            joined.append(separator);
                        }
                        joined.append(&self.template(part));
                    }
                    Value::Text(Rc::new(joined))
                }
                _ => Value::Unknown,
            },
            (Value::Text(text), "replace") => {
                match (text.constant(), self.constant_argument(call, 0), self.constant_argument(call, 1)) {
                    (Some(text), Some(from), Some(to)) if !from.is_empty() => {
                        Value::Text(Rc::new(Template::text(&text.replace(&from, &to))))
                    }
                    _ => Value::Unknown,
                }
            }
            (Value::Text(text), "lower" | "strip" | "upper") => match (text.constant(), name) {
                (Some(text), "lower") => Value::Text(Rc::new(Template::text(&text.to_lowercase()))),
                (Some(text), "upper") => Value::Text(Rc::new(Template::text(&text.to_uppercase()))),
                (Some(text), _) => Value::Text(Rc::new(Template::text(text.trim()))),
                _ => Value::Unknown,
            },
            (Value::Path(path), "joinpath") => {
                let mut joined = (**path).clone();
                for part in &call.arguments.args {
                    joined.push_text("/");
                    joined.append(&self.template(part));
                }
                Value::Path(Rc::new(joined))
            }
            (Value::Path(_), "resolve" | "absolute" | "expanduser" | "as_posix") => base,
            (Value::Path(path), "with_suffix") => {
                let mut path = match path.constant().and_then(|path| path.rsplit_once('.')) {
                    Some((stem, _)) => Template::text(stem),
                    None => (**path).clone(),
                };
                path.append(
                    &call.arguments.args.first().map(|suffix| self.template(suffix)).unwrap_or_default(),
                );
                Value::Path(Rc::new(path))
            }
            (Value::Path(path), "open") => match self.opened(call, usize::MAX, 0) {
                Value::File { writes, .. } => Value::File { path: path.clone(), writes },
                other => other,
            },
            (Value::ModuleFile(_), _) => base,
            (Value::File { path, .. }, "read") if path.holes().any(|hole| hole.ends_with("__file__")) => {
                base.clone()
            }
            (_, "size") if call.arguments.args.is_empty() => Value::Shape(self.words(&function.value).into()),
            (_, "size") => match self.argument(call, 0).map(|of| self.value(of)) {
                Some(Value::Int(dimension)) => Value::Measure(Rc::new(Measure {
                    of: self.words(&function.value),
                    what: Measured::Dimension(dimension),
                })),
                _ => Value::Unknown,
            },
            (_, "numel" | "nelement") => {
                Value::Measure(Rc::new(Measure { of: self.words(&function.value), what: Measured::Elements }))
            }
            _ => rank_of(name).map_or(Value::Unknown, Value::Rank),
        }
    }

    /// `open(path, mode)`: the file, and whether it is opened for writing.
    pub(crate) fn opened(&self, call: &'a ast::ExprCall, path: usize, mode: usize) -> Value<'a> {
        let keyword = |name: &str| {
            call.arguments
                .keywords
                .iter()
                .find(|keyword| keyword.arg.as_ref().is_some_and(|arg| arg.as_str() == name))
                .map(|keyword| &keyword.value)
        };
        let path_argument =
            self.argument(call, path).or_else(|| keyword("file")).or_else(|| keyword("filename"));
        let template = match path_argument.map(|path| self.value(path)) {
            Some(Value::ModuleFile(module)) => Template::hole(&format!("{module}.__file__")),
            _ => path_argument.map(|path| self.template(path)).unwrap_or_default(),
        };
        let writes = match self.argument(call, mode).or_else(|| keyword("mode")).map(|mode| self.value(mode))
        {
            Some(Value::Text(mode)) => mode.known().contains(['w', 'a', 'x', '+']),
            // A mode that is computed: not said to write.
            _ => false,
        };
        Value::File { path: Rc::new(template), writes }
    }
}

/// Functions and attributes that give a rank, by their last name.
pub(crate) fn rank_of(name: &str) -> Option<&'static str> {
    let last = name.rsplit('.').next().unwrap_or(name);
    match last {
        "get_tensor_model_parallel_rank"
        | "get_tp_rank"
        | "tp_rank"
        | "attn_tp_rank"
        | "get_attention_tp_rank"
        | "get_tensor_model_parallel_rank_or_0" => Some("tensor-parallel rank"),
        "get_rank" | "rank" | "local_rank" | "get_local_rank" | "world_rank" | "rank_in_group"
        | "global_rank" => Some("rank"),
        "get_pp_rank" | "pp_rank" => Some("pipeline-parallel rank"),
        "get_dp_rank" | "dp_rank" => Some("data-parallel rank"),
        "get_ep_rank" | "ep_rank" => Some("expert-parallel rank"),
        _ => None,
    }
}
