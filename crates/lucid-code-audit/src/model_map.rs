//! Which architecture runs which file, from the engine's own registry in the patient's site-packages.

use std::collections::{BTreeMap, BTreeSet};

use ruff_python_ast::visitor::{self, Visitor};
use ruff_python_ast::{self as ast, Expr, Stmt};
use serde::{Deserialize, Serialize};

use crate::imports::{imported_module, module_name};
use crate::mentions;

/// What the engines' registries and the imports of their model files say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelMap {
    /// By engine package (`vllm`, `sglang`) and architecture: the file that the registry names.
    pub entries: BTreeMap<String, BTreeMap<String, Entry>>,
    /// By model file: the other model files that it takes something from.
    pub uses: BTreeMap<String, Vec<Use>>,
    /// By model file and definition at its top: the other definitions of the file that it mentions. What the module itself mentions
    /// stands under [`MODULE`].
    pub mentions: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

/// The statements of a module outside of its definitions.
pub const MODULE: &str = "<module>";
/// Definitions of one file that are kept; the largest model file has 60.
const DEFINITIONS: usize = 400;

/// A registry's entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Relative to site-packages.
    pub file: String,
    /// Name of the class.
    pub class: String,
}

/// What a model file takes from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// The other file.
    pub file: String,
    /// Names that are imported; empty if the whole model is built through the registry.
    pub names: Vec<String>,
}

/// What one model file says, gathered while it is parsed.
#[derive(Debug, Default)]
pub(crate) struct ModelFile {
    pub relative: String,
    imports: Vec<(String, Vec<String>)>,
    /// `architectures=["DeepseekV2ForCausalLM"]`.
    built: Vec<String>,
    /// `"DeepseekV3ForCausalLM": ("deepseek_v2", "DeepseekV3ForCausalLM")`.
    registered: Vec<(String, String, String)>,
    /// `EntryClass = [DeepseekV3ForCausalLM]`.
    entry_classes: Vec<String>,
    /// As [`ModelMap::mentions`].
    mentions: BTreeMap<String, Vec<String>>,
}

/// Folders whose files define models.
const FOLDERS: &[&str] = &["vllm/model_executor/models/", "vllm/models/", "sglang/srt/models/"];

/// Whether a file defines models.
pub(crate) fn is_model_file(relative: &str) -> bool {
    FOLDERS.iter().any(|folder| relative.starts_with(folder))
}

impl ModelFile {
    pub(crate) fn read(relative: &str, body: &[Stmt]) -> ModelFile {
        let mut file = ModelFile { relative: relative.to_owned(), ..ModelFile::default() };
        let module = module_name(relative);
        let mut reader = Reader { file: &mut file, module: &module };
        reader.visit_body(body);
        file.mentions = mentions::read(body);
        if file.mentions.len() > DEFINITIONS {
            file.mentions.clear();
        }
        file
    }
}

struct Reader<'f> {
    file: &'f mut ModelFile,
    module: &'f str,
}

fn text(expression: &Expr) -> Option<String> {
    match expression {
        Expr::StringLiteral(literal) => Some(literal.value.to_str().to_owned()),
        _ => None,
    }
}

impl<'a> Visitor<'a> for Reader<'_> {
    fn visit_stmt(&mut self, statement: &'a Stmt) {
        match statement {
            Stmt::ImportFrom(import) => {
                let module = imported_module(&self.file.relative, self.module, import);
                self.file
                    .imports
                    .push((module, import.names.iter().map(|alias| alias.name.to_string()).collect()));
            }
            Stmt::Import(import) => {
                for alias in &import.names {
                    self.file.imports.push((alias.name.to_string(), vec!["*".to_owned()]));
                }
            }
            Stmt::Assign(assign) => {
                if let Some(Expr::Name(name)) = assign.targets.first()
                    && name.id.as_str() == "EntryClass"
                {
                    let names: Vec<&Expr> = match &*assign.value {
                        Expr::List(list) => list.elts.iter().collect(),
                        Expr::Tuple(tuple) => tuple.elts.iter().collect(),
                        other => vec![other],
                    };
                    let classes = names.into_iter().filter_map(|name| match name {
                        Expr::Name(name) => Some(name.id.to_string()),
                        _ => None,
                    });
                    self.file.entry_classes.extend(classes);
                }
                visitor::walk_stmt(self, statement);
            }
            _ => visitor::walk_stmt(self, statement),
        }
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        match expression {
            Expr::Dict(dict) => {
                for item in &dict.items {
                    let (Some(key), Expr::Tuple(ast::ExprTuple { elts, .. })) =
                        (item.key.as_ref().and_then(text), &item.value)
                    else {
                        continue;
                    };
                    if let [module, class] = elts.as_slice()
                        && let (Some(module), Some(class)) = (text(module), text(class))
                    {
                        self.file.registered.push((key, module, class));
                    }
                }
            }
            Expr::Call(call) => {
                for keyword in &call.arguments.keywords {
                    if keyword.arg.as_ref().is_some_and(|arg| arg.as_str() == "architectures")
                        && let Expr::List(list) = &keyword.value
                    {
                        self.file.built.extend(list.elts.iter().filter_map(text));
                    }
                }
            }
            _ => {}
        }
        visitor::walk_expr(self, expression);
    }
}

impl ModelMap {
    pub(crate) fn build(files: Vec<ModelFile>) -> ModelMap {
        let mut map = ModelMap::default();
        let known: BTreeSet<&str> = files.iter().map(|file| file.relative.as_str()).collect();
        let file_of = |module: &str| {
            let stem = module.replace('.', "/");
            [format!("{stem}.py"), format!("{stem}/__init__.py")]
                .into_iter()
                .find(|path| known.contains(path.as_str()))
        };
        for file in &files {
            if file.relative == "vllm/model_executor/models/registry.py" {
                for (architecture, module, class) in &file.registered {
                    // A short name is a module of the models' folder.
                    let module = if module.contains('.') {
                        module.clone()
                    } else {
                        format!("vllm.model_executor.models.{module}")
                    };
                    if let Some(path) = file_of(&module) {
                        let entry = Entry { file: path, class: class.clone() };
                        map.entries.entry("vllm".to_owned()).or_default().insert(architecture.clone(), entry);
                    }
                }
            }
            for class in &file.entry_classes {
                let entry = Entry { file: file.relative.clone(), class: class.clone() };
                map.entries.entry("sglang".to_owned()).or_default().insert(class.clone(), entry);
            }
        }
        for file in &files {
            if !file.mentions.is_empty() {
                map.mentions.insert(file.relative.clone(), file.mentions.clone());
            }
            let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for (module, names) in &file.imports {
                if let Some(path) = file_of(module) {
                    uses.entry(path).or_default().extend(names.iter().cloned());
                }
                // `from vllm.model_executor.models import deepseek_v2`.
                for name in names {
                    if let Some(path) = file_of(&format!("{module}.{name}")) {
                        uses.entry(path).or_default().insert("*".to_owned());
                    }
                }
            }
            let engine = file.relative.split('/').next().unwrap_or("");
            for architecture in &file.built {
                if let Some(entry) = map.entries.get(engine).and_then(|entries| entries.get(architecture)) {
                    uses.entry(entry.file.clone()).or_default().clear();
                }
            }
            uses.remove(&file.relative);
            // The registry names every model and runs none.
            if !uses.is_empty() && !file.relative.ends_with("/registry.py") {
                let uses = uses
                    .into_iter()
                    .map(|(file, names)| Use { file, names: names.into_iter().collect() })
                    .collect();
                map.uses.insert(file.relative.clone(), uses);
            }
        }
        map
    }

    /// The files that an architecture runs, each with the names that are taken from it (none: all of it).
    #[must_use]
    pub fn files(&self, engine: &str, architecture: &str) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let Some(entry) = self.entries.get(engine).and_then(|entries| entries.get(architecture)) else {
            return found;
        };
        found.insert(&entry.file, BTreeSet::from([entry.class.as_str()]));
        let mut todo = vec![entry.file.as_str()];
        while let Some(file) = todo.pop() {
            for used in self.uses.get(file).into_iter().flatten() {
                let whole = used.names.is_empty() || used.names.iter().any(|name| name == "*");
                match found.get_mut(used.file.as_str()) {
                    None => {
                        let names = if whole {
                            BTreeSet::new()
                        } else {
                            used.names.iter().map(String::as_str).collect()
                        };
                        found.insert(&used.file, names);
                        todo.push(&used.file);
                    }
                    Some(names) if whole => names.clear(),
                    // Taken whole already.
                    Some(names) if names.is_empty() => {}
                    Some(names) => names.extend(used.names.iter().map(String::as_str)),
                }
            }
        }
        found
    }

    /// Whether one of `roots`, or the module itself, leads to a definition of a file. `None`: it is not known, or nothing at all
    /// leads to it: what is put together in ways that the text doesn't show is not called idle.
    #[must_use]
    pub fn leads_to(&self, file: &str, roots: &BTreeSet<&str>, definition: &str) -> Option<bool> {
        let mentions = self.mentions.get(file).filter(|mentions| mentions.contains_key(definition))?;
        let mut reached: BTreeSet<&str> = roots.iter().copied().chain([MODULE]).collect();
        let mut todo: Vec<&str> = reached.iter().copied().collect();
        while let Some(name) = todo.pop() {
            for next in mentions.get(name).into_iter().flatten() {
                if reached.insert(next) {
                    todo.push(next);
                }
            }
        }
        let led = reached.contains(definition);
        let of_others = || {
            mentions.values().flatten().any(|name| name == definition)
                || self.entries.values().any(|entries| entries.contains_key(definition))
        };
        (led || of_others()).then_some(led)
    }

    /// Whether some other architecture of the engine runs a file.
    #[must_use]
    pub fn runs_for_another(&self, engine: &str, file: &str) -> bool {
        self.entries.get(engine).is_some_and(|entries| entries.values().any(|entry| entry.file == file))
            || self.uses.values().flatten().any(|used| used.file == file)
    }
}
