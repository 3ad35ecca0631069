//! Changes to other modules: attributes, `sys.modules`, import hooks, methods of instances, rewritten sources.

use ruff_python_ast::{self as ast, Expr};
use ruff_text_size::Ranged;

use crate::conditions::GuardKind;
use crate::evidence::{EXCERPT, PatchFact, PatchKind};
use crate::names::Value;
use crate::scan::Scanner;

/// Patches kept of one file.
const MOST: usize = 200;

impl<'a> Scanner<'a> {
    fn own(&self, target: &str) -> bool {
        let top = |name: &str| name.split('.').next().unwrap_or("").to_owned();
        top(target) == top(self.subject.module)
    }

    /// `module.name = value`.
    pub(crate) fn patched_attribute(
        &mut self,
        attribute: &'a ast::ExprAttribute,
        value: &Value<'a>,
        written: Option<&'a Expr>,
    ) {
        let Some(written) = written else { return };
        // An attribute of `self` is the object's own, whatever the name means; the prefilter relies on it.
        let base = match &*attribute.value {
            Expr::Name(name) if name.id.as_str() == "self" => Value::Unknown,
            base => self.value(base),
        };
        let name = attribute.attr.as_str();
        let at = attribute.range().start().to_u32();
        match &base {
            Value::Dotted(module) if &**module == "sys" && matches!(name, "meta_path" | "path_hooks") => {
                self.patch(PatchKind::ImportHook, format!("sys.{name}"), at, Some(written));
            }
            Value::Dotted(module) if &**module == "builtins" && name == "__import__" => {
                self.patch(PatchKind::ImportHook, "builtins.__import__".to_owned(), at, Some(written));
            }
            Value::Dotted(module) => {
                // `torch.backends.cudnn.benchmark = True` sets what is meant to be set; `sys.stdout = …` is nobody's code.
                let setting = matches!(
                    written,
                    Expr::BooleanLiteral(_)
                        | Expr::NumberLiteral(_)
                        | Expr::StringLiteral(_)
                        | Expr::NoneLiteral(_)
                        | Expr::FString(_)
                ) || matches!(value, Value::Int(_) | Value::Text(_) | Value::Environment(_));
                // `torch._inductor.config.x = y`, `torch.backends.cuda.matmul.y = z`: set, not replaced.
                let setting = setting
                    || module
                        .split('.')
                        .any(|part| matches!(part, "config" | "backends" | "_TLS" | "environ"));
                let module = module.to_string();
                if !self.own(&module)
                    && !setting
                    && !matches!(module.as_str(), "sys" | "builtins.__builtins__")
                {
                    self.patch(PatchKind::Attribute, format!("{module}.{name}"), at, Some(written));
                }
            }
            // `layer.forward = types.MethodType(f, layer)`.
            _ => {
                if let Expr::Call(call) = written
                    && let Value::Dotted(function) = self.value(&call.func)
                    && &*function == "types.MethodType"
                {
                    let target = format!("{}.{name}", self.evaluator().words(&attribute.value));
                    self.patch(PatchKind::Method, target, at, Some(written));
                }
            }
        }
    }

    /// `sys.modules["x"] = …`, `module.__dict__["x"] = …`.
    pub(crate) fn patched_subscript(&mut self, subscript: &'a ast::ExprSubscript, written: Option<&'a Expr>) {
        let Some(written) = written else { return };
        let at = subscript.range().start().to_u32();
        let key = self.evaluator().template(&subscript.slice).render();
        match self.value(&subscript.value) {
            // `sys.modules[__name__] = Lazy(…)` replaces the module by itself: the usual way of lazy imports.
            Value::Dotted(name) if &*name == "sys.modules" && key != "{__name__}" && !self.own(&key) => {
                self.patch(PatchKind::Module, key, at, Some(written));
            }
            Value::Namespace(module) if !module.is_empty() && !self.own(&module) => {
                self.patch(PatchKind::Attribute, format!("{module}.{key}"), at, Some(written));
            }
            _ => {}
        }
    }

    /// Calls that change another module.
    pub(crate) fn patching_call(&mut self, call: &'a ast::ExprCall, callee: &Value<'a>) {
        let arguments = &call.arguments.args;
        let at = call.range().start().to_u32();
        match callee {
            Value::Dotted(name) => match &**name {
                "builtins.setattr" | "builtins.delattr" => {
                    let (Some(of), Some(attribute)) = (arguments.first(), arguments.get(1)) else { return };
                    let attribute = self.evaluator().template(attribute).render();
                    match self.value(of) {
                        Value::Dotted(module) if !self.own(&module) => {
                            self.patch(
                                PatchKind::Attribute,
                                format!("{module}.{attribute}"),
                                at,
                                arguments.get(2),
                            );
                        }
                        _ => {}
                    }
                }
                "sys.meta_path.insert"
                | "sys.meta_path.append"
                | "sys.path_hooks.insert"
                | "sys.path_hooks.append" => {
                    let target = name.rsplit_once('.').map_or("", |(list, _)| list).to_owned();
                    self.patch(PatchKind::ImportHook, target, at, arguments.last());
                }
                "sys.modules.update" | "sys.modules.setdefault" | "sys.modules.__setitem__" => {
                    let key = arguments
                        .first()
                        .map_or_else(String::new, |key| self.evaluator().template(key).render());
                    if !self.own(&key) && key != "{__name__}" {
                        self.patch(PatchKind::Module, key, at, arguments.get(1));
                    }
                }
                "wrapt.wrap_function_wrapper" | "wrapt.patch_function_wrapper" | "wrapt.wrap_object" => {
                    let module =
                        arguments.first().map_or_else(String::new, |module| match self.value(module) {
                            Value::Dotted(module) => module.to_string(),
                            _ => self.evaluator().template(module).render(),
                        });
                    let name = arguments
                        .get(1)
                        .map_or_else(String::new, |name| self.evaluator().template(name).render());
                    if !self.own(&module) {
                        self.patch(PatchKind::Attribute, format!("{module}.{name}"), at, arguments.get(2));
                    }
                }
                name if name.ends_with("ModelRegistry.register_model") && !self.own(name) => {
                    let model = arguments
                        .first()
                        .map_or_else(String::new, |model| self.evaluator().template(model).render());
                    self.patch(PatchKind::Registration, model, at, arguments.get(1));
                }
                _ => {}
            },
            _ => {
                // `module.__dict__.update(…)`, `type.__setattr__(module, …)`.
                let Expr::Attribute(function) = &*call.func else { return };
                if function.attr.as_str() == "update"
                    && let Value::Namespace(module) = self.value(&function.value)
                    && !module.is_empty()
                    && !self.own(&module)
                {
                    self.patch(PatchKind::Attribute, format!("{module}.*"), at, arguments.first());
                }
            }
        }
    }

    /// A module's own source file is written over.
    pub(crate) fn rewritten_source(&mut self, module: &str, call: &'a ast::ExprCall) {
        if !self.own(module) {
            self.patch(
                PatchKind::SourceRewrite,
                module.to_owned(),
                call.range().start().to_u32(),
                call.arguments.args.first(),
            );
        }
    }

    fn patch(&mut self, kind: PatchKind, target: String, at: u32, with: Option<&'a Expr>) {
        if self.patches.len() >= MOST
            || self.guards.iter().any(|guard| guard.kind == GuardKind::Never || guard.kind == GuardKind::Main)
        {
            return;
        }
        let words = with.map_or_else(String::new, |with| self.evaluator().words(with));
        let (parent, attribute) = target.rsplit_once('.').unwrap_or(("", target.as_str()));
        // `if not hasattr(torch, "float8_e8m0fnu"): torch.float8_e8m0fnu = …`, `except ImportError:`.
        let adds_absent = self.guards.iter().any(|guard| match &guard.kind {
            GuardKind::Flag(flag) => {
                flag.name == attribute && guard.words.contains("hasattr") && guard.words.contains("not hold")
            }
            GuardKind::Exception => {
                guard.words.contains("ImportError")
                    || guard.words.contains("AttributeError")
                    || guard.words.contains("ModuleNotFoundError")
            }
            _ => false,
        });
        let kept = self.kept.contains_key(target.as_str());
        let original = format!("{}.{attribute}", parent.rsplit('.').next().unwrap_or(parent));
        let keeps_original = kept || (!parent.is_empty() && words.contains('(') && words.contains(&original));
        let when = self.guards.iter().map(|guard| guard.words.clone()).take(4).collect();
        let (line, text) = excerpt(self.subject.text, at, at, at);
        self.patches.push(PatchFact {
            kind,
            site: 0,
            file: self.subject.relative.to_owned(),
            line,
            function: self.functions[self.function].qualified.clone(),
            target: target.chars().take(200).collect(),
            with: words,
            when,
            adds_absent,
            keeps_original,
            excerpt: (line, text),
        });
    }
}

/// The line of `at`, and the lines from `from` to `to` with one more behind, cut to size: at most twelve lines.
pub(crate) fn excerpt(text: &str, from: u32, at: u32, to: u32) -> (u32, String) {
    let clamp = |offset: u32| {
        let mut offset = (offset as usize).min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        offset
    };
    let start = text[..clamp(from)].rfind('\n').map_or(0, |newline| newline + 1);
    let line = 1 + text.as_bytes()[..clamp(at)].iter().filter(|&&byte| byte == b'\n').count() as u32;
    let behind = text[clamp(to)..].lines().next().map_or(0, str::len);
    let end = (clamp(to) + behind).min(text.len());
    let mut shown: String = text[start..end.max(start)].lines().take(12).collect::<Vec<_>>().join("\n");
    if shown.len() > EXCERPT {
        shown = shown.chars().take(EXCERPT).collect::<String>() + "…";
    }
    (line, lucid_findings::redact(&shown).into_owned())
}
