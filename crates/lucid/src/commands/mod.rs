//! One file a verb.

pub mod chat;
pub mod collect;
pub mod demo;
pub mod doctor;
pub mod drill;
pub mod inspect;
pub mod reference;
pub mod serve;
pub mod watch;
