//! Blocks and branches: under which conditions a statement runs.

use std::rc::Rc;

use ruff_python_ast::visitor::Visitor;
use ruff_python_ast::{self as ast, Expr, Stmt};
use ruff_text_size::Ranged;

use crate::conditions::{Guard, GuardKind};
use crate::names::{Origin, Value};
use crate::scan::Scanner;

impl<'a> Scanner<'a> {
    /// A list of statements. `if done: return` puts everything behind it under the opposite condition.
    pub(crate) fn block(&mut self, body: &'a [Stmt]) {
        let before = self.guards.len();
        for (position, statement) in body.iter().enumerate() {
            self.visit_stmt(statement);
            if let (Stmt::If(branch), Some(last)) = (statement, body.last())
                && branch.elif_else_clauses.is_empty()
                && leaves(&branch.body)
                && position + 1 < body.len()
            {
                let extent = (branch.range().end().to_u32(), last.range().end().to_u32());
                self.push_guards(&branch.test, true, extent);
            }
        }
        self.guards.truncate(before);
    }

    /// Adds the conditions under which `test` is true; the caller truncates.
    pub(crate) fn push_guards(&mut self, test: &'a Expr, negated: bool, extent: (u32, u32)) {
        if !self.guarding {
            return;
        }
        let offset = test.range().start().to_u32();
        let conditions = self.evaluator().conditions(test, negated);
        // A hundred conditions around one statement are generated code; the first ones say enough.
        if self.guards.len() < 100 {
            self.guards.extend(
                conditions.into_iter().map(|(kind, words)| Rc::new(Guard { kind, words, extent, offset })),
            );
        }
    }

    pub(crate) fn extent(body: &[Stmt]) -> (u32, u32) {
        match (body.first(), body.last()) {
            (Some(first), Some(last)) => (first.range().start().to_u32(), last.range().end().to_u32()),
            _ => (0, 0),
        }
    }

    pub(crate) fn guarded(&mut self, test: &'a Expr, negated: bool, body: &'a [Stmt]) {
        let before = self.guards.len();
        self.push_guards(test, negated, Self::extent(body));
        self.block(body);
        self.guards.truncate(before);
    }

    pub(crate) fn branch(&mut self, branch: &'a ast::StmtIf) {
        self.visit_expr(&branch.test);
        self.guarded(&branch.test, false, &branch.body);
        let before = self.guards.len();
        let mut previous = &*branch.test;
        for clause in &branch.elif_else_clauses {
            self.push_guards(previous, true, Self::extent(&clause.body));
            match &clause.test {
                Some(test) => {
                    self.visit_expr(test);
                    self.guarded(test, false, &clause.body);
                    previous = test;
                }
                None => self.block(&clause.body),
            }
        }
        self.guards.truncate(before);
    }

    pub(crate) fn matched(&mut self, statement: &'a ast::StmtMatch) {
        self.visit_expr(&statement.subject);
        let subject = self.value(&statement.subject);
        for case in &statement.cases {
            let before = self.guards.len();
            let extent = Self::extent(&case.body);
            let offset = case.range.start().to_u32();
            if let (Value::Measure(measure), ast::Pattern::MatchValue(pattern)) = (&subject, &case.pattern) {
                if let Value::Int(number) = self.value(&pattern.value) {
                    let (kind, words) = crate::measures::counted(measure, ast::CmpOp::Eq, &[number]);
                    self.guards.push(Rc::new(Guard { kind, words, extent, offset }));
                }
            } else if !case.pattern.is_irrefutable() {
                let words = format!("`{}` is a case of `match`", self.evaluator().words(&statement.subject));
                self.guards.push(Rc::new(Guard { kind: GuardKind::Setting, words, extent, offset }));
            }
            if let Some(guard) = &case.guard {
                self.visit_expr(guard);
                self.push_guards(guard, false, extent);
            }
            self.block(&case.body);
            self.guards.truncate(before);
        }
    }

    pub(crate) fn attempt(&mut self, statement: &'a ast::StmtTry) {
        let swallows = statement.handlers.iter().any(|handler| {
            let ast::ExceptHandler::ExceptHandler(handler) = handler;
            handler.body.iter().all(|statement| matches!(statement, Stmt::Pass(_) | Stmt::Continue(_)))
        });
        self.swallowing += u32::from(swallows);
        self.block(&statement.body);
        self.swallowing -= u32::from(swallows);
        for handler in &statement.handlers {
            let ast::ExceptHandler::ExceptHandler(handler) = handler;
            let before = self.guards.len();
            let what = handler
                .type_
                .as_ref()
                .map_or_else(|| "an error".to_owned(), |kind| self.evaluator().words(kind));
            if let Some(name) = &handler.name {
                self.scopes.bind(self.scope, name.as_str(), Value::Unknown, Origin::Other);
            }
            let guard = Guard {
                kind: GuardKind::Exception,
                words: format!("{what} was raised"),
                extent: Self::extent(&handler.body),
                offset: handler.range.start().to_u32(),
            };
            self.guards.push(Rc::new(guard));
            self.block(&handler.body);
            self.guards.truncate(before);
        }
        self.block(&statement.orelse);
        self.block(&statement.finalbody);
    }
}

/// Whether a block ends by leaving what is around it.
fn leaves(body: &[Stmt]) -> bool {
    matches!(body.last(), Some(Stmt::Return(_) | Stmt::Raise(_) | Stmt::Continue(_) | Stmt::Break(_)))
}
