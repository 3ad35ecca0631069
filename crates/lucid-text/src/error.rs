//! What can go wrong between text and tokens.

/// A failure of this crate: which file, which place in it, and what is wrong there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the checkpoint could not be read.
    #[error(transparent)]
    Files(#[from] lucid_checkpoint::Error),

    /// A file that is needed is not there.
    #[error("{file} is missing: {why}")]
    Missing {
        /// Where the file was looked for.
        file: String,
        /// What it is needed for, and what to do.
        why: String,
    },

    /// A tokenizer file that says something impossible.
    #[error("{file}: {place}: {problem}")]
    Malformed {
        /// The file.
        file: String,
        /// The line or the field.
        place: String,
        /// What is wrong with it.
        problem: String,
    },

    /// A text that the `tokenizers` crate refuses to encode.
    #[error("the text cannot be encoded with {file}: {problem}")]
    Encode {
        /// The tokenizer's file.
        file: String,
        /// What it said.
        problem: String,
    },

    /// A chat template that cannot be compiled.
    #[error("{file}: the chat template is not valid: {problem}")]
    Template {
        /// The file with the template.
        file: String,
        /// Line and reason.
        problem: String,
    },

    /// The template itself refused the conversation, through `raise_exception`.
    ///
    /// The conversation is at fault (roles in a wrong order, a missing field), so a server answers with 400.
    #[error("the chat template refuses these messages: {message}")]
    Refused {
        /// The template's own words.
        message: String,
    },

    /// The template failed while it was rendered.
    #[error("{file}: the chat template failed on these messages: {problem}")]
    Render {
        /// The file with the template.
        file: String,
        /// Line and reason.
        problem: String,
    },
}

impl Error {
    /// A tokenizer file that says something impossible at `place`.
    pub(crate) fn malformed(file: &str, place: impl Into<String>, problem: impl Into<String>) -> Self {
        Error::Malformed { file: file.to_owned(), place: place.into(), problem: problem.into() }
    }
}
