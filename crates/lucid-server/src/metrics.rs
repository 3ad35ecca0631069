//! `GET /metrics`: the names of vLLM with the prefix `lucid:`, as `OpenMetrics` text.

use std::fmt;
use std::time::Duration;

use lucid_engine::Engine;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds; from a small model's first token to a long prompt on a slow disk.
const SECONDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Tokens in a prompt or an answer.
const TOKENS: [f64; 14] = [
    1.0, 8.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 32_768.0, 131_072.0, 262_144.0,
];

/// Why an answer ended, in vLLM's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Finished {
    Stop,
    Length,
    /// The client went away, or the server shut down.
    Abort,
    Error,
}

impl Finished {
    const ALL: [Finished; 4] = [Finished::Stop, Finished::Length, Finished::Abort, Finished::Error];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Finished::Stop => "stop",
            Finished::Length => "length",
            Finished::Abort => "abort",
            Finished::Error => "error",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FinishedLabel {
    finished_reason: &'static str,
}

/// Counts and times of requests; what the engine counts is asked of it at every scrape.
pub(crate) struct Metrics {
    registry: Registry,
    process: Registry,
    finished: Family<FinishedLabel, Counter>,
    first_token: Histogram,
    between_tokens: Histogram,
    whole_request: Histogram,
    prompt_tokens: Histogram,
    generation_tokens: Histogram,
}

impl Metrics {
    pub(crate) fn new(model_name: &str, engine: Engine) -> Metrics {
        let labels = [("model_name", model_name.to_owned()), ("engine", "0".to_owned())];
        let mut registry =
            Registry::with_labels(labels.into_iter().map(|(name, value)| (name.into(), value.into())));
        let seconds = || Histogram::new(SECONDS);
        let tokens = || Histogram::new(TOKENS);
        let metrics = Metrics {
            finished: Family::default(),
            first_token: seconds(),
            between_tokens: seconds(),
            whole_request: seconds(),
            prompt_tokens: tokens(),
            generation_tokens: tokens(),
            registry: Registry::default(),
            process: Registry::default(),
        };
        // A counter that exists from the start can be told from one that was lost.
        for reason in Finished::ALL {
            drop(metrics.finished.get_or_create(&FinishedLabel { finished_reason: reason.name() }));
        }
        registry.register(
            "lucid:request_success",
            "Answers by the reason of their end",
            metrics.finished.clone(),
        );
        registry.register(
            "lucid:time_to_first_token_seconds",
            "From the request to its first token",
            metrics.first_token.clone(),
        );
        registry.register(
            "lucid:inter_token_latency_seconds",
            "From a token to the next",
            metrics.between_tokens.clone(),
        );
        registry.register(
            "lucid:e2e_request_latency_seconds",
            "From the request to its end",
            metrics.whole_request.clone(),
        );
        registry.register("lucid:request_prompt_tokens", "Tokens of a prompt", metrics.prompt_tokens.clone());
        registry.register(
            "lucid:request_generation_tokens",
            "Tokens of an answer",
            metrics.generation_tokens.clone(),
        );
        registry.register_collector(Box::new(EngineCollector(engine)));
        // Names without a prefix and without labels, as Prometheus' own clients write them, so that whoever watches
        // processes finds this one's.
        let mut process = Registry::default();
        process.register_collector(Box::new(ProcessCollector));
        Metrics { registry, process, ..metrics }
    }

    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.process)?;
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    pub(crate) fn observe_first_token(&self, since_request: Duration) {
        self.first_token.observe(since_request.as_secs_f64());
    }

    pub(crate) fn observe_next_token(&self, since_last: Duration) {
        self.between_tokens.observe(since_last.as_secs_f64());
    }

    pub(crate) fn observe_end(&self, how: Finished, took: Duration, prompt_tokens: usize, generated: usize) {
        self.finished.get_or_create(&FinishedLabel { finished_reason: how.name() }).inc();
        self.whole_request.observe(took.as_secs_f64());
        self.prompt_tokens.observe(prompt_tokens as f64);
        self.generation_tokens.observe(generated as f64);
    }
}

/// Reads what the operating system says of this process.
#[derive(Debug)]
struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(bytes) = resident_bytes() else { return Ok(()) };
        let gauge = ConstGauge::new(bytes as f64);
        let (name, help) = ("process_resident_memory_bytes", "Memory of the process that is in RAM");
        gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
    }
}

/// `VmRSS` of Linux; `None` elsewhere.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// Reads the engine's own counts.
struct EngineCollector(Engine);

impl fmt::Debug for EngineCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineCollector")
    }
}

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let stats = self.0.stats();
        let kv_usage =
            if stats.kv_pages == 0 { 0.0 } else { stats.kv_pages_used as f64 / stats.kv_pages as f64 };
        let healthy = f64::from(u8::from(self.0.unhealthy().is_none()));
        let gauges = [
            ("lucid:num_requests_running", "Requests that decode or prefill now", stats.running as f64),
            ("lucid:num_requests_waiting", "Requests that wait", stats.waiting as f64),
            ("lucid:kv_cache_usage_perc", "Share of the KV pages in use, 0 to 1", kv_usage),
            ("lucid:healthy", "1 while the engine is healthy", healthy),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let counters = [
            ("lucid:prompt_tokens", "Prompt tokens computed", stats.prompt_tokens),
            (
                "lucid:prompt_tokens_cached",
                "Prompt tokens that came from the prefix cache",
                stats.cached_prompt_tokens,
            ),
            ("lucid:generation_tokens", "Tokens generated", stats.generated_tokens),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}
