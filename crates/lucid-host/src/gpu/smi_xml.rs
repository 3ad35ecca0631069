//! A recorded `nvidia-smi -q -x`: what NVML says, where only the tool can be run (over ssh, in a bundle).

use roxmltree::{Document, Node, ParsingOptions};

use super::nvml::program;
use super::{Gpu, GpuEvidence, GpuProcess, RemappedRows};

/// Eight GPUs write about 200 kB.
const LONGEST: usize = 16 << 20;

/// Reads the XML of `nvidia-smi -q -x`.
///
/// # Errors
/// If the text is no such XML.
pub fn read_smi_xml(xml: &str) -> Result<GpuEvidence, String> {
    if xml.len() > LONGEST {
        return Err(format!("{} bytes of XML; at most {LONGEST} are read", xml.len()));
    }
    // nvidia-smi names a DTD; nothing of it is fetched.
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(xml, options).map_err(|error| error.to_string())?;
    let log = document.root_element();
    if !log.has_tag_name("nvidia_smi_log") {
        return Err(format!("<{}> is not the root of nvidia-smi -q -x", log.tag_name().name()));
    }
    let mut evidence = GpuEvidence { source: "nvidia-smi -q -x".to_owned(), ..GpuEvidence::default() };
    evidence.driver = text(log, &["driver_version"]).map(ToOwned::to_owned);
    evidence.driver_cuda = text(log, &["cuda_version"]).and_then(|version| {
        let (major, minor) = version.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    for (index, gpu) in log.children().filter(|node| node.has_tag_name("gpu")).take(64).enumerate() {
        evidence.gpus.push(read_gpu(gpu, index as u32));
    }
    Ok(evidence)
}

/// The text of a descendant by its path; `N/A` and empty are none.
fn text<'a>(node: Node<'a, '_>, path: &[&str]) -> Option<&'a str> {
    let mut at = node;
    for name in path {
        at = at.children().find(|child| child.has_tag_name(*name))?;
    }
    at.text().map(str::trim).filter(|text| !text.is_empty() && *text != "N/A" && !text.starts_with("[N/A"))
}

/// The number in front of a unit: `700.00 W`, `16x`, `143771 MiB`, `-2 C`.
fn number(node: Node<'_, '_>, path: &[&str]) -> Option<f64> {
    let text = text(node, path)?;
    let end = text.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '-')).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Degrees at which the card slows down. Newer drivers tell how far it is from its limit, and at which distance it slows down.
fn slowdown_temperature(gpu: Node<'_, '_>) -> Option<u32> {
    let degrees = |name: &str| number(gpu, &["temperature", name]);
    let reckoned = || {
        Some(degrees("gpu_temp")? + degrees("gpu_temp_tlimit")? - degrees("gpu_temp_slow_tlimit_threshold")?)
    };
    let told = degrees("gpu_temp_slow_threshold").or_else(reckoned)?;
    (0.0..1000.0).contains(&told).then_some(told as u32)
}

fn whole(node: Node<'_, '_>, path: &[&str]) -> Option<u64> {
    number(node, path).filter(|number| *number >= 0.0).map(|number| number as u64)
}

fn read_gpu(gpu: Node<'_, '_>, index: u32) -> Gpu {
    let small = |path: &[&str]| whole(gpu, path).and_then(|number| u32::try_from(number).ok());
    let mebibytes = |path: &[&str]| whole(gpu, path).map(|number| number << 20);
    // The words of drivers since 550, then older ones.
    let any = |paths: &[&[&str]]| paths.iter().find_map(|path| number(gpu, path));
    let reasons = ["clocks_event_reasons", "clocks_throttle_reasons"]
        .iter()
        .find_map(|name| gpu.children().find(|child| child.has_tag_name(*name)));
    let slowed_by = reasons
        .into_iter()
        .flat_map(|reasons| reasons.children())
        .filter(|reason| reason.text().is_some_and(|text| text.trim() == "Active"))
        .map(|reason| {
            let name = reason.tag_name().name();
            name.trim_start_matches("clocks_event_reason_")
                .trim_start_matches("clocks_throttle_reason_")
                .to_owned()
        })
        .filter(|name| {
            !matches!(name.as_str(), "gpu_idle" | "applications_clocks_setting" | "display_clocks_setting")
        })
        .collect();
    let ecc_sum = |since: &str, kind: &str| {
        let errors = gpu.children().find(|child| child.has_tag_name("ecc_errors"))?;
        let counters = errors.children().find(|child| child.has_tag_name(since))?;
        // SRAM and DRAM are counted apart, some cards split further; old ones have a total.
        let named: Vec<(&str, u64)> = counters
            .descendants()
            .filter_map(|node| Some((node.tag_name().name(), node.text()?.trim().parse().ok()?)))
            .collect();
        // `sram_correctable`; `dram_uncorrectable`, `sram_uncorrectable_parity`.
        let of_kind =
            named.iter().filter(|(name, _)| name.ends_with(kind) || name.contains(&format!("{kind}_")));
        let found: Vec<u64> = of_kind.map(|(_, count)| *count).collect();
        (!found.is_empty()).then(|| found.iter().sum())
    };
    let remapped = whole(gpu, &["remapped_rows", "remapped_row_corr"]).map(|corrected| RemappedRows {
        corrected,
        uncorrected: whole(gpu, &["remapped_rows", "remapped_row_unc"]).unwrap_or(0),
        pending: text(gpu, &["remapped_rows", "remapped_row_pending"]) == Some("Yes"),
        failed: text(gpu, &["remapped_rows", "remapped_row_failure"]) == Some("Yes"),
    });
    let link = |what: &str, now: &str, most: &str| {
        let place = ["pci", "pci_gpu_link_info", what];
        let at = |last| small(&[place[0], place[1], place[2], last]);
        Some((at(now)?, at(most)?))
    };
    let processes = gpu.children().find(|child| child.has_tag_name("processes"));
    Gpu {
        index,
        name: text(gpu, &["product_name"]).unwrap_or_default().to_owned(),
        bus: gpu.attribute("id").unwrap_or_default().to_owned(),
        compute_capability: None,
        memory_bytes: mebibytes(&["fb_memory_usage", "total"]).unwrap_or(0),
        used_bytes: mebibytes(&["fb_memory_usage", "used"]).unwrap_or(0),
        processes: processes
            .into_iter()
            .flat_map(|all| all.children())
            .filter(|child| child.has_tag_name("process_info"))
            .take(64)
            .map(|process| GpuProcess {
                pid: whole(process, &["pid"]).and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0),
                name: text(process, &["process_name"]).map(program).unwrap_or_default(),
                used_bytes: whole(process, &["used_memory"]).map(|mebibytes| mebibytes << 20),
            })
            .collect(),
        utilization: small(&["utilization", "gpu_util"]),
        temperature: small(&["temperature", "gpu_temp"]),
        slowdown_temperature: slowdown_temperature(gpu),
        power_w: any(&[
            &["gpu_power_readings", "instant_power_draw"],
            &["gpu_power_readings", "power_draw"],
            &["power_readings", "power_draw"],
        ]),
        power_limit_w: any(&[
            &["gpu_power_readings", "current_power_limit"],
            &["power_readings", "enforced_power_limit"],
        ]),
        default_power_limit_w: any(&[
            &["gpu_power_readings", "default_power_limit"],
            &["power_readings", "default_power_limit"],
        ]),
        clock_mhz: small(&["clocks", "sm_clock"]),
        max_clock_mhz: small(&["max_clocks", "sm_clock"]),
        slowed_by,
        ecc: text(gpu, &["ecc_mode", "current_ecc"]).map(|mode| mode == "Enabled"),
        corrected_now: ecc_sum("volatile", "_correctable"),
        uncorrected_now: ecc_sum("volatile", "_uncorrectable"),
        corrected_ever: ecc_sum("aggregate", "_correctable"),
        uncorrected_ever: ecc_sum("aggregate", "_uncorrectable"),
        remapped,
        retirement_pending: text(gpu, &["retired_pages", "pending_retirement"])
            .map(|pending| pending == "Yes"),
        pcie_generation: link("pcie_gen", "current_link_gen", "max_link_gen"),
        pcie_lanes: link("link_widths", "current_link_width", "max_link_width"),
        pcie_replays: whole(gpu, &["pci", "replay_counter"]),
        persistence: text(gpu, &["persistence_mode"]).map(|mode| mode == "Enabled"),
        mig: text(gpu, &["mig_mode", "current_mig"]).map(|mode| mode == "Enabled"),
        fabric: text(gpu, &["fabric", "state"]).map(ToOwned::to_owned),
        nv_links: None,
    }
}
