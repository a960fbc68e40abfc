//! Rates and queue over time, as a picture.

use super::BIN;
use super::report::Outcome;
use super::scenario::Scenario;
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use trunkline_conn::time::SECOND;

/// Points of a line.
const POINTS: usize = 300;
const SIZE: (u32, u32) = (1000, 560);

/// Draws an outcome, as SVG.
///
/// # Errors
/// It cannot be drawn.
pub fn draw(scenario: &Scenario, outcome: &Outcome) -> Result<String> {
    let mut text = String::new();
    let drawn = picture(scenario, outcome, &mut text);
    drawn.map_err(|error| anyhow!("no picture: {error}"))?;
    Ok(text)
}

fn picture(
    scenario: &Scenario,
    outcome: &Outcome,
    text: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (rates, queue) = root.split_vertically(SIZE.1 * 2 / 3);
    let seconds = scenario.length as f64 / SECOND as f64;
    let bins = scenario.length.div_ceil(BIN) as usize;
    let group = bins.div_ceil(POINTS).max(1);
    let at = |point: usize| (point * group) as f64 * BIN as f64 / SECOND as f64;

    let lines: Vec<Vec<f64>> = outcome
        .flows
        .iter()
        .map(|flow| {
            let groups = flow.bins.chunks(group);
            groups
                .map(|g| g.iter().sum::<u64>() as f64 * 8e3 / (g.len() as u64 * BIN) as f64)
                .collect()
        })
        .collect();
    let most = lines.iter().flatten().fold(1.0, |a: f64, b| a.max(*b));
    let mut chart = ChartBuilder::on(&rates)
        .margin(10)
        .x_label_area_size(28)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..seconds, 0.0..most * 1.05)?;
    chart.configure_mesh().y_desc("Mb/s").draw()?;
    for (index, (flow, line)) in outcome.flows.iter().zip(&lines).enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let points = line.iter().enumerate().map(|(x, y)| (at(x), *y));
        chart
            .draw_series(LineSeries::new(points, color))?
            .label(flow.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .draw()?;

    let waiting: Vec<u64> = outcome
        .queue
        .chunks(group)
        .map(|g| g.iter().copied().max().unwrap_or(0))
        .collect();
    let mut chart = ChartBuilder::on(&queue)
        .margin(10)
        .x_label_area_size(28)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..seconds, 0.0..outcome.max_queue.max(1) as f64 * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_desc("bytes waiting")
        .draw()?;
    let points = waiting.iter().enumerate().map(|(x, y)| (at(x), *y as f64));
    chart.draw_series(LineSeries::new(points, BLACK))?;
    root.present()?;
    Ok(())
}
