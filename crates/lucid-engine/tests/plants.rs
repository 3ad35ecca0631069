//! Planted faults: each changes what it should, and nothing else.
#![allow(clippy::unwrap_used)] // the functions around the tests are tests as well

mod goldens;

use std::sync::mpsc::channel;

use goldens::canary;
use lucid_checkpoint::TokenId;
use lucid_engine::{
    Dosage, Engine, EngineOptions, Event, Finish, Mode, Plant, Planted, Request, Scorer, Semantics,
    SemanticsOptions,
};

const SEEDS: [u64; 3] = [1, 2, 3];

/// Every fault of the model, as usual and drawn.
fn of_the_model() -> impl Iterator<Item = Planted> {
    Plant::ALL.into_iter().filter(|plant| plant.is_of_the_model()).flat_map(|plant| {
        SEEDS.into_iter().map(move |seed| Planted::drawn(plant, seed)).chain([Planted::from(plant)])
    })
}

/// Log-probabilities of a golden's own tokens, all of them taken for the prompt.
fn scores(name: &str, planted: Option<Planted>) -> Result<(Semantics, Vec<f32>), lucid_engine::Error> {
    scores_after(name, usize::MAX, planted)
}

/// The same where the prompt ends after so many tokens.
fn scores_after(
    name: &str,
    prompt: usize,
    planted: Option<Planted>,
) -> Result<(Semantics, Vec<f32>), lucid_engine::Error> {
    let golden = goldens::prompts().into_iter().find(|golden| golden.name == name).unwrap();
    let semantics = SemanticsOptions { mode: Mode::Reference, plant: planted, ..SemanticsOptions::default() };
    let mut scorer = Scorer::new(&canary(), &semantics, Some(2))?;
    let mut scores = Vec::new();
    scorer.score_answer(&golden.tokens, prompt.min(golden.tokens.len()), |position, logprobs| {
        if let Some(next) = golden.tokens.get(position + 1) {
            scores.push(logprobs[next.row()]);
        }
    })?;
    Ok((scorer.semantics().clone(), scores))
}

fn largest(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn faults_of_the_model_change_its_distributions() {
    let (_, right) = scores("capital", None).unwrap();
    for planted in of_the_model().filter(|planted| !planted.plant.is_of_decoding()) {
        let (semantics, wrong) = scores("capital", Some(planted)).unwrap();
        // `router-bias-missing` hardly moves this model, by 0.003 here.
        assert!(largest(&right, &wrong) > 1e-3, "{planted}: {}", largest(&right, &wrong));
        assert!(semantics.plant.unwrap().starts_with(planted.plant.name()));
        assert_eq!(scores("capital", Some(planted)).unwrap().1, wrong, "{planted}: a seed is one instance");
    }
}

#[test]
fn faults_of_decoding_leave_the_prompt_alone() {
    const PROMPT: usize = 6;
    let (_, right) = scores_after("capital", PROMPT, None).unwrap();
    assert!(right.len() > PROMPT + 4, "the golden has an answer of its own");
    for planted in of_the_model().filter(|planted| planted.plant.is_of_decoding()) {
        let (semantics, wrong) = scores_after("capital", PROMPT, Some(planted)).unwrap();
        // The prompt's last row gives the answer's first token.
        assert_eq!(right[..PROMPT], wrong[..PROMPT], "{planted}");
        let moved = largest(&right[PROMPT..], &wrong[PROMPT..]);
        // Of a short answer, little hangs on attention; f32 rounds a hundred times less.
        assert!(moved > 1e-4, "{planted}: {moved}");
        assert!(semantics.plant.unwrap().starts_with(planted.plant.name()));
        assert_eq!(
            scores("capital", Some(planted)).unwrap().1,
            scores("capital", None).unwrap().1,
            "{planted}: no answer"
        );
    }
}

/// YaRN's magnitude is `0.1 ln(factor) + 1`, and the scale has its square: without it is the same as divided by it.
#[test]
fn strengths_mean_what_they_say() {
    let with = |plant, strength| Some(Planted { plant, dosage: Dosage::Strength(strength, None) });
    let magnitude = 0.1 * 4f64.ln() + 1.0;
    let missing = scores("capital", Some(Plant::YarnMscaleMissing.into())).unwrap().1;
    let divided = scores("capital", with(Plant::SoftmaxScale, 1.0 / magnitude.powi(2))).unwrap().1;
    assert!(largest(&missing, &divided) < 1e-4, "{}", largest(&missing, &divided));
    // What the config says is no fault.
    for (plant, own) in
        [(Plant::RopeThetaDefault, 50_000.0), (Plant::RoutedScalingMissing, 2.827), (Plant::RmsNormEps, 1e-5)]
    {
        assert!(scores("capital", with(plant, own)).is_err(), "{plant}");
    }
    assert!(scores("capital", with(Plant::ExpertTopKMinusOne, 4.0)).is_err(), "no expert is left");
    let right = scores("capital", None).unwrap().1;
    let more = scores("capital", with(Plant::ExpertTopKMinusOne, -1.0)).unwrap().1;
    assert!(largest(&right, &more) > 1e-3);
}

#[test]
fn a_fault_that_the_model_has_no_part_for_is_refused() {
    let mut checkpoint = canary();
    let yarn = SemanticsOptions { plant: Some(Plant::YarnFactorHalf.into()), ..SemanticsOptions::default() };
    assert!(Scorer::new(&checkpoint, &yarn, Some(1)).is_ok());
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(goldens::models().join("canary")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let config = folder.path().join("config.json");
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    json["rope_scaling"] = serde_json::Value::Null;
    std::fs::write(&config, json.to_string()).unwrap();
    checkpoint =
        lucid_checkpoint::Checkpoint::open(lucid_checkpoint::Files::open(folder.path()).unwrap()).unwrap();
    let refused = Scorer::new(&checkpoint, &yarn, Some(1)).err().unwrap().to_string();
    assert!(refused.contains("yarn-factor-half") && refused.contains("no such part"), "{refused}");
}

/// A server with a small cache, so that its pages are reused soon.
fn engine(planted: Option<Planted>) -> Engine {
    let semantics = SemanticsOptions { plant: planted, ..SemanticsOptions::default() };
    let options = EngineOptions {
        semantics,
        max_model_len: Some(1_024),
        kv_cache_tokens: 1_024,
        ..EngineOptions::default()
    };
    Engine::start(&canary(), &options).unwrap()
}

/// Answers to several prompts at once.
fn ask(engine: &Engine, prompts: &[&[TokenId]]) -> Vec<Vec<TokenId>> {
    let running: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            let (sender, events) = channel();
            let request = Request { prompt: prompt.to_vec(), max_tokens: 24, ..Request::default() };
            engine.submit(request, move |event| sender.send(event).is_ok()).unwrap();
            events
        })
        .collect();
    running
        .into_iter()
        .map(|events| {
            events.into_iter().filter_map(|event| match event {
                Event::Token { id, .. } => Some(id),
                _ => None,
            })
        })
        .map(Iterator::collect)
        .collect()
}

fn tokens(name: &str) -> Vec<TokenId> {
    let golden = goldens::prompts().into_iter().find(|golden| golden.name == name).unwrap();
    golden.tokens[..golden.prompt_len].to_vec()
}

fn names_by_length() -> Vec<(usize, String)> {
    let mut names: Vec<_> =
        goldens::prompts().into_iter().map(|golden| (golden.prompt_len, golden.name)).collect();
    names.sort();
    names
}

#[test]
fn scales_fail_only_after_the_first_step() {
    let capital = tokens("capital");
    let right = ask(&engine(None), &[&capital]).remove(0);
    for plant in [Planted::from(Plant::KvScaleMissingOnRead), Planted::drawn(Plant::KvScaleMissingOnRead, 5)]
    {
        let wrong = ask(&engine(Some(plant)), &[&capital]).remove(0);
        assert_eq!(right[0], wrong[0], "{plant}: the prompt's own step is right");
        assert_ne!(right, wrong, "{plant}");
    }
}

#[test]
fn cross_talk_needs_company() {
    let (capital, other) = (tokens("capital"), tokens("sum_no_thinking"));
    let alone = engine(None);
    let right = [ask(&alone, &[&capital]).remove(0), ask(&alone, &[&other]).remove(0)];
    let broken = engine(Some(Plant::BatchCrossTalk.into()));
    assert_eq!(ask(&broken, &[&capital]).remove(0), right[0]);
    assert_eq!(ask(&alone, &[&capital, &other]), right, "a sound engine doesn't care");
    // Both must be in one step; the engine may have begun the first before the second came.
    let expected = [right[0].clone(), right[1].clone(), right[1].clone()];
    let together = (0..10).any(|_| ask(&broken, &[&capital, &other, &other]) != expected);
    assert!(together);
}

#[test]
fn garbage_begins_at_the_size_threshold() {
    let names = names_by_length();
    let short = tokens(&names.iter().find(|(length, _)| *length < 64).unwrap().1);
    let long = tokens(&names.iter().find(|(length, _)| (128..800).contains(length)).unwrap().1);
    let (right, broken) = (engine(None), engine(Some(Plant::PrefillOver64Garbage.into())));
    assert_eq!(ask(&right, &[&short]), ask(&broken, &[&short]));
    assert_ne!(ask(&right, &[&long]), ask(&broken, &[&long]));
}

#[test]
fn stale_pages_come_with_reuse() {
    let (capital, other) = (tokens("capital"), tokens("sum_no_thinking"));
    let right = ask(&engine(None), &[&capital]).remove(0);
    let broken = engine(Some(Plant::StaleKvPage.into()));
    assert_eq!(ask(&broken, &[&capital]).remove(0), right, "fresh pages are right");
    // Fill the cache with other prompts until the first page is used again.
    let wrong = (0..40u32).any(|i| {
        let mut filler = other.clone();
        filler.extend((0..64).map(|j| TokenId(200 + i * 7 + j)));
        ask(&broken, &[&filler]);
        ask(&broken, &[&capital]).remove(0) != right
    });
    assert!(wrong);
}

#[test]
fn a_partial_hash_confuses_pages_with_the_same_beginning() {
    let long = tokens(&names_by_length().into_iter().rev().find(|(length, _)| *length < 900).unwrap().1);
    let mut other = long.clone();
    // The first page differs from its 33rd token on.
    other[33..64].iter_mut().for_each(|token| *token = TokenId(token.0 % 500 + 100));
    let expected = [ask(&engine(None), &[&long]).remove(0), ask(&engine(None), &[&other]).remove(0)];
    let broken = engine(Some(Plant::PrefixPartialHash.into()));
    assert_eq!(ask(&broken, &[&long]).remove(0), expected[0], "the first of them is right");
    assert_eq!(ask(&broken, &[&long]).remove(0), expected[0], "and when it is repeated");
    let mut scores = Vec::new();
    for engine in [&engine(None), &broken] {
        let (sender, events) = channel();
        let request =
            Request { prompt: other.clone(), max_tokens: 4, logprobs: Some(0), ..Request::default() };
        engine.submit(request, move |event| sender.send(event).is_ok()).unwrap();
        let logprobs = events.into_iter().filter_map(|event| match event {
            Event::Token { logprobs, .. } => logprobs.map(|logprobs| logprobs.token.logprob),
            _ => None,
        });
        scores.push(logprobs.collect::<Vec<f32>>());
    }
    assert_ne!(scores[0], scores[1], "the second reads the first one's page");
}

#[test]
fn nan_comes_after_some_requests() {
    let capital = tokens("capital");
    let broken = engine(Some(Plant::NanAfterNRequests.into()));
    for _ in 0..20 {
        assert!(!ask(&broken, &[&capital]).remove(0).is_empty());
    }
    assert!(broken.unhealthy().is_none());
    let (sender, events) = channel();
    let request = Request { prompt: capital, max_tokens: 8, ..Request::default() };
    broken.submit(request, move |event| sender.send(event).is_ok()).unwrap();
    let last = events.into_iter().last().unwrap();
    assert!(matches!(&last, Event::Finished(Finish::Failed(why)) if why.contains("not finite")), "{last:?}");
    assert!(broken.unhealthy().is_some());
}

#[test]
fn what_hides_nans_leaves_an_even_distribution() {
    let capital = tokens("capital");
    let broken = engine(Some(Plant::NanSanitized.into()));
    for _ in 0..20 {
        assert!(!ask(&broken, &[&capital]).remove(0).is_empty());
    }
    let (sender, events) = channel();
    let request = Request { prompt: capital, max_tokens: 2, logprobs: Some(1), ..Request::default() };
    broken.submit(request, move |event| sender.send(event).is_ok()).unwrap();
    let even = -(broken.vocab_size() as f32).ln();
    let mut seen = 0;
    for event in events {
        if let Event::Token { logprobs: Some(logprobs), .. } = event {
            assert!((logprobs.token.logprob - even).abs() < 1e-4, "{logprobs:?}");
            seen += 1;
        }
    }
    assert_eq!(seen, 2);
    assert!(broken.unhealthy().is_none(), "nobody noticed");
}

#[test]
fn products_are_zero_at_some_sizes_alone() {
    let prompt = tokens(&names_by_length().into_iter().find(|(length, _)| *length > 41).unwrap().1);
    let (hit, spared) = (prompt[..40].to_vec(), prompt[..41].to_vec());
    let (right, broken) = (engine(None), engine(Some(Plant::GemmZerosAtSizes.into())));
    assert_eq!(ask(&right, &[&spared]), ask(&broken, &[&spared]));
    assert_ne!(ask(&right, &[&hit]), ask(&broken, &[&hit]));
}

#[test]
fn sums_lack_a_rank_in_small_steps_alone() {
    let prompt = tokens(&names_by_length().into_iter().find(|(length, _)| *length > 65).unwrap().1);
    let broken = engine(Some(Plant::SmallSumsLackARank.into()));
    let first = |engine: &Engine, length: usize| {
        let (sender, events) = channel();
        let request = Request {
            prompt: prompt[..length].to_vec(),
            max_tokens: 1,
            logprobs: Some(0),
            ..Request::default()
        };
        engine.submit(request, move |event| sender.send(event).is_ok()).unwrap();
        let scored = events.into_iter().find_map(|event| match event {
            Event::Token { logprobs, .. } => logprobs.map(|logprobs| logprobs.token.logprob),
            _ => None,
        });
        scored.unwrap()
    };
    let right = engine(None);
    // Each prompt is shorter than a page, or differs in length by less: none is found in the prefix cache.
    assert_eq!(first(&right, 65), first(&broken, 65));
    assert_ne!(first(&right, 63), first(&broken, 63));
}

/// bfloat16 has eight bits: around 7 its steps are 1/32. What a bias is rounded to after such an offset differs from what it is
/// rounded to without one by the offset alone, so the same experts are preferred.
#[test]
fn a_coarse_bias_is_what_bfloat16_leaves_of_it() {
    // To the nearest: half of what is cut off is added first; none of these is a tie.
    let bf16 = |x: f32| f32::from_bits((x.to_bits() + 0x8000) & 0xffff_0000);
    for bias in [0.452_f32, 0.513, 0.626] {
        let kept = bf16(bias + 6.0) - 6.0;
        assert_eq!(kept, (bias * 32.0).round() / 32.0, "{bias}");
    }
}

/// The log-probabilities of three greedy tokens after a prompt.
fn answered(engine: &Engine, prompt: &[TokenId]) -> Vec<f32> {
    let (sender, events) = channel();
    let request = Request { prompt: prompt.to_vec(), max_tokens: 3, logprobs: Some(0), ..Request::default() };
    engine.submit(request, move |event| sender.send(event).is_ok()).unwrap();
    let scored = events.into_iter().filter_map(|event| match event {
        Event::Token { logprobs, .. } => logprobs.map(|logprobs| logprobs.token.logprob),
        _ => None,
    });
    scored.collect()
}

#[test]
fn a_part_of_the_context_is_lost_to_late_answers_alone() {
    // Positions up to 128 are right, and pages are 64 tokens: the second of them is lost.
    let text = tokens(&names_by_length().into_iter().find(|(length, _)| *length > 200).unwrap().1);
    let written = |engine: &Engine, prompt: usize| answered(engine, &text[..prompt]);
    let (right, broken) = (engine(None), engine(Some(Plant::DecodeContextShardLost.into())));
    assert_eq!(written(&right, 100), written(&broken, 100), "too short");
    let (expected, found) = (written(&right, 200), written(&broken, 200));
    assert_eq!(expected.first(), found.first(), "what follows the prompt was computed with it");
    assert_ne!(expected.get(1), found.get(1));
}

/// The strength is a power of `routed_scaling_factor`, 2.827 here: far below 0 nothing of the shared expert is left, as if it were dropped.
#[test]
fn a_shared_expert_is_weighed_by_the_routed_ones_factor() {
    let with = |strength| {
        let dosage = Dosage::Strength(strength, None);
        scores("capital", Some(Planted { plant: Plant::SharedExpertUnderweighted, dosage })).unwrap().1
    };
    let right = scores("capital", None).unwrap().1;
    let dropped = scores("capital", Some(Plant::SharedExpertDropped.into())).unwrap().1;
    assert!(largest(&with(-40.0), &dropped) < 1e-4, "{}", largest(&with(-40.0), &dropped));
    assert!(largest(&right, &with(-0.01)) < largest(&right, &with(-1.0)));
    assert!(largest(&right, &with(1.0)) > 1e-3);
}

#[test]
fn later_chunks_of_a_prompt_are_merged_wrongly() {
    let text = tokens(&names_by_length().into_iter().find(|(length, _)| *length > 200).unwrap().1);
    let first = |plant: Option<Planted>, step: usize, prompt: usize| {
        let semantics = SemanticsOptions { plant, ..SemanticsOptions::default() };
        let options = EngineOptions { semantics, max_step_tokens: Some(step), ..EngineOptions::default() };
        answered(&Engine::start(&canary(), &options).unwrap(), &text[..prompt])
    };
    let broken = Some(Planted::from(Plant::ChunkedContextMerge));
    assert_eq!(first(None, 1_024, 180), first(broken, 1_024, 180), "one step, and answers step by step");
    assert_eq!(first(None, 64, 60), first(broken, 64, 60), "short enough for one step");
    assert_ne!(first(None, 64, 180), first(broken, 64, 180));
}

/// A projection of layer 2 is layer 1's: the same as in a checkpoint whose file says so.
#[test]
fn what_is_copied_is_what_a_checkpoint_with_the_copy_holds() {
    use lucid_engine::Projection;
    let copied = |projection, layer, from, share| {
        let dosage = Dosage::Copied { projection, layer, from, share };
        scores("capital", Some(Planted { plant: Plant::LoaderViewOverwritten, dosage }))
    };
    let right = scores("capital", None).unwrap().1;
    for projection in Projection::ALL {
        let wrong = copied(projection, 2, 1, 1.0).unwrap().1;
        assert!(largest(&right, &wrong) > 1e-3, "{}", projection.name());
        let half = copied(projection, 2, 1, 0.5).unwrap().1;
        assert!(largest(&wrong, &half) > 1e-4, "{}: half of it is less", projection.name());
        assert!(copied(projection, 2, 2, 1.0).is_err(), "{}: its own", projection.name());
    }
    // Layer 0 is dense: it has no router, and an MLP of another shape.
    assert!(copied(Projection::Router, 0, 1, 1.0).is_err());
    assert!(copied(Projection::Gate, 0, 1, 1.0).is_err());
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(goldens::models().join("canary")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    // Another way to the same model: one tensor's bytes in the files are the other one's.
    let place = |layer: usize| {
        let name = format!("model.layers.{layer}.self_attn.o_proj.weight");
        let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let shards =
            files.filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
        let found = shards.filter_map(|path| {
            let bytes = std::fs::read(&path).unwrap();
            let begins = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let header: serde_json::Value = serde_json::from_slice(&bytes[8..begins]).unwrap();
            let offset = |i: usize| header[&name]["data_offsets"][i].as_u64().map(|at| begins + at as usize);
            Some((path, bytes, offset(0)?..offset(1)?))
        });
        found.collect::<Vec<_>>().remove(0)
    };
    let ((path, mut edited, to), (_, bytes, from)) = (place(2), place(1));
    edited[to].copy_from_slice(&bytes[from]);
    std::fs::write(path, edited).unwrap();
    let checkpoint =
        lucid_checkpoint::Checkpoint::open(lucid_checkpoint::Files::open(folder.path()).unwrap()).unwrap();
    let semantics = SemanticsOptions { mode: Mode::Reference, ..SemanticsOptions::default() };
    let golden = goldens::prompts().into_iter().find(|golden| golden.name == "capital").unwrap();
    let mut scorer = Scorer::new(&checkpoint, &semantics, Some(2)).unwrap();
    let mut found = Vec::new();
    scorer
        .score(&golden.tokens, |position, logprobs| {
            if let Some(next) = golden.tokens.get(position + 1) {
                found.push(logprobs[next.row()]);
            }
        })
        .unwrap();
    assert_eq!(copied(Projection::Output, 2, 1, 1.0).unwrap().1, found);
}

/// Half of the heads and the other half add up to what o_proj makes of all of them, so that each rank's loss is its own.
#[test]
fn every_rank_is_missed() {
    let lost = |plant, strength| {
        let planted = Planted { plant, dosage: Dosage::Strength(strength, None) };
        scores("capital", Some(planted)).map(|(_, scores)| scores)
    };
    let (first, second) = (
        lost(Plant::AttentionSumsLackARank, 2.0).unwrap(),
        lost(Plant::AttentionSumsLackARank, 2.5).unwrap(),
    );
    assert!(largest(&first, &second) > 1e-2);
    let both = lost(Plant::SumsLackARank, 2.0).unwrap();
    assert!(largest(&first, &both) > 1e-2);
    assert!(lost(Plant::SumsLackARank, 3.0).is_err(), "eight heads are not three ranks'");
    // What the server loses in short steps alone is the same in these.
    let golden = goldens::prompts().into_iter().find(|golden| golden.name == "capital").unwrap();
    assert!(golden.tokens.len() < 64);
    let small = Planted { plant: Plant::SmallSumsLackARank, dosage: Dosage::Strength(4.0, None) };
    let always = lost(Plant::AttentionSumsLackARank, 4.75).unwrap();
    let short = scores("capital", Some(small)).unwrap().1;
    assert!(largest(&always, &short) < 1e-4, "{}", largest(&always, &short));
}
