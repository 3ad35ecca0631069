//! The journal's export format: fields by line, binary fields with a length, entries apart by an empty line.
//! <https://systemd.io/JOURNAL_EXPORT_FORMATS/>

use std::io::{self, BufRead};

use super::lines::Lines;
use super::{Format, Record, json};

/// How an export begins: its first field is always the cursor.
pub(crate) const MAGIC: &[u8] = b"__CURSOR=";

/// Reads the next entry; false at the end.
pub(crate) fn next<R: BufRead>(
    lines: &mut Lines<R>,
    field: &mut Vec<u8>,
    record: &mut Record,
) -> io::Result<bool> {
    let mut any = false;
    record.format = Format::JournalExport;
    while lines.next(field)? {
        if field.is_empty() {
            if any {
                return Ok(true);
            }
            continue;
        }
        any = true;
        if let Some(equals) = field.iter().position(|byte| *byte == b'=') {
            let name = String::from_utf8_lossy(&field[..equals]).into_owned();
            put(&name, &field[equals + 1..], record);
        } else {
            let name = String::from_utf8_lossy(field).into_owned();
            let mut length = Vec::with_capacity(8);
            lines.take(8, &mut length)?;
            let Ok(length) = <[u8; 8]>::try_from(length.as_slice()) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let mut value = Vec::new();
            lines.take(u64::from_le_bytes(length), &mut value)?;
            lines.next(field)?;
            put(&name, &value, record);
        }
    }
    Ok(any)
}

fn put(name: &str, value: &[u8], record: &mut Record) {
    if name == "MESSAGE" {
        record.text.extend_from_slice(value);
    } else {
        json::journal_field(name, value, record);
    }
}
