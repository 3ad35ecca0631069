//! The streamed witness: the bits of the resident one, within its memory, and taken up again where it was interrupted.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // The lints spare test functions, not what they share.

mod goldens;

use goldens::{Prompt, canary, models, prompts};
use lucid_checkpoint::{Checkpoint, Files, TokenId};
use lucid_engine::{
    Activations, Error, KvCacheDtype, Mode, Plant, Scorer, SemanticsOptions, Streaming, StreamingOptions,
    TokenLogprobs,
};

const TOP: usize = 5;

fn reference() -> SemanticsOptions {
    SemanticsOptions { mode: Mode::Reference, ..SemanticsOptions::default() }
}

fn options(semantics: SemanticsOptions) -> StreamingOptions {
    StreamingOptions {
        semantics,
        threads: Some(2),
        memory_limit: 4_000_000_000,
        batch_tokens: None,
        top: TOP,
        state: None,
    }
}

/// Short ones, and one of several chunks.
fn passages() -> Vec<Vec<TokenId>> {
    let wanted = |prompt: &Prompt| prompt.tokens.len() < 130 || prompt.name == "needle_600";
    prompts().into_iter().filter(wanted).map(|prompt| prompt.tokens).collect()
}

/// What the resident scorer says about the same.
fn resident(
    checkpoint: &Checkpoint,
    semantics: &SemanticsOptions,
    passages: &[Vec<TokenId>],
) -> Vec<Vec<TokenLogprobs>> {
    let mut scorer = Scorer::new(checkpoint, semantics, Some(1)).unwrap();
    let one = |passage: &Vec<TokenId>| {
        let mut all = Vec::new();
        scorer
            .score(passage, |position, logprobs| {
                if let Some(next) = passage.get(position + 1) {
                    all.push(lucid_engine::token_logprobs(logprobs, *next, TOP));
                }
            })
            .unwrap();
        all
    };
    passages.iter().map(one).collect()
}

/// Log-probabilities are compared as floats and none is NaN, so equal means equal bits.
fn assert_same(streamed: &[Vec<TokenLogprobs>], resident: &[Vec<TokenLogprobs>]) {
    assert_eq!(streamed.len(), resident.len());
    for (i, (streamed, resident)) in streamed.iter().zip(resident).enumerate() {
        assert!(streamed == resident, "passage {i} differs");
    }
}

#[test]
fn the_streamed_witness_has_the_bits_of_the_resident_one() {
    let passages = passages();
    let fp8 = SemanticsOptions {
        kv_cache: Some(KvCacheDtype::Fp8E4m3),
        activations: Activations::W4A4,
        ..reference()
    };
    for semantics in [reference(), fp8] {
        let expected = resident(&canary(), &semantics, &passages);
        let checkpoint = canary();
        let mut streaming = Streaming::new(&checkpoint, &options(semantics)).unwrap();
        let mut layers = Vec::new();
        let streamed = streaming
            .score(&passages, &mut |progress| {
                layers.push(progress.layer.0);
                assert!(progress.bytes_read <= progress.bytes, "{progress:?}");
                true
            })
            .unwrap();
        assert_same(&streamed.unwrap(), &expected);
        assert_eq!(layers, [1, 2, 3, 4, 0], "all passages fit in one batch");
    }
}

/// Other layouts: blocks of GGUF, and a joined `kv_b`.
#[test]
fn a_gguf_model_is_streamed_too() {
    let open = || Checkpoint::open(Files::open(&models().join("canary-gguf")).unwrap()).unwrap();
    let passages = passages()[..3].to_vec();
    let expected = resident(&open(), &reference(), &passages);
    let checkpoint = open();
    let streamed =
        Streaming::new(&checkpoint, &options(reference())).unwrap().score(&passages, &mut |_| true).unwrap();
    assert_same(&streamed.unwrap(), &expected);
}

/// Stopped after every part, also within a batch, with several batches. One passage is longer than what goes through the experts
/// together.
#[test]
fn an_interrupted_run_goes_on_with_the_same_bits() {
    let passages = passages();
    let expected = resident(&canary(), &reference(), &passages);
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("run.state");
    let checkpoint = canary();
    let options =
        StreamingOptions { state: Some(state.clone()), batch_tokens: Some(150), ..options(reference()) };
    let (mut runs, mut batches) = (0, 0);
    let streamed = loop {
        runs += 1;
        assert!(runs < 200, "it doesn't come to an end");
        let mut streaming = Streaming::new(&checkpoint, &options).unwrap();
        let result = streaming.score(&passages, &mut |progress| {
            batches = progress.batch.1;
            assert!(progress.saved);
            false
        });
        if let Some(streamed) = result.unwrap() {
            break streamed;
        }
        assert!(state.exists());
    };
    println!("{runs} runs, {batches} batches");
    assert!(batches > 1 && runs == 5 * batches, "{runs} runs of {batches} batches of 4 layers and an output");
    assert_same(&streamed, &expected);
    assert!(!state.exists(), "a run that is done leaves no state");
}

#[test]
fn a_state_of_another_run_or_a_damaged_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.state");
    let checkpoint = canary();
    let passages = passages()[..2].to_vec();
    let with = |semantics| StreamingOptions { state: Some(path.clone()), ..options(semantics) };
    let stop = |passages: &[Vec<TokenId>], semantics| {
        Streaming::new(&checkpoint, &with(semantics)).unwrap().score(passages, &mut |_| false)
    };
    assert!(stop(&passages, reference()).unwrap().is_none());
    let other = SemanticsOptions { kv_cache: Some(KvCacheDtype::Bf16), ..reference() };
    for result in [stop(&passages[..1], reference()), stop(&passages, other)] {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("run.state") && text.contains("another"), "{text}");
    }
    let whole = std::fs::read(&path).unwrap();
    let mut wrong = whole.clone();
    *wrong.last_mut().unwrap() ^= 1;
    for (bytes, said) in [
        (wrong, "damaged"),
        (whole[..whole.len() - 4].to_vec(), "damaged"),
        (whole[..40].to_vec(), "header"),
        (whole[..7].to_vec(), "shorter"),
        (b"something else entirely".to_vec(), "not written by"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let text = stop(&passages, reference()).unwrap_err().to_string();
        assert!(text.contains(said), "{text}");
    }
    std::fs::write(&path, whole).unwrap();
    assert!(stop(&passages, reference()).unwrap().is_none());
}

#[test]
fn what_cannot_be_streamed_is_refused() {
    let checkpoint = canary();
    let score = |options: &StreamingOptions, passages: &[Vec<TokenId>]| {
        Streaming::new(&checkpoint, options)
            .and_then(|mut streaming| streaming.score(passages, &mut |_| true))
    };
    let planted = SemanticsOptions { plant: Some(Plant::RopeHalfSplit.into()), ..reference() };
    assert!(score(&options(planted), &[]).unwrap_err().to_string().contains("planted fault"));
    assert!(matches!(
        score(&options(reference()), &[vec![TokenId(4096)]]),
        Err(Error::UnknownToken { token: 4096, vocab_size: 4096 })
    ));
    assert!(matches!(score(&options(reference()), &[vec![TokenId(5); 4097]]), Err(Error::TooLong { .. })));
    let tiny = StreamingOptions { memory_limit: 1_000_000, ..options(reference()) };
    let text = score(&tiny, &passages()).unwrap_err().to_string();
    assert!(text.contains("memory_limit is 0.00 GB") && text.contains("needs"), "{text}");
    let empty = score(&options(reference()), &[vec![], vec![TokenId(5)]]).unwrap().unwrap();
    assert!(empty.len() == 2 && empty.iter().all(Vec::is_empty));
}
