//! What was measured, for people and for programs.

use crate::arena::{Case, Way};
use crate::measure::{BATCHES, Figure, Measured};
use std::fmt::Write;

/// Bytes in the words of people.
pub(crate) fn size(bytes: usize) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mib => format!("{mib} MiB"),
    }
}

/// Nanoseconds a block, and what that is in GB/s.
fn cell(case: Case, figure: Figure) -> String {
    let rate = case.block as f64 / figure.median;
    format!("{:.0} ({rate:.1})", figure.median)
}

/// Nanoseconds a block (GB/s): medians.
pub(crate) fn text(measured: &[Measured]) -> String {
    let mut text = String::from(
        "Medians, in ns a block (GB/s); hand-over in ns a copy: submit, kick and poll by batches.\n\
         \n| block | sources | destinations | fused | copy, then sum | copy | sum |",
    );
    for batch in BATCHES {
        let _ = write!(text, " hand-over, {batch} |");
    }
    text.push_str(" sum beside engine | fused on two cores |\n|");
    text.push_str(&" --- |".repeat(BATCHES.len() + 9));
    text.push('\n');
    for one in measured {
        let case = one.case;
        let sizes = [case.block, case.sources, case.destinations];
        let _ = write!(text, "| {} |", sizes.map(size).join(" | "));
        for figure in [one.fused, one.copy_then_sum, one.copy, one.sum] {
            let _ = write!(text, " {} |", cell(case, figure));
        }
        for figure in one.hand_over {
            let _ = match figure {
                Some(figure) => write!(text, " {:.0} |", figure.median),
                None => write!(text, " - |"),
            };
        }
        for figure in [one.sum_beside_engine, one.fused_on_two_cores] {
            let _ = write!(text, " {} |", cell(case, figure));
        }
        text.push('\n');
    }
    text
}

/// All figures with their quartiles, in nanoseconds a block.
pub(crate) fn json(measured: &[Measured]) -> String {
    let rows: Vec<_> = measured.iter().map(row).collect();
    format!("[\n{}\n]\n", rows.join(",\n"))
}

fn row(one: &Measured) -> String {
    let mut fields = vec![
        format!("\"block_bytes\": {}", one.case.block),
        format!("\"sources_bytes\": {}", one.case.sources),
        format!("\"destinations_bytes\": {}", one.case.destinations),
        format!("\"is_gather\": {}", one.case.way == Way::Gather),
    ];
    let mut add = |name: &str, figure: Option<Figure>| {
        let value = figure.map_or("null".to_owned(), |figure| {
            let Figure { median, low, high } = figure;
            format!("{{\"median\": {median:.1}, \"low\": {low:.1}, \"high\": {high:.1}}}")
        });
        fields.push(format!("\"{name}_ns\": {value}"));
    };
    add("fused", Some(one.fused));
    add("copy_then_sum", Some(one.copy_then_sum));
    add("copy", Some(one.copy));
    add("sum", Some(one.sum));
    for (batch, figure) in BATCHES.into_iter().zip(one.hand_over) {
        add(&format!("hand_over_{batch}"), figure);
    }
    add("sum_beside_engine", Some(one.sum_beside_engine));
    add("fused_on_two_cores", Some(one.fused_on_two_cores));
    format!("  {{{}}}", fields.join(", "))
}
