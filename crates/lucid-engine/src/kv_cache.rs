//! Book-keeping of the KV cache: fixed pages, handed out and taken back. The values live in the backend.

/// Tokens a page holds. Attention sums run page by page, so this number is part of the numerics.
pub const PAGE_TOKENS: usize = 64;

/// One page of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageId(u32);

impl PageId {
    /// The page's place in the backend's buffers.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The free pages.
#[derive(Debug)]
pub struct PagePool {
    free: Vec<PageId>,
    total: usize,
}

impl PagePool {
    /// A pool for `tokens` tokens, rounded up to whole pages.
    #[must_use]
    pub fn new(tokens: usize) -> PagePool {
        let total = tokens.div_ceil(PAGE_TOKENS).min(u32::MAX as usize);
        // The lowest page is taken first, so a lightly used cache touches little memory.
        let free = (0..total as u32).rev().map(PageId).collect();
        PagePool { free, total }
    }

    /// Pages in all.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }

    /// Pages in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.total - self.free.len()
    }

    /// Extends `pages` so that it holds `tokens` tokens. Takes nothing and returns false when too few are free.
    #[must_use]
    pub fn extend(&mut self, pages: &mut Vec<PageId>, tokens: usize) -> bool {
        let missing = tokens.div_ceil(PAGE_TOKENS).saturating_sub(pages.len());
        if missing > self.free.len() {
            return false;
        }
        pages.extend(self.free.drain(self.free.len() - missing..).rev());
        true
    }

    /// Takes all of `pages` back.
    pub fn release(&mut self, pages: &mut Vec<PageId>) {
        self.free.extend(pages.drain(..).rev());
        debug_assert!(self.free.len() <= self.total, "a page was released twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_and_go_whole() {
        let mut pool = PagePool::new(3 * PAGE_TOKENS - 1);
        assert_eq!(pool.total(), 3);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        assert!(pool.extend(&mut a, 1) && a.len() == 1);
        assert!(pool.extend(&mut a, PAGE_TOKENS) && a.len() == 1);
        assert!(pool.extend(&mut a, PAGE_TOKENS + 1) && a.len() == 2);
        assert!(!pool.extend(&mut b, PAGE_TOKENS + 1) && b.is_empty());
        assert!(pool.extend(&mut b, 1));
        assert_eq!(pool.used(), 3);
        let first = a[0];
        pool.release(&mut a);
        assert_eq!((pool.used(), a.len()), (1, 0));
        assert!(pool.extend(&mut b, 2 * PAGE_TOKENS));
        assert_eq!(b[1], first);
    }
}
