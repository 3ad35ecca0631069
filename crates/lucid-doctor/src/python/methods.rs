//! Methods of strings, lists, dictionaries and sets.

use super::value::Value;
use super::{Interpreter, Run, raise, unsupported};

impl Interpreter {
    pub(crate) fn method<'a>(
        &self,
        receiver: &Value<'a>,
        name: &str,
        arguments: Vec<Value<'a>>,
        named: Vec<(&'a str, Value<'a>)>,
    ) -> Run<Value<'a>> {
        self.step()?;
        if let (Value::List(items), "sort") = (receiver, name) {
            let sorted = self.builtin("sorted", vec![receiver.clone()], named)?;
            let sorted = self.iterate(&sorted)?;
            *items.borrow_mut() = sorted;
            return Ok(Value::None);
        }
        if !named.is_empty() {
            return unsupported(format!("named arguments of `.{name}`"));
        }
        match receiver {
            Value::Str(text) => self.string_method(text, name, &arguments),
            Value::List(_) | Value::Tuple(_) => self.list_method(receiver, name, arguments),
            Value::Dict(_) => self.dictionary_method(receiver, name, arguments),
            Value::Set(items) => match (name, arguments.as_slice()) {
                ("add", [item]) => {
                    self.add_to_set(&mut items.borrow_mut(), item.clone()).map(|()| Value::None)
                }
                ("discard" | "remove", [item]) => {
                    items.borrow_mut().retain(|known| !known.equals(item));
                    Ok(Value::None)
                }
                _ => unsupported(format!("`set.{name}`")),
            },
            other => {
                raise("AttributeError", format!("'{}' object has no attribute '{name}'", other.type_name()))
            }
        }
    }

    fn string_method<'a>(&self, text: &str, name: &str, arguments: &[Value<'a>]) -> Run<Value<'a>> {
        self.allocate(text.len())?;
        let only = |test: fn(char) -> bool| Value::Bool(!text.is_empty() && text.chars().all(test));
        let strings = |parts: Vec<&str>| Value::list(parts.into_iter().map(Value::str).collect());
        Ok(match (name, arguments) {
            ("lower" | "casefold", []) => Value::str(&text.to_lowercase()),
            ("upper", []) => Value::str(&text.to_uppercase()),
            ("strip", []) => Value::str(text.trim()),
            ("lstrip", []) => Value::str(text.trim_start()),
            ("rstrip", []) => Value::str(text.trim_end()),
            ("capitalize", []) => {
                let mut chars = text.chars();
                let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
                Value::str(&(first + &chars.as_str().to_lowercase()))
            }
            ("split", []) => strings(text.split_whitespace().collect()),
            ("split", [Value::Str(separator)]) if !separator.is_empty() => {
                strings(text.split(&**separator).collect())
            }
            ("splitlines", []) => strings(text.lines().collect()),
            ("join", [items]) => {
                let mut parts = Vec::new();
                for item in self.iterate(items)? {
                    let Value::Str(part) = item else {
                        return raise("TypeError", "sequence item: expected str instance");
                    };
                    self.allocate(part.len() + text.len())?;
                    parts.push(part.to_string());
                }
                Value::Str(parts.join(text).into())
            }
            ("replace", [Value::Str(from), Value::Str(to)]) => {
                // At most one replacement a character, and one more.
                self.allocate((text.len() + 1).saturating_mul(to.len()))?;
                Value::Str(text.replace(&**from, to).into())
            }
            ("startswith", [Value::Str(part)]) => Value::Bool(text.starts_with(&**part)),
            ("endswith", [Value::Str(part)]) => Value::Bool(text.ends_with(&**part)),
            ("count", [Value::Str(part)]) if !part.is_empty() => {
                Value::Int(text.matches(&**part).count() as i128)
            }
            ("find" | "index", [Value::Str(part)]) => match text.find(&**part) {
                Some(at) => Value::Int(text.get(..at).unwrap_or_default().chars().count() as i128),
                None if name == "find" => Value::Int(-1),
                None => return raise("ValueError", "substring not found"),
            },
            ("isalpha", []) => only(char::is_alphabetic),
            ("isdigit" | "isnumeric" | "isdecimal", []) => only(|c| c.is_numeric()),
            ("isalnum", []) => only(char::is_alphanumeric),
            ("isspace", []) => only(char::is_whitespace),
            ("isupper", []) => {
                Value::Bool(text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase))
            }
            ("islower", []) => {
                Value::Bool(text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase))
            }
            _ => return unsupported(format!("`str.{name}`")),
        })
    }

    fn list_method<'a>(&self, receiver: &Value<'a>, name: &str, arguments: Vec<Value<'a>>) -> Run<Value<'a>> {
        let all = self.iterate(receiver)?;
        match (name, arguments.as_slice()) {
            ("count", [item]) => {
                return Ok(Value::Int(all.iter().filter(|other| other.equals(item)).count() as i128));
            }
            ("index", [item]) => {
                let found = all.iter().position(|other| other.equals(item));
                return found
                    .map_or_else(|| raise("ValueError", "not in list"), |at| Ok(Value::Int(at as i128)));
            }
            _ => {}
        }
        let Value::List(items) = receiver else { return unsupported(format!("`tuple.{name}`")) };
        let mut items = items.borrow_mut();
        match (name, arguments.as_slice()) {
            ("append", [item]) => {
                self.allocate(1)?;
                items.push(item.clone());
            }
            ("extend", [more]) => {
                // The list itself may be the argument: it is borrowed already, but `all` holds its items.
                let more = if let Value::List(more) = more
                    && more.try_borrow().is_err()
                {
                    all
                } else {
                    self.iterate(more)?
                };
                items.extend(more);
            }
            ("insert", [index, item]) => {
                self.allocate(1)?;
                let at = self.position(index, items.len())?.min(items.len());
                items.insert(at, item.clone());
            }
            ("pop", []) => return items.pop().map_or_else(|| raise("IndexError", "pop from empty list"), Ok),
            ("pop", [index]) => {
                let at = self.position(index, items.len())?;
                return if at < items.len() {
                    Ok(items.remove(at))
                } else {
                    raise("IndexError", "pop index out of range")
                };
            }
            ("remove", [item]) => match items.iter().position(|other| other.equals(item)) {
                Some(at) => {
                    items.remove(at);
                }
                None => return raise("ValueError", "list.remove(x): x not in list"),
            },
            ("reverse", []) => items.reverse(),
            ("clear", []) => items.clear(),
            ("copy", []) => return Ok(Value::list(items.clone())),
            _ => return unsupported(format!("`list.{name}`")),
        }
        Ok(Value::None)
    }

    fn dictionary_method<'a>(
        &self,
        receiver: &Value<'a>,
        name: &str,
        arguments: Vec<Value<'a>>,
    ) -> Run<Value<'a>> {
        let Value::Dict(entries) = receiver else { return unsupported(format!("`.{name}`")) };
        let find = |key: &Value<'a>| {
            entries.borrow().iter().find(|(known, _)| known.equals(key)).map(|(_, value)| value.clone())
        };
        self.allocate(entries.borrow().len())?;
        Ok(match (name, arguments.as_slice()) {
            ("get", [key]) => find(key).unwrap_or(Value::None),
            ("get", [key, default]) => find(key).unwrap_or_else(|| default.clone()),
            ("keys", []) => Value::list(entries.borrow().iter().map(|(key, _)| key.clone()).collect()),
            ("values", []) => Value::list(entries.borrow().iter().map(|(_, value)| value.clone()).collect()),
            ("items", []) => Value::list(
                entries.borrow().iter().map(|(k, v)| Value::Tuple([k.clone(), v.clone()].into())).collect(),
            ),
            ("setdefault", [key, default]) => match find(key) {
                Some(value) => value,
                None => {
                    self.insert(&mut entries.borrow_mut(), key.clone(), default.clone())?;
                    default.clone()
                }
            },
            _ => return unsupported(format!("`dict.{name}`")),
        })
    }
}
