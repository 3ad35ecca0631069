//! What names mean: scopes, bindings, and the little that is known of a value.

use std::rc::Rc;

use ruff_python_ast as ast;
use rustc_hash::FxHashMap;

use crate::template::Template;

/// What is known of a value without running anything.
#[derive(Clone, Debug)]
pub(crate) enum Value<'a> {
    Unknown,
    /// A module, class or function by its full name: `torch.save`, `builtins.open`.
    Dotted(Rc<str>),
    /// The dictionary of a module or object: `torch.__dict__`, `vars(torch)`, `globals()` (empty name).
    Namespace(Rc<str>),
    /// A string.
    Text(Rc<Template>),
    /// A `pathlib` path.
    Path(Rc<Template>),
    /// An opened file.
    File {
        path: Rc<Template>,
        writes: bool,
    },
    /// `io.BytesIO()` and its kin: what is written there stays in memory.
    Memory,
    Int(i64),
    /// `x.shape`.
    Shape(Rc<str>),
    /// A number of rows, elements or items.
    Measure(Rc<Measure>),
    /// A comparison or a logical expression kept for a later `if`.
    Test(&'a ast::Expr),
    /// A list, tuple or dictionary display, for constant subscripts.
    Display(&'a ast::Expr),
    /// A value of the environment: `os.environ["X"]`.
    Environment(Rc<str>),
    /// This process's rank; the text says of what.
    Rank(&'static str),
    /// A class of this file, or the class of `self`.
    Class(Rc<str>),
    /// An instance of a class of this file.
    Instance(Rc<str>),
    /// A function of this file.
    Function(Rc<str>),
    /// `functools.partial(f, …)`: the function, and the call that holds the first arguments.
    Partial(Rc<str>, &'a ast::ExprCall),
    /// `operator.attrgetter("save")`.
    Getter(Rc<str>),
    /// A function's parameter.
    Parameter,
    /// The file of a module: `vllm.__file__`.
    ModuleFile(Rc<str>),
}

/// What a number counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Measure {
    /// Source text of what is measured: `q`.
    pub of: String,
    pub what: Measured,
}

/// In which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measured {
    /// `x.shape[i]`.
    Dimension(i64),
    /// `x.numel()`.
    Elements,
    /// `len(x)`: items, or rows of a tensor.
    Length,
    /// A variable that is called a number of tokens or rows.
    Named,
}

/// How a name came to its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// By an import; whether under another name, and whether inside a function.
    Import { offset: u32, renamed: bool, local: bool },
    /// Any other way.
    Other,
}

/// A name's value and where it came from.
#[derive(Clone, Debug)]
pub(crate) struct Binding<'a> {
    pub value: Value<'a>,
    pub origin: Origin,
}

/// What opened a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScopeKind {
    Module,
    Class,
    Function,
}

#[derive(Debug)]
pub(crate) struct Scope<'a> {
    pub kind: ScopeKind,
    pub parent: Option<usize>,
    names: FxHashMap<&'a str, Binding<'a>>,
    globals: Vec<&'a str>,
}

/// All scopes of a file.
#[derive(Debug)]
pub(crate) struct Scopes<'a> {
    all: Vec<Scope<'a>>,
    /// Modules of `from x import *`, latest last.
    pub wildcards: Vec<Rc<str>>,
    /// Class attributes and attributes of `self`, by class and name.
    attributes: FxHashMap<(Rc<str>, &'a str), Value<'a>>,
    /// Whether one of these attributes is a variable of the environment.
    pub environment_attributes: bool,
}

impl<'a> Scopes<'a> {
    pub(crate) fn new() -> Scopes<'a> {
        let module =
            Scope { kind: ScopeKind::Module, parent: None, names: FxHashMap::default(), globals: Vec::new() };
        Scopes {
            all: vec![module],
            wildcards: Vec::new(),
            attributes: FxHashMap::default(),
            environment_attributes: false,
        }
    }

    pub(crate) fn open(&mut self, kind: ScopeKind, parent: usize) -> usize {
        self.all.push(Scope { kind, parent: Some(parent), names: FxHashMap::default(), globals: Vec::new() });
        self.all.len() - 1
    }

    pub(crate) fn kind(&self, scope: usize) -> ScopeKind {
        self.all[scope].kind
    }

    /// `global name`: later bindings in this scope are the module's.
    pub(crate) fn declare_global(&mut self, scope: usize, name: &'a str) {
        self.all[scope].globals.push(name);
    }

    pub(crate) fn is_global(&self, scope: usize, name: &str) -> bool {
        scope == 0 || self.all[scope].globals.contains(&name)
    }

    pub(crate) fn bind(&mut self, scope: usize, name: &'a str, value: Value<'a>, origin: Origin) {
        let scope = if self.all[scope].globals.contains(&name) { 0 } else { scope };
        self.all[scope].names.insert(name, Binding { value, origin });
    }

    pub(crate) fn unbind(&mut self, scope: usize, name: &str) {
        self.all[scope].names.remove(name);
    }

    /// The binding that a name has when it is used in `scope`: its own, then those around it; class bodies are seen by
    /// themselves only, not by their methods.
    pub(crate) fn lookup(&self, scope: usize, name: &str) -> Option<&Binding<'a>> {
        let mut at = Some(scope);
        while let Some(index) = at {
            let here = &self.all[index];
            if (index == scope || here.kind != ScopeKind::Class)
                && let Some(binding) = here.names.get(name)
            {
                return Some(binding);
            }
            at = here.parent;
        }
        None
    }

    /// Whether a name means something with a full name.
    pub(crate) fn is_module(&self, scope: usize, name: &str) -> bool {
        self.lookup(scope, name).is_some_and(|binding| matches!(binding.value, Value::Dotted(_)))
    }

    pub(crate) fn set_attribute(&mut self, class: &Rc<str>, name: &'a str, value: Value<'a>) {
        // `self._save = None` in __init__ and the real one later: what is known wins over what is not.
        self.environment_attributes |= matches!(value, Value::Environment(_));
        if !matches!(value, Value::Unknown) {
            self.attributes.insert((class.clone(), name), value);
        }
    }

    pub(crate) fn attribute(&self, class: &Rc<str>, name: &'a str) -> Option<&Value<'a>> {
        self.attributes.get(&(class.clone(), name))
    }
}
