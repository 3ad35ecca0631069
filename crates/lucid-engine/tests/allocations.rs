//! A decode step asks the system for next to no memory: its buffers grow to the largest step and stay. A process of its own, for it
//! counts what everybody in it asks for.

#![allow(clippy::unwrap_used)]

mod goldens;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use goldens::canary;
use lucid_checkpoint::TokenId;
use lucid_engine::{Engine, EngineOptions, Event, Request};

/// Requests to the system's allocator, so far.
static REQUESTS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        REQUESTS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        REQUESTS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Lists of a step that borrow from it take the memory of the last one's. What is left are the sequence's own tokens and pages, which
/// double their room now and then.
const MOST: usize = 2;

#[test]
fn a_decode_step_allocates_next_to_nothing() {
    let options = EngineOptions { threads: Some(2), ..EngineOptions::default() };
    let engine = Engine::start(&canary(), &options).unwrap();
    let (sender, ended) = channel();
    let mut counts = Vec::with_capacity(64);
    let request = Request { prompt: vec![TokenId(5); 8], max_tokens: 48, ..Request::default() };
    let sink = move |event: Event| {
        match event {
            Event::Prompt { .. } | Event::Routes(_) => {}
            Event::Token { .. } => counts.push(REQUESTS.load(Ordering::Relaxed)),
            Event::Finished(_) => sender.send(std::mem::take(&mut counts)).unwrap(),
        }
        true
    };
    engine.submit(request, sink).unwrap();
    let counts = ended.recv().unwrap();
    assert_eq!(counts.len(), 48);
    // Buffers have grown by then.
    let steps: Vec<usize> = counts.windows(2).skip(8).map(|pair| pair[1] - pair[0]).collect();
    let most = *steps.iter().max().unwrap();
    let without = steps.iter().filter(|&&count| count == 0).count();
    assert!(without * 10 >= steps.len() * 8, "most steps ask for none: {steps:?}");
    assert!(most <= MOST, "a step of one token asks for memory {most} times: {steps:?}");
}
