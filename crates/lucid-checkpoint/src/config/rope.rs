//! Positions: `rope_theta` and `rope_scaling`, or `rope_parameters` with both in it (transformers 5).

use serde::Serialize;

use super::fields::Fields;
use crate::Error;

/// YaRN context extension (Peng et al. 2023, arXiv:2309.00071).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Yarn {
    /// How many times longer the context became.
    pub factor: f64,
    /// Tokens of context before the extension.
    pub original_max_position_embeddings: usize,
    /// Dimensions that turn more often than this over the original context are left alone.
    pub beta_fast: f64,
    /// Dimensions that turn less often than this are slowed down by the whole factor.
    pub beta_slow: f64,
    /// Numerator of the correction of the rotated part's magnitude.
    pub mscale: Option<f64>,
    /// Its denominator; its square also scales the attention logits.
    pub mscale_all_dim: Option<f64>,
}

pub(super) fn read(text: &Fields<'_>) -> Result<(f64, Option<Yarn>), Error> {
    let parameters = text.object("rope_parameters")?;
    let scaling = text.object("rope_scaling")?;
    let outside = text.optional_positive("rope_theta")?;
    let inside = parameters.as_ref().map(|p| p.optional_positive("rope_theta")).transpose()?.flatten();
    let theta = match (inside, outside) {
        (Some(a), Some(b)) if a != b => {
            return Err(text.error("rope_theta", format!("{b}, but rope_parameters.rope_theta is {a}")));
        }
        (Some(theta), _) | (None, Some(theta)) => theta,
        (None, None) => return Err(text.error("rope_theta", "missing, also in rope_parameters".to_owned())),
    };
    let new = parameters.as_ref().map(yarn).transpose()?;
    let old = scaling.as_ref().map(yarn).transpose()?;
    match (new, old) {
        (Some(new), Some(old)) if new != old => {
            Err(text.error("rope_scaling", "differs from rope_parameters".to_owned()))
        }
        (new, old) => Ok((theta, new.or(old).flatten())),
    }
}

/// `None`: plain RoPE.
fn yarn(scaling: &Fields<'_>) -> Result<Option<Yarn>, Error> {
    let name = if scaling.has("rope_type") { "rope_type" } else { "type" };
    match scaling.optional_string(name)?.as_deref() {
        None if !scaling.has("factor") => return Ok(None),
        Some("default") => return Ok(None),
        Some("yarn") => {}
        found => {
            let found = found.unwrap_or("missing");
            return Err(
                scaling.error(name, format!("{found:?} is not supported; supported are yarn and default"))
            );
        }
    }
    let yarn = Yarn {
        factor: scaling.positive("factor")?,
        original_max_position_embeddings: scaling.size("original_max_position_embeddings")?,
        beta_fast: scaling.optional_positive("beta_fast")?.unwrap_or(32.0),
        beta_slow: scaling.optional_positive("beta_slow")?.unwrap_or(1.0),
        mscale: scaling.optional_number("mscale")?,
        mscale_all_dim: scaling.optional_number("mscale_all_dim")?,
    };
    if yarn.factor < 1.0 {
        return Err(scaling.error("factor", format!("{} would shorten the context", yarn.factor)));
    }
    Ok(Some(yarn))
}
