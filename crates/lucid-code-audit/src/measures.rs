//! Numbers of tokens in words: `exactly 5 query tokens are processed`.

use ruff_python_ast::CmpOp;

use crate::conditions::GuardKind;
use crate::names::{Measure, Measured};

/// `5 < x` as `x > 5`.
pub(crate) fn turned(op: CmpOp) -> CmpOp {
    match op {
        CmpOp::Lt => CmpOp::Gt,
        CmpOp::LtE => CmpOp::GtE,
        CmpOp::Gt => CmpOp::Lt,
        CmpOp::GtE => CmpOp::LtE,
        other => other,
    }
}

pub(crate) fn counted(measure: &Measure, op: CmpOp, numbers: &[i64]) -> (GuardKind, String) {
    // Engines ask for none or one all the time (empty batches, single-token decode); nobody ships a special case for five.
    let exact = matches!(op, CmpOp::Eq | CmpOp::Is) && numbers.iter().all(|&number| number > 1);
    // The width of a head or the rank of a matrix is compared with constants in every kernel wrapper: only rows count.
    let rows = matches!(measure.what, Measured::Dimension(0) | Measured::Named)
        || tokens_of(&measure.of).is_some() && measure.what == Measured::Length;
    let kind = if exact && rows { GuardKind::TokenCount } else { GuardKind::TokenRange };
    (kind, measured(measure, op, numbers))
}

/// `exactly 5 query tokens are processed`.
pub(crate) fn measured(measure: &Measure, op: CmpOp, numbers: &[i64]) -> String {
    let list = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
    let amount = match op {
        CmpOp::Eq | CmpOp::Is => format!("exactly {list}"),
        CmpOp::NotEq | CmpOp::IsNot => format!("any number but {list} of"),
        CmpOp::Lt => format!("fewer than {list}"),
        CmpOp::LtE => format!("at most {list}"),
        CmpOp::Gt => format!("more than {list}"),
        CmpOp::GtE => format!("at least {list}"),
        CmpOp::In | CmpOp::NotIn => format!("{} {list}", op.as_str()),
    };
    let one = numbers == [1] && matches!(op, CmpOp::Eq | CmpOp::Is);
    match (measure.what, tokens_of(&measure.of)) {
        (Measured::Dimension(0) | Measured::Length | Measured::Named, Some((single, plural))) => {
            format!(
                "{amount} {} processed",
                if one { format!("{single} is") } else { format!("{plural} are") }
            )
        }
        (Measured::Dimension(0), None) => {
            format!("`{}` has {amount} row{}", measure.of, if one { "" } else { "s" })
        }
        (Measured::Dimension(dimension), _) => {
            format!("dimension {dimension} of `{}` is {amount}", measure.of)
        }
        (Measured::Elements, _) => {
            format!("`{}` has {amount} element{}", measure.of, if one { "" } else { "s" })
        }
        (Measured::Length, None) => {
            format!("`{}` has {amount} item{}", measure.of, if one { "" } else { "s" })
        }
        (Measured::Named, None) => format!("`{}` is {amount}", measure.of),
    }
}

/// What the rows of a tensor are in an engine's code, by the name that the field gives it.
fn tokens_of(of: &str) -> Option<(&'static str, &'static str)> {
    let last = of.rsplit('.').next().unwrap_or(of).to_ascii_lowercase();
    let last = last.split(['[', '(']).next().unwrap_or("").trim_start_matches('_');
    Some(match last {
        "q" | "query" | "queries" | "qs" => ("query token", "query tokens"),
        _ if last.starts_with("q_") || last.starts_with("query_") || last.starts_with("ql_") => {
            ("query token", "query tokens")
        }
        "k" | "key" | "keys" => ("key token", "key tokens"),
        _ if last.starts_with("k_") || last.starts_with("kv_c") => ("key token", "key tokens"),
        "logits" => ("row of logits", "rows of logits"),
        "num_reqs" | "batch_size" | "bsz" => ("request", "requests"),
        "x" | "h" | "hidden" | "hidden_states" | "residual" | "inputs_embeds" | "input_embeds"
        | "input_ids" | "positions" | "embeds" | "embeddings" | "tokens" | "token_ids" | "ids" | "inp"
        | "inputs" | "out" | "output" | "attn_out" | "attn_output" | "router_logits" | "topk_ids"
        | "topk_weights" | "seq_len" | "seqlen" => ("token", "tokens"),
        _ if last.contains("tokens") || last.starts_with("hidden_states") => ("token", "tokens"),
        _ => return None,
    })
}
