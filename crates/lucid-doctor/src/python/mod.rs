//! Runs short Python functions that a model wrote, to see whether they are right.
//!
//! A small interpreter over ruff's syntax tree. It has no files, no network, no imports but `math`, and hard limits on
//! steps, memory and depth, counted instead of timed: the same text always gives the same verdict. What it doesn't know
//! it refuses by name ([`Stop::Unsupported`]), which is neither right nor wrong.
//!
//! Why not an existing interpreter: `monty` 0.0.23, the one written for this use, enforces its memory limit only with
//! its own global allocator in the executable, and an abort inside it ends the process; a model's answer must not be able
//! to end the doctor.

mod builtins;
mod expression;
mod format;
mod methods;
mod operators;
mod statement;
mod value;

use std::cell::Cell;
use std::rc::Rc;

use ruff_python_ast::Stmt;
use serde_json::Value as Json;

use value::{Scope, Value};

/// One call and the value that it must return.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Arguments by position.
    pub arguments: Vec<Json>,
    /// The right value.
    pub expected: Json,
}

/// What running a model's code showed.
#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    /// Every case came out right.
    Right,
    /// It isn't Python, defines no function, or a case came out wrong; the text says which.
    Wrong(String),
    /// It uses something that this interpreter doesn't have; the text names it.
    Unjudged(String),
}

/// Why an execution ended early.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Stop {
    /// A Python exception: its class and message.
    Raised(String, String),
    /// A part of Python that isn't built here.
    Unsupported(String),
    /// Steps, memory or depth ran out.
    Limit(&'static str),
}

pub(crate) type Run<T> = Result<T, Stop>;

pub(crate) fn raise<T>(class: &str, message: impl Into<String>) -> Run<T> {
    Err(Stop::Raised(class.to_owned(), message.into()))
}

pub(crate) fn unsupported<T>(what: impl Into<String>) -> Run<T> {
    Err(Stop::Unsupported(what.into()))
}

/// Steps that one program may take, over all cases. `is_prime` on 0..30 takes about 2,000.
const FUEL: u64 = 2_000_000;
/// List elements, dictionary entries and characters that one program may create.
const CELLS: u64 = 4_000_000;
/// Nesting of calls and expressions.
const DEPTH: u32 = 1_500;
/// Longest source, in bytes. Bounds the syntax tree too.
const LONGEST_SOURCE: usize = 16 * 1024;
/// Stack of the interpreter's thread. `DEPTH` levels take about 2 MiB optimized, under 40 MiB in a debug build.
const STACK: usize = 128 << 20;

/// Defines the functions of `source` and calls the one that is meant on every case.
///
/// The function is the one named `name` if there is one, else the last one that takes so many arguments.
#[must_use]
pub fn judge_function(source: &str, name: &str, cases: &[Case]) -> Judgement {
    if source.len() > LONGEST_SOURCE {
        return Judgement::Unjudged(format!(
            "the code has {} bytes, more than {LONGEST_SOURCE}",
            source.len()
        ));
    }
    // A thread with its own stack: a deep tree must not overflow the caller's, and a bug here must not end the caller.
    let judged = std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("python".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, || judge(source, name, cases))
            .map(|thread| {
                thread.join().unwrap_or_else(|_| Judgement::Unjudged("the interpreter broke down".to_owned()))
            })
    });
    judged.unwrap_or_else(|error| Judgement::Unjudged(format!("no thread for the interpreter: {error}")))
}

fn judge(source: &str, name: &str, cases: &[Case]) -> Judgement {
    let parsed = match ruff_python_parser::parse_module(source) {
        Ok(parsed) => parsed,
        Err(error) => return Judgement::Wrong(format!("not Python: {error}")),
    };
    let interpreter = Interpreter { fuel: Cell::new(FUEL), cells: Cell::new(CELLS), depth: Cell::new(0) };
    let globals = Rc::new(Scope::default());
    let module = parsed.syntax();
    if let Err(stop) = interpreter.run_module(&module.body, &globals) {
        return stop.judgement("the code itself");
    }
    let arity = cases.first().map_or(0, |case| case.arguments.len());
    let Some(function) = find_function(&module.body, &globals, name, arity) else {
        return Judgement::Wrong(format!("no function that takes {arity} argument(s)"));
    };
    for case in cases {
        let arguments: Vec<Value<'_>> = case.arguments.iter().map(Value::from_json).collect();
        let shown = arguments.iter().map(Value::repr).collect::<Vec<_>>().join(", ");
        match interpreter.call(&function, arguments, Vec::new()) {
            Ok(result) if result.equals_json(&case.expected) => {}
            Ok(result) => {
                return Judgement::Wrong(format!(
                    "({shown}) gave {}, not {}",
                    result.repr(),
                    Value::from_json(&case.expected).repr()
                ));
            }
            Err(stop) => return stop.judgement(&format!("({shown})")),
        }
    }
    Judgement::Right
}

fn find_function<'a>(body: &'a [Stmt], globals: &Scope<'a>, name: &str, arity: usize) -> Option<Value<'a>> {
    let takes = |function: &&ruff_python_ast::StmtFunctionDef| {
        let all = function.parameters.posonlyargs.len() + function.parameters.args.len();
        let required = function
            .parameters
            .posonlyargs
            .iter()
            .chain(&function.parameters.args)
            .filter(|p| p.default.is_none())
            .count();
        (required..=all).contains(&arity) || function.parameters.vararg.is_some()
    };
    let functions: Vec<_> = body.iter().filter_map(Stmt::as_function_def_stmt).filter(takes).collect();
    let chosen = functions.iter().find(|function| function.name.as_str() == name).or(functions.last())?;
    globals.get(chosen.name.as_str())
}

impl Stop {
    fn judgement(self, place: &str) -> Judgement {
        match self {
            Stop::Raised(class, message) => Judgement::Wrong(format!("{place} raised {class}: {message}")),
            Stop::Limit(what) => Judgement::Wrong(format!("{place} did not end within the limit of {what}")),
            Stop::Unsupported(what) => {
                Judgement::Unjudged(format!("{place} uses {what}, which is not judged here"))
            }
        }
    }
}

/// The limits; the state is in the scopes.
pub(crate) struct Interpreter {
    fuel: Cell<u64>,
    cells: Cell<u64>,
    depth: Cell<u32>,
}

impl Interpreter {
    /// Pays for one step.
    pub(crate) fn step(&self) -> Run<()> {
        match self.fuel.get().checked_sub(1) {
            Some(left) => {
                self.fuel.set(left);
                Ok(())
            }
            None => Err(Stop::Limit("steps")),
        }
    }

    /// Pays for `count` new elements, entries or characters.
    pub(crate) fn allocate(&self, count: usize) -> Run<()> {
        match self.cells.get().checked_sub(count as u64) {
            Some(left) => {
                self.cells.set(left);
                Ok(())
            }
            None => Err(Stop::Limit("memory")),
        }
    }

    /// Runs `inner` one level deeper.
    pub(crate) fn deeper<T>(&self, inner: impl FnOnce() -> Run<T>) -> Run<T> {
        if self.depth.get() >= DEPTH {
            return raise("RecursionError", "maximum recursion depth exceeded");
        }
        self.depth.set(self.depth.get() + 1);
        let result = inner();
        self.depth.set(self.depth.get() - 1);
        result
    }
}

#[cfg(test)]
mod tests;
