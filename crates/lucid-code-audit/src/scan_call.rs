//! Calls that a forward pass has no business with, and what their arguments say.

use ruff_python_ast::{self as ast, Expr};
use ruff_text_size::Ranged;

use crate::evaluate::one_line;
use crate::evidence::Effect;
use crate::knowledge::{CALLS, CallRule, PATHS};
use crate::names::Value;
use crate::scan::{CallSites, Deed, Scanner};
use crate::scan_names::last_name;
use crate::template::Template;

/// Last names of the calls that `scan_patch.rs` looks at.
const PATCHING_METHODS: &[&str] = &[
    "setattr",
    "delattr",
    "insert",
    "append",
    "update",
    "setdefault",
    "__setitem__",
    "wrap_function_wrapper",
    "patch_function_wrapper",
    "wrap_object",
    "register_model",
];

impl<'a> Scanner<'a> {
    /// A call: what it does, whom it changes, and who is called.
    pub(crate) fn called(&mut self, call: &'a ast::ExprCall, expression: &'a Expr) {
        if let Some(name) = last_name(&call.func)
            && self.subject.area.is_some()
        {
            self.functions[self.function].calls.insert(name);
            self.note_mutation(call, name);
            let (function, guards) = (self.function, &self.guards);
            let first = || CallSites { function, guards: guards.clone(), number: 0 };
            self.sites.entry(name).or_insert_with(first).number += 1;
        }
        if self.subject.area.is_none() && self.is_another_call(&call.func) {
            return;
        }
        let callee = self.value(&call.func);
        self.patching_call(call, &callee);
        if self.subject.area.is_none() {
            self.rewriting(call, &callee);
            return;
        }
        let rule = match &callee {
            Value::Dotted(name) | Value::Partial(name, _) => {
                CALLS.call(name).map(|(rule, name)| (rule, name.to_owned()))
            }
            _ => None,
        };
        match (rule, &callee) {
            (Some((rule, name)), _) => {
                let held = match &callee {
                    Value::Partial(_, held) => Some(*held),
                    _ => None,
                };
                self.ruled(rule, &name, call, held, expression);
            }
            (None, Value::Dotted(name)) if matches!(&**name, "os.environ.get" | "os.getenv") => {
                self.asked_environment(expression)
            }
            (None, _) => self.method_called(call, &callee, expression),
        }
    }

    /// Whether a call outside of the engines' packages is told by its name alone to change nothing: `numpy.linalg.norm(…)`.
    fn is_another_call(&self, function: &'a Expr) -> bool {
        let Expr::Attribute(function) = function else { return false };
        let name = function.attr.as_str();
        if PATCHING_METHODS.contains(&name) || name.starts_with("write_") || CALLS.is_last(name) {
            return false;
        }
        // With a module at its root the full name ends as it is spelled; a dictionary or a file of a module is no module.
        let mut at = &*function.value;
        loop {
            match at {
                Expr::Attribute(inner) if !inner.attr.as_str().starts_with("__") => at = &inner.value,
                Expr::Name(root) => return self.scopes.is_module(self.scope, root.id.as_str()),
                _ => return false,
            }
        }
    }

    /// Writes over a module's own file: `Path(vllm.envs.__file__).write_text(…)`, `open(spec.origin, "w")`.
    fn rewriting(&mut self, call: &'a ast::ExprCall, callee: &Value<'a>) {
        let written = match (callee, &*call.func) {
            (Value::Dotted(name), _) if CALLS.call(name).is_some_and(|(rule, _)| rule.mode == Some(1)) => {
                match self.evaluator().opened(call, 0, 1) {
                    Value::File { writes: true, .. } => call.arguments.args.first(),
                    _ => None,
                }
            }
            (_, Expr::Attribute(function)) if function.attr.as_str().starts_with("write_") => {
                Some(&*function.value)
            }
            _ => None,
        };
        if let Some(Value::ModuleFile(module)) = written.map(|written| self.value(written)) {
            self.rewritten_source(&module, call);
        }
    }

    /// `seen.add(key)`, `setattr(cls, "_done", True)`, `globals().update(…)`: a flag may be set so.
    fn note_mutation(&mut self, call: &'a ast::ExprCall, name: &str) {
        match (name, &*call.func) {
            (
                "add" | "append" | "update" | "setdefault" | "extend" | "insert" | "set",
                Expr::Attribute(function),
            ) => {
                if let Some(name) = last_name(&function.value) {
                    self.set(name, &call.func);
                }
                if let Some(Value::Text(key)) = call.arguments.args.first().map(|key| self.value(key)) {
                    self.set(key.render(), &call.func);
                }
                for keyword in &call.arguments.keywords {
                    if let Some(name) = &keyword.arg {
                        self.set(name.as_str(), &call.func);
                    }
                }
            }
            ("setattr" | "__setattr__", _) => {
                for argument in call.arguments.args.iter().take(2) {
                    if let Value::Text(name) = self.value(argument) {
                        self.set(name.render(), &call.func);
                    }
                }
            }
            _ => {}
        }
    }

    /// A method of a value that no import explains.
    fn method_called(&mut self, call: &'a ast::ExprCall, callee: &Value<'a>, expression: &'a Expr) {
        if let Expr::Attribute(function) = &*call.func {
            let name = function.attr.as_str();
            let base = self.value(&function.value);
            if let (Value::Path(path), "open") = (&base, name) {
                if let Value::File { writes: true, .. } = self.value(expression) {
                    let path = (**path).clone();
                    self.deed(
                        Effect::FileWrite,
                        "pathlib.Path.open".to_owned(),
                        call,
                        Some(path),
                        None,
                        None,
                    );
                }
                return;
            }
            // `.to("cpu")` is `.cpu()`.
            let to_host = name == "to" && self.moves_to_host(call);
            if let Some(rule) = CALLS.method(if to_host { "cpu" } else { name }) {
                let is_value = !matches!(callee, Value::Dotted(_));
                if rule.effect == Effect::HostSync && is_value && (to_host || call.arguments.args.is_empty())
                {
                    let subject = Some(self.evaluator().words(&function.value));
                    self.deed(Effect::HostSync, format!("Tensor.{name}"), call, None, subject, None);
                    return;
                }
                if rule.effect == Effect::FileWrite {
                    let path = match &base {
                        Value::Path(path) => Some((**path).clone()),
                        Value::ModuleFile(module) => {
                            self.rewritten_source(module, call);
                            Some(Template::hole(&format!("{module}.__file__")))
                        }
                        _ if name.starts_with("write_") => {
                            Some(Template::hole(&self.evaluator().words(&function.value)))
                        }
                        _ => call.arguments.args.first().map(|path| self.evaluator().template(path)),
                    };
                    let subject = match name.starts_with("write_") {
                        true => call.arguments.args.first().map(|what| self.evaluator().words(what)),
                        false => Some(self.evaluator().words(&function.value)),
                    };
                    self.deed(Effect::FileWrite, name.to_owned(), call, path, subject, None);
                    return;
                }
            }
            if let (Value::File { path, writes: true }, "write" | "writelines") = (&base, name) {
                let path = (**path).clone();
                if path.holes().any(|hole| hole.ends_with("__file__")) {
                    self.rewritten_source(
                        &path.render().trim_matches(['{', '}']).replace(".__file__", ""),
                        call,
                    );
                }
                return;
            }
        }
        self.hard_coded_path(call);
    }

    fn moves_to_host(&self, call: &'a ast::ExprCall) -> bool {
        let keyword = call
            .arguments
            .keywords
            .iter()
            .find(|keyword| keyword.arg.as_ref().is_some_and(|arg| arg.as_str() == "device"));
        let device = call.arguments.args.first().or(keyword.map(|keyword| &keyword.value));
        match device.map(|device| self.value(device)) {
            Some(Value::Text(device)) => device.constant() == Some("cpu"),
            _ => match device {
                Some(Expr::Call(inner)) => match (
                    self.value(&inner.func),
                    inner.arguments.args.first().map(|device| self.value(device)),
                ) {
                    (Value::Dotted(name), Some(Value::Text(device))) => {
                        name.ends_with("torch.device") && device.constant() == Some("cpu")
                    }
                    _ => false,
                },
                _ => false,
            },
        }
    }

    /// A call that a rule knows.
    fn ruled(
        &mut self,
        rule: &'static CallRule,
        name: &str,
        call: &'a ast::ExprCall,
        held: Option<&'a ast::ExprCall>,
        expression: &'a Expr,
    ) {
        // `partial(torch.save, q)`: its arguments stand before those of the call.
        let positional: Vec<&'a Expr> = held
            .into_iter()
            .flat_map(|held| held.arguments.args.iter().skip(1))
            .chain(call.arguments.args.iter())
            .collect();
        let keywords = held
            .into_iter()
            .flat_map(|held| held.arguments.keywords.iter())
            .chain(call.arguments.keywords.iter());
        let mut path = rule.path.and_then(|position| positional.get(position).copied());
        let mut subject = rule.subject.and_then(|position| positional.get(position).copied());
        let mut mode = rule.mode.and_then(|position| positional.get(position).copied());
        for keyword in keywords {
            match keyword.arg.as_ref().map(|arg| arg.as_str()) {
                Some("mode") => mode = Some(&keyword.value),
                Some("obj" | "arr" | "tensors" | "cmd" | "args") if subject.is_none() => {
                    subject = Some(&keyword.value)
                }
                Some(arg) if rule.keywords.iter().any(|known| known == arg) => path = Some(&keyword.value),
                _ => {}
            }
        }
        let subject = subject.map(|subject| self.evaluator().words(subject));
        if rule.effect != Effect::FileWrite {
            self.deed(rule.effect, name.to_owned(), call, None, subject, None);
            return;
        }
        if rule.mode.is_some() {
            let writes = match mode.map(|mode| self.value(mode)) {
                Some(Value::Text(mode)) => mode.known().contains(['w', 'a', 'x', '+']),
                _ => false,
            };
            if !writes {
                return;
            }
        }
        let Some(path) = path else { return };
        let target = self.value(path);
        if matches!(target, Value::Memory) {
            return;
        }
        if rule.needs_file
            && !matches!(target, Value::File { writes: true, .. } | Value::Text(_) | Value::Path(_))
        {
            return;
        }
        if let Value::ModuleFile(module) = &target {
            self.rewritten_source(module, call);
        }
        let template = self.evaluator().template(path);
        if template.known().contains("/dev/null") || template.render().contains("devnull") {
            return;
        }
        if rule.only_hard_coded && template.prefix().is_empty() {
            return;
        }
        self.deed(
            Effect::FileWrite,
            name.to_owned(),
            call,
            Some(template),
            subject,
            Some((path, expression)),
        );
    }

    /// A function that is not known gets a path under a folder for temporary files.
    fn hard_coded_path(&mut self, call: &'a ast::ExprCall) {
        // Who removes, looks or tells does not write.
        let harmless = [
            "unlink",
            "remove",
            "exists",
            "isfile",
            "isdir",
            "is_dir",
            "is_file",
            "join",
            "startswith",
            "makedirs",
            "mkdir",
            "rmtree",
            "listdir",
            "glob",
            "Path",
            "debug",
            "info",
            "warning",
            "warning_once",
            "info_once",
            "error",
            "exception",
            "append",
            "format",
            "get",
            "getenv",
            "Field",
            "add_argument",
            "print",
            "stat",
            "chmod",
        ];
        if last_name(&call.func).is_none_or(|name| harmless.contains(&name)) {
            return;
        }
        let arguments =
            call.arguments.args.iter().chain(call.arguments.keywords.iter().map(|keyword| &keyword.value));
        for argument in arguments {
            // Only what could be a string is looked at: most arguments are names of tensors.
            let template = match self.value(argument) {
                Value::Text(text) | Value::Path(text) => text,
                _ => continue,
            };
            let prefix = template.prefix();
            if PATHS.words.temporary.iter().any(|folder| {
                folder.ends_with('/') && prefix.len() > folder.len() && prefix.starts_with(folder.as_str())
            }) {
                let name = one_line(&self.evaluator().words(&call.func), 60);
                self.deed(Effect::HardCodedPath, name, call, Some((*template).clone()), None, None);
                return;
            }
        }
    }

    /// `os.environ.get("X")` in code that runs at every step.
    pub(crate) fn asked_environment(&mut self, expression: &'a Expr) {
        if self.subject.area.is_none() || self.function == 0 {
            return;
        }
        // An attribute is a variable of the environment only if a class keeps it, a comparison never is one by itself.
        let value = match expression {
            Expr::Attribute(_) if !self.scopes.environment_attributes => return,
            Expr::Compare(_) => Value::Unknown,
            _ => self.value(expression),
        };
        let name = match value {
            Value::Environment(name) => name.to_string(),
            _ => match expression {
                Expr::Compare(compare)
                    if compare.ops.iter().any(|op| matches!(op, ast::CmpOp::In | ast::CmpOp::NotIn)) =>
                {
                    match (
                        self.value(&compare.left),
                        compare.comparators.first().map(|space| self.value(space)),
                    ) {
                        (Value::Text(name), Some(Value::Dotted(space))) if &*space == "os.environ" => {
                            name.render()
                        }
                        _ => return,
                    }
                }
                _ => return,
            },
        };
        let spelled = self.evaluator().words(expression);
        self.push_deed(
            Effect::EnvironmentBranch,
            "os.environ".to_owned(),
            spelled,
            expression.range().start().to_u32(),
            None,
            Some(name),
        );
    }

    fn deed(
        &mut self,
        effect: Effect,
        name: String,
        call: &'a ast::ExprCall,
        path: Option<Template>,
        subject: Option<String>,
        given: Option<(&'a Expr, &'a Expr)>,
    ) {
        let spelled = self.evaluator().words(&call.func);
        let origin = self.evaluator().root_origin(&call.func);
        let named = CALLS.call(&name).is_some();
        let hidden = named
            && match &*call.func {
                Expr::Attribute(_) => {
                    name.rsplit('.').next() != spelled.rsplit('.').next()
                        && !spelled.contains(name.rsplit('.').next().unwrap_or(""))
                }
                Expr::Call(_) | Expr::Subscript(_) => true,
                _ => false,
            };
        self.push_deed(effect, name, spelled, call.range().start().to_u32(), path, subject);
        if let Some(deed) = self.deeds.last_mut() {
            deed.origin = origin;
            deed.hidden = hidden;
        }
        // An opened file's path was judged where it was opened; here only a name is left.
        if let Some((path, _)) = given {
            let known = matches!(self.value(path), Value::File { .. });
            if let Some(deed) = self.deeds.last_mut().filter(|_| known) {
                deed.path_given = deed.path.as_ref().is_some_and(|path| path.prefix().is_empty());
            }
        }
    }

    fn push_deed(
        &mut self,
        effect: Effect,
        call: String,
        spelled: String,
        offset: u32,
        path: Option<Template>,
        subject: Option<String>,
    ) {
        let path_given = path.as_ref().is_some_and(|path| path.prefix().is_empty());
        self.deeds.push(Deed {
            effect,
            offset,
            function: self.function,
            guards: self.guards.clone(),
            call,
            spelled,
            origin: None,
            hidden: false,
            path,
            path_given,
            subject,
            swallowed: self.swallowing > 0,
        });
    }
}
