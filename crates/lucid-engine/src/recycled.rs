//! Lists that borrow from a step, in memory that outlives it.

/// Empties a list and gives its memory to one of the same items that borrow from something else.
pub fn recycled<A, B>(mut list: Vec<A>) -> Vec<B> {
    const { assert!(size_of::<A>() == size_of::<B>() && align_of::<A>() == align_of::<B>(), "other items") };
    list.clear();
    // The standard library collects in place where it can; `tests/allocations.rs` would notice if it didn't.
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_stays() {
        let list: Vec<&str> = Vec::with_capacity(10);
        let at = list.as_ptr() as usize;
        let text = String::from("here");
        let mut list: Vec<&str> = recycled(list);
        list.push(&text);
        let list: Vec<&'static str> = recycled(list);
        assert!(list.is_empty());
        assert_eq!((list.as_ptr() as usize, list.capacity()), (at, 10));
    }
}
